"""Plan: what one cycle decided: which jobs start where, and why each other job waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.columns import Columns, Ints, ints, rows_of
from scheduler.core.reason_codes import ReasonCode

Fact = tuple[str, int | str]
Facts = dict[str, int | str]


class Placement(NamedTuple):
    """One task's place. `gpu_millis` is held of each device: 1000, a share, or 0 without devices."""

    rank: int
    node_id: int
    device_ids: tuple[int, ...] = ()
    gpu_millis: int = 0
    numa: int = -1  # the one NUMA domain its devices are in; -1 = none, or several


class Start(NamedTuple):
    """One job that gets everything it asked for, now. All its tasks have the same amounts."""

    job_id: int
    generation: int  # of the job when it was seen; the applier compares
    queue_id: int
    project_id: int
    per_task: Resources
    placements: tuple[Placement, ...]
    scores: tuple[tuple[str, int], ...] = ()  # of the first node: 0..100 a part

    @property
    def total(self) -> Resources:
        """What the whole job holds."""
        return self.per_task * len(self.placements)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Its nodes, each once, in order of first rank."""
        return tuple(dict.fromkeys(placement.node_id for placement in self.placements))


@dataclass(frozen=True, slots=True)
class Preempt:
    """One running job that is asked to end so that a pending one can start, or a limit is kept again.

    `kind`: preempt (for a higher priority), reclaim (for the share that the other lent) or converge (a limit
    was cut below what was in use; then `for_job_id` is 0).
    """

    job_id: int
    attempt_id: int
    for_job_id: int
    for_generation: int  # of that job when it was seen
    priority: int
    for_priority: int
    lost_seconds: int  # since its start or its last checkpoint
    grace_seconds: int
    #: Or for no job (`for_job_id` 0): the node with a taint (key, value) that it does not tolerate.
    node_id: int = 0
    taint: tuple[str, str] = ("", "")
    kind: str = "preempt"
    line: str = ""  # reclaim: the victim's line that has borrowed; converge: the line that was cut
    #: "suspend": it is suspended and gives its CPUs back, and goes on later. "requeue": it ends and starts again.
    mode: str = "requeue"
    instead: str = ""  # where the policy suspends and this one is requeued: why
    #: Where victims are chosen by risk, resource or pressure: the (name, number) pairs that spoke for this one.
    strategy: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """One suspended job that goes on: its CPUs are free again where its memory is."""

    job_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A running elastic job that gives up its last tasks for a pending one, or starts again to have more.

    `kind`: preempt and reclaim as of `Preempt`; grow (`ranks` is then empty, and it is for no job).
    """

    job_id: int
    attempt_id: int
    before: int  # tasks that it has now
    tasks: int  # and is to have
    ranks: tuple[int, ...] = ()  # that are asked to end
    for_job_id: int = 0
    for_generation: int = 0  # of that job when it was seen
    priority: int = 0
    for_priority: int = 0
    grace_seconds: int = 60
    kind: str = "preempt"
    line: str = ""  # reclaim: its line that has borrowed


@dataclass(frozen=True, slots=True)
class Reserve:
    """A gang that gathers nodes: no other job gets these until its time is up, unless gone before they are needed."""

    job_id: int
    generation: int  # of the job when it was seen
    node_ids: tuple[int, ...]  # sorted
    until_ms: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A gang whose time to gather is up: all its nodes are free again, and it waits before it tries anew."""

    job_id: int
    generation: int  # of the job when it was seen
    retry_ms: int


class FilterCount(NamedTuple):
    """One gate: nodes it turned away first, and nodes it would turn away by itself."""

    gate: str
    first: int
    alone: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a job waits: one headline, its numbers, and what each gate did to the nodes.

    Jobs with the same answer share one Decision; what differs from job to job (how many are ahead)
    is in `Plan.waiting`.
    """

    reason: ReasonCode
    facts: tuple[Fact, ...] = ()  # sorted by name
    nodes: int = 0  # nodes looked at; 0 when no node was
    gates: tuple[FilterCount, ...] = ()  # only gates that turned a node away, in filter order

    @property
    def details(self) -> dict[str, int | str]:
        """The numbers of the sentence, by name."""
        return dict(self.facts)


def decide(reason: ReasonCode, **facts: int | str) -> Decision:
    """A decision without node counts; empty texts are left out."""
    return Decision(reason, facts=sorted_facts(facts))


def sorted_facts(facts: Facts) -> tuple[Fact, ...]:
    """As a decision keeps them; empty texts are left out."""
    return tuple(sorted((name, value) for name, value in facts.items() if value != ""))


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When a waiting job starts at the latest, if no job ahead of it comes and everything ends in time.

    Backfill keeps its place: no job that would still be running then is started in its way.
    """

    job_id: int
    at_ms: int
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class WaitingColumns(Columns):
    """Every pending job that does not start, in ascending job id."""

    job_id: Ints = ints()
    decision: Ints = ints()  # into Plan.decisions
    ahead_jobs: Ints = ints(default=0)  # pending jobs before it in the cycle's order that also wait
    ahead_gpus: Ints = ints(default=0)  # whole devices those ask for


@dataclass(frozen=True)
class Plan:
    """Every pending job of the snapshot is in `starts` or in `waiting`, once.

    `starts` are in the order they were decided: apply them in that order.
    """

    starts: tuple[Start, ...] = ()
    waiting: WaitingColumns = field(default_factory=WaitingColumns)
    decisions: tuple[Decision, ...] = ()
    #: Running jobs to stop, grouped by the job they are stopped for: all of a group, or none of it.
    preempts: tuple[Preempt, ...] = ()
    #: Running jobs that are made smaller, grouped in the same way, or the one that starts again larger.
    resizes: tuple[Resize, ...] = ()
    #: Waiting jobs that were promised a start, in the cycle's order.
    expected: tuple[ExpectedStart, ...] = ()
    #: Gangs that begin to gather nodes, or that gather others than before.
    reserves: tuple[Reserve, ...] = ()
    given_back: tuple[GiveBack, ...] = ()
    #: Suspended jobs that go on, before any of `starts`.
    resumes: tuple[Resume, ...] = ()
    #: Those of `starts` that backfill started ahead of a job with an expected start: counted, and in no recording.
    backfilled: frozenset[int] = field(default=frozenset(), compare=False)

    __hash__ = None  # type: ignore[assignment]

    def decision_of(self, job_id: int) -> Decision:
        """Why this job waits; raises KeyError when it is not waiting in this plan."""
        row = rows_of(self.waiting.job_id, np.array([job_id], dtype=np.int64), what="waiting job")[0]
        return self.decisions[int(self.waiting.decision[row])]

    def details_of(self, job_id: int) -> dict[str, int | str]:
        """The numbers of this job's sentence, with how many are ahead of it."""
        row = rows_of(self.waiting.job_id, np.array([job_id], dtype=np.int64), what="waiting job")[0]
        return self.decisions[int(self.waiting.decision[row])].details | {
            "ahead_jobs": int(self.waiting.ahead_jobs[row]),
            "ahead_gpus": int(self.waiting.ahead_gpus[row]),
        }

    def start_of(self, job_id: int) -> Start | None:
        """This job's start, or None when it does not start."""
        return next((start for start in self.starts if start.job_id == job_id), None)

    @property
    def reasons(self) -> dict[int, ReasonCode]:
        """Each waiting job's headline: the readable view that tests compare."""
        return {
            job: self.decisions[number].reason
            for job, number in zip(self.waiting.job_id.tolist(), self.waiting.decision.tolist(), strict=True)
        }

    def by_decision(self) -> Iterator[tuple[Decision, Ints]]:
        """Each decision with the ids of the jobs that share it: one statement each stores them."""
        order = np.argsort(self.waiting.decision, kind="stable")
        bounds = np.searchsorted(self.waiting.decision[order], np.arange(len(self.decisions) + 1))
        for number, decision in enumerate(self.decisions):
            yield decision, self.waiting.job_id[order[bounds[number] : bounds[number + 1]]]
