"""Gangs on real rows: as many tasks as fit, near to each other, counted as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from infra.errors import InvalidInput
from scheduler.core.lifecycle import JobState, TaskState
from scheduler.core.plan import Plan, Reserve
from scheduler.core.snapshot.snapshot import MUST, PACKS
from scheduler.models import Attempt, Job, JobEvent, Node, Task
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.jobs.verbs import cancel_job, hold_job
from scheduler.services.planning.explain import explain_job
from scheduler.state.apply import apply_gang_reservations
from scheduler.state.apply.refusals import JOB_CHANGED
from scheduler.state.load.snapshots import load_snapshot
from scheduler.state.settle.settle import settle_many
from tests.scheduler.portal import Portal, a_portal
from tests.scheduler.state.apply.planned import a_context, a_lease, seen_and_planned
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
    assert "node n3 is cordoned" in job.reason_text
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


# ---------------------------------------------------------------- gathering nodes


def a_gathering_gang(world: SmallWorld, **fields: object) -> Job:
    """n1 is taken, n2 is free, the gang wants both and may gather them for ten minutes."""
    world.job("old", gpus=2)
    world.plan()
    gang = world.job("gang", tasks=2, gpus=2, assembly_timeout_seconds=600, **fields)
    world.plan()
    gang.refresh_from_db()
    assert gang.state == JobState.RESERVED
    return gang


def end(job: Job) -> None:
    attempt = Attempt.objects.get(job=job)
    Task.objects.filter(attempt=attempt).update(state=TaskState.SUCCEEDED)
    settle_many([attempt.pk])


def test_a_gang_gathers_its_nodes_over_several_cycles(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)

    assert (gang.public_state, gang.reason_code) == ("queued", "WaitingForResources")
    assert gang.reason_text.startswith("Reserving 2 nodes until ")
    assert sorted(gang.assembly_node_ids) == sorted(Node.objects.values_list("pk", flat=True))
    assert JobEvent.objects.get(job=gang, kind="job.reserved").details["nodes"] == ["n1", "n2"]
    generation = gang.generation
    small = world.job("small", gpus=1)
    world.plan()
    small.refresh_from_db()
    gang.refresh_from_db()
    assert (small.state, small.reason_code) == (JobState.QUEUED, "Reservation")
    assert (gang.state, gang.generation) == (JobState.RESERVED, generation)  # nothing is written anew

    end(Job.objects.get(name="old"))
    assert world.plan().started_jobs == (gang.number,)
    gang.refresh_from_db()
    assert gang.state == JobState.SCHEDULED


def test_who_is_gone_in_time_may_use_what_is_gathered(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)
    Job.objects.filter(pk=gang.pk).update(expected_start_at=timezone.now() + timedelta(minutes=5))
    short, long = (
        world.job("short", gpus=1, time_limit_seconds=120),
        world.job("long", gpus=1, time_limit_seconds=900),
    )

    assert world.plan().started_jobs == (short.number,)
    long.refresh_from_db()
    assert long.reason_code == "Reservation"


def test_what_was_gathered_in_vain_is_given_back_and_tried_again_later(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)
    small = world.job("small", gpus=1)
    Job.objects.filter(pk=gang.pk).update(assembly_until_at=timezone.now() - timedelta(seconds=1))

    world.plan()

    gang.refresh_from_db()
    small.refresh_from_db()
    assert (gang.state, gang.reason_code, gang.assemblies_failed) == (JobState.QUEUED, "Backoff", 1)
    assert gang.reason_text.startswith("Node assembly timed out at ")
    assert timedelta(seconds=50) < gang.eligible_at - timezone.now() < timedelta(seconds=70)
    assert (gang.assembly_until_at, gang.assembly_node_ids, small.state) == (None, [], JobState.SCHEDULED)


@pytest.mark.parametrize("verb", [hold_job, cancel_job])
def test_a_gang_that_leaves_the_line_keeps_no_nodes(world: SmallWorld, verb: Callable[..., Job]) -> None:
    gang = a_gathering_gang(world)
    small = world.job("small", gpus=1)

    verb(job=gang, by=world.person)

    assert world.plan().started_jobs == (small.number,)


def test_only_so_many_gangs_gather_at_once(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)
    other = world.job("other", tasks=2, gpus=2, assembly_timeout_seconds=600)

    world.plan()

    other.refresh_from_db()
    assert other.state == JobState.QUEUED
    cancel_job(job=Job.objects.get(pk=gang.pk), by=world.person)
    world.plan()
    other.refresh_from_db()
    assert other.state == JobState.RESERVED


def test_a_node_that_no_longer_suits_is_replaced(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)
    third = world.node("n3", gpus=2)
    world.cluster.nodes.filter(name="n1").update(cordoned=True)

    world.plan()  # n2 and n3 are free: it need not gather any more

    gang.refresh_from_db()
    assert gang.state == JobState.SCHEDULED
    nodes = {task.node_id for task in Task.objects.filter(attempt__job=gang)}
    assert third.pk in nodes


def test_the_page_of_why_knows_a_gang_that_gathers(world: SmallWorld) -> None:
    gang = a_gathering_gang(world)

    found = explain_job(job=gang, by=world.person, nodes=True)

    assert found.headline.startswith("Reserving 2 nodes until ")
    assert {line.name for line in found.node_table} == {"n1", "n2"}


# ---------------------------------------------------------------- what is refused


def test_a_gang_that_has_changed_since_it_was_planned_is_left_alone(world: SmallWorld) -> None:
    first, changed = (world.job(name, tasks=2, gpus=2) for name in ("first", "changed"))
    until_ms = int(timezone.now().timestamp() * 1000) + 600_000
    nodes = tuple(Node.objects.order_by("pk").values_list("pk", flat=True))
    plan = Plan(
        reserves=tuple(Reserve(gang.number, gang.generation, nodes, until_ms) for gang in (first, changed))
    )
    loaded, _ = seen_and_planned(world)
    Job.objects.filter(pk=changed.pk).update(generation=changed.generation + 1)

    with transaction.atomic():
        left_alone = apply_gang_reservations.write(plan, a_context(world, loaded, a_lease(world)))

    assert [(one.job, one.code) for one in left_alone] == [(changed.number, JOB_CHANGED)]
    states = Job.objects.order_by("number").values_list("state", flat=True)
    assert list(states) == [JobState.RESERVED, JobState.QUEUED]
    assert list(JobEvent.objects.values_list("job", "kind")) == [(first.number, "job.reserved")]
