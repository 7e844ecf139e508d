"""Play a workload under one or more policies and compare them: waits, slowdown, use, fairness, and who lost.

TRACE is a log in the Standard Workload Format, a table of openb pods (CSV, with its table of nodes beside it),
`past:7d` (what waited and ran here in the last seven days; hours as `past:36h`), `cycle:NUMBER` (a recorded cycle,
simulated to its end), or a synthetic one: `rigid:SEED:JOBS`, `gpu:SEED:JOBS`. A profile is the name of a stored one,
or a policy in words, such as `fifo+easy`, `sjf`, `priority+conservative+preempt`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from accounts.models import User
from scheduler.core.policy import Policy
from scheduler.core.snapshot.codec import CodecError, decode_snapshot
from scheduler.models import Cluster
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.profiles import policy_of_profile
from scheduler.simulator.cluster_workload import ClusterWorkload, from_snapshot
from scheduler.simulator.compare import as_it_was, open_workload, policy_of, run
from scheduler.simulator.comparison_output import as_html, as_json, as_text
from scheduler.simulator.workload import Workload, WorkloadError
from scheduler.state.load.history import load_past
from scheduler.state.records import recordings


class Command(BaseCommand):
    help = __doc__
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace")
        parser.add_argument(
            "--profile", action="append", dest="profiles", metavar="P", help="may be given again"
        )
        parser.add_argument("--jobs", type=int, help="only this many jobs, the first to arrive")
        parser.add_argument(
            "--nodes", type=Path, metavar="FILE", help="the table of nodes for a table of openb pods"
        )
        parser.add_argument(
            "--cluster", metavar="NAME", help="the cluster of `past`, where there are several"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots as well")

    def handle(self, *args: Any, trace: str, profiles: list[str] | None, **options: Any) -> None:
        try:
            workload = self._open(trace, options)
            if options["jobs"]:
                workload = workload.head(options["jobs"])
            policies = [(name, _policy(name)) for name in profiles or ["fifo", "fifo+easy"]]
        except (WorkloadError, CodecError, recordings.NotRecorded, LookupError, ValueError) as problem:
            raise CommandError(str(problem)) from problem
        plugins = installed_plugins()
        known = isinstance(workload, ClusterWorkload) and workload.started_ms is not None
        results = [as_it_was(workload)] if known else []  # type: ignore[arg-type]
        results += [
            run(workload, name, policy, plugins=plugins, progress=self._progress) for name, policy in policies
        ]
        if sys.stderr.isatty():
            self.stderr.write("\r" + " " * 60 + "\r", ending="")
        self.stdout.write(as_json(trace, results) if options["json"] else as_text(results))
        if options["html"]:
            options["html"].write_text(as_html(trace, results), encoding="utf-8")
            self.stderr.write(f"written to {options['html']}")

    def _open(self, trace: str, options: dict[str, Any]) -> Workload | ClusterWorkload:
        kind, _, rest = trace.partition(":")
        if kind == "past" and (span := _span(rest)):
            now = timezone.now()
            past = load_past(cluster_id=_cluster(options["cluster"]).pk, since=now - span, until=now)
            if past.unfinished:
                self.stderr.write(
                    f"{past.unfinished:,} jobs still run or wait; they are taken to run for their whole limit."
                )
            return replace(past.workload, users=_names(past.workload))
        if kind == "cycle" and rest.isdigit():
            workload = from_snapshot(decode_snapshot(recordings.load(int(rest)).snapshot), trace)
            return replace(workload, users=_names(workload))
        return open_workload(trace, options["nodes"])

    def _progress(self, name: str, ended: int, jobs: int) -> None:
        if sys.stderr.isatty():
            done = 30 * ended // max(jobs, 1)
            self.stderr.write(f"\r{name:<24} [{'#' * done}{'.' * (30 - done)}] {ended:,}/{jobs:,}", ending="")


def _span(words: str) -> timedelta | None:
    """`7d` and `36h`; None for anything else."""
    number, unit = words[:-1], words[-1:]
    if not number.isdigit() or unit not in ("d", "h") or not 0 < int(number) <= 10_000:
        return None
    return timedelta(days=int(number)) if unit == "d" else timedelta(hours=int(number))


def _cluster(name: str | None) -> Cluster:
    found = list(Cluster.objects.filter(**{"name": name} if name else {}).order_by("pk")[:20])
    if len(found) == 1:
        return found[0]
    names = ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True)[:20])
    if name:
        raise ValueError(f"there is no cluster {name!r}; there are {names}")
    raise ValueError(f"name one with --cluster: {names}" if found else "there is no cluster yet")


def _names(workload: ClusterWorkload) -> dict[int, str]:
    people = set(workload.snapshot.pending.user_id.tolist())
    return dict(User.objects.filter(pk__in=people).values_list("pk", "username"))


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
