"""What `manage.py check` refuses or warns of."""

from __future__ import annotations

import pytest
from django.conf import LazySettings

from config.checks import check_silence, check_unused


@pytest.mark.parametrize(
    ("silent", "hold", "refused"), [(30, 20.0, False), (20, 20.0, True), (5, 20.0, True)]
)
def test_a_node_that_waits_for_orders_must_not_count_as_silent(
    settings: LazySettings, silent: int, hold: float, refused: bool
) -> None:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_SYNC_HOLD_SECONDS = silent, hold

    assert [one.id for one in check_silence()] == ["muster.E003"] * refused


def test_a_setting_that_nothing_uses_is_named(settings: LazySettings) -> None:
    settings.INVENTORY_SERVICE_URL, settings.CHECKPOINT_PATH = "", "/tmp/checkpoints"
    assert check_unused() == []

    settings.INVENTORY_SERVICE_URL = "http://inventory.example.org"
    assert [one.msg.split()[0] for one in check_unused()] == ["INVENTORY_SERVICE_URL"]
