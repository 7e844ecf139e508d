"""Plan a recorded cycle again and say whether the same plan comes out; exits 1 when it does not."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.core.placement.plugins import PluginError
from scheduler.core.snapshot.codec import CodecError
from scheduler.models import Cycle
from scheduler.services.planning.replay import describe, replay
from scheduler.state.records.recordings import NotRecorded


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "cycle", nargs="?", type=int, help="its number; the last recorded one when left out"
        )
        parser.add_argument("--show", action="store_true", help="print the recorded plan in words")

    def handle(self, *args: Any, cycle: int | None, show: bool, **options: Any) -> None:
        cycle_id = cycle if cycle is not None else self._last()
        try:
            result = replay(cycle_id=cycle_id)
        except (NotRecorded, CodecError, PluginError) as problem:
            raise CommandError(str(problem)) from problem
        if show:
            for line in describe(result.recorded, result.snapshot):
                self.stdout.write(line)
        if not result.identical:
            raise CommandError(f"cycle {cycle_id}: the plan differs. First difference: {result.difference}")
        self.stdout.write(
            f"cycle {cycle_id}: identical, {len(result.recorded.starts)} starts, plan {result.digest}"
        )

    def _last(self) -> int:
        found = (
            Cycle.objects.filter(snapshot__isnull=False).order_by("-id").values_list("id", flat=True).first()
        )
        if found is None:
            raise CommandError("no cycle has been recorded yet")
        return int(found)
