"""What running jobs hold under a virtual clock: what is taken is given back, in nodes and in every limit."""

from __future__ import annotations

from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_allocations import VirtualAllocations
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from tests.support.builders import World, a_job, a_node, a_quota, a_world


def a_gang() -> tuple[World, Start]:
    """Two tasks of two cores and a GPU each, on one node, counted by a line of cores and one of GPUs."""
    world = a_world(
        nodes=[a_node("n1", cpus=8, gpus=2)],
        pending=[a_job("gang", cpus=2, gpus=1, tasks=2)],
        quotas=[a_quota("cpu_millis", 8000), a_quota("gpu_millis", 2000)],
    )
    (start,) = plan_cycle(world.snapshot, Policy()).starts
    return world, start


def used(allocations: VirtualAllocations) -> tuple[int, int, list[int]]:
    """Cores and devices in use on the node, in thousandths, and what the quota lines count."""
    quotas = allocations.groups()["quotas"].used.tolist()
    return int(allocations.used["cpu_millis"].sum()), int(allocations.device_used.sum()), quotas


def test_a_job_that_ends_gives_back_what_it_took() -> None:
    world, start = a_gang()
    allocations = VirtualAllocations(world.snapshot)
    before = used(allocations)

    allocations.start(start, user_id=1, job_type=0, one_domain=False)
    during = used(allocations)
    allocations.release(start.job_id)

    assert (before, during) == ((0, 0, [0, 0]), (4000, 2000, [4000, 2000]))
    assert used(allocations) == before


def test_a_suspended_job_gives_back_its_cores_only() -> None:
    world, start = a_gang()
    allocations = VirtualAllocations(world.snapshot)
    allocations.start(start, user_id=1, job_type=0, one_domain=False)

    allocations.set_cpus(start.job_id, 0)

    assert used(allocations) == (0, 2000, [0, 2000])
    assert allocations.amounts(start.job_id) == (2000, 0)


def test_a_smaller_job_holds_what_its_other_tasks_hold() -> None:
    world, start = a_gang()
    allocations = VirtualAllocations(world.snapshot)
    allocations.start(start, user_id=1, job_type=0, one_domain=False)

    allocations.release_tasks(start.job_id, (1,))

    assert used(allocations) == (2000, 1000, [2000, 1000])
    assert allocations.tasks(start.job_id) == 1
