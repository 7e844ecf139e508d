"""`manage.py settings`: each setting with its value and where the value comes from."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from config.settings.declared import GROUPS, SETTINGS, Setting, allowed, source_of
from config.system.facts import value_of

MASK: Final = "[secret]"


class Command(BaseCommand):
    help = (
        "Shows each setting with its value and the source of the value: default, environment, a line of the settings "
        "file, or the database for what was changed at run time. Values of secrets are not shown."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these; with what each allows")
        parser.add_argument("--set", action="store_true", help="only those that are not at their default")
        parser.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if wrong := [name for name in options["names"] if name not in SETTINGS]:
            raise CommandError(f"There is no setting {', '.join(wrong)}. `manage.py settings` lists all.")
        try:
            at_run_time = _fair_share_rules()
        except DatabaseError as error:
            at_run_time = {}
            why = str(error).splitlines()[0]
            self.stderr.write(
                f"The database could not be read, so settings changed at run time are not shown: {why}"
            )
        rows = [
            (title, _row(setting, at_run_time))
            for title, group in GROUPS
            for setting in group
            if not options["names"] or setting.name in options["names"]
        ]
        if options["set"]:
            rows = [(title, row) for title, row in rows if row["source"] != "default"]
        if options["json"]:
            self.stdout.write(json.dumps([row for _, row in rows], indent=1))
            return
        self._write(rows, whole=bool(options["names"]))

    def _write(self, rows: list[tuple[str, dict[str, Any]]], *, whole: bool) -> None:
        width = max((len(row["name"]) for _, row in rows), default=0)
        before = ""
        for title, row in rows:
            if title != before:
                self.stdout.write(f"{title}:")
                before = title
            unit = f" {row['unit']}" if row["unit"] and row["value"] is not None else ""
            self.stdout.write(f"  {row['name']:<{width}}  {shown(row['value'])}{unit}  ({row['source']})")
            if whole:
                self.stdout.write(f"    {row['meaning']}\n    Allowed: {row['allowed']}.")


def _row(setting: Setting, at_run_time: dict[str, Any]) -> dict[str, Any]:
    value, source = value_of(setting.name), source_of(setting.name)
    if setting.name in at_run_time:
        value, source = at_run_time[setting.name], "database"
    if setting.secret:
        value = MASK if value else None
    return {
        "name": setting.name,
        "value": value,
        "unit": setting.unit,
        "source": source,
        "meaning": setting.meaning,
        "allowed": allowed(setting),
    }


def _fair_share_rules() -> dict[str, Any]:
    """The fair-share rules that were set at run time, by the setting that they come before; empty: none were."""
    from quotas.models import FairShareRules

    rules = FairShareRules.objects.order_by("-id").first()
    if rules is None or rules.from_settings:
        return {}
    return {
        "MUSTER_FAIRSHARE_MODE": rules.mode,
        "MUSTER_FAIRSHARE_HALF_LIFE_SECONDS": rules.half_life_seconds,
        "MUSTER_FAIRSHARE_WINDOW_SECONDS": rules.window_seconds,
        "MUSTER_FAIRSHARE_WEIGHTS": {"gpu": rules.gpu_weight, "cpu": rules.cpu_weight, "memory": rules.memory_weight},
        "MUSTER_FAIRSHARE_DOMINANT": rules.dominant,
    }  # fmt: skip


def shown(value: Any) -> str:
    """A value as it would be written in the environment."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or '""'
    if isinstance(value, dict):
        return ",".join(f"{name}={number:g}" for name, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'
