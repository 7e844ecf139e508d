"""What one planning cycle has decided so far: the state that its steps read and write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.core.backfill.gang_reservation import GangReservations
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.decision_table import DecisionTable
from scheduler.core.placement.plugins import Plugins, resolve
from scheduler.core.plan import Plan, Preempt, Resize, Resume, Start
from scheduler.core.policy import Policy
from scheduler.core.preemption.preemption import PreemptionResult
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.start_passes import BackfillPass, OrderedPass

_NO_ROWS = np.zeros(0, dtype=np.int64)


class CycleState:
    """One cycle: its context, the jobs in order, and the decisions taken up to now. Rows are rows of pending jobs."""

    def __init__(self, snapshot: Snapshot, policy: Policy, plugins: Plugins) -> None:
        self.snapshot, self.policy, self.plugins = snapshot, policy, plugins
        self.context = CycleContext(ClusterIndex(snapshot), resolve(policy, plugins))
        self.decisions = DecisionTable(len(snapshot.pending))
        self.order: Ints = _NO_ROWS
        #: Of each queue, whether a waiting job stops all jobs behind it.
        self.strict: Bools = np.zeros(len(snapshot.queues), dtype=np.bool_)
        #: In order, the rows that nothing of their own stops; of these, the rows no step has looked at yet.
        self.considered: Ints = _NO_ROWS
        self.remaining: Ints = _NO_ROWS
        self.starts: list[Start] = []
        self._starter: OrderedPass | BackfillPass | None = None
        #: Rows for which nodes are held until their victims have ended.
        self.held: list[int] = []
        self.gangs = GangReservations(self.context, policy.assemblies)
        #: In order, the rows of gangs and other jobs that may be the next to gather nodes.
        self.may_gather: Ints = _NO_ROWS
        self.suspended: Ints = _NO_ROWS
        self.resumes: Sequence[Resume] = ()
        self.waiting: Bools = np.ones(len(snapshot.pending), dtype=np.bool_)
        self.evicted: Sequence[Preempt] = ()
        self.preempted: PreemptionResult = PreemptionResult([], [], [], [], [])
        self.resizes: Sequence[Resize] = ()

    @property
    def starter(self) -> OrderedPass | BackfillPass:
        """The pass that starts jobs: in plain order, or with backfill, as the policy says."""
        if self._starter is None:
            self._starter = (
                OrderedPass(self.context, self.strict)
                if self.policy.backfill == "none"
                else BackfillPass(self.context, self.policy)
            )
        return self._starter

    def leave_out(self, rows: Ints) -> None:
        """Take rows that a step has dealt with out of what remains."""
        if len(rows):
            self.remaining = self.remaining[~np.isin(self.remaining, rows)]

    def gathering_begun(self) -> list[int]:
        """The rows of gangs that begin to gather nodes, or change them, in this cycle."""
        ids = np.array(sorted(one.job_id for one in self.gangs.reserves), dtype=np.int64)
        rows: list[int] = rows_of(self.snapshot.pending.id, ids, what="pending job").tolist()
        return rows

    def changes_anything(self) -> bool:
        """Whether any job starts, stops or changes its size, or any gang reservation begins or ends."""
        return bool(
            self.starts
            or self.evicted
            or self.preempted.preempts
            or self.preempted.resizes
            or self.gangs.reserves
            or self.gangs.given_back
        )

    def plan(self) -> Plan:
        """The decisions as a plan, with who is ahead of whom."""
        waiting, decisions = self.decisions.waiting_columns(
            self.context.cluster, self.order, self.waiting, self.considered
        )
        gathering = {one.job_id for one in self.gangs.expected}
        expected = [one for one in self.starter.expected if one.job_id not in gathering]
        return Plan(
            starts=tuple(self.starts),
            waiting=waiting,
            decisions=decisions,
            expected=(*expected, *self.gangs.expected),
            preempts=(*self.evicted, *self.preempted.preempts),
            resizes=tuple(self.resizes),
            reserves=tuple(self.gangs.reserves),
            given_back=tuple(self.gangs.given_back),
            resumes=tuple(self.resumes),
            backfilled=frozenset(self.starter.backfilled),
        )
