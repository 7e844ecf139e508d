"""Running jobs: what their tasks hold, their simulated removal, and places bound for preemptors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.binding import bind_tasks
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.gang_layout import lay_out_near
from scheduler.core.snapshot.snapshot import Pause

#: (node row, device rows, thousandths held of each, NUMA domain that it is bound to or -1) of a task.
TaskPlacement = tuple[int, list[int], int, int]

#: A pending row, and (node row, tasks on it) for all of its tasks.
ChosenNodes = list[tuple[int, int]]


class Preemptor(NamedTuple):
    """A pending job that may have others stopped."""

    row: int
    job_class: JobClass


class TaskAllocation(NamedTuple):
    """What one task of a running job holds."""

    row: int
    rank: int
    held: Resources
    devices: list[int]
    gpu_millis: int
    domain: int = -1  # the NUMA domain that it is bound to


class RunningJobs:
    """Running jobs as they can be removed in simulation from a workspace, and what each holds."""

    def __init__(self, context: CycleContext) -> None:
        cluster = context.cluster
        running, allocations = cluster.snapshot.running, cluster.snapshot.allocations
        self._context = context
        #: The running row of each allocation.
        self.of_allocation: Ints = rows_of(running.id, allocations.job_id, what="running job")
        self.project_row: Ints = rows_of(cluster.snapshot.projects.id, running.project_id, what="project")
        self.queue_row: Ints = rows_of(cluster.snapshot.queues.id, running.queue_id, what="queue")
        self._domains = cluster.numa.of_allocations() if cluster.asks_one_domain else None
        self._order = np.lexsort((allocations.rank, self.of_allocation))
        #: Tasks of each job that stay.
        self.tasks: Ints = np.bincount(self.of_allocation[~allocations.leaving], minlength=len(running))
        self._given: dict[int, int] = {}  # running row -> tasks that are removed in simulation, the last ones
        self._charges: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self._known_seats: dict[tuple[int, bool], list[TaskAllocation]] = {}
        self._first = np.searchsorted(self.of_allocation[self._order], np.arange(len(running) + 1))
        since = np.maximum(running.started_ms, running.saved_ms)
        self.lost_seconds: Ints = np.maximum(cluster.snapshot.now_ms - since, 0) // 1000
        self.gpu_millis = self._sum(cluster.allocations.device_counts * allocations.gpu_millis)
        self.cpu_millis = self._sum(allocations.cpu_millis)
        self.pause = running.pause

    def _sum(self, amounts: Ints) -> Ints:
        total = np.zeros(len(self._first) - 1, dtype=np.int64)
        np.add.at(total, self.of_allocation, amounts)
        return total

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is removed in simulation inside runs again afterwards."""
        before = dict(self._given)
        with self._context.workspace.trial():
            yield
        self._given = before

    def charges(self, victim: int, *, only_cpus: bool = False) -> tuple[tuple[int, int], ...]:
        """(quota row, amount) of every enforced line that it counts on; `only_cpus`: of those of CPUs."""
        if not only_cpus and not self.pause.item(victim):
            return self._all_charges(victim)
        resource = self._context.cluster.snapshot.quotas.resource
        if only_cpus:
            return tuple(one for one in self._all_charges(victim) if resource[one[0]] == "cpu_millis")
        # One that is suspended counts on these no more.
        still = self.pause.item(victim) == Pause.SUSPENDED
        return tuple(
            one for one in self._all_charges(victim) if not (still and resource[one[0]] == "cpu_millis")
        )

    def charged(self, line: int, jobs: Bools) -> int:
        """What these jobs count on a line together."""
        cluster, running = self._context.cluster, self._context.cluster.snapshot.running
        rows = np.flatnonzero(jobs)
        if cluster.charges.has_model_lines or self._given or self.pause[rows].any():
            return sum(dict(self.charges(row)).get(line, 0) for row in rows.tolist())
        # Jobs of one payer, class and number of tasks count the same.
        alike = np.stack([cluster.paths.running[rows], running.class_index[rows], self.tasks[rows]])
        kinds, count = np.unique(alike, axis=1, return_counts=True)
        return sum(
            dict(cluster.charges.certain(*kind)).get(line, 0) * times
            for kind, times in zip(kinds.T.tolist(), count.tolist(), strict=True)
        )

    def _all_charges(self, victim: int) -> tuple[tuple[int, int], ...]:
        key = victim, self._given.get(victim, 0)
        known = self._charges.get(key)
        if known is None:
            cluster, seats = self._context.cluster, self.remaining_tasks(victim)
            known = self._charges[key] = cluster.charges.placed(
                cluster.paths.running.item(victim),
                cluster.snapshot.running.class_index.item(victim),
                len(seats),
                (device for seat in seats for device in seat.devices),
                seats[0].gpu_millis if seats else 0,
            )
        return known

    def seats(self, victim: int, *, leaving: bool = False) -> list[TaskAllocation]:
        """What its tasks that stay hold, or with `leaving` those asked to end; found once."""
        known = self._known_seats.get((victim, leaving))
        if known is None:
            cluster = self._context.cluster
            allocations, node = cluster.snapshot.allocations, cluster.allocations.node
            known = self._known_seats[victim, leaving] = [
                TaskAllocation(
                    node.item(row),
                    allocations.rank.item(row),
                    Resources(
                        cpu_millis=allocations.cpu_millis.item(row),
                        memory_mib=allocations.memory_mib.item(row),
                        storage_mib=allocations.storage_mib.item(row),
                    ),
                    cluster.devices.rows_on(node.item(row), allocations.device_ids[row]),
                    allocations.gpu_millis.item(row),
                    -1 if self._domains is None else self._domains[row],
                )
                for row in self._order[self._first[victim] : self._first[victim + 1]].tolist()
                if allocations.leaving.item(row) == leaving
            ]
        return known

    def allocations_of(self, jobs: Sequence[int]) -> tuple[Ints, Ints]:
        """(row of the allocation, place of its job in this sequence) of all that these running rows hold."""
        rows = np.array(jobs, dtype=np.int64)
        first, counts = self._first[rows], self._first[rows + 1] - self._first[rows]
        before = np.cumsum(counts) - counts
        within = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        return self._order[within], np.repeat(np.arange(len(rows)), counts)

    def remaining_tasks(self, victim: int) -> list[TaskAllocation]:
        """What its tasks hold, without the tasks that are removed in simulation."""
        seats = self.seats(victim)
        return seats[: len(seats) - self._given.get(victim, 0)]

    def ranks(self, victim: int) -> list[int]:
        """The ranks of its tasks that stay, in ascending order."""
        return [seat.rank for seat in self.seats(victim)]

    def give_up(self, victim: int, number: int, *, back: bool = False) -> None:
        """Give back what one of its tasks holds, the last one but `number` - 1; `back` takes it again.

        Tasks are given up from the last one on, and taken back in the reverse order.
        """
        self._given[victim] = number - back
        self._move_some(victim, self.seats(victim)[-number : len(self.seats(victim)) - number + 1], back=back)

    def release_leaving(self, victim: int) -> None:
        """Give back what those of its tasks hold that were asked to end while the job goes on."""
        self._move_some(victim, self.seats(victim, leaving=True))

    def _move_some(self, victim: int, seats: Sequence[TaskAllocation], *, back: bool = False) -> None:
        cluster, workspace = self._context.cluster, self._context.workspace
        class_index = cluster.snapshot.running.class_index.item(victim)
        payer, who = cluster.paths.running.item(victim), int(cluster.affinity.running[victim])
        move = workspace.take if back else workspace.give_back
        for seat in seats:
            move(seat.row, seat.held, seat.devices, seat.gpu_millis, who, seat.domain)
            # The lines that count jobs and not what they hold are left alone: it goes on.
            one = Counter(
                dict(cluster.charges.placed(payer, class_index, 2, seat.devices * 2, seat.gpu_millis))
            )
            one.subtract(dict(cluster.charges.placed(payer, class_index, 1, seat.devices, seat.gpu_millis)))
            workspace.limits.tree.take(
                tuple((line, n) for line, n in one.items() if n), sign=1 if back else -1
            )
        workspace.limits.take_extras(
            cluster.snapshot.classes[class_index], len(seats), sign=1 if back else -1
        )

    def release(self, victim: int, *, back: bool = False, only_cpus: bool = False) -> None:
        """Give back all that a running job holds, on every node and of every limit; `back` takes it again.

        Tasks that it gave up before hold nothing. A job that is asked to suspend gives back its CPUs only, as does
        any job with `only_cpus`.
        """
        if only_cpus or self.pause.item(victim) == Pause.ASKED:
            self._release_cpus(victim, back=back)
            return
        cluster, workspace = self._context.cluster, self._context.workspace
        running = cluster.snapshot.running
        move = workspace.take if back else workspace.give_back
        who, seats = int(cluster.affinity.running[victim]), self.remaining_tasks(victim)
        for seat in seats:
            move(seat.row, seat.held, seat.devices, seat.gpu_millis, who, seat.domain)
        class_index = int(running.class_index[victim])
        workspace.limits.take(
            queue_row=int(self.queue_row[victim]),
            array_id=int(running.array_id[victim]),
            charges=self.charges(victim),
            request=cluster.snapshot.classes[class_index],
            tasks=len(seats),
            sign=1 if back else -1,
        )

    def _release_cpus(self, victim: int, *, back: bool) -> None:
        workspace = self._context.workspace
        move = workspace.take if back else workspace.give_back
        for seat in self.remaining_tasks(victim):
            move(seat.row, Resources(cpu_millis=seat.held.cpu_millis), [], 0, domain=seat.domain)
        workspace.limits.tree.take(self.charges(victim, only_cpus=True), sign=1 if back else -1)


def leaving_rows(cluster: ClusterIndex) -> Ints:
    """Running jobs some tasks of which were asked to end while the others go on."""
    allocations = cluster.snapshot.allocations
    if not allocations.leaving.any():
        return np.zeros(0, dtype=np.int64)
    return np.searchsorted(cluster.snapshot.running.id, np.unique(allocations.job_id[allocations.leaving]))


def fits_limits(context: CycleContext, wanted: Preemptor) -> bool:
    """Whether quota, queue, array and pools have room for the job."""
    workspace, job_class, pending = context.workspace, wanted.job_class, context.cluster.snapshot.pending
    request, tasks = job_class.query.request, job_class.shape.tasks
    bound, array = pending.array_max_running.item(wanted.row), pending.array_id.item(wanted.row)
    limits = workspace.limits
    return (
        limits.admits(job_class.queue_row, context.charges(job_class), request, tasks)
        and not limits.array_is_full(array, bound)
        and not workspace.budgets.short(wanted.row)
    )


def blocks_queue(context: CycleContext, row: int) -> bool:
    """Whether a waiting job stops those behind it in a strict queue: it waits its turn, and for no person."""
    job_class, workspace, pending = (
        context.job_classes.of(row),
        context.workspace,
        context.cluster.snapshot.pending,
    )
    bound = pending.array_max_running.item(row)
    if workspace.limits.array_is_full(pending.array_id.item(row), bound):
        return False
    if workspace.budgets.short(row) or context.candidates(job_class).may_open:
        return False
    return context.never(job_class) is None and not context.never_by_quota(job_class)


def place_preemptor(context: CycleContext, wanted: Preemptor) -> ChosenNodes | None:
    """Where all tasks of a job would go now; unlike `choose_nodes` it forgets what failed before."""
    if not fits_limits(context, wanted) or not wanted.job_class.shape.is_possible:
        return None
    candidates, shape = context.candidates(wanted.job_class), wanted.job_class.shape
    if shape.tasks == 1:
        row = candidates.best()
        return [(row, 1)] if row >= 0 else None
    cluster, wish = context.cluster, shape.pack or candidates.rules.packing
    chosen = lay_out_near(candidates.slots(), candidates.scores, shape, cluster, wish)
    return sorted(chosen) if chosen is not None else None


def bind_preemptor(context: CycleContext, wanted: Preemptor, chosen: ChosenNodes) -> list[TaskPlacement]:
    """Take the place from the workspace; what each task got."""
    candidates = context.candidates(wanted.job_class)
    return [
        (row, devices, candidates.millis, domain)
        for row, devices, domain in bind_tasks(candidates, chosen)[1]
    ]


def charge_preemptor(context: CycleContext, wanted: Preemptor, places: Sequence[TaskPlacement]) -> None:
    workspace, job_class = context.workspace, wanted.job_class
    workspace.budgets.take(wanted.row)
    workspace.limits.take(
        queue_row=job_class.queue_row,
        array_id=int(context.cluster.snapshot.pending.array_id[wanted.row]),
        charges=context.cluster.charges.placed(
            job_class.payer,
            job_class.class_index,
            job_class.shape.tasks,
            (device for _, devices, *_ in places for device in devices),
            places[0][2] if places else 0,
        ),
        request=job_class.query.request,
        tasks=job_class.shape.tasks,
    )
