"""What a drain with a deadline means for one running job, and what leaving its nodes costs the job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from scheduler.core.lifecycle import JobState, RestartPolicy
from scheduler.models import Allocation, Attempt, Checkpoint, CheckpointState, Job, Node

#: Only these have processes that can be asked for a checkpoint.
RUNS: Final = frozenset({JobState.RUNNING, JobState.CHECKPOINTING})
#: It is on its way off its nodes already.
LEAVES: Final = frozenset({JobState.STOPPING, JobState.MIGRATING, JobState.PREEMPTING})


class Fate(StrEnum):
    """What becomes of a job on a node that drains."""

    CONTINUES = "continues"  # without a deadline: to its end
    ENDS = "ends"  # its time limit is over before the deadline
    MOVES = "moves"  # saves, and goes on on other nodes
    WAITS = "waits"  # is to be moved, and no place is free yet
    REQUEUED = "requeued"  # stops at the deadline and starts again from its last checkpoint, or its beginning
    FAILS = "fails"  # stops at the deadline, and runs at most once
    LEAVES = "leaves"  # is being stopped or moved already


FATE_WORDS: Final[dict[Fate, str]] = {
    Fate.CONTINUES: "runs to its end",
    Fate.ENDS: "ends before the deadline",
    Fate.MOVES: "is moved by checkpoint",
    Fate.WAITS: "is moved when another node can start it, else requeued at the deadline",
    Fate.REQUEUED: "is requeued at the deadline",
    Fate.FAILS: "fails at the deadline: it runs at most once",
    Fate.LEAVES: "is leaving",
}
_OF_MANY: Final[dict[Fate, str]] = {
    Fate.CONTINUES: "run to their end",
    Fate.ENDS: "end before the deadline",
    Fate.MOVES: "are moved by checkpoint",
    Fate.WAITS: "are moved when another node can start them, else requeued at the deadline",
    Fate.REQUEUED: "are requeued at the deadline",
    Fate.FAILS: "fail at the deadline: they run at most once",
    Fate.LEAVES: "are leaving",
}


def words_of_many(fate: Fate, count: int) -> str:
    """What becomes of a number of jobs, without the number: `runs to its end`, `run to their end`."""
    return FATE_WORDS[fate] if count == 1 else _OF_MANY[fate]


@dataclass(frozen=True, slots=True)
class Cost:
    """What leaving costs a job; None where nothing was measured yet."""

    #: Work that it does once more.
    lost_seconds: int
    #: From the last checkpoint of this job: from its mark until the storage had verified all of it.
    save_seconds: float | None
    #: From the last start of this job: from the decision until its processes ran.
    restart_seconds: float | None
    gpus: float

    @property
    def seconds(self) -> float:
        """In all, of the job's own time; what was not measured counts as 0."""
        return self.lost_seconds + (self.save_seconds or 0) + (self.restart_seconds or 0)

    @property
    def gpu_seconds(self) -> float:
        """GPUs that are held or wanted and compute nothing new."""
        return self.gpus * self.seconds


def end_of(attempt: Attempt) -> datetime | None:
    """When its time limit ends it at the latest; None without one, and while it is suspended."""
    limit = attempt.job.time_limit_seconds or attempt.job.queue.max_wall_seconds
    if not limit or attempt.suspended_at is not None:
        return None
    begin = attempt.started_at or attempt.scheduled_at
    return begin + timedelta(seconds=limit, milliseconds=attempt.suspended_ms)


def fate_of(attempt: Attempt, deadline: datetime | None) -> Fate:
    """The fate of a job as far as its own row says it: whether a place is free is not looked at."""
    job = attempt.job
    if job.state in LEAVES:
        return Fate.LEAVES
    if deadline is None:
        return Fate.CONTINUES
    end = end_of(attempt)
    if end is not None and end <= deadline:
        return Fate.ENDS
    if job.restart_policy == RestartPolicy.NEVER:
        return Fate.FAILS
    if job.checkpoint and job.state in RUNS:
        return Fate.MOVES
    return Fate.REQUEUED


def words_without_plan(attempt: Attempt, deadline: datetime | None) -> str:
    """What becomes of a job, where nobody has looked for a place: that would be a plan for each look at a page."""
    fate = fate_of(attempt, deadline)
    return FATE_WORDS[Fate.WAITS if fate == Fate.MOVES else fate]


def cost_of(attempt: Attempt, saved: Checkpoint | None, *, at: datetime, saves: bool) -> Cost:
    """What it costs the job to leave at `at`; one that `saves` before loses nothing."""
    job = attempt.job
    since = attempt.started_at
    if since is not None and job.saved_at is not None:
        since = max(since, job.saved_at)
    lost = 0 if saves or since is None else max(0, int((at - since).total_seconds()))
    save = (saved.stored_at - saved.taken_at).total_seconds() if saved and saved.stored_at else None
    restart = (attempt.started_at - attempt.scheduled_at).total_seconds() if attempt.started_at else None
    return Cost(lost, save, restart, gpus_of(job))


def gpus_of(job: Job) -> float:
    """GPUs of all its tasks; a share counts as a part."""
    return job.gpus * job.tasks * (job.gpu_millis / 1000 if job.gpu_millis else 1)


def last_checkpoints(numbers: Iterable[int]) -> dict[int, Checkpoint]:
    """The newest complete checkpoint of each of these jobs."""
    rows = Checkpoint.objects.filter(job__in=list(numbers), state=CheckpointState.COMPLETE).order_by(
        "taken_at"
    )
    return {row.job_id: row for row in rows}


def attempts_on(nodes: Iterable[Node]) -> list[Attempt]:
    """Live attempts that hold something on these nodes, by job."""
    held = Allocation.objects.held().filter(node__in=list(nodes)).values("attempt_id")
    rows = Attempt.objects.live().filter(pk__in=held)
    return list(rows.select_related("job__user", "job__project", "job__queue").order_by("job_id"))


def nodes_of(attempts: Iterable[Attempt]) -> dict[int, list[Node]]:
    """The nodes that each attempt holds something on, by name."""
    held = (
        Allocation.objects.held()
        .filter(attempt__in=list(attempts))
        .select_related("node")
        .order_by("node__name")
    )
    found: dict[int, dict[int, Node]] = {}
    for one in held:
        found.setdefault(one.attempt_id, {})[one.node_id] = one.node
    return {attempt: list(nodes.values()) for attempt, nodes in found.items()}
