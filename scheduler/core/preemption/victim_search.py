"""Victim search: the fewest and cheapest running jobs that have to end so that one pending job can start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import Preemptor, RunningJobs, fits_limits, place_preemptor
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import ResourceFilter
from scheduler.core.placement.gang_layout import fit_on
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.qos import Qos

#: Cores that a GPU counts as, to compare the work of jobs of one priority.
CORES_OF_A_GPU: Final = 16
#: Nodes that are each looked at as the one that is cleared, the most promising first.
_NODES_TRIED: Final = 6
#: Victims of one trial at most, before those that turn out needless are spared again.
_LONGEST_TRIAL: Final = 512
#: Removals that one cycle simulates at most, for all jobs together, and how many of them each search counts for by
#: itself. Counted, not timed: a recorded cycle gives the same plan on any machine. About a tenth of a second.
MOST_REMOVALS: Final = 4096
REMOVALS_A_SEARCH: Final = 16


class SearchBound:
    """How much the searches of one cycle may still simulate."""

    def __init__(self) -> None:
        self.left = MOST_REMOVALS
        #: Whether a search ended for this reason, and not because it had tried everything.
        self.reached = False

    def spend(self, removals: int) -> bool:
        """Count removals that are about to be simulated; False = the bound is reached, and they are not to be."""
        self.reached = self.reached or self.left <= 0
        self.left -= removals
        return not self.reached


def preemption_rank(cluster: ClusterIndex) -> Ints:
    """The priority of every running job, and within it its class of service."""
    running = cluster.snapshot.running
    classes = np.array([int(request.qos) for request in cluster.snapshot.classes], dtype=np.int64)
    return running.priority * len(Qos) + classes[running.class_index]


class VictimSearch:
    """Finds the victims of one job after the other, and keeps count of what may still be lost."""

    #: Victims give back their CPUs and nothing else.
    only_cpus = False

    def __init__(
        self, context: CycleContext, jobs: RunningJobs, rules: PreemptionPolicy, going: Bools | None = None
    ) -> None:
        cluster = context.cluster
        running = cluster.snapshot.running
        self.context, self.jobs, self.rules = context, jobs, rules
        weight = jobs.gpu_millis + jobs.cpu_millis // CORES_OF_A_GPU
        #: What stopping each costs: the work lost and the start again, by what it holds.
        self.cost: Ints = (jobs.lost_seconds + rules.restart_seconds) * np.maximum(weight, 1)
        self.loss: Ints = jobs.lost_seconds * jobs.gpu_millis // GPU_MILLIS
        #: By priority; where the profile says so, by class of service within it.
        self.standing: Ints = preemption_rank(cluster) if rules.qos else running.priority
        #: Cheapest first: by standing, cost, latest start.
        order = np.lexsort((-running.id, -running.started_ms, self.cost, self.standing))
        self.rank: Ints = np.empty(len(order), dtype=np.int64)
        self.rank[order] = np.arange(len(order))
        ran = (cluster.snapshot.now_ms - running.started_ms) // 1000
        self._open: Bools = (
            running.preemptible
            & (running.stop_by_ms == 0)
            & (~going if going is not None else True)
            & (ran >= rules.protected_seconds)
            & (running.times_preempted < rules.most_times)
        )
        budget = rules.loss_budget_gpu_hours * 3600
        left = np.maximum(budget - cluster.snapshot.projects.lost_gpu_seconds, 0)
        self._budget: list[int] | None = left.tolist() if budget else None
        self._may_stop: dict[int, Bools] = {}
        self.bound = SearchBound()

    def may_stop(self, priority: int) -> Bools:
        """Running jobs that a job of this priority may have stopped."""
        if priority not in self._may_stop:
            allowed = np.array([self.rules.may_stop(priority, victim) for victim in range(101)], np.bool_)
            self._may_stop[priority] = allowed[self.context.cluster.snapshot.running.priority]
        return self._may_stop[priority] & self._open

    def allowed(self, wanted: Preemptor, priority: int) -> Bools:
        """Running jobs that this waiting one may have stopped."""
        return self.may_stop(priority)

    def release(self, victim: int, *, back: bool = False) -> None:
        """Think a victim away, or back."""
        self.jobs.release(victim, back=back, only_cpus=self.only_cpus)

    def spares(self, victim: int) -> bool:
        """Whether a job that may be stopped is left alone all the same, after those already removed in simulation."""
        return False

    def close(self, victims: Iterable[int]) -> None:
        """Leave these jobs alone for the rest of the cycle."""
        for victim in victims:
            self._open[victim] = False

    @contextmanager
    def leaving_alone(self, victims: Iterable[int]) -> Iterator[None]:
        """Leave these jobs alone for a while."""
        before = self._open.copy()
        self.close(victims)
        yield
        self._open[:] = before

    def spend(self, victims: Sequence[int]) -> None:
        self.close(victims)
        for victim in victims:
            if self._budget is not None:
                self._budget[int(self.jobs.project_row[victim])] -= int(self.loss[victim])

    def victims_of(self, wanted: Preemptor, priority: int, most: int) -> list[int]:
        """The cheapest set of victims found that lets this job start, within the limit; [] when there is none."""
        allowed = self.allowed(wanted, priority)
        if not allowed.any() or not self.bound.spend(REMOVALS_A_SEARCH):
            return []
        tried: set[tuple[int, ...]] = set()
        best: tuple[tuple[int, ...], list[int]] | None = None
        for sequence, is_last_resort in self._sequences(wanted, allowed):
            if not sequence or tuple(sequence) in tried or (is_last_resort and best is not None):
                continue
            tried.add(tuple(sequence))
            found = self.fewest(wanted, sequence)
            if found and len(found) <= most:
                worth = self.worth(found)
                if best is None or worth < best[0]:
                    best = worth, found
        return best[1] if best else []

    def worth(self, victims: Sequence[int]) -> tuple[int, ...]:
        """Less is better: the highest standing stopped, the cost of all, how many, the latest started."""
        running = self.context.cluster.snapshot.running
        return (
            int(self.standing[victims].max()),
            int(self.cost[victims].sum()),
            len(victims),
            *sorted((-running.started_ms[victims]).tolist()),
            *sorted((-running.id[victims]).tolist()),
        )

    def fewest(self, wanted: Preemptor, sequence: Sequence[int]) -> list[int]:
        """Of a sequence as few as let the job start: from its front until it fits, then each spared that can be.

        Idea: remove one after the other in simulation and look each time whether the job fits. The code differs in
        that it works out first how many have to be removed at least, and looks only from there on; where all of them
        together would not make room, none is removed.
        """
        needed = self.needed_at_least(wanted, sequence)
        if needed is None:
            return []
        stopped: list[int] = []
        with self.context.workspace.trial():
            budget = list(self._budget) if self._budget is not None else None
            fits = False
            for count, victim in enumerate(sequence, 1):
                if self.spares(victim):
                    continue
                if budget is not None:
                    project = int(self.jobs.project_row[victim])
                    if int(self.loss[victim]) > budget[project]:
                        continue
                    budget[project] -= int(self.loss[victim])
                if not self.bound.spend(1):
                    break
                self.release(victim)
                stopped.append(victim)
                fits = count >= needed and place_preemptor(self.context, wanted) is not None
                if fits:
                    break
            if not fits:
                return []
            for victim in sorted(stopped, key=lambda one: -int(self.rank[one])):  # the dearest first
                self.release(victim, back=True)
                if place_preemptor(self.context, wanted) is None:
                    self.release(victim)
                else:
                    stopped.remove(victim)
        return stopped

    def needed_at_least(self, wanted: Preemptor, sequence: Sequence[int]) -> int | None:
        """How many from the front of a sequence have to end at least for there to be room on nodes.

        For a job of several tasks only whether all of them are enough, as 1; None = they are not.
        """
        context, jobs, shape = self.context, self.jobs, wanted.job_class.shape
        candidates = context.whole_candidates(
            wanted.job_class
        )  # what ends may give quota of a closed model back
        opened = candidates.filters.passing()
        place: Ints = np.full(len(self.rank), -1, dtype=np.int64)
        place[list(sequence)] = np.arange(len(sequence))
        nodes = context.cluster.allocations.node
        held = np.flatnonzero((place[jobs.of_allocation] >= 0) & opened[nodes])
        node, order = nodes[held], place[jobs.of_allocation[held]]
        needs = list(_needs(candidates, held, only_cpus=self.only_cpus))
        if not fit_on(_most_slots(opened, node, needs), shape, context.cluster):
            return None
        now = _most_slots(opened, node[:0], [(free, need, own[:0]) for free, need, own in needs])
        if shape.tasks > 1 or now.any():
            return 1
        by_node = np.lexsort((order, node))
        enough, _ = _enough(
            node[by_node], *_slices(node[by_node]), [(free, need, own[by_node]) for free, need, own in needs]
        )
        return int(order[by_node][enough].min(initial=len(sequence))) + 1

    def _sequences(self, wanted: Preemptor, allowed: Bools) -> Iterator[tuple[list[int], bool]]:
        """Orders in which to simulate the removal of victims, the most promising first; True = only if none helped."""
        context, jobs, shape = self.context, self.jobs, wanted.job_class.shape
        candidates = context.candidates(wanted.job_class)
        candidates.refresh()
        if not fits_limits(context, wanted):
            # Room alone does not help: first those who hold of the same limits have to end.
            same = self._same_limits(wanted, allowed)
            if same.any():
                others = self._ranked(np.flatnonzero(allowed & ~same))
                yield (self._ranked(np.flatnonzero(same)) + others)[:_LONGEST_TRIAL], False
            return
        opened = candidates.filters.passing()
        held = np.flatnonzero(allowed[jobs.of_allocation] & opened[context.cluster.allocations.node])
        if not len(held):
            return
        node, victim = context.cluster.allocations.node[held], jobs.of_allocation[held]
        needs = list(_needs(candidates, held, only_cpus=self.only_cpus))
        if not fit_on(_most_slots(opened, node, needs), shape, context.cluster):
            return
        order = np.lexsort((self.rank[victim], node))
        held, node, victim = held[order], node[order], victim[order]
        first, count = _slices(node)
        enough, alone = _enough(node, first, count, [(free, need, own[order]) for free, need, own in needs])
        if shape.tasks == 1 and alone.any():
            yield [int(victim[alone][self.rank[victim[alone]].argmin()])], False
        # Each node's price: its victims up to the first with which a task fits.
        cost = np.cumsum(self.cost[victim])
        cost = cost - np.repeat(cost[first] - self.cost[victim[first]], count)
        rows = np.flatnonzero(enough)
        rows = rows[np.unique(node[rows], return_index=True)[1]]
        rows = rows[np.lexsort((node[rows], cost[rows], self.standing[victim[rows]]))]
        on_node = {int(node[start]): (start, int(length)) for start, length in zip(first, count, strict=True)}

        def there(node_row: int) -> list[int]:
            start, length = on_node[node_row]
            return list(dict.fromkeys(victim[start : start + length].tolist()))

        if shape.tasks == 1:
            for row in rows[:_NODES_TRIED].tolist():
                yield there(int(node[row])), False
        else:
            chained = [one for row in rows.tolist() for one in there(int(node[row]))]
            yield list(dict.fromkeys(chained))[:_LONGEST_TRIAL], False
        yield self._ranked(np.unique(victim))[:_LONGEST_TRIAL], shape.tasks == 1

    def _same_limits(self, wanted: Preemptor, allowed: Bools) -> Bools:
        """Victims that hold of the first limit that keeps the job waiting, if together they hold enough of it."""
        workspace, jobs, job_class = self.context.workspace, self.jobs, wanted.job_class
        none = np.zeros(len(allowed), dtype=np.bool_)
        if workspace.limits.queue_is_full(job_class.queue_row):
            here: Bools = allowed & (jobs.queue_row == job_class.queue_row)
            return none if self.only_cpus else here
        charges = self.context.charges(job_class)
        short = workspace.limits.short_quota(charges)
        if short is None:
            return (
                none if self.only_cpus else allowed
            )  # an array or a pool: few jobs hold of them, and the trial finds them
        line, need = short
        lacking = workspace.limits.tree.used[line] + need - workspace.limits.tree.bound[line]
        sharing = [payer for payer, lines in enumerate(self.context.cluster.paths.lines) if line in lines]
        mask: Bools = allowed & np.isin(self.context.cluster.paths.running, sharing)
        return mask if jobs.charged(line, mask) >= lacking else none

    def _ranked(self, victims: Ints) -> list[int]:
        ordered: list[int] = victims[np.argsort(self.rank[victims])].tolist()
        return ordered


Need = tuple[Ints, int, Ints]  # free on each node, needed by one task, given back by each allocation


def _needs(candidates: Candidates, held: Ints, *, only_cpus: bool) -> Iterator[Need]:
    """Every measured resource of a request; GPUs in thousandths, as if each came back whole or not at all.

    `only_cpus`: of these allocations nothing else comes back.
    """
    nothing = np.zeros(len(held), dtype=np.int64)
    query, workspace = candidates.query, candidates.workspace
    cluster, request = workspace.cluster, query.request
    for gate in candidates.rules.gates:
        if not isinstance(gate, ResourceFilter) or (headroom := gate.free(query, workspace)) is None:
            continue
        if gate.name == "numa":
            continue  # more than enough is looked for here; the trial says whether it is in one domain
        if gate.name != "gpus":
            comes = gate.name == "cpu_millis" or not only_cpus
            amounts = getattr(cluster.snapshot.allocations, gate.name)[held] if comes else nothing
            yield headroom[0], headroom[1], amounts
            continue
        usable = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib) & cluster.devices.healthy
        free = np.zeros(cluster.node_count, dtype=np.int64)
        left = np.maximum(GPU_MILLIS - workspace.devices.used, 0)
        each = cluster.snapshot.allocations.gpu_millis[held]
        if request.gpu_slice:  # held whole, whatever it counts for
            left, each = np.where(workspace.devices.used > 0, 0, left), np.full(len(held), GPU_MILLIS)
        np.add.at(free, cluster.devices.node[usable], left[usable])
        devices = cluster.allocations.gpus_held(request.gpu_model, request.gpu_memory_mib)[held]
        need = request.per_task.gpu_millis if request.shares_gpu else request.per_task.gpus * GPU_MILLIS
        yield free, need, nothing if only_cpus else devices * each


def _slices(node: Ints) -> tuple[Ints, Ints]:
    """Of allocations in the order of their nodes: where those of each node begin, and how many there are."""
    first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
    return first, np.diff(np.append(first, len(node)))


def _enough(node: Ints, first: Ints, count: Ints, needs: list[tuple[Ints, int, Ints]]) -> tuple[Bools, Bools]:
    """Of allocations in the order of their nodes: whether a task fits once those up to it are removed, or it alone.

    `first` and `count` are the slice of each node; `needs` are free, need and what each allocation holds.
    """
    enough, alone = np.ones(len(node), np.bool_), np.ones(len(node), np.bool_)
    for free, need, own in needs:
        total = np.cumsum(own)
        before = np.repeat(total[first] - own[first], count)
        enough &= free[node] + total - before >= need
        alone &= free[node] + own >= need
    return enough, alone


def _most_slots(opened: Bools, node: Ints, needs: Sequence[Need]) -> Ints:
    """Never fewer tasks than each node could take without all of these allocations."""
    slots = np.where(opened, np.iinfo(np.int64).max, 0)
    for free, need, amounts in needs:
        whole = free.copy()
        np.add.at(whole, node, amounts)
        np.minimum(slots, whole // need, out=slots)
    return np.maximum(slots, 0)
