"""Outside filters, scorers and orders stand where the built-in ones do."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import PerNodePlugin, PluginError, tell_scheduled
from scheduler.core.plan import Start
from scheduler.core.snapshot.snapshot import PendingColumns
from tests.support.builders import a_job, a_node, a_policy, a_world


@dataclass
class OnlyEven:
    name: str = "even"
    told: list[int] = field(default_factory=list)

    def filter(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
        return [int(name[1:]) % 2 == 0 for name in nodes.names]

    def order(self, jobs: PendingColumns) -> npt.ArrayLike:
        return jobs.id  # the youngest first

    def on_job_scheduled(self, job: int, placement: Start) -> None:
        self.told.append(job)


class LastNode:
    name = "last"

    def score(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
        return np.array([float(name[1:]) for name in nodes.names])


WORLD = a_world(nodes=[a_node(f"n{i}", cpus=1) for i in range(5)], pending=[a_job(f"j{i}") for i in range(4)])


def test_an_outside_filter_and_order_are_asked() -> None:
    plan = plan_cycle(WORLD.snapshot, a_policy(plugins=("even",)), {"even": OnlyEven()})

    assert WORLD.starts(plan) == {"j3": ["n0"], "j2": ["n2"], "j1": ["n4"]}
    assert WORLD.reasons(plan) == {"j0": "WaitingForResources"}
    assert [(g.gate, g.alone) for g in plan.decisions[0].gates] == [("cpu_millis", 3), ("even", 2)]


def test_an_outside_score_decides_with_its_weight_and_is_recorded() -> None:
    plan = plan_cycle(
        WORLD.snapshot,
        a_policy(plugins=("last",), weights=(("last", 10), ("tightness", 1))),
        {"last": LastNode()},
    )

    assert WORLD.starts(plan)["j0"] == ["n4"]
    assert dict(plan.starts[0].scores)["last"] == 4


def test_the_per_node_form_is_adapted() -> None:
    plugin = PerNodePlugin(
        "mine", keeps=lambda request, node: node.name != "n0", rates=lambda request, node: 50.0
    )

    plan = plan_cycle(WORLD.snapshot, a_policy(plugins=("mine",)), {"mine": plugin})

    assert WORLD.starts(plan) == {"j0": ["n1"], "j1": ["n2"], "j2": ["n3"], "j3": ["n4"]}


def test_those_who_watch_are_told_of_applied_starts() -> None:
    plugin = OnlyEven()
    plan = plan_cycle(WORLD.snapshot, a_policy())

    tell_scheduled([plugin, LastNode()], plan.starts)

    assert plugin.told == [1, 2, 3, 4]


def test_a_wrong_answer_and_a_missing_plugin_are_named() -> None:
    class Short:
        name = "short"

        def filter(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
            return [True]

    with pytest.raises(PluginError, match=r"'short' gave"):
        plan_cycle(WORLD.snapshot, a_policy(plugins=("short",)), {"short": Short()})
    with pytest.raises(PluginError, match="'gone' is not installed"):
        plan_cycle(WORLD.snapshot, a_policy(plugins=("gone",)))
    with pytest.raises(PluginError, match="no score 'beauty'"):
        plan_cycle(WORLD.snapshot, a_policy(weights=(("beauty", 1),)))


@pytest.mark.parametrize(
    "words", [{"name": "lottery"}, {"placement": "random"}, {"tie_breakers": ("beauty",)}]
)
def test_a_policy_knows_its_words(words: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a"):
        a_policy(**words)
