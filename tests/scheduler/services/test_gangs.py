"""Gangs on real rows: as many tasks as fit, near to each other, counted as they are (G1, G2, C11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accounts.errors import InvalidInput
from scheduler.core.lifecycle import JobState
from scheduler.core.snapshot import MUST, PACKS
from scheduler.models import Attempt, Job, Task
from scheduler.services.dispatch import orders_for
from scheduler.state.snapshots import load_snapshot
from tests.scheduler.portal import Portal, a_portal
from tests.scheduler.state.small import SmallWorld, broken_invariants

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", gpus=2, rack="a")
    world.node("n2", gpus=2, rack="b")
    return world


@pytest.fixture(autouse=True)
def nothing_contradicts_itself() -> Iterator[None]:
    yield
    assert broken_invariants() == []


def test_a_gang_that_is_enough_with_fewer_is_counted_as_large_as_it_is(world: SmallWorld) -> None:
    world.job("old", gpus=1)
    quota = world.quota("gpu_millis", 8000)
    job = world.job("open", tasks=8, min_tasks=2, gpus=1)

    assert world.plan().started == 2

    quota.refresh_from_db()
    attempt = Attempt.objects.get(job=job)
    assert (quota.used, Task.objects.filter(attempt=attempt).count()) == (4000, 3)
    assert attempt.allocations.held().count() == 3


def test_its_tasks_are_told_how_many_they_are(world: SmallWorld) -> None:
    job = world.job("open", tasks=8, min_tasks=2, gpus=1)
    world.plan()

    orders = orders_for(Task.objects.filter(attempt__job=job, rank=0).get().node, {})

    first = orders.assignments[0]
    assert (first["tasks"], first["least_tasks"], first["most_tasks"]) == (4, 2, 8)


def test_a_gang_that_must_be_in_one_rack_waits_on_real_rows_too(world: SmallWorld) -> None:
    job = world.job("near", tasks=3, gpus=1, pack="rack", pack_required=True)
    world.node("n3", gpus=1, rack="a", cordoned=True)

    world.plan()
    job.refresh_from_db()
    assert (job.state, job.reason_code) == (JobState.QUEUED, "TopologyFragmented")
    assert (job.reason_details["largest"], job.reason_details["pack"]) == (2, "rack")
    world.cluster.nodes.filter(name="n3").update(cordoned=False)
    world.plan()

    assert Job.objects.get(pk=job.pk).state == JobState.SCHEDULED


def test_what_the_rows_say_is_what_the_planner_sees(world: SmallWorld) -> None:
    world.job(tasks=4)
    world.job(tasks=4, min_tasks=2, pack="zone")
    world.job(tasks=4, pack="rack", pack_required=True)

    pending = load_snapshot(cluster_id=world.cluster.pk).snapshot.pending

    assert pending.tasks.tolist() == [4, 2, 4]
    assert pending.most_tasks.tolist() == [0, 4, 0]
    assert pending.pack.tolist() == [0, PACKS.index("zone"), PACKS.index("rack") + MUST]


# ---------------------------------------------------------------- what is sent


@pytest.fixture
def portal() -> Portal:
    return a_portal()


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"tasks": 4, "min_tasks": 5}, "min_tasks"),
        ({"tasks": 4, "min_tasks": 0}, "min_tasks"),
        ({"tasks": 4, "min_tasks": 2, "nodes": 3}, "min_tasks"),
        ({"pack": "region"}, "pack"),
        ({"pack": {"required": True}}, "pack/level"),
        ({"pack": {"level": "rack", "near": 1}}, "pack/near"),
        ({"tasks": 2, "nodes": 2, "pack": {"level": "node", "required": True}}, "pack"),
    ],
)
def test_terms_that_contradict_each_other_are_named(portal: Portal, fields: object, wrong: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        portal.submit(**fields)  # type: ignore[arg-type]

    assert [problem.field for problem in refused.value.problems] == [wrong]


def test_only_the_least_size_has_to_exist(portal: Portal) -> None:
    with pytest.raises(InvalidInput):
        portal.submit(tasks=64, gpu_count=1)

    job = portal.submit(tasks=64, min_tasks=2, gpu_count=1, pack={"level": "rack", "required": True})

    assert (job.min_tasks, job.tasks, job.pack, job.pack_required) == (2, 64, "rack", True)
