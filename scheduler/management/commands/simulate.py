"""Play a workload under one or more policies and compare them: waits, slowdown, use, fairness, and who lost.

TRACE is a log in the Standard Workload Format, a table of openb pods (CSV, with its table of nodes beside it),
`cycle:NUMBER` (a recorded cycle, played to its end), or one of our own making: `rigid:SEED:JOBS`, `gpu:SEED:JOBS`. A
profile is the name of a stored one, or said in words, such as `fifo+easy`, `sjf`, `priority+conservative+preempt`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import User
from scheduler.core.codec import CodecError, decode_snapshot
from scheduler.core.policy import Policy
from scheduler.services.cycles import installed_plugins
from scheduler.services.profiles import policy_of_profile
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
        parser.add_argument("--jobs", type=int, help="only the first so many jobs to come")
        parser.add_argument("--nodes", type=Path, metavar="FILE", help="the nodes of a table of openb pods")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots as well")

    def handle(self, *args: Any, trace: str, profiles: list[str] | None, **options: Any) -> None:
        try:
            workload = _open(trace, options["nodes"])
            if options["jobs"]:
                workload = workload.head(options["jobs"])
            policies = [(name, _policy(name)) for name in profiles or ["fifo", "fifo+easy"]]
        except (WorkloadError, CodecError, recordings.NotRecorded, ValueError) as problem:
            raise CommandError(str(problem)) from problem
        plugins = installed_plugins()
        results = [
            run(workload, name, policy, plugins=plugins, progress=self._progress) for name, policy in policies
        ]
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


def _open(trace: str, nodes: Path | None) -> Workload | ClusterWorkload:
    kind, _, number = trace.partition(":")
    if kind != "cycle" or not number.isdigit():
        return open_workload(trace, nodes)
    workload = from_snapshot(decode_snapshot(recordings.load(int(number)).snapshot), trace)
    people = set(workload.snapshot.pending.user_id.tolist())
    return replace(workload, users=dict(User.objects.filter(pk__in=people).values_list("pk", "username")))


def _policy(name: str) -> Policy:
    """A stored profile (`profile:NAME` where its name could be read as words), or a policy in words."""
    stored = name.removeprefix("profile:")
    if stored == name:
        try:
            return policy_of(name)
        except ValueError as problem:
            found = policy_of_profile(stored)
            if found is None:
                raise ValueError(f"there is no profile {name!r}; and {problem}") from problem
            return found
    found = policy_of_profile(stored)
    if found is None:
        raise ValueError(f"there is no profile {stored!r}")
    return found
