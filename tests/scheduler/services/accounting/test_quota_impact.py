"""Demand, capacity and recent waits, as a change of a limit shows them."""

from __future__ import annotations

import pytest

from quotas.services.impact import Whose
from scheduler.models import Job
from scheduler.services.accounting.quota_impact import SchedulerFacts
from tests.support.factories import DeviceFactory, JobFactory, NodeFactory
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db

EVERYBODY = Whose(None)


def test_capacity_of_a_model_is_that_of_all_devices_that_count_on_its_limits() -> None:
    node = NodeFactory(gpus=0)
    for model, share in (
        ("NVIDIA A100-SXM4-80GB", 1000),
        ("A100", 1000),
        ("A100 MIG 1g.10gb", 143),
        ("A10", 1000),
    ):
        DeviceFactory(node=node, model=model, share_millis=share)

    assert SchedulerFacts().capacity("gpu_millis", "A100") == 2143
    assert SchedulerFacts().capacity("gpu_millis", "") == 3143


def test_what_jobs_ask_for_of_a_model_is_counted_as_its_limits_count_it() -> None:
    for model in ("A100", "A100-SXM4", "H100"):
        JobFactory(gpus=2, gpu_model=model, tasks=3)

    demand = SchedulerFacts().demand(EVERYBODY, "gpu_millis", "A100")

    assert (demand.pending_jobs, demand.asked) == (3, 12_000)


def test_jobs_that_ask_for_more_than_there_can_be_break_no_figure() -> None:
    JobFactory(gpus=1_000_000, tasks=10_000)
    had_asked(*Job.objects.all(), cpu_millis=4_096_000)

    assert SchedulerFacts().demand(EVERYBODY, "gpu_millis", "").asked == 10**13
    assert SchedulerFacts().demand(EVERYBODY, "cpu_millis", "").asked == 40_960_000_000
