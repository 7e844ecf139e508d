"""Plugins: the protocol of outside filters, scorers and orders, and how names of a policy become them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.columns import Bools
from scheduler.core.placement import filters as feasibility
from scheduler.core.placement import scoring
from scheduler.core.placement.filters import (
    AffinityFilter,
    FilterQuery,
    NodeFilter,
    ResourceFilter,
    StaticFilter,
)
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.scoring import WeightedScorers
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import PendingColumns


class Plugin(Protocol):
    """An object with a name and any of `filter`, `score`, `order`, `on_job_scheduled` (below).

    It must answer from its arguments alone: the same cycle must come out when it is replayed.
    """

    @property
    def name(self) -> str: ...


@runtime_checkable
class Filters(Protocol):
    def filter(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
        """True for each node that may take a task of this request."""
        ...


@runtime_checkable
class Scores(Protocol):
    def score(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike | None:
        """0..100 for each node, higher is better; None when it does not care."""
        ...


@runtime_checkable
class Orders(Protocol):
    def order(self, jobs: PendingColumns) -> npt.ArrayLike:
        """A number for each job; larger goes first, before the policy's own order."""
        ...


@runtime_checkable
class Watches(Protocol):
    def on_job_scheduled(self, job: int, placement: Start) -> None:
        """Called after a start has been applied; its result is ignored."""
        ...


Plugins = Mapping[str, Plugin]
NO_PLUGINS: Final[Plugins] = {}


class PluginError(ValueError):
    """A policy names what is not there."""


class PluginFailed(PluginError):
    """This plugin raised, answered in a wrong shape, or is not there: the cycle can be planned without it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the plugin {name!r} {reason}")
        self.name = name
        self.reason = reason


@contextmanager
def _blamed(name: str, method: str) -> Iterator[None]:
    """Whatever is raised here is the plugin's."""
    try:
        yield
    except Exception as error:
        raise PluginFailed(name, f"raised {type(error).__name__} in {method}: {error}") from error


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """Takes the place of a plugin that could not be loaded."""

    name: str
    reason: str


@dataclass(frozen=True)
class Rules:
    """A policy with its names resolved: what a cycle asks, in order."""

    gates: tuple[NodeFilter, ...]
    scorers: WeightedScorers
    orders: tuple[Orders, ...]
    packing: str = ""
    queues: tuple[tuple[int, Rules], ...] = ()  # of queues with a policy of their own

    @cached_property
    def facts(self) -> tuple[StaticFilter, ...]:
        """The gates on what stays."""
        return tuple(gate for gate in self.gates if isinstance(gate, StaticFilter))

    @cached_property
    def lasting(self) -> tuple[str, ...]:
        """The names of the filters that no end of a job opens."""
        return tuple(gate.name for gate in self.facts if gate.permanent)

    @cached_property
    def rooms(self) -> tuple[ResourceFilter, ...]:
        """The gates on amounts."""
        return tuple(gate for gate in self.gates if isinstance(gate, ResourceFilter))

    @cached_property
    def others(self) -> tuple[NodeFilter, ...]:
        """The gates that are neither."""
        return tuple(gate for gate in self.gates if not isinstance(gate, StaticFilter | ResourceFilter))

    @cached_property
    def columns(self) -> tuple[tuple[scoring.ColumnScorer, int], ...]:
        """The scorers of which single nodes can be read."""
        return tuple(
            (scorer, weight) for scorer, weight in self.scorers if isinstance(scorer, scoring.ColumnScorer)
        )

    @cached_property
    def asked(self) -> WeightedScorers:
        """The other scorers."""
        return tuple(one for one in self.scorers if not isinstance(one[0], scoring.ColumnScorer))

    @cached_property
    def pickers(self) -> tuple[scoring.PicksDevice, ...]:
        """The scorers that choose devices too."""
        return tuple(
            cast(scoring.PicksDevice, scorer) for scorer, _ in self.scorers if hasattr(scorer, "pick_device")
        )

    @cached_property
    def in_order(self) -> bool:
        """Whether facts are asked before amounts, and nothing else is but where other jobs are."""
        kinds = [
            isinstance(gate, ResourceFilter) for gate in self.gates if not isinstance(gate, AffinityFilter)
        ]
        return kinds == sorted(kinds) and len(kinds) == len(self.facts) + len(self.rooms)


def resolve(policy: Policy, plugins: Plugins = NO_PLUGINS) -> Rules:
    """The gates, scorers and orders of a policy.

    A plugin that scores weighs 20 unless the policy's weights name it. Raises PluginError for a name that
    is neither built in nor among the plugins.
    """
    chosen: list[Plugin] = []
    for name in policy.plugins:
        if name not in plugins:
            raise PluginFailed(name, f"is not installed; there are: {', '.join(plugins) or 'none'}")
        if isinstance(plugin := plugins[name], BrokenPlugin):
            raise PluginFailed(name, plugin.reason)
        chosen.append(plugin)
    gates: list[NodeFilter] = [feasibility.BUILT_IN[name] for name in policy.filters]
    gates += [_OutsideFilter(plugin.name, plugin) for plugin in chosen if isinstance(plugin, Filters)]

    outside = {
        plugin.name: _OutsideScorer(plugin.name, plugin) for plugin in chosen if isinstance(plugin, Scores)
    }
    weights = dict(policy.weights or scoring.STRATEGIES[policy.placement])
    for name in outside:
        weights.setdefault(name, OUTSIDE_WEIGHT)
    known: dict[str, scoring.Scorer] = {**scoring.BUILT_IN, **outside}
    for name in weights:
        if name not in known:
            raise PluginError(f"there is no score {name!r}; there are: {', '.join(known)}")
    orders = tuple(_OutsideOrder(plugin.name, plugin) for plugin in chosen if isinstance(plugin, Orders))
    return Rules(
        gates=tuple(gates),
        scorers=tuple((known[name], weight) for name, weight in weights.items()),
        orders=orders,
        packing=policy.packing,
        queues=tuple((queue_id, resolve(own, plugins)) for queue_id, own in policy.queues),
    )


OUTSIDE_WEIGHT: Final = 20


def tell_scheduled(plugins: Iterable[Plugin], starts: Iterable[Start]) -> None:
    """Tell every plugin that watches about starts that were applied."""
    watching = [plugin for plugin in plugins if isinstance(plugin, Watches)]
    for start in starts:
        for plugin in watching:
            plugin.on_job_scheduled(start.job_id, start)


@dataclass(frozen=True, slots=True)
class _OutsideFilter:
    name: str
    plugin: Filters
    dynamic: bool = True  # it may look at free amounts

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        with _blamed(self.name, "filter"):
            mask = np.asarray(self.plugin.filter(request, nodes), dtype=np.bool_)
        if mask.shape != (len(nodes),):
            raise PluginFailed(self.name, f"gave {mask.shape} answers for {len(nodes)} nodes in filter")
        return mask


@dataclass(frozen=True, slots=True)
class _OutsideScorer:
    name: str
    plugin: Scores

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats | None:
        with _blamed(self.name, "score"):
            given = self.plugin.score(request, nodes)
            if given is None:
                return None
            points = np.asarray(given, dtype=np.float64)
        if points.shape != (len(nodes),):
            raise PluginFailed(self.name, f"gave {points.shape} answers for {len(nodes)} nodes in score")
        return np.clip(np.nan_to_num(points), 0.0, 100.0)


@dataclass(frozen=True, slots=True)
class _OutsideOrder:
    name: str
    plugin: Orders

    def order(self, jobs: PendingColumns) -> Floats:
        with _blamed(self.name, "order"):
            numbers = np.asarray(self.plugin.order(jobs), dtype=np.float64)
        if numbers.shape != (len(jobs),):
            raise PluginFailed(self.name, f"gave {numbers.shape} numbers for {len(jobs)} jobs in order")
        return np.nan_to_num(numbers)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as a per-node plugin sees it."""

    name: str
    labels: Mapping[str, str]
    free_cpu_millis: int
    free_memory_mib: int
    free_storage_mib: int
    free_gpu_millis: int


@dataclass(frozen=True, slots=True)
class PerNodePlugin:
    """Adapts the per-node form of X1 (`keeps(request, node)`, `rates(request, node)`) to columns.

    Convenient and slow: one Python call a node and query. Write columns where it matters.
    """

    name: str
    keeps: Callable[[FilterQuery, NodeInfo], bool] = lambda request, node: True
    rates: Callable[[FilterQuery, NodeInfo], float] = lambda request, node: 0.0
    scheduled: Callable[[int, Start], None] = lambda job, placement: None

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        return np.array([self.keeps(request, node) for node in _infos(nodes)], dtype=np.bool_)

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats:
        return np.array([self.rates(request, node) for node in _infos(nodes)], dtype=np.float64)

    def on_job_scheduled(self, job: int, placement: Start) -> None:
        self.scheduled(job, placement)


def _infos(nodes: NodeView) -> list[NodeInfo]:
    return [
        NodeInfo(*row)
        for row in zip(
            nodes.names,
            nodes.labels,
            nodes.free_cpu_millis.tolist(),
            nodes.free_memory_mib.tolist(),
            nodes.free_storage_mib.tolist(),
            nodes.free_gpu_millis.tolist(),
            strict=True,
        )
    ]
