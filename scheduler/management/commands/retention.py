"""Throws away what has grown old, as beat does every hour; or says what would go."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler.models import RetentionRun
from scheduler.services import retention


class Command(BaseCommand):
    help = (
        "Prunes and rolls up rows older than the retention settings. No figure of the ledger is lost, and the audit"
        " trail can still be proved."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="show what would be pruned, and change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        dry = options["dry_run"]
        counts = retention.preview() if dry else retention.prune_all()
        if not dry and not counts:
            raise CommandError("Another run is in progress; nothing was done.")
        self.stdout.write(f"{'rows to go' if dry else 'rows gone':>12}  what, and how long it is kept")
        for rule in retention.rules():
            self.stdout.write(f"{counts[rule.name]:>12,}  {rule.words}: {retention.kept_for(rule)}")
        self.stdout.write(f"{sum(counts.values()):>12,}  in all")
        run = None if dry else RetentionRun.objects.first()
        if run is not None and run.problem:
            self.stderr.write(f"Left: {run.problem}")
