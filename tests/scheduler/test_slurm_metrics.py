"""What /metrics/slurm says by the names that boards for Slurm ask for."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduler import slurm_metrics
from scheduler.core.lifecycle import JobState
from scheduler.metrics import Collector
from scheduler.services.accounting import metric_counts
from tests.scheduler.state.small import SmallWorld

pytestmark = pytest.mark.django_db

#: By the sources of the exporters: vpenso's (board 4323), then rivosinc's (board 19835). `{}`: of each of several.
NAMES = """
slurm_account_{cpus_running,jobs_pending,jobs_running,jobs_suspended}{account} slurm_account_fairshare{account}
slurm_cpus_{alloc,idle,other,total} slurm_gpus_{alloc,idle,total,utilization}
slurm_node_{cpu_alloc,cpu_idle,cpu_other,cpu_total,mem_alloc,mem_total}{node,status}
slurm_nodes_{alloc,comp,down,drain,err,fail,idle,maint,mix,resv}
slurm_partition_{cpus_allocated,cpus_idle,cpus_other,cpus_total,jobs_pending}{partition}
slurm_queue_{cancelled,completed,completing,configuring,failed,node_fail,pending,pending_dependency,preempted,running}
slurm_queue_{suspended,timeout} slurm_user_{cpus_running,jobs_pending,jobs_running}{user}
slurm_scheduler_{last_cycle,mean_cycle,cycle_per_minute,queue_size,backfilled_jobs_since_start_total}
slurm_account_job_state_{cpu_alloc,mem_alloc,total}{account,state} slurm_backfill_job_count slurm_mem_{alloc,free,real}
slurm_cpus_per_state{state} slurm_node_count_per_state{state} slurm_partition_{alloc_cpus,alloc_mem}{partition,state}
slurm_partition_{job_state_total,node_count}{partition,state} slurm_pending_reason_total{reason}
slurm_partition_{free_mem,idle_cpus,real_mem,total_cpus}{partition} slurm_user_{cpu_alloc,mem_alloc}{username,state}
slurm_user_state_total{username,state}
"""


def named() -> set[tuple[str, ...]]:
    """Each name with its labels."""
    found = set()
    for word in NAMES.split():
        name, *groups = [part.rstrip("}") for part in word.split("{")]
        each = groups.pop(0).split(",") if name.endswith("_") else [""]
        labels = tuple(groups[0].split(",")) if groups else ()
        found |= {(name + end, *labels) for end in each}
    return found


def a_busy_world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", gpus=2)
    world.node("n2", draining=True, gpus=1)
    world.job(gpus=1)
    world.job(gpus=1)
    world.plan()
    world.job(gpus=8)
    world.job(state=JobState.COMPLETED, completed_at=timezone.now())
    metric_counts.add_by_queue(metric_counts.BACKFILLED, [world.queue.pk])
    return world


def scraped() -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in Collector(slurm_metrics.read).collect()
        for sample in metric.samples
    }


def test_every_name_that_the_boards_ask_for_is_there_with_its_labels() -> None:
    a_busy_world()

    found = {
        (sample.name, *sample.labels)
        for metric in Collector(slurm_metrics.read).collect()
        for sample in metric.samples
    }

    assert named() - found == set()


def test_the_figures_are_those_of_the_rows() -> None:
    world = a_busy_world()
    queue, project, node = world.queue.slug, world.project.slug, world.cluster.nodes.get(name="n1")

    found = scraped()

    assert (
        found["slurm_nodes_mix",]
        == found["slurm_nodes_drain",]
        == found["slurm_node_count_per_state", "mix"]
        == 1
    )
    used = node.used_cpu_millis / 1000
    assert found["slurm_cpus_alloc",] == found["slurm_partition_cpus_allocated", queue] == used > 0
    assert found["slurm_cpus_total",] == used + found["slurm_cpus_idle",] + found["slurm_cpus_other",]
    assert found["slurm_node_mem_total", "n1", "mix"] == node.memory_mib_capacity
    assert (found["slurm_gpus_alloc",], found["slurm_gpus_total",]) == (2, 3)
    assert (
        found["slurm_queue_configuring",]
        == found["slurm_account_job_state_total", project, "CONFIGURING"]
        == 2
    )
    assert found["slurm_account_job_state_cpu_alloc", project, "CONFIGURING"] == used
    assert found["slurm_queue_pending",] == found["slurm_partition_jobs_pending", queue] == 1
    assert found["slurm_pending_reason_total", "NotEvaluatedYet"] == 1
    assert found["slurm_scheduler_backfilled_jobs_since_start_total",] == 1
    assert found["slurm_scheduler_last_cycle",] > 0


def test_they_are_for_those_who_may_read_metrics(settings: Any, client: Client) -> None:
    a_busy_world()
    settings.MUSTER_METRICS_TOKEN = "a-token"

    assert client.get("/metrics/slurm").status_code == 403
    answer = client.get("/metrics/slurm", headers={"Authorization": "Bearer a-token"})
    assert "slurm_nodes_mix 1.0" in answer.content.decode()
