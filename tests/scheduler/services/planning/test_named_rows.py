"""Findings 17 and 22: what a policy names stays, a queue's profile is not ignored, a failing cycle is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.db import IntegrityError, transaction
from django.test import Client

from config import health
from infra.errors import Conflict, InvalidInput
from scheduler.models import Cluster, Partition, PolicyFault, PriorityClass, SchedulerProfile
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.cluster.settings import remove_settings, save_settings
from scheduler.services.planning import cycles
from scheduler.services.planning.planner import Planner
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import OperatorFactory, SchedulerProfileFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=64_000)
    return world


def starts(world: SmallWorld) -> bool:
    job = world.job()
    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")
    job.refresh_from_db()
    return job.state == "scheduled"


# ---------------------------------------------------------------- what is named stays


def a_class(world: SmallWorld) -> Any:
    ensure_defaults()
    named = PriorityClass.objects.exclude(name="NORMAL").order_by("pk")[0]
    world.cluster.profile = SchedulerProfileFactory(options={"backfill_max_class": named.name})
    world.cluster.save()
    return named


def a_profile_of_the_cluster(world: SmallWorld) -> Any:
    world.cluster.profile = SchedulerProfileFactory()
    world.cluster.save()
    return world.cluster.profile


def a_profile_of_the_queue(world: SmallWorld) -> Any:
    world.queue.profile = SchedulerProfileFactory()
    world.queue.save()
    return world.queue.profile


def a_partition_of_the_queue(world: SmallWorld) -> Any:
    partition = Partition.objects.create(cluster=world.cluster, name="gpu")
    world.queue.partitions.add(partition)
    world.cluster.nodes.get().partitions.add(partition)
    return partition


NAMED = [a_class, a_profile_of_the_cluster, a_profile_of_the_queue, a_partition_of_the_queue]


@pytest.mark.parametrize("make", NAMED, ids=lambda make: make.__name__)
def test_finding_22_what_a_policy_names_is_not_deleted_and_planning_goes_on(
    world: SmallWorld, make: Callable[[SmallWorld], Any]
) -> None:
    thing = make(world)

    with pytest.raises(Conflict) as refused:
        remove_settings(thing=thing, by=UserFactory(site_role="admin"))

    assert thing.name in refused.value.message
    assert type(thing)._default_manager.filter(pk=thing.pk).exists()
    assert starts(world)
    assert not PolicyFault.objects.exists()


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_finding_22_the_database_itself_keeps_a_class_that_a_profile_names(
    world: SmallWorld, how: str
) -> None:
    row = PriorityClass.objects.filter(pk=a_class(world).pk)
    change = row.delete if how == "deleted" else lambda: row.update(name="OTHER")

    with pytest.raises(IntegrityError, match="backfill_max_class"), transaction.atomic():
        change()

    SchedulerProfile.objects.update(options={})
    row.update(name="OTHER")
    row.delete()
    assert not row.exists()


def test_a_class_that_a_profile_names_is_not_renamed(world: SmallWorld) -> None:
    named = a_class(world)
    named.name = "OTHER"

    with pytest.raises(Conflict, match="backfill_max_class"):
        save_settings(thing=named, changed_fields=["name"], by=UserFactory(site_role="admin"), reason="tidy")


# ---------------------------------------------------------------- queues' own profiles


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"backfill": "easy"}, "backfill"),
        ({"preemption_enabled": True}, "preemption"),
        ({"preemption": {"reclaim": 1}}, "preemption"),
        ({"options": {"backfill_promises": 3}}, "backfill_promises"),
        ({"options": {"assemblies": 2}}, "assemblies"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_finding_17_a_queue_takes_no_profile_whose_choices_it_would_ignore(
    world: SmallWorld, words: dict[str, Any], said: str
) -> None:
    operator = OperatorFactory()
    world.queue.profile = SchedulerProfileFactory(name="own", **words)

    with pytest.raises(
        InvalidInput, match=rf"own profile own sets {said}, which only the profile of the cluster"
    ):
        save_settings(thing=world.queue, changed_fields=["profile"], by=operator, reason="try")

    world.cluster.profile = world.queue.profile  # that of its cluster it may have
    world.cluster.save()
    save_settings(thing=world.queue, changed_fields=["profile"], by=operator, reason="try")


def test_finding_17_a_profile_of_a_queue_is_not_changed_into_one_that_is_ignored(world: SmallWorld) -> None:
    own = a_profile_of_the_queue(world)
    own.backfill = "conservative"

    with pytest.raises(InvalidInput, match="sets backfill"):
        save_settings(thing=own, changed_fields=["backfill"], by=UserFactory(site_role="admin"), reason="try")

    own.refresh_from_db()
    own.policy = "sjf"
    save_settings(thing=own, changed_fields=["policy"], by=UserFactory(site_role="admin"), reason="try")


def test_finding_17_the_profile_of_a_cluster_is_not_left_to_its_queues_alone(world: SmallWorld) -> None:
    world.cluster.profile = world.queue.profile = SchedulerProfileFactory(backfill="easy")
    world.cluster.save()
    world.queue.save()
    cluster = Cluster.objects.get(pk=world.cluster.pk)
    cluster.profile = SchedulerProfileFactory()

    with pytest.raises(InvalidInput, match="sets backfill"):
        save_settings(thing=cluster, changed_fields=["profile"], by=OperatorFactory(), reason="try")


# ---------------------------------------------------------------- a cycle that fails


def test_finding_22_a_cycle_that_fails_is_an_alarm_on_every_page_until_one_succeeds(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise IndexError("index 7 is out of bounds")

    planner = Planner()
    with monkeypatch.context() as patched:
        patched.setattr(cycles, "plan_cycle", fails)
        planner.turn()
    cache.clear()
    reason = "IndexError: index 7 is out of bounds"

    assert PolicyFault.objects.get(subject=PolicyFault.CYCLE).reason == reason
    person, operator = Client(), Client()
    person.force_login(UserFactory())
    operator.force_login(OperatorFactory())
    page = person.get("/").content.decode()
    assert "data-failing" in page
    assert reason not in page
    assert reason in operator.get("/").content.decode()
    [check] = [one for one in health.run_checks() if one.name == "policies"]
    assert (check.ok, reason in check.text) == (False, True)

    planner._plan(world.cluster.pk, "test")
    planner.wakeups.close()
    cache.clear()

    assert not PolicyFault.objects.filter(subject=PolicyFault.CYCLE).exists()
    assert "data-failing" not in operator.get("/").content.decode()


def test_finding_22_a_plugin_out_of_use_is_said_to_operators_on_every_page(world: SmallWorld) -> None:
    PolicyFault.objects.create(
        cluster=world.cluster, subject="plugin x", reason="raised", began_at=world.cluster.created_at
    )
    person, operator = Client(), Client()
    person.force_login(UserFactory())
    operator.force_login(OperatorFactory())
    cache.clear()

    assert "is planned without its plugin x" in operator.get("/").content.decode()
    assert "plugin x" not in person.get("/").content.decode()
