"""Why a job runs where it does: the filters, the order and the scores, from the recording of its cycle."""

from __future__ import annotations

import pytest

from infra.errors import MusterError
from scheduler.models import Cycle
from scheduler.services.planning import cycles
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.replay import PlacementBasis
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import SchedulerProfileFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    for name, cpus in (("large", 64), ("small", 4), ("tiny", 1)):
        world.node(name, cpu_millis=cpus * 1000)
    return world


def basis(world: SmallWorld, **words: int) -> PlacementBasis:
    job = world.job(**words)
    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")
    job.refresh_from_db()
    found = explain_job(job=job, by=world.person).placement
    assert found is not None
    return found


def test_the_chosen_node_and_the_next_best_are_shown_with_their_scores(world: SmallWorld) -> None:
    found = basis(world, cpu_millis=2000)

    assert [(node.name, node.chosen) for node in found.nodes] == [("small", True), ("large", False)]
    chosen, other = found.nodes
    assert chosen.total > other.total
    assert set(chosen.parts) == set(other.parts) != set()
    assert all(0 <= points <= 100 for points in chosen.parts.values())
    assert found.exact
    assert (found.place, found.starts) == (1, 1)
    assert [(gate.name, gate.turned_away, gate.left) for gate in found.gates] == [
        ("all", 0, 3), ("cpu_millis", 1, 2), ("fits", 0, 2),
    ]  # fmt: skip


def test_another_placement_scores_otherwise(world: SmallWorld) -> None:
    world.cluster.profile = SchedulerProfileFactory(placement="spread")
    world.cluster.save()

    found = basis(world, cpu_millis=2000)

    assert (found.placement, found.nodes[0].name) == ("spread", "large")


def test_a_later_start_of_a_cycle_is_scored_after_the_earlier_ones(world: SmallWorld) -> None:
    world.job("first", cpu_millis=3000)

    found = basis(world, cpu_millis=2000)

    assert (found.place, found.starts, found.exact) == (2, 2, True)
    assert [node.name for node in found.nodes] == ["large"]


def test_without_the_recording_it_says_so(world: SmallWorld) -> None:
    job = world.job()
    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")
    Cycle.objects.update(snapshot=None, policy=None, plan=None)
    job.refresh_from_db()

    found = explain_job(job=job, by=world.person).placement

    assert found is not None
    assert (found.unknown, found.nodes) == ("The recording of the cycle is no longer kept.", ())


def test_a_job_that_waits_has_none_and_a_stranger_sees_nothing(world: SmallWorld) -> None:
    job = world.job(cpu_millis=99_000)

    assert explain_job(job=job, by=world.person).placement is None
    with pytest.raises(MusterError):
        explain_job(job=job, by=UserFactory())
