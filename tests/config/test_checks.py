"""What `manage.py check` refuses or warns of."""

from __future__ import annotations

import pytest
from django.conf import LazySettings

from config.checks import check_names, check_silence


@pytest.mark.parametrize(
    ("silent", "hold", "refused"), [(30, 20.0, False), (20, 20.0, True), (5, 20.0, True)]
)
def test_a_node_that_waits_for_orders_must_not_count_as_silent(
    settings: LazySettings, silent: int, hold: float, refused: bool
) -> None:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_SYNC_HOLD_SECONDS = silent, hold

    assert [one.id for one in check_silence()] == ["muster.E003"] * refused


def test_a_variable_that_looks_like_a_setting_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_names() == []

    monkeypatch.setenv("MUSTER_LEASE_SECOND", "3")
    assert [(one.id, one.hint) for one in check_names()] == [
        ("muster.W004", "Do you mean MUSTER_LEASE_SECONDS?")
    ]
