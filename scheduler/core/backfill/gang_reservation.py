"""Gang reservations: large gangs gather nodes as these come free, one gang after another, for a bounded time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.backfill.availability import Availability
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.earliest_start import EarliestStart, candidates_at, open_now
from scheduler.core.backfill.future_use import FutureUse, after_ms
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.placement.gang_layout import lay_out_near
from scheduler.core.plan import Decision, ExpectedStart, GiveBack, Reserve, Start, decide
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.snapshot import gathering_id

#: The wait after a gathering that did not succeed; it doubles with each, up to the longest.
BACKOFF_SECONDS: Final = 60
LONGEST_BACKOFF_SECONDS: Final = 3600
#: Jobs looked at in one cycle as the next that may gather.
_LOOKED_AT: Final = 16


class GangReservations:
    """Gangs that gather nodes, as one cycle keeps, ends and begins it.

    A gang keeps its nodes while they still suit it; when its time is up it gives all of them back and waits
    before it tries again. While fewer than `most` gather, the next in line that wants to, and that nothing
    but room keeps waiting, begins: on nodes that no other gathers, if they come free in time.
    """

    def __init__(self, context: CycleContext, most: int) -> None:
        self.reserves: list[Reserve] = []
        self.given_back: list[GiveBack] = []
        self.expected: list[ExpectedStart] = []
        #: (pending row, decision) of each gang that waits.
        self.decisions: list[tuple[int, Decision]] = []
        #: What jobs hold that was suspended, and go on from this cycle.
        self.resumed: list[FutureUse] = []
        #: What was promised to waiting jobs, by pending row.
        self.promised: Mapping[int, Sequence[FutureUse]] = {}
        self._context = context
        self._reasons = PendingReasons(context)
        self._most = most
        self._gathering: set[int] = set()
        self._looked_at: set[int] = set()
        self._in_line: set[int] = set()
        cluster = context.cluster
        self._busy: Bools = np.zeros(cluster.node_count, dtype=np.bool_)  # nodes that somebody gathers
        #: When the last begins that is promised on each node to jobs met in line; 0 = none is.
        self._due: Ints = np.zeros(cluster.node_count, dtype=np.int64)
        pending = cluster.snapshot.pending
        self._wanted = pending.assembly_seconds > 0
        #: Whether there is anything to do at all.
        self.is_active = bool(self._wanted.any() or (pending.assembling_until_ms > 0).any())

    def gathering_among(self, rows: Ints) -> Ints:
        """Of these rows, in the same order, the gangs that gather nodes already."""
        return rows[self._context.cluster.snapshot.pending.assembling_until_ms[rows] > 0]

    def keep(self, starts: Sequence[Start], considered: Ints) -> None:
        """Those that gather already and were not among the starts.

        A gang that is not considered, since its queue is paused or it is held, keeps its nodes and gets no decision.
        """
        cluster = self._context.cluster
        pending, now_ms = cluster.snapshot.pending, cluster.snapshot.now_ms
        reservations = cluster.snapshot.reservations
        kept = dict(zip(reservations.id.tolist(), reservations.node_ids, strict=True))
        started = {start.job_id for start in starts}
        self._in_line = set(considered.tolist())
        unsuited: list[tuple[int, tuple[int, ...]]] = []
        for row in np.flatnonzero(pending.assembling_until_ms > 0).tolist():
            number, until_ms = pending.id.item(row), pending.assembling_until_ms.item(row)
            if number in started:
                continue
            if until_ms <= now_ms:
                retry_ms = now_ms + _backoff_seconds(pending.assemblies_failed.item(row)) * 1000
                self.given_back.append(GiveBack(number, pending.generation.item(row), retry_ms))
                why = decide(ReasonCode.BACKOFF, begin_ms=retry_ms, gathered_until_ms=until_ms)
                self._note(row, why)
                continue
            nodes = kept.get(gathering_id(number), ())
            at_ms = self._when(row, starts, nodes)
            if at_ms is None:
                unsuited.append((row, nodes))
            else:
                self._keep(row, nodes, at_ms, until_ms)
        # Some nodes no longer suit: take others that no gang keeps, for the time that is left.
        for _, nodes in unsuited:
            self._busy[_rows(cluster, nodes)] = True
        for row, nodes in unsuited:
            self._busy[_rows(cluster, nodes)] = False  # its own
            number, until_ms = pending.id.item(row), pending.assembling_until_ms.item(row)
            found = self._where(row, starts)
            if found is None:
                self._keep(row, nodes, FOREVER_MS, until_ms)
                continue
            self.reserves.append(Reserve(number, pending.generation.item(row), found[0], until_ms))
            self._keep(row, *found, until_ms)
            close_nodes(self._context, found[0])

    def offer(self, row: int, starts: Sequence[Start]) -> None:
        """Let the next in line begin to gather, if it wants to and may; from then on no other job gets its nodes.

        To be asked about all that wait, in line: none gathers what was promised to one before it where it would fit
        before that has had it, for it would start as soon as it fits.
        """
        self._offer(row, starts)
        for hold in self.promised.get(row, ()):
            self._due[hold.row] = max(self._due.item(hold.row), hold.from_ms)

    def _offer(self, row: int, starts: Sequence[Start]) -> None:
        context = self._context
        pending = context.cluster.snapshot.pending
        if (
            not self._wanted.item(row)
            or pending.assembling_until_ms.item(row)
            or row in self._looked_at
            or len(self._gathering) >= self._most
            or len(self._looked_at) >= _LOOKED_AT
        ):
            return
        self._looked_at.add(row)
        if not _waits_for_room(context, self._reasons, row):
            return
        found = self._where(row, starts)
        due_ms = 0 if found is None else int(self._due[_rows(context.cluster, found[0])].max())
        if found is not None and due_ms:
            alone_ms = self._when(row, starts, found[0])
            passes = alone_ms is not None and alone_ms <= due_ms
            found = self._where(row, starts, but=self._due > 0) if passes else found
        if found is None:
            return
        nodes, at_ms = found
        until_ms = context.cluster.snapshot.now_ms + pending.assembly_seconds.item(row) * 1000
        self.reserves.append(Reserve(pending.id.item(row), pending.generation.item(row), nodes, until_ms))
        self._in_line.add(row)
        self._keep(row, nodes, at_ms, until_ms)
        close_nodes(self._context, nodes)

    def _keep(self, row: int, nodes: Sequence[int], at_ms: int, until_ms: int) -> None:
        cluster = self._context.cluster
        self._gathering.add(row)
        self._busy[_rows(cluster, nodes)] = True
        if at_ms != FOREVER_MS and row in self._in_line:
            number = cluster.snapshot.pending.id.item(row)
            self.expected.append(ExpectedStart(number, at_ms, tuple(nodes)))
        self._note(row, _gathers(self._context, row, nodes, until_ms, at_ms))

    def _note(self, row: int, why: Decision) -> None:
        if row in self._in_line:
            self.decisions.append((row, why))

    def _when(self, row: int, starts: Sequence[Start], nodes: Sequence[int]) -> int | None:
        """When a gang fits on just these nodes; None when never."""
        context = self._context
        among = np.zeros(context.cluster.node_count, dtype=np.bool_)
        among[_rows(context.cluster, nodes)] = True
        availability, job_class = (
            _availability(context, starts, self.resumed),
            context.on_whole_nodes(open_now(context, context.job_classes.of(row))),
        )
        length = _length_ms(context.cluster, row)
        return EarliestStart(context, availability, job_class, row, length, among=among).find()

    def _where(
        self, row: int, starts: Sequence[Start], *, but: Bools | None = None
    ) -> tuple[tuple[int, ...], int] | None:
        """The nodes that a gang finds first, none of which anybody else gathers, and when it has them."""
        context, cluster = self._context, self._context.cluster
        job_class = context.on_whole_nodes(open_now(context, context.job_classes.of(row)))
        length = _length_ms(context.cluster, row)
        availability, closed = _availability(context, starts, self.resumed), self._busy
        if but is not None:
            closed = closed | but
        for other, holds in self.promised.items():
            for hold in holds if other != row else ():
                availability.reserved.append(hold)
        at_ms = EarliestStart(context, availability, job_class, row, length, among=~closed).find()
        if at_ms is None:
            return None
        candidates = candidates_at(context, availability, job_class, row, at_ms, length)
        slots = np.where(closed, 0, candidates.slots())
        wish = job_class.shape.pack or candidates.rules.packing
        chosen = lay_out_near(slots, candidates.scores, job_class.shape, cluster, wish)
        if chosen is None:
            return None
        node_ids = cluster.snapshot.nodes.id
        return tuple(sorted(node_ids.item(node_row) for node_row, _ in chosen)), at_ms


def close_nodes(context: CycleContext, nodes: Sequence[int]) -> None:
    """Take what is free on nodes that are gathered from this cycle on out of the workspace."""
    cluster, workspace = context.cluster, context.workspace
    for node_row in _rows(cluster, nodes):
        devices = cluster.devices.first[node_row + 1] - cluster.devices.first[node_row]
        workspace.set_free(node_row, 0, 0, 0, [GPU_MILLIS] * devices)


def _rows(cluster: ClusterIndex, nodes: Sequence[int]) -> list[int]:
    return [cluster.nodes.row[node] for node in nodes if node in cluster.nodes.row]


def _length_ms(cluster: ClusterIndex, row: int) -> int:
    """How long a pending job may run at most."""
    snapshot = cluster.snapshot
    bound = snapshot.queues.max_wall_seconds.item(cluster.pending.queue.item(row))
    limit = snapshot.pending.time_limit_seconds.item(row) or bound
    return limit * 1000 if limit else FOREVER_MS


def _availability(
    context: CycleContext, starts: Sequence[Start], resumed: Sequence[FutureUse]
) -> Availability:
    """Free capacity over time after these starts."""
    cluster = context.cluster
    availability, now_ms = Availability(cluster, context.workspace), cluster.snapshot.now_ms
    for hold in resumed:
        availability.started.append(hold)
    row_of = (
        {number: row for row, number in enumerate(cluster.snapshot.pending.id.tolist())} if starts else {}
    )
    for start in starts:
        until_ms = after_ms(now_ms, _length_ms(cluster, row_of[start.job_id]))
        request = cluster.snapshot.classes[cluster.snapshot.pending.class_index.item(row_of[start.job_id])]
        for placement in start.placements:
            devices = [cluster.devices.row[device] for device in placement.device_ids]
            row = cluster.nodes.row[placement.node_id]
            domain = cluster.numa.of(request, row, placement.numa) if request.one_domain else -1
            availability.started.append(
                FutureUse(now_ms, until_ms, row, start.per_task, devices, placement.gpu_millis, domain)
            )
    return availability


def _waits_for_room(context: CycleContext, reasons: PendingReasons, row: int) -> bool:
    """Whether nothing but room keeps it waiting: a gang that a limit stops would hold its nodes for nothing."""
    job_class = context.job_classes.of(row)
    if context.never(job_class) is not None:
        return False
    if (
        reasons.queue(job_class.queue_row) is not None
        or reasons.quota(job_class)
        or reasons.pool(job_class) is not None
    ):
        return False
    workspace, pending = context.workspace, context.cluster.snapshot.pending
    bound = pending.array_max_running.item(row)
    if bound and workspace.limits.array_running.get(pending.array_id.item(row), 0) >= bound:
        return False
    if workspace.budgets.refuse and workspace.budgets.short(row):
        return False
    return reasons.nodes(job_class) is not None


def _gathers(context: CycleContext, row: int, nodes: Sequence[int], until_ms: int, at_ms: int) -> Decision:
    """The decision for a gang that gathers: for how many tasks there is room, on how many nodes, and until when.

    By the limits of the jobs that run there it has all of it at `at_ms`, which may be after its time is up: jobs
    often end before their limits.
    """
    cluster, job_class = context.cluster, context.job_classes.of(row)
    rows = [cluster.nodes.row[node] for node in nodes if node in cluster.nodes.row]
    slots = np.minimum(context.candidates(job_class).slots()[rows], job_class.shape.tasks)
    late = {"by_limits_ms": at_ms} if until_ms < at_ms != FOREVER_MS else {}
    return decide(
        ReasonCode.WAITING_FOR_RESOURCES,
        **late,
        resource="tasks",
        needs=job_class.shape.tasks,
        free=min(int(slots.sum()), job_class.shape.tasks),
        gathering=len(nodes),
        until_ms=until_ms,
    )


def _backoff_seconds(failed: int) -> int:
    return min(LONGEST_BACKOFF_SECONDS, BACKOFF_SECONDS << min(failed, 10))
