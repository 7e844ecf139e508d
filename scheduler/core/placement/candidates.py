"""Placement: all tasks of a job onto nodes and devices, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from scheduler.core.cluster.devices import GUARDS, PackedFree
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.numa import DomainCapacity
from scheduler.core.cluster.workspace import Floats, Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import (
    AffinityFilter,
    FilterQuery,
    Headroom,
    NodeFilter,
    capacity_slots,
    fits_empty,
    task_slots,
)
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.scoring import Part
from scheduler.core.placement.topology_spread import Spread
from scheduler.core.plan import Placement
from scheduler.core.snapshot.request_classes import RequestClass

#: A node that cannot take a task; every real score is at least 0.
NO: Final = -1.0

#: Refresh all nodes instead of the touched ones when that is less work (measured: a third of them, or 256).
_FEW_NODES: Final = 256

#: Arithmetic with an array of no dimensions is half as dear as with a number.
_GUARDS: Final = np.array(GUARDS)
_NO: Final = np.array(NO)

#: What lacks on a node is `need - 1 - room`, in bits where the guards are: the reverse of `room - need`.
_NEVER: Final = np.array(PackedFree.never() - 1)
_PACKED: Final = ("cpu_millis", "memory_mib", "gpus")

#: So few touched nodes are looked at one by one: less work than a round of array calls.
_FEW_ROWS: Final = 6


@dataclass(frozen=True, slots=True)
class Shape:
    """How many tasks, and what the job says about their spread (0 = says nothing)."""

    tasks: int = 1  # as few as are enough
    nodes: int = 0
    tasks_per_node: int = 0
    most: int = 0  # takes up to so many where they fit; 0 = just as many as are enough
    pack: str = ""  # how near to each other: node, rack, zone; "" = as the policy wishes
    must: bool = False  # and nowhere else
    spread: Spread | None = None  # over so many racks, zones or regions

    def sized(self, tasks: int) -> Shape:
        """The same with exactly so many tasks."""
        return replace(self, tasks=tasks, most=0)

    @property
    def is_possible(self) -> bool:
        """Whether the three numbers can be true together on any cluster."""
        if self.nodes > self.tasks:
            return False
        if self.nodes and self.tasks_per_node:
            return -(-self.tasks // self.tasks_per_node) == self.nodes
        return True


class Candidates:
    """The nodes for one question: a score a node, or `NO`; brought up to date from the workspace's log.

    Idea: filter and score every node each time somebody asks. The code differs in that only nodes touched
    since the last time are looked at again, and that shapes which failed are remembered: inside a cycle
    capacity only shrinks, so what did not fit will not fit later.
    """

    def __init__(
        self, query: FilterQuery, workspace: Workspace, rules: Rules, *, like: Candidates | None = None
    ) -> None:
        """`like` asks the same question of another workspace of this world: the facts are the same."""
        self.query = query
        self.workspace = workspace
        self.rules = rules
        self.failed: set[Shape] = set()
        cluster = workspace.cluster
        #: The gates that turn some node away, by name: masks that stay, and columns with what is needed.
        self.facts: dict[str, Bools] = {}
        self.rooms: dict[str, Headroom] = {}
        self._outside_gates: list[NodeFilter] = []
        self._jobs: Headroom | None = None  # a live column of where other jobs let it be
        if like is not None:
            self.facts = like.facts
        else:
            for fact in rules.facts:
                mask = fact.keep(query, cluster)
                if mask is not None:
                    self.facts[fact.name] = mask
        for room in rules.rooms:
            headroom = room.free(query, workspace)
            if headroom is not None:
                self.rooms[room.name] = headroom
        for gate in rules.others:
            if isinstance(gate, AffinityFilter):
                self._jobs = gate.open(query, workspace)
            else:
                self._outside_gates.append(gate)
        #: Nodes that facts leave open, and those that they close; None = they close none.
        self._open, self._closed = cluster.where(tuple(self.facts.values()))
        self._pack_rooms()
        self._parts: list[tuple[str, Part, int]] = []
        self._weights = 0
        for scorer, weight in rules.columns:
            part = scorer.part(query, workspace)
            if part is not None:
                self._parts.append((scorer.name, part, weight))
                self._weights += weight
        self._plain = not self._outside_gates and not rules.asked
        self._features = workspace.gpu_features(query.request) if query.request.per_task.gpus else None
        #: What one task holds of each of its devices; 0 without any.
        self.millis = held_millis(query.request)
        self._suitable: Bools | None = None
        self._scores: Floats | None = None
        self._cursor = 0
        #: More touched nodes than this: all are looked at again.
        self._many = cluster.node_count // 3
        if cluster.node_count <= _FEW_NODES:
            self._many = min(self._many, _FEW_ROWS)

    def _pack_rooms(self) -> None:
        """Ask about CPU, memory and devices, and the masks that stay, in one comparison where that is exact."""
        rooms, room = self.rooms, self.workspace.room(self.query.request)
        self._room = None if room is None else room.column
        self._rooms = [rooms[name] for name in rooms if room is None or name not in _PACKED]
        self._rooms += [self._jobs] if self._jobs is not None else []
        cpu, memory, devices = [rooms[name][1] if name in rooms else 0 for name in _PACKED]
        #: From what to subtract the room of every node that no fact closes, and of each node.
        self._need = PackedFree.need(cpu, memory, devices) - 1
        self._lone_need = np.array(self._need)
        self._needs: Ints | None = None

    @property
    def needs(self) -> Ints:
        """The same of each node; more than any has where facts close it."""
        if self._needs is None:
            assert self._closed is not None
            self._needs = np.where(self._closed, _NEVER, self._lone_need)
        return self._needs

    def _is_closed(self, rows: Ints | None) -> Any:
        """Which of these nodes the built-in gates close now: true, or any number but 0."""
        closed: Any
        if self._room is not None:
            if rows is None:
                closed = (self._lone_need if self._closed is None else self.needs) - self._room
            elif self._closed is None:
                closed = self._lone_need - self._room[rows]
            else:
                closed = self.needs[rows] - self._room[rows]
            closed &= _GUARDS
        elif self._closed is None:
            closed = np.zeros(
                self.workspace.cluster.node_count if rows is None else len(rows), dtype=np.bool_
            )
        else:
            closed = self._closed if rows is None else self._closed[rows]
        for room, need in self._rooms:
            closed = closed | ((room if rows is None else room[rows]) < need)
        return closed

    def passing(self, *, without: str = "") -> Bools:
        """Nodes that every gate on facts lets through, one of them left out."""
        keep: Bools = np.ones(self.workspace.cluster.node_count, dtype=np.bool_)
        if without in self.facts:
            for name, mask in self.facts.items():
                if name != without:
                    keep &= mask
        elif self._open is not None:
            return self._open
        return keep

    @property
    def asks_outside(self) -> bool:
        """Whether a gate is asked that neither a fact nor an amount answers: other jobs, or a plugin."""
        return bool(self._outside_gates) or self._jobs is not None

    def gates_now(self) -> Iterator[tuple[str, Bools]]:
        """Every gate that may turn a node away, in order, with the nodes it lets through as of now."""
        facts, rooms, workspace = self.facts, self.rooms, self.workspace
        if self.rules.in_order and self._jobs is None:
            yield from facts.items()
            for name, (column, need) in rooms.items():
                yield name, workspace.reaches(column, need)
            return
        others = self._outside_gates if self._jobs is None else self.rules.others
        for gate in self.rules.gates:
            name = gate.name
            if name in facts:
                yield name, facts[name]
            elif name in rooms:
                yield name, workspace.reaches(*rooms[name])
            elif gate in others:
                yield name, gate.filter(self.query, NodeView(workspace))

    @property
    def opened(self) -> Bools:
        """Nodes that could take one task were they empty, as they stand: facts let it in."""
        return self.suitable if self._open is None else self._open & self.suitable

    @property
    def scores(self) -> Floats:
        """The same as `refresh`."""
        return self.refresh()

    def refresh(self) -> Floats:
        """Scores as of now."""
        workspace, scores = self.workspace, self._scores
        begin, end = self._cursor, workspace.log_length
        if begin == end and scores is not None:
            return scores
        stale = end - begin
        if scores is None or stale > self._many:
            scores = self._scores = self._score(None)
        elif self._plain and stale > _FEW_ROWS:
            rows = workspace.log[begin:end]
            scores[rows] = self._score(rows)
        elif self._plain:
            for row in workspace.log[begin:end].tolist():
                scores[row] = self._score_row(row)
        else:
            rows = np.unique(workspace.log[begin:end])
            scores[rows] = self._score(rows)
        self._cursor = end
        return scores

    def best(self) -> int:
        """The row of the best node for one task, lowest row first among equals; -1 when none can take it."""
        scores = self.refresh()
        if not len(scores):
            return -1
        row = int(scores.argmax())
        return row if scores.item(row) >= 0.0 else -1

    def pick_devices(self, row: int, domain: int = -1) -> list[int]:
        """Device rows for one task on this node: as a scorer wishes, else as `Workspace.pick_devices`.

        `domain` is the NUMA domain that it is bound to; -1 = to none.
        """
        if domain < 0 and not self.rules.pickers:
            return self.workspace.pick_devices(row, self.query.request, self._features)
        numa = self.workspace.numa if domain >= 0 else None
        for picker in self.rules.pickers:
            device = picker.pick_device(self.query.request, self.workspace, row)
            if device is not None and (numa is None or numa.domains.of_device[device] == domain):
                return [device]
        within = -1 if numa is None else numa.within(domain)
        return self.workspace.pick_devices(row, self.query.request, self._features, within)

    @cached_property
    def numa(self) -> DomainCapacity | None:
        """Where its tasks are bound to one NUMA domain each; None when they need not be."""
        return self.workspace.numa if self.query.request.one_domain else None

    def slots(self) -> Ints:
        """How many tasks each node could take at once, now."""
        return task_slots(self.query, self.workspace, self.refresh() >= 0.0, self.rules.gates)

    @property
    def may_open(self) -> bool:
        """Whether another job's start may open a node to it: then what failed may yet succeed."""
        return self.workspace.cluster.affinity.may_open(self.query.who)

    @property
    def suitable(self) -> Bools:
        """Nodes that could take one task were they empty and open."""
        if self._suitable is None:
            self._suitable = self._fits_empty()
        return self._suitable

    def _fits_empty(self) -> Bools:
        facts = self.facts
        lasting = tuple([facts[name] for name in self.rules.lasting if name in facts])
        return fits_empty(self.query, self.workspace.cluster, self.rules.rooms, lasting)

    @property
    def is_possible(self) -> bool:
        """Whether there is any such node."""
        return bool(np.count_nonzero(self.suitable))

    @cached_property
    def capacity(self) -> tuple[Ints, Bools]:
        """Tasks each node could take were it empty and open, and the nodes that no gate bars for ever."""
        return capacity_slots(self.query, self.workspace.cluster, self.rules.gates)

    def parts(self, row: int) -> tuple[tuple[str, int], ...]:
        """Why this node, which is open: each part of its score and their weighted mean, in whole points.

        As of the last time that somebody asked for scores.
        """
        parts: list[tuple[str, int]] = []
        for name, weight, cells, values in self._lone_summands:
            points: float = cells[row] if values is None else values[cells[row]]
            parts.append((name, round(points / weight)))
        weights = self._weights
        if self.rules.asked:
            only = NodeView(self.workspace, np.array([row], dtype=np.int64))
            for scorer, weight in self.rules.asked:
                given = scorer.score(self.query, only)
                if given is not None:
                    parts.append((scorer.name, round(float(given[0]))))
                    weights += weight
        if weights:
            assert self._scores is not None
            parts.append(("total", round(self._scores.item(row) / weights)))
        return tuple(parts)

    @cached_property
    def _summands(self) -> list[tuple[Any, Floats | None]]:
        """What is summed: live columns, as they are or each value looked up in a table."""
        return [part.summand(weight) for _, part, weight in self._parts]

    @cached_property
    def _lone_summands(self) -> list[tuple[str, int, Any, list[float] | None]]:
        """The same to be read of one node, with the names and weights of the parts."""
        return [
            (name, weight, column.data, None if table is None else table.tolist())
            for (name, _, weight), (column, table) in zip(self._parts, self._summands, strict=True)
        ]

    def _is_shut(self) -> bool:
        """Whether CPU, memory, devices and facts leave no node open now."""
        if self._room is None:
            return False
        lacks = self._lone_need - self._room
        lacks &= _GUARDS
        if self._open is not None:
            return not np.count_nonzero(self._open > lacks)
        return not len(lacks) or np.count_nonzero(lacks) == len(lacks)

    def _score(self, rows: Ints | None) -> Floats:
        """The weighted sum of all parts for these nodes (None = all), or `NO`; only its order matters."""
        if self._scores is None and self._is_shut():
            shut = np.empty(self.workspace.cluster.node_count)
            shut.fill(NO)
            return shut
        closed = self._is_closed(rows)
        total: Any = None
        for column, table in self._summands:
            part: Any = column if rows is None else column[rows]
            if table is not None:
                part = table[part]
            elif rows is None and total is None:
                part = part.copy()  # the live column is not ours to write to
            if total is None:
                total = part
            else:
                total += part
        if total is None:
            total = np.zeros(len(closed))
        if not self._plain:
            closed = self._ask_outside(total, closed.astype(np.bool_), rows)
        np.putmask(total, closed, _NO)
        scores: Floats = total
        return scores

    def _ask_outside(self, total: Floats, closed: Bools, rows: Ints | None) -> Bools:
        """Add what others score, and return the nodes that are closed with those they turn away.

        They are asked only about nodes that everything before them lets through.
        """
        for gate in self._outside_gates:
            still = np.flatnonzero(~closed)
            keep = gate.filter(self.query, NodeView(self.workspace, still if rows is None else rows[still]))
            closed[still] = ~keep
        still = np.flatnonzero(~closed)
        if len(still):
            nodes = NodeView(self.workspace, still if rows is None else rows[still])
            for scorer, weight in self.rules.asked:
                given = scorer.score(self.query, nodes)
                if given is not None:
                    total[still] += given * weight
        return closed

    def _score_row(self, row: int) -> float:
        """`_score` for one node, by the same arithmetic in the same order: caching changes nothing."""
        closed = self._closed is not None and self._closed.item(row)
        if closed or (self._room is not None and (self._need - self._room.item(row)) & GUARDS):
            return NO
        for room, need in self._rooms:
            if room.item(row) < need:
                return NO
        total = 0.0
        for _, _, cells, values in self._lone_summands:
            total += cells[row] if values is None else values[cells[row]]
        return total


def choose_nodes(candidates: Candidates, shape: Shape) -> list[tuple[int, int]] | None:
    """(node row, tasks on it) for a whole job, by row; None when it does not fit whole.

    One node when one can take all, else as few as can be, the last one the tightest that holds the rest.
    """
    if candidates.failed and shape in candidates.failed:
        return None
    chosen: list[tuple[int, int]] | None = None
    if shape.tasks == 1 and shape.nodes <= 1:
        row = candidates.best()
        if row >= 0:
            return [(row, 1)]
    elif not shape.is_possible:
        return None
    else:
        chosen = _packed(candidates, candidates.slots(), shape)
    if chosen is None:
        if not candidates.may_open:
            candidates.failed.add(shape)
        return None
    return sorted(chosen) if len(chosen) > 1 else chosen


#: From near to far: what is tried before anywhere.
_PACKINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (), "node": (), "rack": ("rack", "zone"), "zone": ("zone",),
}  # fmt: skip


def _packed(candidates: Candidates, slots: Ints, shape: Shape) -> list[tuple[int, int]] | None:
    """Divide a job's tasks, near to each other as it must, or wishes, or else as the policy wishes."""
    cluster, wish = candidates.workspace.cluster, candidates.rules.packing
    return near_tasks(slots, candidates.scores, shape, cluster, shape.pack or wish)


def near_tasks(
    slots: Ints, scores: Floats, shape: Shape, cluster: ClusterIndex, wish: str
) -> list[tuple[int, int]] | None:
    """Divide a job's tasks over nodes with so many slots each, near to each other if that is wished and can be.

    One node first; then the rack, or zone, with the fewest slots that holds it, by name among equals; then
    anywhere, unless it must be near.
    """
    anywhere = spread_tasks(slots, scores, shape)
    if anywhere is None or len(anywhere) == 1:
        return anywhere
    for level in (shape.pack,) if shape.must else _PACKINGS[wish]:
        if level == "node":
            continue
        domains = cluster.domains(level)
        room = domain_room(slots, shape, domains)
        for number in np.argsort(room, kind="stable").tolist():
            if room[number] >= shape.tasks:
                here = np.where(domains == number, slots, 0)
                chosen = spread_tasks(here, scores, shape)
                if chosen is not None:
                    return chosen
    return None if shape.must else anywhere


def domain_room(slots: Ints, shape: Shape, domains: Ints) -> Ints:
    """How many of a job's tasks each rack or zone has slots for."""
    room = np.zeros(int(domains.max(initial=-1)) + 1, dtype=np.int64)
    known = domains >= 0
    np.add.at(room, domains[known], np.minimum(slots[known], shape.tasks))
    return room


def choose_largest(candidates: Candidates, shape: Shape, most: int) -> list[tuple[int, int]] | None:
    """`choose_nodes` for as many tasks as fit, at most so many; None when too few do."""
    least = choose_nodes(candidates, shape)
    if least is None or most <= shape.tasks:
        return least
    slots, cluster = candidates.slots(), candidates.workspace.cluster
    fits = largest(shape.tasks, most, lambda tasks: _fits_sized(slots, shape.sized(tasks), cluster))
    return choose_nodes(candidates, shape.sized(fits)) or least


def _fits_sized(slots: Ints, shape: Shape, cluster: ClusterIndex) -> bool:
    return shape.is_possible and fit_on(slots, shape, cluster)


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where the least does and whatever fits at more fits at less."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def fit_on(slots: Ints, shape: Shape, cluster: ClusterIndex) -> bool:
    """Whether a job's tasks fit on nodes with so many slots each."""
    if shape.tasks == 1:
        return bool((slots > 0).any())
    scores = np.zeros(len(slots))
    if shape.must:
        return near_tasks(slots, scores, shape, cluster, shape.pack) is not None
    return spread_tasks(slots, scores, shape) is not None


def spread_tasks(slots: Ints, scores: Floats, shape: Shape) -> list[tuple[int, int]] | None:
    """Divide a job's tasks over nodes with so many slots each; None when they do not all fit."""
    if shape.spread is not None:
        return _over_domains(slots, scores, shape, shape.spread)
    tasks, nodes, each = shape.tasks, shape.nodes, shape.tasks_per_node
    if each:
        return _equal_parts(slots, scores, tasks, each)
    if nodes:
        return _exactly(slots, scores, tasks, nodes)
    # One node for all.
    whole = np.flatnonzero(slots >= tasks)
    if len(whole):
        return [(int(whole[scores[whole].argmax()]), tasks)]
    # As few nodes as can be: the roomiest first, and the best of those that hold what is left at the end.
    rows = np.flatnonzero(slots > 0)
    if int(np.minimum(slots[rows], tasks).sum()) < tasks:
        return None
    chosen: list[tuple[int, int]] = []
    order = rows[np.lexsort((rows, -scores[rows], -slots[rows]))]
    for position, row in enumerate(order.tolist()):
        left = order[position:]
        holding = left[slots[left] >= tasks]
        if len(holding):
            fewest = holding[slots[holding] == slots[holding].min()]
            chosen.append((int(fewest[np.lexsort((fewest, -scores[fewest]))[0]]), tasks))
            break
        chosen.append((row, int(slots[row])))
        tasks -= int(slots[row])
    return chosen


def _over_domains(slots: Ints, scores: Floats, shape: Shape, spread: Spread) -> list[tuple[int, int]] | None:
    """Tasks over as few domains as the job's rule allows and hold them, as evenly as they do."""
    plain = replace(shape, spread=None)
    shares = spread.shares(np.minimum(slots, shape.tasks), shape.tasks)
    if shares is None:
        return spread_tasks(slots, scores, plain) if spread.term.soft else None
    chosen: list[tuple[int, int]] = []
    for domain, tasks in shares:
        here = spread_tasks(np.where(spread.domains == domain, slots, 0), scores, Shape(tasks))
        assert here is not None  # its nodes hold that many
        chosen.extend(here)
    return chosen


def _equal_parts(slots: Ints, scores: Floats, tasks: int, each: int) -> list[tuple[int, int]] | None:
    """`each` tasks on every node, and what is left over on one more."""
    full, rest = divmod(tasks, each)
    rows = _best_rows(np.flatnonzero(slots >= each), scores)
    if len(rows) < full:
        return None
    chosen = [(row, each) for row in rows[:full]]
    if rest:
        others = np.flatnonzero(slots >= rest)
        spare = [row for row in _best_rows(others, scores) if row not in set(rows[:full])]
        if not spare:
            return None
        chosen.append((spare[0], rest))
    return chosen


def _exactly(slots: Ints, scores: Floats, tasks: int, nodes: int) -> list[tuple[int, int]] | None:
    """At least one task on each of so many nodes: evenly when that fits, else the roomiest take more."""
    even, more = divmod(tasks, nodes)
    roomy = _best_rows(np.flatnonzero(slots >= even + (1 if more else 0)), scores)
    if len(roomy) >= nodes:
        return [(row, even + (1 if place < more else 0)) for place, row in enumerate(sorted(roomy[:nodes]))]
    rows = np.flatnonzero(slots > 0)
    rows = rows[np.lexsort((rows, -scores[rows], -slots[rows]))][:nodes]
    if len(rows) < nodes or int(np.minimum(slots[rows], tasks).sum()) < tasks:
        return None
    chosen: list[tuple[int, int]] = []
    for place, row in enumerate(rows.tolist()):
        count = min(int(slots[row]), tasks - (nodes - place - 1))  # leave one for each node after it
        chosen.append((row, count))
        tasks -= count
    return chosen


def _best_rows(rows: Ints, scores: Floats) -> list[int]:
    order: list[int] = rows[np.lexsort((rows, -scores[rows]))].tolist()
    return order


#: (node row, rows of its devices, row of the NUMA domain that it is bound to or -1) of a task.
BoundTask = tuple[int, list[int], int]


def bind_tasks(
    candidates: Candidates, chosen: list[tuple[int, int]]
) -> tuple[tuple[Placement, ...], list[BoundTask]]:
    """Hand out nodes and devices to every task, in rank order, from the workspace: by ids, and by rows."""
    workspace, query, numa, millis = (
        candidates.workspace, candidates.query, candidates.numa, candidates.millis,
    )  # fmt: skip
    cluster, per_task, who = workspace.cluster, query.request.per_task, query.who
    seats: list[BoundTask] = []
    placements: list[Placement] = []
    for row, count in chosen:
        node_id = cluster.node_id_list[row]
        for _ in range(count):
            domain = -1 if numa is None else numa.pick(query.request, row)
            devices = candidates.pick_devices(row, domain) if millis else []
            workspace.take(row, per_task, devices, millis, who, domain)
            ids: tuple[int, ...] = ()
            number = cluster.numa.number[domain] if domain >= 0 else -1
            if len(devices) == 1:
                ids = (cluster.device_id_list[devices[0]],)
                number = cluster.device_numa_list[devices[0]]
            elif devices:
                ids = tuple([cluster.device_id_list[device] for device in devices])
                number = workspace.numa_of(devices)
            placements.append(Placement(len(seats), node_id, ids, millis, number))
            seats.append((row, devices, domain))
    return tuple(placements), seats


def held_millis(request: RequestClass) -> int:
    """What one task holds of each of its devices; 0 without any."""
    return request.device_millis
