"""`manage.py share`: who is entitled to what, who used what, and whose turn it is."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from quotas.selectors.fair_share_report import ShareLine, standing

HEADINGS = ("weight", "share", "of use", "of site", "GPU-hours", "factor", "place")


class Command(BaseCommand):
    help = "Shows the fair-share standing of projects and people in sentences; --tree shows the whole tree in figures."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--tree", action="store_true", help="organizations, projects and people, in figures"
        )
        parser.add_argument("--json", action="store_true", help="the same as data")
        parser.add_argument(
            "--as", dest="person", default="", help="as this person sees it (default: an administrator)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        found = standing(_person(options["person"]))
        lines = found.lines if options["tree"] else [line for line in found.lines if line.kind == "project"]
        if not options["tree"]:
            lines = sorted(lines, key=lambda line: (line.place is None, line.place or 0))
        if options["json"]:
            self.stdout.write(json.dumps([asdict(line) for line in lines], indent=2))
            return
        self.stdout.write(found.words)
        if options["tree"]:
            self._tree(lines)
        else:
            for line in lines:
                self.stdout.write(f"{line.name}: {line.sentence}")
        if found.left_out:
            self.stdout.write(f"{found.left_out} more are not shown.")

    def _tree(self, lines: Any) -> None:
        names = [f"{'  ' * line.depth}{line.name}" for line in lines]
        wide = max(map(len, names), default=0)
        self.stdout.write(" ".join([" " * wide, *(f"{heading:>10}" for heading in HEADINGS)]))
        for name, line in zip(names, lines, strict=True):
            over = f"  over its {line.over} limit" if line.over else ""
            self.stdout.write(" ".join([f"{name:<{wide}}", *(f"{cell:>10}" for cell in _cells(line))]) + over)


def _cells(line: ShareLine) -> tuple[str, ...]:
    return (
        str(line.weight),
        f"{100 * line.share:.1f} %",
        f"{100 * line.ratio:.1f} %",
        f"{100 * line.entitled:.1f} %",
        f"{line.used_gpu_hours:,.1f}",
        "–" if line.factor is None else f"{line.factor:.2f}",
        "–" if line.place is None else f"{line.place} of {line.of}",
    )


def _person(name: str) -> User:
    people = User.objects.filter(is_active=True).order_by("pk")
    if name:
        person = people.filter(username=name).first()
    else:
        person = next((one for one in people if one.is_site_admin), None)
    if person is None:
        raise CommandError(f"There is nobody called {name!r}." if name else "There is no administrator yet.")
    return person
