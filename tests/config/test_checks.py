"""What `manage.py check` refuses or warns of."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.core.checks.registry import registry
from django.core.management import get_commands, load_command_class

from config.apps import check_admin
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


def test_the_pages_of_the_admin_are_loaded_for_their_checks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows no page does not load them: a third of what a command needs to start."""
    loaded: list[str] = []
    monkeypatch.setattr(admin, "autodiscover", lambda: loaded.append("admin"))

    assert check_admin(None) == []

    assert loaded == ["admin"]
    assert check_admin in registry.registered_checks
    assert not isinstance(apps.get_app_config("admin"), AdminConfig), "it would load them at each start"


def test_a_command_of_ours_starts_without_the_checks_that_load_every_page() -> None:
    ours = {"accounts", "config", "notifications", "quotas", "scheduler"}
    commands = {name: app for name, app in get_commands().items() if app in ours}
    assert len(commands) > 20

    checked = {name for name, app in commands.items() if load_command_class(app, name).requires_system_checks}

    assert checked == {"migrate"}
