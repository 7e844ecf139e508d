"""A cluster's pending jobs from cycle to cycle: read once, then kept up to date by what has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import structlog
from django.db import connection

from infra.db.prepared import ask_together, keep_plans
from scheduler.core.columns import Ints
from scheduler.core.placement.scoring import counts_gpu_requests
from scheduler.core.policy import every_policy
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.state.db.query import Batch, Table
from scheduler.state.load.cluster_rows import usable_policy_of
from scheduler.state.load.job_rows import OWN_NAMES, own_columns
from scheduler.state.load.resident import feed
from scheduler.state.load.resident.folded import Folded, fold
from scheduler.state.load.resident.jobs import ResidentJobs
from scheduler.state.load.snapshots import Loaded, ask_cluster, ask_pending, loaded, one_picture

log = structlog.get_logger(__name__)

#: Rows of the feed that no later picture needs are deleted this often.
PRUNE_SECONDS: Final = 5.0
#: Jobs that a difference names for each column.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class ResidentLoaded:
    """A snapshot of the jobs to plan, and for whom each of them is planned."""

    loaded: Loaded
    folded: Folded


@dataclass(slots=True)
class _Memory:
    """What is kept of a cluster, as one picture saw it."""

    picture: feed.PictureRow
    jobs: ResidentJobs
    classes: ClassTable
    checked_at: float
    pruned_at: float
    #: The term of the lease under which it was last read.
    token: int = 0


@dataclass(slots=True)
class ResidentCluster:
    """Loads snapshots of one cluster for one planner after another term of its lease.

    What is in memory counts only while nobody else has planned in between and the connection is the same:
    otherwise all pending jobs are read anew.
    """

    cluster_id: int
    check_seconds: float
    clock: Callable[[], float] = time.monotonic
    #: How often all jobs were read, what is in memory was checked against the rows, and was found to differ.
    full_loads: int = 0
    checks: int = 0
    differences: int = 0
    #: The last term of the lease under which this planner loaded anything.
    last_token: int | None = None
    _memory: _Memory | None = field(default=None, repr=False)

    def load(self, token: int) -> ResidentLoaded:
        """What a cycle under this term of the lease starts from; raises LookupError for an unknown cluster.

        An error while it is read leaves nothing in memory.
        """
        memory, self._memory = self._memory, None
        if connection.in_atomic_block or memory is None or token - memory.token not in (0, 1):
            memory = None
        self.last_token = token
        keep_plans()
        found, self._memory = self._load(memory, token)
        return found

    def forget(self) -> None:
        """Read everything anew next time."""
        self._memory = None

    @property
    def pending(self) -> int:
        """How many pending jobs are in memory."""
        return len(self._memory.jobs) if self._memory else 0

    @property
    def nbytes(self) -> int:
        """Bytes that these take."""
        return self._memory.jobs.nbytes if self._memory else 0

    def note(self, name: str, numbers: Ints, values: Ints) -> None:
        """Take in what the planner itself has written to one column of these jobs, and the feed does not say."""
        if self._memory:
            self._memory.jobs.note(name, numbers, values)

    # -------------------------------------------------------------- reading

    def _load(self, memory: _Memory | None, token: int) -> tuple[ResidentLoaded, _Memory]:
        with one_picture():
            batch = Batch()
            picture = batch.add(feed.PICTURE)
            answer = ask_cluster(batch, self.cluster_id)
            if memory is None:
                everything = ask_pending(batch, self.cluster_id)
            else:
                changes = feed.ask_changes(batch, memory.picture, self.cluster_id)
            batch.send(ask_together)
            tables, seen = answer.read(), picture.read()[0]
            if memory is None:
                memory = self._memory_of(everything.read(), seen)
            elif seen.connection != memory.picture.connection:
                memory = self._read_all(seen)
            else:
                memory.jobs.merge(*changes.read(memory.classes))
                memory.picture = seen
                if self.clock() >= memory.checked_at + self.check_seconds:
                    memory = self._checked(memory)
            memory.token = token
            policy = usable_policy_of(tables.cluster).policy
            # A plugin may look at all jobs to say whose turn it is.
            is_outside = bool(policy.plugins) or any(own.plugins for _, own in policy.queues)
            folded = fold(
                memory.jobs, memory.classes.classes, tables.moment(),
                paused_queues=() if is_outside else tables.paused_queues(),
                early_too=not is_outside and not policy.queues,
                counts_gpu_requests=any(counts_gpu_requests(one) for _, one in every_policy(policy)),
            )  # fmt: skip
            found = loaded(tables, memory.jobs.take(folded.planned), memory.classes, together=ask_together)
        self._prune(memory)
        return ResidentLoaded(found, folded), memory

    def _read_all(self, seen: feed.PictureRow) -> _Memory:
        """Every pending job, in the picture that is open."""
        batch = Batch()
        pending = ask_pending(batch, self.cluster_id)
        batch.send()
        return self._memory_of(pending.read(), seen)

    def _memory_of(self, pending: Table, seen: feed.PictureRow) -> _Memory:
        classes = ClassTable()
        jobs = ResidentJobs(own_columns(pending, classes))
        self.full_loads += 1
        return _Memory(seen, jobs, classes, checked_at=self.clock(), pruned_at=self.clock())

    def _checked(self, memory: _Memory) -> _Memory:
        """What the rows say in the picture that is open; it is an error of ours when memory says anything else."""
        fresh = self._read_all(memory.picture)
        fresh.pruned_at = memory.pruned_at
        self.checks += 1
        differing = differences(memory.jobs, memory.classes, fresh.jobs, fresh.classes)
        if differing:
            self.differences += 1
            log.error("resident_jobs_differ", cluster=self.cluster_id, jobs=len(fresh.jobs), **differing)
        return fresh

    def _prune(self, memory: _Memory) -> None:
        """Delete what the feed need not keep, now and then, and never inside somebody else's transaction."""
        if connection.in_atomic_block or self.clock() < memory.pruned_at + PRUNE_SECONDS:
            return
        feed.prune(memory.picture, self.cluster_id)
        memory.pruned_at = self.clock()


def differences(
    jobs: ResidentJobs, classes: ClassTable, others: ResidentJobs, other_classes: ClassTable
) -> dict[str, list[int]]:
    """What two memories of pending jobs do not say alike: by column the numbers of some jobs; {} where all is."""
    mine, theirs = jobs.columns(), others.columns()
    alone = np.setxor1d(mine["id"], theirs["id"])
    found = {"id": alone[:_NAMED].tolist()} if len(alone) else {}
    left, right = np.isin(mine["id"], theirs["id"]), np.isin(theirs["id"], mine["id"])
    numbers = np.array([classes.intern(request) for request in other_classes.classes], dtype=np.int64)
    theirs["class_index"] = numbers[theirs["class_index"]]
    for name in OWN_NAMES:
        unlike = mine[name][left] != theirs[name][right]
        if unlike.any():
            found[name] = mine["id"][left][unlike][:_NAMED].tolist()
    return found
