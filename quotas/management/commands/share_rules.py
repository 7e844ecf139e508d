"""`manage.py share_rules`: half-life, window and weights of fair share: show, preview, set, reset."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from infra.errors import MusterError
from quotas.core.decay import MODES
from quotas.selectors.fair_share_source import settings_rules, share_rules
from quotas.selectors.share_preview import preview_rules
from quotas.services.share_rules import (
    FIELDS,
    reset_share_rules,
    rules_with,
    set_share_rules,
    values_of,
)


class Command(BaseCommand):
    help = (
        "Shows the rules of fair share and where they come from. With values: previews them with --preview, else"
        " puts them in force, which needs --by and --reason. Rules set so go before the settings MUSTER_FAIRSHARE_*."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--mode", choices=MODES, help="how past use counts less")
        parser.add_argument("--half-life-seconds", type=int, help="after so long, use counts half")
        parser.add_argument("--window-seconds", type=int, help="use before the window does not count")
        for name in ("gpu", "cpu", "memory"):
            parser.add_argument(
                f"--{name}-weight", type=float, help=f"what an hour of one unit of {name} counts"
            )
        parser.add_argument("--dominant", choices=["true", "false"], help="count the dominant resource only")
        parser.add_argument(
            "--preview", action="store_true", help="show what would change, and change nothing"
        )
        parser.add_argument("--reset", action="store_true", help="put the settings in force again")
        parser.add_argument("--by", default="", help="the operator who changes them")
        parser.add_argument("--reason", default="", help="recorded in the audit trail")

    def handle(self, *args: Any, **options: Any) -> None:
        changes = {name: options[name] for name in FIELDS if options[name] is not None}
        if "dominant" in changes:
            changes["dominant"] = changes["dominant"] == "true"
        if options["reset"] and changes:
            raise CommandError("Say either values or --reset.")
        try:
            if options["preview"]:
                self._preview(changes)
                return
            if options["reset"]:
                reset_share_rules(by=_operator(options["by"]), reason=options["reason"])
            elif changes:
                set_share_rules(changes=changes, by=_operator(options["by"]), reason=options["reason"])
        except MusterError as error:
            raise CommandError(str(error)) from error
        self._show()

    def _show(self) -> None:
        in_force, of_settings = values_of(*share_rules()), values_of(*settings_rules())
        self.stdout.write(json.dumps(in_force, indent=2))
        if in_force != of_settings:
            self.stdout.write(
                "Set at run time; the settings MUSTER_FAIRSHARE_* say otherwise and are not read:"
                f" {json.dumps(of_settings)}"
            )

    def _preview(self, changes: dict[str, Any]) -> None:
        found = preview_rules(*rules_with(changes))
        self.stdout.write("project: hours that count, factor; then with these rules")
        for one in found.projects:
            self.stdout.write(
                f"{one.name}: {one.used_hours_now:,.1f}, {one.factor_now:.2f};"
                f" {one.used_hours_then:,.1f}, {one.factor_then:.2f}"
            )
        self.stdout.write(f"{found.moved} of {found.waiting} waiting jobs would have another place.")
        for job in found.jobs:
            self.stdout.write(
                f"job {job.number} of {job.person} in {job.project}: {job.place_now} -> {job.place_then}"
            )


def _operator(name: str) -> User:
    person = User.objects.filter(username=name, is_active=True).first()
    if person is None:
        raise CommandError(f"There is nobody called {name!r}; name an operator with --by.")
    return person
