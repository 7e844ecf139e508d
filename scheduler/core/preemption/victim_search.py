"""Victim search: the fewest and cheapest running jobs that have to end so that one pending job can start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, distinct, stable_order
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import Preemptor, RunningJobs, fits_limits, place_preemptor
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import ResourceFilter
from scheduler.core.placement.gang_layout import fit_on
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.qos import Qos
from scheduler.core.snapshot.snapshot import RunningColumns

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
        if rules.risk:
            self.cost = _with_risk(
                running, jobs.lost_seconds, rules, np.maximum(weight, 1), cluster.snapshot.now_ms
            )
        self.loss: Ints = jobs.lost_seconds * jobs.gpu_millis // GPU_MILLIS
        #: By priority; where the profile says so, by class of service within it.
        self.standing: Ints = preemption_rank(cluster) if rules.qos else running.priority
        #: Cheapest first: by standing, cost, latest start.
        self.rank = cheapest_first(running, self.cost, self.standing)
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

    @cached_property
    def _priorities(self) -> list[int]:
        """The priorities of running jobs, each once."""
        return distinct(self.context.cluster.snapshot.running.priority).tolist()  # type: ignore[no-any-return]

    @property
    def by_resource(self) -> bool:
        """Whether victims that hold the kind of resource that is asked for go first."""
        return bool(self.rules.by_resource)

    @property
    def keeps_victims(self) -> bool:
        """Whether victims that were found are kept, without a look for fewer beside elastic jobs that become smaller.

        A suspended job loses nothing, and victims of the same resource are not given up for cheaper ones.
        """
        return self.only_cpus or self.by_resource

    def strategy_of(self, victim: int) -> tuple[tuple[str, int], ...]:
        """What spoke for a victim, where the policy chooses by risk, resource or pressure; () where it does not.

        `cost` in seconds times what the job holds (a GPU is 1,000), `gpu_millis` of all its GPUs.
        """
        rules = self.rules
        if not (rules.risk or rules.by_resource or rules.asks_pressure):
            return ()
        return (
            ("cost", int(self.cost[victim])),
            ("times_preempted", int(self.context.cluster.snapshot.running.times_preempted[victim])),
            ("gpu_millis", int(self.jobs.gpu_millis[victim])),
            ("risk", rules.risk),
            ("by_resource", int(self.by_resource)),
        )

    def may_stop(self, priority: int) -> Bools:
        """Running jobs that a job of this priority may have stopped."""
        if priority not in self._may_stop:
            priorities = self.context.cluster.snapshot.running.priority
            table = np.zeros(int(priorities.max(initial=0)) + 1, dtype=np.bool_)
            table[[victim for victim in self._priorities if self.rules.may_stop(priority, victim)]] = True
            self._may_stop[priority] = table[priorities]
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
        if self.by_resource:
            same = allowed & self._hold_same_resource(wanted)
            if (same != allowed).any() and (victims := self._victims_among(wanted, same, most)):
                return victims
        return self._victims_among(wanted, allowed, most)

    def _hold_same_resource(self, wanted: Preemptor) -> Bools:
        """Running jobs that hold GPUs which this job can use; where it asks for none, those that hold none."""
        request, cluster = wanted.job_class.query.request, self.context.cluster
        held = np.zeros(len(self.rank), dtype=np.bool_)
        if not request.per_task.gpus:
            held[self.jobs.of_allocation[cluster.snapshot.allocations.gpu_millis > 0]] = True
            return ~held
        usable = cluster.allocations.gpus_held(request.gpu_model, request.gpu_memory_mib) > 0
        held[self.jobs.of_allocation[usable]] = True
        return held

    def _victims_among(self, wanted: Preemptor, allowed: Bools, most: int) -> list[int]:
        if not allowed.any() or not self.bound.spend(REMOVALS_A_SEARCH):
            return []
        tried: set[tuple[int, ...]] = set()
        best = _Best()
        released = ReleasedAmounts(self.context.whole_candidates(wanted.job_class), only_cpus=self.only_cpus)
        for sequence in self._sequences(wanted, allowed, released, best):
            if not sequence or tuple(sequence) in tried:
                continue
            tried.add(tuple(sequence))
            found = self.fewest(wanted, sequence, released)
            if found and len(found) <= most:
                best.offer(self.worth(found), found)
        return best.victims

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

    def fewest(self, wanted: Preemptor, sequence: Sequence[int], released: ReleasedAmounts) -> list[int]:
        """Of a sequence as few as let the job start: from its front until it fits, then each spared that can be.

        Idea: remove one after the other in simulation and look each time whether the job fits. The code differs in
        that it works out first how many have to be removed at least, and looks only from there on; where all of them
        together would not make room, none is removed.
        """
        needed = self.needed_at_least(wanted, sequence, released)
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

    def needed_at_least(
        self, wanted: Preemptor, sequence: Sequence[int], released: ReleasedAmounts
    ) -> int | None:
        """How many from the front of a sequence have to end at least for there to be room on nodes.

        For a job of several tasks only whether all of them are enough, as 1; None = they are not. `released` are for
        all GPU models that the request allows: what ends may give quota of a closed model back.
        """
        context, shape = self.context, wanted.job_class.shape
        held, order = self.jobs.allocations_of(sequence)
        nodes = context.cluster.allocations.node[held]
        here = released.opened[nodes]
        held, order, node = held[here], order[here], nodes[here]
        if shape.tasks > 1:
            return 1 if fit_on(_most_slots(released, node, held), shape, context.cluster) else None
        if released.is_room_now:
            return 1
        if not len(held):
            return None
        by_node = np.lexsort((order, node))
        node, held = node[by_node], held[by_node]
        fitting = order[by_node][_enough(node, *_slices(node), released.of(held))]
        return int(fitting.min()) + 1 if len(fitting) else None

    def _sequences(
        self, wanted: Preemptor, allowed: Bools, released: ReleasedAmounts, best: _Best
    ) -> Iterator[list[int]]:
        """Orders in which to simulate the removal of victims, the most promising first.

        The last one, of all victims, is for a job of one task made only if none of those before helped.
        """
        context, jobs, shape = self.context, self.jobs, wanted.job_class.shape
        candidates = context.candidates(wanted.job_class)
        candidates.refresh()
        if not fits_limits(context, wanted):
            # Room alone does not help: first those who hold of the same limits have to end.
            same = self._same_limits(wanted, allowed)
            if same.any():
                others = self._ranked(np.flatnonzero(allowed & ~same))
                yield (self._ranked(np.flatnonzero(same)) + others)[:_LONGEST_TRIAL]
            return
        if candidates is not released.candidates:  # some of the GPU models are closed
            released = ReleasedAmounts(candidates, only_cpus=self.only_cpus)
        held = np.flatnonzero(allowed[jobs.of_allocation] & released.opened[context.cluster.allocations.node])
        node, victim = context.cluster.allocations.node[held], jobs.of_allocation[held]
        if not len(held) or not fit_on(_most_slots(released, node, held), shape, context.cluster):
            return
        order = stable_order(node * len(self.rank) + self.rank[victim])
        held, node, victim = held[order], node[order], victim[order]
        first, count = _slices(node)
        needs = released.of(held)
        if shape.tasks == 1 and (alone := _alone(node, needs)).any():
            yield [int(victim[alone][self.rank[victim[alone]].argmin()])]
        # Each node's price: its victims up to the first with which a task fits.
        cost = np.cumsum(self.cost[victim])
        cost = cost - np.repeat(cost[first] - self.cost[victim[first]], count)
        rows = np.flatnonzero(_enough(node, first, count, needs))
        rows = rows[np.unique(node[rows], return_index=True)[1]]
        rows = rows[np.lexsort((node[rows], cost[rows], self.standing[victim[rows]]))]

        def there(row: int) -> list[int]:
            start, end = np.searchsorted(node, node[row]), np.searchsorted(node, node[row], side="right")
            return list(dict.fromkeys(victim[start:end].tolist()))

        if shape.tasks == 1:
            for row in rows[:_NODES_TRIED].tolist():
                yield there(row)
        else:
            chained = [one for row in rows.tolist() for one in there(row)]
            yield list(dict.fromkeys(chained))[:_LONGEST_TRIAL]
        if shape.tasks > 1 or not best.victims:
            yield self._ranked(distinct(victim))[:_LONGEST_TRIAL]

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


class _Best:
    """The cheapest set of victims that was found for one job; none before the first."""

    def __init__(self) -> None:
        self.victims: list[int] = []
        self._worth: tuple[int, ...] = ()

    def offer(self, worth: tuple[int, ...], victims: list[int]) -> None:
        if not self.victims or worth < self._worth:
            self._worth, self.victims = worth, victims


Need = tuple[Ints, int, Ints]  # free on each node, needed by one task, given back by each allocation


class ReleasedAmounts:
    """What is free for one task of a request, and what each running allocation gives back of that: by resource.

    As of the moment when the amounts are first asked for.
    """

    def __init__(self, candidates: Candidates, *, only_cpus: bool) -> None:
        """`only_cpus`: nothing else is given back."""
        self.candidates, self.opened = candidates, candidates.filters.passing()
        self._only_cpus = only_cpus

    @cached_property
    def needs(self) -> list[Need]:
        return list(_needs(self.candidates, only_cpus=self._only_cpus))

    def of(self, held: Ints) -> list[Need]:
        """The same with what these allocations give back, in their order."""
        return [(free, need, own[held]) for free, need, own in self.needs]

    @cached_property
    def is_room_now(self) -> bool:
        """Whether one task finds all amounts on a node before anything is given back."""
        nothing = np.zeros(0, dtype=np.int64)
        return bool(_most_slots(self, nothing, nothing).any())


def _with_risk(
    running: RunningColumns, lost_seconds: Ints, rules: PreemptionPolicy, weight: Ints, now_ms: int
) -> Ints:
    """(lost work + restart_seconds * (1 + times preempted)) * weight * (1 + part of its time that is over).

    That part is 0 for a job whose end nobody knows, and counted in thousandths.
    """
    whole = np.maximum(running.expected_end_ms - running.started_ms, 1)
    over = np.clip((now_ms - running.started_ms) * 1000 // whole, 0, 1000)
    done = np.where(running.expected_end_ms > 0, over, 0)
    again = rules.restart_seconds * (1 + running.times_preempted)
    cost: Ints = (lost_seconds + again) * weight * (1000 + done) // 1000
    return cost


def cheapest_first(running: RunningColumns, cost: Ints, standing: Ints) -> Ints:
    """The place of each running job in the order of standing, cost, latest start, highest number."""
    rank: Ints = np.empty(len(running), dtype=np.int64)
    rank[np.lexsort((-running.id, -running.started_ms, cost, standing))] = np.arange(len(running))
    return rank


def _needs(candidates: Candidates, *, only_cpus: bool) -> Iterator[Need]:
    """Every measured resource of a request; GPUs in thousandths, as if each came back whole or not at all.

    `only_cpus`: nothing else comes back of any allocation.
    """
    query, workspace = candidates.query, candidates.workspace
    cluster, request = workspace.cluster, query.request
    allocations = cluster.snapshot.allocations
    nothing = np.zeros(len(allocations), dtype=np.int64)
    for gate in candidates.rules.gates:
        if not isinstance(gate, ResourceFilter) or (headroom := gate.free(query, workspace)) is None:
            continue
        if gate.name == "numa":
            continue  # more than enough is looked for here; the trial says whether it is in one domain
        if gate.name != "gpus":
            comes = gate.name == "cpu_millis" or not only_cpus
            yield headroom[0], headroom[1], getattr(allocations, gate.name) if comes else nothing
            continue
        usable = cluster.devices.usable(request.gpu_model, request.gpu_memory_mib)
        left, each = np.maximum(GPU_MILLIS - workspace.devices.used, 0), allocations.gpu_millis
        if request.gpu_slice:  # held whole, whatever it counts for
            left = np.where(workspace.devices.used > 0, 0, left)
            each = np.full(len(allocations), GPU_MILLIS)
        devices = cluster.allocations.gpus_held(request.gpu_model, request.gpu_memory_mib)
        need = request.per_task.gpu_millis if request.shares_gpu else request.per_task.gpus * GPU_MILLIS
        yield cluster.devices.per_node(left * usable), need, nothing if only_cpus else devices * each


def _slices(node: Ints) -> tuple[Ints, Ints]:
    """Of allocations in the order of their nodes: where those of each node begin, and how many there are."""
    first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
    return first, np.diff(np.append(first, len(node)))


def _enough(node: Ints, first: Ints, count: Ints, needs: list[Need]) -> Bools:
    """Of allocations in the order of their nodes: whether a task fits once those up to it are removed.

    `first` and `count` are the slice of each node; `needs` are free, need and what each allocation holds.
    """
    enough = np.ones(len(node), np.bool_)
    for free, need, own in needs:
        total = np.cumsum(own)
        before = np.repeat(total[first] - own[first], count)
        enough &= free[node] + total - before >= need
    return enough


def _alone(node: Ints, needs: list[Need]) -> Bools:
    """Of allocations: whether a task fits once it alone is removed."""
    alone = np.ones(len(node), np.bool_)
    for free, need, own in needs:
        alone &= free[node] + own >= need
    return alone


def _most_slots(released: ReleasedAmounts, node: Ints, held: Ints) -> Ints:
    """Never fewer tasks than each node could take without all of these allocations, which are on these nodes."""
    slots = np.where(released.opened, np.iinfo(np.int64).max, 0)
    for free, need, amounts in released.of(held):
        whole = free.copy()
        np.add.at(whole, node, amounts)
        np.minimum(slots, whole // need, out=slots)
    return np.maximum(slots, 0)
