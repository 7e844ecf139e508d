"""Two queues of one cluster with a profile each: the same load, and another order and other nodes."""

from __future__ import annotations

import pytest

from scheduler.core.policy import PLACEMENTS
from scheduler.models import Cycle, Job, Queue, SchedulerProfile
from scheduler.models.queue import PlacementStrategy
from scheduler.services.planning import cycles
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.replay import replay
from tests.scheduler.state.small import SmallWorld, a_queue
from tests.support.factories import SchedulerProfileFactory

pytestmark = pytest.mark.django_db

#: Name, priority, minutes, cores: submitted in this order.
LOAD = (("first", 10, 90, 2), ("urgent", 90, 60, 2), ("short", 50, 5, 2))


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.cluster.profile = SchedulerProfileFactory(policy="fifo", placement="best_fit")
    world.cluster.save()
    return world


def submit(world: SmallWorld, queue: Queue) -> None:
    for name, priority, minutes, cores in LOAD:
        world.job(
            f"{name} {queue.slug}",
            queue=queue,
            priority=priority,
            time_limit_seconds=60 * minutes,
            cpu_millis=1000 * cores,
        )


def placed(queue: Queue) -> list[tuple[str, str]]:
    """Name and node of the jobs of this queue that run, in the order in which the cycle planned their starts."""
    starts = replay(cycle_id=Cycle.objects.latest("id").pk).recorded.starts
    running = Job.objects.filter(queue=queue, attempts__isnull=False).in_bulk()
    jobs = [running[start.job_id] for start in starts if start.job_id in running]
    assert len(jobs) == len(running)
    return [(job.name.split()[0], job.attempts.get().tasks.get().node.name) for job in jobs]


def test_the_same_load_starts_in_another_order_on_other_nodes(world: SmallWorld) -> None:
    world.node("large", cpu_millis=64_000)
    world.node("small", cpu_millis=8_000)
    orders = {
        "priority": ("priority", "spread", ["urgent", "short", "first"], "large"),
        "shortest": ("sjf", "best_fit", ["short", "urgent", "first"], "small"),
    }
    queues = {}
    for name, (policy, placement, _, _) in orders.items():
        queues[name] = a_queue(
            world.cluster,
            name,
            profile=SchedulerProfileFactory(name=name, policy=policy, placement=placement),
        )
        submit(world, queues[name])

    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")

    for name, (_, placement, order, node) in orders.items():
        assert placed(queues[name]) == [(job, node) for job in order]
        basis = explain_job(
            job=Job.objects.get(queue=queues[name], name__startswith="first"), by=world.person
        ).placement
        assert basis is not None
        assert basis.placement == placement


def test_the_preset_quality_keeps_gpus_of_one_domain_together_where_spread_does_not(
    world: SmallWorld,
) -> None:
    split = world.node("split", gpus=4, numa_domains=2, cpu_millis=64_000)
    split.devices.filter(index__gte=2).update(numa_domain=1)
    split.devices.filter(index__in=(0, 2)).update(used_millis=0)
    whole = world.node("whole", gpus=4, cpu_millis=64_000)
    for device in split.devices.filter(index__in=(0, 2)):
        device.healthy = False  # one is left in each domain
        device.save()
    queues = {}
    for placement in ("quality", "spread"):
        queues[placement] = a_queue(
            world.cluster, placement, profile=SchedulerProfileFactory(name=placement, placement=placement)
        )
        world.job(f"one {placement}", queue=queues[placement], gpus=2)

    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")

    assert placed(queues["quality"]) == [("one", whole.name)]
    job = Job.objects.get(name="one quality")
    basis = explain_job(job=job, by=world.person).placement
    assert basis is not None
    points = {node.name: node.parts["placement_quality"] for node in basis.nodes}
    assert points["whole"] > points["split"]


def test_every_placement_of_the_planner_can_be_chosen_in_a_profile() -> None:
    assert set(PlacementStrategy.values) == set(PLACEMENTS)
    assert SchedulerProfile(name="x", placement="quality").get_placement_display().startswith("quality: ")
