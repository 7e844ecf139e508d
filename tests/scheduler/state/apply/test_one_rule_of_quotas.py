"""`LocalQuotaProvider` and the planner with its applier count by one rule: random starts on random lines."""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from quotas.core.resources import Resources
from quotas.models import Quota
from quotas.providers.registry import provider
from scheduler.models import Attempt, Job
from tests.scheduler.state.small import SmallWorld, broken_invariants

pytestmark = pytest.mark.django_db


def some_lines(world: SmallWorld, dice: random.Random) -> None:
    """Lines of the project, of a person, of one type of job and of one model; some only report."""
    for resource, most in (("cpu_millis", 24_000), ("gpu_millis", 9_000), ("running_jobs", 9)):
        if dice.random() < 0.8:
            hard = dice.randint(0, most)
            nominal = dice.choice([None, dice.randint(0, most)])
            world.quota(resource, hard, nominal=nominal, enforce=dice.random() < 0.8)
    if dice.random() < 0.5:
        world.quota("cpu_millis", dice.randint(0, 12_000), user=world.person)
    if dice.random() < 0.5:
        world.quota("cpu_millis", dice.randint(0, 12_000), job_type="training")
    world.quota("gpu_millis", dice.randint(0, 8) * 1000, gpu_model="H100")


def used() -> dict[int, int]:
    return dict(Quota.objects.values_list("pk", "used"))


@pytest.mark.parametrize("seed", range(4))
def test_the_provider_allows_and_counts_what_the_planner_starts(seed: int) -> None:
    dice, world, local = random.Random(seed), SmallWorld(), provider("local")
    world.node("n1", gpus=16, gpus__model="H100", cpu_millis=200_000)
    some_lines(world, dice)
    for _ in range(4):
        gpus, tasks, job_type = dice.randint(0, 2), dice.randint(1, 2), dice.choice(["batch", "training"])
        wanted = Resources(cpu_millis=dice.randint(1, 4000), memory_mib=1, gpus=gpus)
        devices = {"H100": gpus * 1000 * tasks} if gpus else {}
        job = world.job(cpu_millis=wanted.cpu_millis, memory_mib=1, gpus=gpus, tasks=tasks, job_type=job_type)
        asked = {"tasks": tasks, "user_id": world.person.pk, "devices": devices}
        allowed = local.check_quota(world.project.pk, wanted, job_type, **asked).allowed
        expected = before = used()
        if allowed:
            with transaction.atomic():
                local.allocate_quota(world.project.pk, wanted, job_type, **asked)
                expected = used()
                local.release_quota(world.project.pk, wanted, job_type, **asked)
                assert used() == before
                transaction.set_rollback(True)

        world.plan()

        assert Attempt.objects.filter(job=job).exists() == allowed
        assert used() == expected
        Job.objects.filter(number=job.number, state="queued").update(state="held", held_by="user")
    assert broken_invariants() == []
