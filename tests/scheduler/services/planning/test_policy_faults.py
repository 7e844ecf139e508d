"""A plugin that fails, or a profile that cannot be followed, is an alarm and never the end of planning."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from accounts.models import AuditEvent
from config import health
from infra.errors import Conflict, NotAllowed
from scheduler import metrics
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.snapshot.snapshot import PendingColumns
from scheduler.models import PolicyFault, PriorityClass
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.cluster.settings import remove_settings
from scheduler.services.planning import cycles
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.forecasts import forecast_cluster
from scheduler.services.planning.job_preview import preview_job
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import SchedulerProfileFactory, UserFactory

pytestmark = pytest.mark.django_db


class Faulty:
    """Raises in one of its methods, or answers in a wrong shape, until it is mended."""

    def __init__(self, where: str, wrong: str = "raises") -> None:
        self.where, self.wrong, self.asked = where, wrong, 0

    name = "faulty"

    def _answer(self, method: str, good: npt.ArrayLike) -> npt.ArrayLike:
        if method != self.where:
            return good
        self.asked += 1
        if self.wrong == "raises":
            raise ZeroDivisionError("nothing to divide by")
        return np.zeros(99) if self.wrong == "shape" else good

    def filter(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
        return self._answer("filter", np.ones(len(nodes), dtype=bool))

    def score(self, request: FilterQuery, nodes: NodeView) -> npt.ArrayLike:
        return self._answer("score", np.ones(len(nodes)))

    def order(self, jobs: PendingColumns) -> npt.ArrayLike:
        return self._answer("order", np.ones(len(jobs)))


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=64_000)
    return world


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points of plugins, as packages would bring them."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(cycles, "entry_points", lambda group: points)
    cycles.installed_plugins.cache_clear()
    yield points
    cycles.installed_plugins.cache_clear()


class Point:
    """An entry point that gives this object."""

    def __init__(self, name: str, offered: Any) -> None:
        self.name, self.offered = name, offered

    def load(self) -> Any:
        if isinstance(self.offered, Exception):
            raise self.offered
        return self.offered


def profile_of(world: SmallWorld, **words: Any) -> None:
    world.cluster.profile = SchedulerProfileFactory(**words)
    world.cluster.save()


def starts(world: SmallWorld) -> bool:
    job = world.job()
    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")
    job.refresh_from_db()
    return job.state == "scheduled"


@pytest.mark.parametrize("wrong", ["raises", "shape"])
@pytest.mark.parametrize("where", ["filter", "score", "order"])
def test_t18_a_plugin_that_fails_is_put_out_of_use_and_planning_goes_on(
    world: SmallWorld, installed: list[Any], where: str, wrong: str
) -> None:
    plugin = Faulty(where, wrong)
    installed.append(Point("faulty", plugin))
    profile_of(world, plugins=["faulty"], score_weights={"faulty": 100})

    assert starts(world)
    fault = PolicyFault.objects.get()
    assert fault.subject == "plugin faulty"
    assert ("nothing to divide by" if wrong == "raises" else "99") in fault.reason
    asked = plugin.asked
    assert starts(world)
    assert plugin.asked == asked  # it is not asked again
    [check] = [one for one in health.run_checks() if one.name == "policies"]
    assert (check.ok, check.needed) == (False, False)
    assert fault.reason in check.text
    [gauge] = [one for one in metrics.read_metrics() if one.name == "muster_policy_faults"]
    assert [(one.labels["subject"], one.value) for one in gauge.samples] == [("plugin faulty", 1)]

    plugin.wrong = ""
    operator = UserFactory(site_role="operator")
    remove_settings(thing=fault, by=operator)

    assert starts(world)
    assert plugin.asked > asked
    assert not PolicyFault.objects.exists()
    assert AuditEvent.objects.get(action="policyfault.delete").actor == operator


def test_a_plugin_that_cannot_be_loaded_harms_only_profiles_that_name_it(
    world: SmallWorld, installed: list[Any]
) -> None:
    installed.append(Point("broken", ImportError("no module named numpyy")))
    assert starts(world)
    assert not PolicyFault.objects.exists()

    profile_of(world, plugins=["broken", "nowhere"])

    assert starts(world)
    assert {fault.subject for fault in PolicyFault.objects.all()} == {"plugin broken", "plugin nowhere"}
    assert "no module named numpyy" in PolicyFault.objects.get(subject="plugin broken").reason


def test_a_profile_that_cannot_be_followed_gives_way_to_the_default_until_it_is_mended(
    world: SmallWorld,
) -> None:
    profile_of(world, options={"backfill_max_class": "GONE"})

    assert starts(world)
    fault = PolicyFault.objects.get()
    assert (fault.subject, "GONE" in fault.reason) == ("profile", True)

    world.cluster.profile.options = {}
    world.cluster.profile.save()
    assert starts(world)
    assert not PolicyFault.objects.exists()


def test_a_policy_whose_planning_raises_gives_way_to_the_default(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile_of(world, policy="priority")
    plan_cycle = cycles.plan_cycle

    def raises(snapshot: Any, policy: Any, **words: Any) -> Any:
        if policy.name == "priority":
            raise IndexError("index 3 is out of bounds")
        return plan_cycle(snapshot, policy, **words)

    with monkeypatch.context() as patched:
        patched.setattr(cycles, "plan_cycle", raises)
        assert starts(world)
        assert "index 3 is out of bounds" in PolicyFault.objects.get(subject="profile").reason

    assert starts(world)
    assert not PolicyFault.objects.exists()


def test_only_an_operator_puts_a_plugin_back_into_use(world: SmallWorld) -> None:
    fault = PolicyFault.objects.create(
        cluster=world.cluster, subject="plugin x", reason="raised", began_at=world.cluster.created_at
    )

    with pytest.raises(NotAllowed):
        remove_settings(thing=fault, by=UserFactory())

    assert PolicyFault.objects.filter(pk=fault.pk).exists()


def test_a_priority_class_that_a_profile_names_stays(world: SmallWorld) -> None:
    ensure_defaults()
    admin = UserFactory(site_role="admin")
    named = PriorityClass.objects.exclude(name="NORMAL").order_by("pk")[0]
    profile = SchedulerProfileFactory(options={"backfill_max_class": named.name.lower()})

    with pytest.raises(Conflict, match=profile.name):
        remove_settings(thing=named, by=admin)

    profile.options = {}
    profile.save()
    remove_settings(thing=named, by=admin)
    assert not PriorityClass.objects.filter(pk=named.pk).exists()


@pytest.mark.parametrize("where", ["filter", "score", "order"])
def test_previews_explanations_and_forecasts_go_on_without_a_plugin_that_fails(
    world: SmallWorld, installed: list[Any], where: str
) -> None:
    """Before a cycle has put it out of use: nobody's page may be a 500 until then."""
    plugin = Faulty(where)
    installed.append(Point("faulty", plugin))
    profile_of(world, plugins=["faulty"])
    waiting = world.job(cpu_millis=65_000)

    request = {"command": "true", "project": world.project.slug, "queue": world.queue.slug, "cpu_cores": 1}
    found = preview_job(payload=request, by=world.person)
    explained = explain_job(job=waiting, by=world.person)
    forecast_cluster(cluster_id=world.cluster.pk)

    assert found.verdict == "starts_now", found.headline
    assert explained.headline
    assert plugin.asked >= 2, "they have asked it"
    assert not PolicyFault.objects.exists(), "only the planner puts a plugin out of use"
