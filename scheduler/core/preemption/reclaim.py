"""Reclaim: jobs that run on borrowed quota, for whom it is taken back, and what a lowered limit takes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import Preemptor, RunningJobs, leaving_rows
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import Preempt
from scheduler.core.preemption.victim_search import VictimSearch
from scheduler.core.preemption_policy import PreemptionPolicy


class Claim(NamedTuple):
    """A line whose own share covers a job, and the line above it, where others may have borrowed."""

    own: int
    above: int


class Lenders:
    """Finds the borrowers that hold what is a waiting job's by right.

    A job has a claim on each line of its path whose nominal covers it together with what is in use there.
    Borrowers are jobs of others below the same line above, where every line of theirs on the way that says a
    nominal is above it: so no payer loses what is its own, and nothing is taken from lines that the claimant shares.
    """

    def __init__(self, context: CycleContext) -> None:
        self._context = context
        self._limits = context.workspace.limits.tree
        self._lines = context.cluster.paths.lines

    def claims(self, job_class: JobClass) -> list[Claim]:
        """The claims of the jobs of a class to what keeps them waiting."""
        workspace, limits = self._context.workspace, self._limits
        charges = [
            *self._context.charges(job_class),
            *((one.line, one.amount)
              for one in self._context.open_lines(job_class)),
        ]  # fmt: skip
        short = workspace.limits.short_quota(tuple(charges))
        wanted = self._scarce(job_class) if short is None else {self._resource(short[0])}
        found = []
        for line, need in charges:
            above = limits.parent[line]
            if above < 0 or limits.nominal[line] < 0 or self._resource(line) not in wanted:
                continue
            if short is not None and short[0] not in limits.path(above):
                continue  # what is full is its own, or none that it shares here
            if limits.used[line] + need <= limits.nominal[line]:
                found.append(Claim(line, above))
        return found

    def borrowing(self, claims: list[Claim], payer: int) -> int | None:
        """The line on which a payer has borrowed what one of the claims is on; None when it has not."""
        for claim in claims:
            if claim.own in self._lines[payer]:
                continue  # its own people
            side = list(self._side(claim.above, payer))
            if side and all(self._limits.borrowed(line) > 0 for line in side if self._says(line)):
                top = side[-1]
                if self._says(top):
                    return top
        return None

    def _side(self, above: int, payer: int) -> Iterator[int]:
        """The payer's lines below that line which limit the same, lowest first."""
        for line in self._lines[payer]:
            if line != above and above in self._limits.path(line):
                yield line

    def _says(self, line: int) -> bool:
        return self._limits.nominal[line] >= 0

    def _resource(self, line: int) -> str:
        return self._context.cluster.snapshot.quotas.resource[line]

    def _scarce(self, job_class: JobClass) -> set[str]:
        """Nothing but room on nodes is short: of GPUs where it asks for some."""
        per_task = job_class.query.request.per_task
        return {"gpu_millis", "gpus"} if per_task.gpus else {"cpu_millis", "memory_mib", "storage_mib"}


def lines_to_converge(context: CycleContext) -> list[int]:
    """Lines that were cut below what is in use, and whose time to be kept again has come."""
    quotas, limits = context.cluster.snapshot.quotas, context.workspace.limits.tree
    if not quotas.converge_ms.any():
        return []
    due = np.flatnonzero((quotas.converge_ms > 0) & (quotas.converge_ms <= context.cluster.snapshot.now_ms))
    return [line for line in due.tolist() if limits.used[line] > limits.bound[line]]


def latest_first(context: CycleContext, allowed: Bools) -> Ints:
    """Running rows, the last to start first."""
    running = context.cluster.snapshot.running
    rows = np.flatnonzero(allowed)
    return rows[np.lexsort((-running.id[rows], -running.started_ms[rows]))]


class ReclaimSearch(VictimSearch):
    """Finds jobs that run on borrowed quota, for one that its own share covers: the last to start first."""

    def __init__(self, search: VictimSearch) -> None:
        # The same jobs are left and the same may be lost, by whatever right they are stopped.
        self.context, self.jobs, self.rules = search.context, search.jobs, search.rules
        self.cost, self.loss, self.standing = search.cost, search.loss, search.standing
        self._open, self._budget, self.bound = search._open, search._budget, search.bound
        order = latest_first(self.context, np.ones(len(self._open), dtype=np.bool_))
        self.rank = np.empty(len(order), dtype=np.int64)
        self.rank[order] = np.arange(len(order))
        self._lenders = Lenders(self.context)
        self._claims: list[Claim] = []

    @property
    def by_resource(self) -> bool:
        """What was lent is taken back by who has borrowed, whatever else they hold."""
        return False

    def allowed(self, wanted: Preemptor, priority: int) -> Bools:
        self._claims = self._lenders.claims(wanted.job_class)
        payers = self.context.cluster.paths.running
        if not self._claims:
            return np.zeros(len(payers), dtype=np.bool_)
        borrow = [
            payer for payer in np.unique(payers).tolist()
            if self._lenders.borrowing(self._claims, payer) is not None
        ]  # fmt: skip
        held = self.jobs.gpu_millis if wanted.job_class.query.request.per_task.gpus else self.jobs.cpu_millis
        found: Bools = np.isin(payers, borrow) & self._open & (held > 0)
        return found

    def spares(self, victim: int) -> bool:
        payer = self.context.cluster.paths.running.item(victim)
        return self._lenders.borrowing(self._claims, payer) is None

    def lines_of(self, wanted: Preemptor, priority: int, victims: Sequence[int]) -> list[str]:
        """Whose lines have borrowed, of victims that were found for a job."""
        self.allowed(wanted, priority)
        return [self.line_of(victim) for victim in victims]

    def line_of(self, victim: int) -> str:
        """Whose line has borrowed, of a victim that was just found."""
        payer = self.context.cluster.paths.running.item(victim)
        line = self._lenders.borrowing(self._claims, payer)
        return "" if line is None else self.context.cluster.snapshot.quotas.owner[line]

    def worth(self, victims: Sequence[int]) -> tuple[int, ...]:
        """Less is better: few, then the latest started."""
        running = self.context.cluster.snapshot.running
        return (
            len(victims),
            *sorted((-running.started_ms[victims]).tolist()),
            *sorted((-running.id[victims]).tolist()),
        )


def to_converge(
    context: CycleContext,
    rules: PreemptionPolicy,
    most: int,
    leaving: Sequence[Preempt],
    jobs: RunningJobs | None = None,
    search: VictimSearch | None = None,
) -> list[Preempt]:
    """Jobs to stop, at most `most`, so that limits which were cut hold again, the last to start first.

    With `jobs` their removal is simulated for the rest of the cycle, as that of jobs which were asked to end before.
    """
    due = lines_to_converge(context)
    if not due:
        return []
    running = context.cluster.snapshot.running
    going = (running.stop_by_ms > 0) | np.isin(running.id, [preempt.job_id for preempt in leaving])
    with context.workspace.trial() as trial:
        if jobs is None:
            jobs = _without_leaving(context, going)
        else:
            trial.keep()
        convergence = _Convergence(context, jobs, due)
        chosen = convergence.stop_latest(running.preemptible & ~going, most)
        convergence.spare_earliest(chosen)
        if search is not None:
            for victim in chosen:
                search.spend([victim])
        return [convergence.preempt(victim, rules.grace_seconds) for victim in chosen]


def _without_leaving(context: CycleContext, going: Bools) -> RunningJobs:
    """The running jobs, without what is asked to end: tasks of jobs that go on, and the jobs in `going`."""
    jobs = RunningJobs(context)
    for giving in leaving_rows(context.cluster).tolist():
        jobs.release_leaving(giving)
    for victim in np.flatnonzero(going).tolist():
        jobs.release(victim)
    return jobs


class _Convergence:
    """Lines over their limits, and running jobs that are removed in simulation until these hold again."""

    def __init__(self, context: CycleContext, jobs: RunningJobs, due: list[int]) -> None:
        self._context, self._jobs, self._due = context, jobs, due
        self._limits = context.workspace.limits.tree

    def stop_latest(self, allowed: Bools, most: int) -> list[int]:
        """Remove jobs of each line, the last to start first, until the line holds or `most` are chosen."""
        chosen: list[int] = []
        for line in self._due:
            for victim in latest_first(self._context, allowed).tolist():
                if self._holds(line) or len(chosen) >= most:
                    break
                if victim not in chosen and line in self._lines_of(victim):
                    self._jobs.release(victim)
                    chosen.append(victim)
        return chosen

    def spare_earliest(self, chosen: list[int]) -> None:
        """Take jobs out that are not needed once a larger one is chosen, the first to start first."""
        for victim in reversed(chosen.copy()):
            counted = self._lines_of(victim)
            if all(map(self._holds, counted)):
                self._jobs.release(victim, back=True)
                if all(map(self._holds, counted)):
                    chosen.remove(victim)
                else:
                    self._jobs.release(victim)

    def preempt(self, victim: int, grace_seconds: int) -> Preempt:
        """The decision to stop a job for the first of these lines that it counts on."""
        snapshot = self._context.cluster.snapshot
        running = snapshot.running
        return Preempt(
            job_id=int(running.id[victim]),
            attempt_id=int(running.attempt_id[victim]),
            for_job_id=0,
            for_generation=0,
            priority=int(running.priority[victim]),
            for_priority=0,
            lost_seconds=int(self._jobs.lost_seconds[victim]),
            grace_seconds=grace_seconds,
            kind="converge",
            line=snapshot.quotas.owner[self._lines_of(victim)[0]],
        )

    def _holds(self, line: int) -> bool:
        return self._limits.used[line] <= self._limits.bound[line]

    def _lines_of(self, victim: int) -> list[int]:
        """The lines over their limits that a job counts on."""
        charges = dict(self._jobs.charges(victim))
        return [line for line in self._due if charges.get(line)]
