"""Workspace: the scratch capacity, devices and limits of one cycle, with a log of the nodes it touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from quotas.core.gpu_models import model_matches
from quotas.core.limits import LimitTree, charge
from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.cluster.affinity import AffinityState
from scheduler.core.cluster.budgets import Budgets
from scheduler.core.cluster.devices import (
    DEVICE_BIT,
    GUARDS,
    MEMORY_BIT,
    MOST_CPU,
    MOST_DEVICES,
    MOST_MEMORY,
    GpuFeatures,
    PackedFree,
    pick_whole,
)
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.numa import domain_capacity
from scheduler.core.columns import Bools, Cells, FloatCells, Ints, cells, float_cells
from scheduler.core.snapshot.request_classes import RequestClass

Floats = npt.NDArray[np.float64]
Answer = TypeVar("Answer")

#: A node before a trial: free CPU, memory and storage, what its devices hold, free GPU thousandths, tasks.
_Before = tuple[int, int, int, list[int], int, int]

_POINTS: Final = 100_000  # parts of a score are whole thousandths of a point before they become floats


class OpenLine(NamedTuple):
    """A line for one GPU model that counts a job only as far as it is given such devices."""

    line: int
    amount: int  # if all its devices are such
    models: frozenset[str]  # of those the job could be given


@dataclass(slots=True)
class Trial:
    """Whether what was done inside `Workspace.trial()` stays."""

    kept: bool = False

    def keep(self) -> None:
        self.kept = True


class _View(NamedTuple):
    """Devices of a node that some wishes see alike, and the columns that say what is left of them."""

    bits: int
    domains: tuple[int, ...]  # () when all are in one
    features: list[tuple[Cells, Cells, Cells, Cells]]  # `GpuFeatures`: whole, numa_best, partial, room
    wholes: list[Cells]  # columns of `PackedFree`s that count idle devices
    shares: list[Cells]  # and of those that hold what is left of one


class Workspace:
    """What is still free while a cycle hands things out. Only `take` and `take_limits` change it.

    `log` holds the row of every node touched, in order: code that caches something per node keeps a
    cursor into it and looks again only at the rows after the cursor. Single numbers of a column are read and
    written through `cells`, which share its memory.
    """

    def __init__(self, cluster: ClusterIndex) -> None:
        snapshot, nodes = cluster.snapshot, cluster.snapshot.nodes
        self.cluster = cluster
        self.free_cpu_millis: Ints = nodes.cpu_millis - nodes.used_cpu_millis
        self.free_memory_mib: Ints = nodes.memory_mib - nodes.used_memory_mib
        self.free_storage_mib: Ints = nodes.storage_mib - nodes.used_storage_mib
        self.device_used: Ints = cluster.device_used.copy()
        self._features: dict[tuple[str, int], GpuFeatures] = {}
        self.free_gpu_millis: Ints = np.zeros(cluster.node_count, dtype=np.int64)
        np.add.at(
            self.free_gpu_millis,
            cluster.device_node,
            (cluster.device_share - self.device_used) * cluster.device_healthy,
        )

        #: Thousandths of working devices that each node has, and tasks that run on it.
        self.gpu_capacity = cluster.gpu_capacity
        self.tasks_on: Ints = cluster.tasks_on.copy()
        #: Where jobs are that others want to be near to or apart from; None when no job has such terms.
        self.affinity_state = AffinityState(cluster) if cluster.affinity.is_there else None

        self.numa, self.domain_free = domain_capacity(self)
        self._cpu, self._memory = cells(self.free_cpu_millis), cells(self.free_memory_mib)
        self._gpu, self._tasks = cells(self.free_gpu_millis), cells(self.tasks_on)
        self._device_used = cells(self.device_used)
        self._views: dict[int, tuple[_View, ...]] = {}  # by kind of node

        self._largest_cpu = max(int(nodes.cpu_millis.max(initial=0)), 1)
        self._largest_memory = max(int(nodes.memory_mib.max(initial=0)), 1)
        self._largest_gpu = max(cluster.most_gpu_millis, 1)
        #: No count of devices, and no share of one, is larger.
        self.largest_count = max(cluster.most_devices, GPU_MILLIS)
        #: Live columns of points by name, flipped and weight; and of each name, what to write to.
        self._points: dict[tuple[str, bool, int], Floats] = {}
        self._with_gpu: list[tuple[bool, int, FloatCells]] = []
        self._without_gpu: list[tuple[bool, int, FloatCells]] = []
        self._gpus_taken: list[tuple[bool, int, FloatCells]] = []

        #: Whether every amount is small enough for `PackedFree`: 16,000 cores, 64 TiB and 1,000 devices a node.
        self._packs = (
            max(int(nodes.cpu_millis.max(initial=0)), int(self.free_cpu_millis.max(initial=0))) < MOST_CPU
            and max(int(nodes.memory_mib.max(initial=0)), int(self.free_memory_mib.max(initial=0)))
            < MOST_MEMORY
            and cluster.most_devices < MOST_DEVICES
        )
        self._rooms: dict[tuple[str, int, bool] | None, PackedFree] = {}
        self._plain_room: Cells | None = None
        #: What scorers keep for as long as this workspace lives, by their own names.
        self.memo: dict[str, object] = {}

        self.log: Ints = np.zeros(1024, dtype=np.int64)
        self._log = cells(self.log)
        self.log_length = 0
        self._known: dict[tuple[str, int, Hashable], tuple[Ints, object]] = {}
        self._known_at = 0
        #: The nodes touched in each open trial, as they were before it.
        self._trials: list[dict[int, _Before]] = []

        quotas, queues = snapshot.quotas, snapshot.queues
        #: The quota lines: what is in use on each, and what may be.
        self.limits = LimitTree(
            parent=cluster.paths.parent,
            used=quotas.used.tolist(),
            hard=quotas.hard.tolist(),
            nominal=quotas.nominal.tolist(),
            borrowing_limit=quotas.borrowing_limit.tolist(),
            lending_limit=quotas.lending_limit.tolist(),
            enforce=quotas.enforce.tolist(),
            is_pool=quotas.is_pool.tolist(),
        )
        self.quota_used, self.quota_hard = self.limits.used, self.limits.bound
        self.queue_running: list[int] = queues.running_jobs.tolist()
        self.queue_bound: list[int] = queues.max_concurrent_jobs.tolist()
        self.pool_used: list[int] = snapshot.pools.used.tolist()
        self.pool_capacity: list[int] = snapshot.pools.capacity.tolist()
        self.array_running: dict[int, int] = {}
        for array_id in snapshot.running.array_id[snapshot.running.array_id > 0].tolist():
            self.array_running[array_id] = self.array_running.get(array_id, 0) + 1
        self._pool_row = {name: row for row, name in enumerate(snapshot.pools.name)}
        self.payer_lines = cluster.paths.lines
        #: What is left of budgets.
        self.budgets = Budgets(snapshot)
        #: Whether any line counts one GPU model only.
        self.has_model_lines = any(quotas.gpu_model)
        self._charges: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}
        self._amounts: dict[tuple[int, int], dict[str, int]] = {}
        self._open: dict[tuple[int, int, int], tuple[OpenLine, ...]] = {}

    # Reading. The lists of devices are made when the first is handed out: from then on they change with the column.

    @cached_property
    def _kind(self) -> list[int]:
        return self.cluster.kinds

    @cached_property
    def _idle(self) -> list[int]:
        """Of each node, its devices that nobody holds."""
        return self.cluster.bits_of(self.device_used == 0)

    @cached_property
    def _shared(self) -> list[int]:
        """Of each node, its devices that are held in part."""
        return self.cluster.bits_of((self.device_used != 0) & (self.device_used < GPU_MILLIS))

    def gpu_features(self, request: RequestClass) -> GpuFeatures:
        """What nodes can still give of the devices this class may use."""
        key = (request.gpu_model, request.gpu_memory_mib)
        known = self._features.get(key)
        if known is None:
            known = self._features[key] = GpuFeatures(
                self.cluster, self.device_used, model=request.gpu_model, memory_mib=request.gpu_memory_mib
            )
            self._views.clear()
        return known

    def room(self, request: RequestClass) -> PackedFree | None:
        """Free CPU, memory and devices of this class in one column; None when an amount is too large for it."""
        if not self._packs:
            return None
        key = (
            (request.gpu_model, request.gpu_memory_mib, request.shares_gpu) if request.per_task.gpus else None
        )
        if key not in self._rooms:
            features = self.gpu_features(request) if key else None
            devices = None if features is None else features.room if request.shares_gpu else features.whole
            self._rooms[key] = PackedFree(self.free_cpu_millis, self.free_memory_mib, devices)
            self._views.clear()
            if key is None:
                self._plain_room = cells(self._rooms[key].column)
        return self._rooms[key]

    def points(self, name: str, *, flipped: bool = False, weight: int = 1) -> Floats:
        """A live column of a score part times its weight; flipped, of 100 minus the part.

        `tight_with_gpu` and `tight_without_gpu` are higher where less is left over (what depends on the
        request is the same for every node), `gpus_taken` where fewer GPUs are idle.
        """
        if (known := self._points.get((name, flipped, weight))) is not None:
            return known
        cpu = self.free_cpu_millis * _POINTS // self._largest_cpu
        memory = self.free_memory_mib * _POINTS // self._largest_memory
        gpu = self.free_gpu_millis * _POINTS // self._largest_gpu
        part, live = {
            "tight_with_gpu": ((_POINTS - (2 * gpu + cpu + memory) // 4) / 1000, self._with_gpu),
            "tight_without_gpu": ((_POINTS - (cpu + memory) // 2) / 1000, self._without_gpu),
            "gpus_taken": ((_POINTS - gpu) / 1000, self._gpus_taken),
        }[name]
        points: Floats = (100.0 - part if flipped else part) * weight
        live.append((flipped, weight, float_cells(points)))
        self._points[name, flipped, weight] = points
        return points

    def charges(self, payer: int, class_index: int, tasks: int) -> tuple[tuple[int, int], ...]:
        """(quota row, amount) of every line a job of this shape counts on, whatever devices it is given."""
        key = (payer, class_index, tasks)
        known = self._charges.get(key)
        if known is None:
            request = self.cluster.snapshot.classes[class_index]
            amounts = self._amounts.setdefault((class_index, tasks), {})
            known = self._charges[key] = self.charges_of(payer, request, tasks, amounts)
        return known

    def charges_of(
        self, payer: int, request: RequestClass, tasks: int, amounts: dict[str, int] | None = None
    ) -> tuple[tuple[int, int], ...]:
        """The same for any request; `amounts` by resource are kept by who asks for the same request again."""
        quotas, amounts = self.cluster.snapshot.quotas, {} if amounts is None else amounts
        models, resources, found = quotas.gpu_model, quotas.resource, []
        for line in self.payer_lines[payer]:
            if models[line] and not self._counts_all(models[line], request):
                continue
            amount = amounts.get(resources[line])
            if amount is None:
                amount = amounts[resources[line]] = charge(resources[line], request.per_task, tasks)
            if amount > 0:
                found.append((line, amount))
        return tuple(found)

    def open_lines(self, payer: int, class_index: int, tasks: int) -> tuple[OpenLine, ...]:
        """Lines for one GPU model that count the job only if it is given such devices."""
        if not self.has_model_lines:
            return ()
        key = (payer, class_index, tasks)
        if key not in self._open:
            request, quotas = self.cluster.snapshot.classes[class_index], self.cluster.snapshot.quotas
            models = self.cluster.models_of(request.gpu_model, request.gpu_memory_mib)
            amount = request.per_task.gpu_millis_charged * tasks
            found = []
            for line in self.payer_lines[payer] if amount else ():
                wanted = quotas.gpu_model[line]
                covered = frozenset(model for model in models if wanted and model_matches(wanted, model))
                if covered and len(covered) < len(models):
                    found.append(OpenLine(line, amount, covered))
            self._open[key] = tuple(found)
        return self._open[key]

    def charges_given(
        self, payer: int, class_index: int, tasks: int, devices: Iterable[int], gpu_millis: int
    ) -> tuple[tuple[int, int], ...]:
        """What a job counts on every line, once it is known which devices (rows) it is given."""
        sure, opened = self.charges(payer, class_index, tasks), self.open_lines(payer, class_index, tasks)
        if not opened:
            return sure
        held = Counter(self.cluster.model_of(device) for device in devices)
        given = ((one.line, gpu_millis * sum(held[model] for model in one.models)) for one in opened)
        return (*sure, *((line, amount) for line, amount in given if amount))

    def _counts_all(self, model: str, request: RequestClass) -> bool:
        """Whether a line for this model counts all devices that the request could be given."""
        models = self.cluster.models_of(request.gpu_model, request.gpu_memory_mib)
        return bool(models) and all(model_matches(model, have) for have in models)

    def reaches(self, column: Ints, need: int) -> Bools:
        """Where a live column is at least so much, as of now; of equal needs the same answer."""
        return self._now("reaches", column, need, lambda: column >= need)

    def sum_over(self, column: Ints, nodes: Bools) -> int:
        """What some nodes have left together, as of now."""
        return self._now("sum", column, nodes.tobytes(), lambda: int(np.maximum(column[nodes], 0).sum()))

    def shares_left(self, model: str, memory_mib: int) -> Ints:
        """Of each node, what is left of all its devices of a model together, as of now."""

        def left() -> Ints:
            usable = self.cluster.gpu_matches(model, memory_mib) & self.cluster.device_healthy
            shares = np.zeros(self.cluster.node_count, dtype=np.int64)
            np.add.at(shares, self.cluster.device_node[usable], GPU_MILLIS - self.device_used[usable])
            return shares

        return self._now("shares", self.device_used, (model, memory_mib), left)

    def _now(self, what: str, column: Ints, key: Hashable, find: Callable[[], Answer]) -> Answer:
        """An answer about a column, found once for as long as nothing is handed out."""
        if self._known_at != self.log_length:
            self._known.clear()
            self._known_at = self.log_length
        place = (what, id(column), key)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = column, find()  # the column too: its id must stay its own
        return cast(Answer, known[1])

    def short_quota(self, charges: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
        """The first line without room for its amount."""
        return self.limits.short(charges)

    def short_pool(self, request: RequestClass, tasks: int) -> tuple[str, int, int, int] | None:
        """The first extra that lacks: its name, what is needed, free and there in all."""
        for name, amount in request.per_task.extras:
            row = self._pool_row.get(name)
            total = 0 if row is None else self.pool_capacity[row]
            free = 0 if row is None else max(total - self.pool_used[row], 0)
            if amount * tasks > free:
                return name, amount * tasks, free, total
        return None

    def queue_is_full(self, queue_row: int) -> bool:
        return 0 < self.queue_bound[queue_row] <= self.queue_running[queue_row]

    def pick_devices(
        self, row: int, request: RequestClass, features: GpuFeatures | None = None, within: int = -1
    ) -> list[int]:
        """Device rows for one task on a node that `feasibility` has passed.

        Whole devices come from the NUMA domain that they fill best, else from as few domains as can be;
        a share goes to the device that is used most and still has room. Ties by lowest position. `features`
        are those of the request, for who has them at hand; `within` is a mask of the devices to choose from.
        """
        per_task = request.per_task
        wanted = per_task.gpus
        if not wanted:
            return []
        first, bits = self.cluster.device_first[row], (features or self.gpu_features(request)).bits[row]
        bits &= within
        if per_task.gpu_millis and request.shares_gpu:
            used, share = self._device_used, per_task.gpu_millis
            fullest, most = -1, -1
            while bits:
                low = bits & -bits
                device = first + low.bit_length() - 1
                if most < used[device] <= GPU_MILLIS - share:
                    fullest, most = device, used[device]
                bits ^= low
            return [fullest]
        picked = pick_whole(bits & self._idle[row], self.cluster.node_domains[row], wanted)
        return [first + picked[0]] if wanted == 1 else [first + place for place in picked]

    def numa_of(self, devices: list[int]) -> int:
        """The one domain all these devices are in; -1 when there is none."""
        if not devices:
            return -1
        numa = self.cluster.device_numa_list
        first = numa[devices[0]]
        if len(devices) > 1:
            for device in devices:
                if numa[device] != first:
                    return -1
        return first

    def device_is_free(self, device: int, millis: int) -> bool:
        return self._device_used[device] + millis <= GPU_MILLIS

    # Changing.

    def take(
        self, row: int, per_task: Resources, devices: list[int], gpu_millis: int, who: int = 0, domain: int = -1,
    ) -> None:  # fmt: skip
        """Hand out one task's amounts; `who` is its profile in `ClusterIndex.company`, `domain` where it is bound."""
        if self._trials:
            self._remember(row)
        if domain >= 0 and self.numa is not None:
            self.numa.hold(domain, per_task)
        self._tasks[row] += 1
        self._cpu[row] -= per_task.cpu_millis
        self._memory[row] -= per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] -= per_task.storage_mib
        if devices:
            self._hold(row, devices, gpu_millis)
            self._gpu[row] -= gpu_millis * len(devices)
        self._touch(row)
        if who and self.affinity_state is not None:
            self._touch_all(self.affinity_state.count(row, who, 1))

    def give_back(
        self, row: int, per_task: Resources, devices: list[int], gpu_millis: int, who: int = 0, domain: int = -1,
    ) -> None:  # fmt: skip
        """The reverse of `take`, for a job that is removed in simulation; only inside a trial: caches of what
        failed hold while capacity shrinks.
        """
        self._remember(row)
        if domain >= 0 and self.numa is not None:
            self.numa.hold(domain, per_task, -1)
        self._tasks[row] -= 1
        self._cpu[row] += per_task.cpu_millis
        self._memory[row] += per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] += per_task.storage_mib
        if devices:
            self._hold(row, devices, -gpu_millis)
            healthy = self.cluster.device_healthy_list
            self._gpu[row] += gpu_millis * sum([healthy[device] for device in devices])
        self._touch(row)
        if who and self.affinity_state is not None:
            self._touch_all(self.affinity_state.count(row, who, -1))

    def free_on(self, row: int) -> tuple[int, int, int, list[int]]:
        """CPU, memory and storage that a node has free, and what its devices hold."""
        first, last = self.cluster.device_first[row], self.cluster.device_first[row + 1]
        return (
            self._cpu[row],
            self._memory[row],
            self.free_storage_mib.item(row),
            self._device_used[first:last].tolist(),
        )

    def set_free(self, row: int, cpu_millis: int, memory_mib: int, storage_mib: int, used: list[int]) -> None:
        """Let a node have just this free, and its devices hold so much."""
        self._set(row, cpu_millis, memory_mib, storage_mib, used)
        healthy, share, gpu_millis = self.cluster.device_healthy_list, self.cluster.device_share, 0
        for device, millis in enumerate(used, self.cluster.device_first[row]):
            if healthy[device]:
                gpu_millis += max(share.item(device) - millis, 0)
        self._gpu[row] = gpu_millis
        self._touch(row)

    def give_back_limits(
        self,
        *,
        queue_row: int,
        array_id: int,
        charges: tuple[tuple[int, int], ...],
        request: RequestClass,
        tasks: int,
        sign: int = 1,
    ) -> None:
        """The reverse of `take_limits`; `sign` -1 counts the job again."""
        self.limits.take(charges, sign=-sign)
        self.queue_running[queue_row] -= sign
        if array_id:
            self.array_running[array_id] = self.array_running.get(array_id, 0) - sign
        self.move_extras(request, tasks, sign=-sign)

    def move_extras(self, request: RequestClass, tasks: int, *, sign: int) -> None:
        """Take what so many tasks count on pools, or give it back (-1)."""
        for name, amount in request.per_task.extras:
            if name in self._pool_row:
                self.pool_used[self._pool_row[name]] += sign * amount * tasks

    def take_limits(
        self,
        *,
        queue_row: int,
        array_id: int,
        charges: tuple[tuple[int, int], ...],
        request: RequestClass,
        tasks: int,
    ) -> None:
        """Count one job that starts on its quota lines, queue, array and pools."""
        self.limits.take(charges)
        self.queue_running[queue_row] += 1
        if array_id:
            self.array_running[array_id] = self.array_running.get(array_id, 0) + 1
        for name, amount in request.per_task.extras:
            self.pool_used[self._pool_row[name]] += amount * tasks

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Try something: unless `keep()` is called, everything is as before on leaving."""
        counts = (
            self.quota_used, self.limits.kept, self.queue_running, self.pool_used, self.budgets.left,
            self.domain_free,
        )  # fmt: skip
        saved_counts = [list(count) for count in counts]
        saved_arrays = dict(self.array_running)
        saved_neighbours = self.affinity_state.copy() if self.affinity_state is not None else None
        before: dict[int, _Before] = {}
        self._trials.append(before)
        trial = Trial()
        try:
            yield trial
        finally:
            self._trials.pop()
            if not trial.kept:
                # In place: caches hold these very lists and columns.
                for count, old in zip(counts, saved_counts, strict=True):
                    count[:] = old
                self.array_running = saved_arrays
                if self.affinity_state is not None and saved_neighbours is not None:
                    self._touch_all(self.affinity_state.become(saved_neighbours))
                for row, was in before.items():
                    self._restore(row, was)  # what was cached during the trial is stale again
            elif self._trials:
                for row, was in before.items():
                    self._trials[-1].setdefault(row, was)

    # Parts of those.

    def _hold(self, row: int, devices: list[int], millis: int) -> None:
        """Let some devices of a node be held by so much more."""
        first, held = self.cluster.device_first[row], self._device_used
        if millis == GPU_MILLIS:
            bits = 0
            for device in devices:
                held[device] += GPU_MILLIS
                bits |= 1 << device - first
            self._idle[row] &= ~bits
            self._shared[row] &= ~bits
            return
        idle, shared = self._idle[row], self._shared[row]
        for device in devices:
            used = held[device] = held[device] + millis
            bit = 1 << (device - first)
            idle = idle & ~bit if used else idle | bit
            shared = shared | bit if 0 != used < GPU_MILLIS else shared & ~bit
        self._idle[row], self._shared[row] = idle, shared

    def _set(self, row: int, cpu_millis: int, memory_mib: int, storage_mib: int, used: list[int]) -> None:
        """Let a node have just this free, and its devices held so much."""
        self._cpu[row], self._memory[row] = cpu_millis, memory_mib
        self.free_storage_mib[row] = storage_mib
        for device, millis in enumerate(used, self.cluster.device_first[row]):
            if millis != self._device_used[device]:
                self._hold(row, [device], millis - self._device_used[device])

    def _remember(self, row: int) -> None:
        before = self._trials[-1]
        if row not in before:
            before[row] = (*self.free_on(row), self._gpu[row], self._tasks[row])

    def _restore(self, row: int, was: _Before) -> None:
        self._set(row, *was[:4])
        self._gpu[row], self._tasks[row] = was[4:]
        self._touch(row)

    def follow(self, other: Workspace) -> None:
        """Let the same jobs be where they are in another workspace of this cluster."""
        if self.affinity_state is not None and other.affinity_state is not None:
            self._touch_all(self.affinity_state.become(other.affinity_state.copy()))

    def _touch_all(self, rows: list[int]) -> None:
        for row in rows:
            self._touch(row)

    def _touch(self, row: int) -> None:  # noqa: C901  the hottest loop of a cycle: calls would double its time
        """Bring everything that is kept of this node up to date, and say that it changed."""
        cpu, memory = self._cpu[row], self._memory[row]
        packed = (cpu if cpu > 0 else 0) | (memory if memory > 0 else 0) << MEMORY_BIT | GUARDS
        if self._plain_room is not None:
            self._plain_room[row] = packed
        idle, shared = self._idle[row], self._shared[row]
        views = self._views.get(self._kind[row])
        for bits, domains, features, wholes, shares in self._views_of(row) if views is None else views:
            whole = best = (idle & bits).bit_count()
            partial = self._most_left(row, shared & bits) if shared & bits else 0
            if whole > 1 and domains:
                best = 0
                for domain in domains:
                    count = (idle & domain).bit_count()
                    if count > best:
                        best = count
            room = GPU_MILLIS if whole else partial
            for whole_column, best_column, partial_column, room_column in features:
                whole_column[row] = whole
                best_column[row] = best
                partial_column[row] = partial
                room_column[row] = room
            if wholes:
                left = packed | whole << DEVICE_BIT
                for column in wholes:
                    column[row] = left
            if shares:
                left = packed | room << DEVICE_BIT
                for column in shares:
                    column[row] = left
        if self._with_gpu or self._without_gpu or self._gpus_taken:
            cpu, memory = cpu * _POINTS // self._largest_cpu, memory * _POINTS // self._largest_memory
            gpu = self._gpu[row] * _POINTS // self._largest_gpu
            if self._with_gpu:
                part = (_POINTS - (2 * gpu + cpu + memory) // 4) / 1000
                for flipped, weight, points in self._with_gpu:
                    points[row] = (100.0 - part if flipped else part) * weight
            if self._without_gpu:
                part = (_POINTS - (cpu + memory) // 2) / 1000
                for flipped, weight, points in self._without_gpu:
                    points[row] = (100.0 - part if flipped else part) * weight
            if self._gpus_taken:
                part = (_POINTS - gpu) / 1000
                for flipped, weight, points in self._gpus_taken:
                    points[row] = (100.0 - part if flipped else part) * weight
        if self.numa is not None:
            self.numa.touch(row, idle)
        length = self.log_length
        if length == len(self._log):
            self.log = np.concatenate([self.log, np.zeros_like(self.log)])
            self._log = cells(self.log)
        self._log[length] = row
        self.log_length = length + 1

    def _most_left(self, row: int, shared: int) -> int:
        """The most that is left of one of these devices."""
        used, first, most = self._device_used, self.cluster.device_first[row], 0
        while shared:
            low = shared & -shared
            left = GPU_MILLIS - used[first + low.bit_length() - 1]
            if left > most:
                most = left
            shared ^= low
        return most

    def _views_of(self, row: int) -> tuple[_View, ...]:
        """What to keep up to date about the devices of nodes like this one; nothing of what none of them meets."""
        views: dict[int, _View] = {}
        domains = self.cluster.node_domains[row]
        for key, features in self._features.items():
            bits = features.bits[row]
            if bits:
                if bits not in views:
                    here = tuple([domain & bits for domain in domains if domain & bits])
                    views[bits] = _View(bits, here if len(here) > 1 else (), [], [], [])
                columns = features.whole, features.numa_best, features.partial, features.room
                whole, best, partial, most = map(cells, columns)
                views[bits].features.append((whole, best, partial, most))
                for shares, rooms in ((False, views[bits].wholes), (True, views[bits].shares)):
                    room = self._rooms.get((*key, shares))
                    if room is not None:
                        rooms.append(cells(room.column))
        self._views[self._kind[row]] = tuple(views.values())
        return tuple(views.values())
