"""Play a workload under one or more policies and compare them: waits, slowdown, use, fairness, and who lost.

TRACE is a log in the Standard Workload Format, `cycle:NUMBER` (a recorded cycle, played to its end), or one of our
own making: `rigid:SEED:JOBS`, `gpu:SEED:JOBS`. A profile is said in words, such as
`fifo+easy`, `sjf`, `priority+conservative`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.core.codec import CodecError, decode_snapshot
from scheduler.simulator.cluster import ClusterWorkload
from scheduler.simulator.compare import as_html, as_json, as_text, open_workload, policy_of, run
from scheduler.simulator.made import from_snapshot
from scheduler.simulator.workload import Workload, WorkloadError
from scheduler.state import recordings


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace")
        parser.add_argument(
            "--profile", action="append", dest="profiles", metavar="P", help="may be given again"
        )
        parser.add_argument("--jobs", type=int, help="only the first so many jobs of a log")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots as well")

    def handle(self, *args: Any, trace: str, profiles: list[str] | None, **options: Any) -> None:
        try:
            workload = _open(trace)
            if options["jobs"] and isinstance(workload, Workload):
                workload = workload.head(options["jobs"])
            policies = [(name, policy_of(name)) for name in profiles or ["fifo", "fifo+easy"]]
        except (WorkloadError, CodecError, recordings.NotRecorded, ValueError) as problem:
            raise CommandError(str(problem)) from problem
        results = [run(workload, name, policy, progress=self._progress) for name, policy in policies]
        if sys.stderr.isatty():
            self.stderr.write("\r" + " " * 60 + "\r", ending="")
        self.stdout.write(as_json(trace, results) if options["json"] else as_text(results))
        if options["html"]:
            options["html"].write_text(as_html(trace, results), encoding="utf-8")
            self.stderr.write(f"written to {options['html']}")

    def _progress(self, name: str, ended: int, jobs: int) -> None:
        if sys.stderr.isatty():
            done = 30 * ended // max(jobs, 1)
            self.stderr.write(f"\r{name:<24} [{'#' * done}{'.' * (30 - done)}] {ended:,}/{jobs:,}", ending="")


def _open(trace: str) -> Workload | ClusterWorkload:
    kind, _, number = trace.partition(":")
    if kind == "cycle" and number.isdigit():
        return from_snapshot(decode_snapshot(recordings.load(int(number)).snapshot), trace)
    return open_workload(trace)
