"""A small world for the pages: the cast, a cluster with two nodes, a default queue, a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.lifecycle import JobState, TaskState
from scheduler.models import Device, Job
from tests.support.copies import copied
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    ClusterFactory,
    JobEventFactory,
    JobFactory,
    LogChunkFactory,
    NodeFactory,
    PartitionFactory,
    PriorityClassFactory,
    QueueFactory,
    QuotaFactory,
    TaskFactory,
    the_cast,
)


@pytest.fixture
def world(db: None) -> SimpleNamespace:
    return a_world()


@copied
def a_world() -> SimpleNamespace:
    cast = the_cast()
    cluster = ClusterFactory(name="main", slug="main")
    partition = PartitionFactory(cluster=cluster, name="default")
    queue = QueueFactory(cluster=cluster, slug="default", partition=partition, is_default=True)
    plain = NodeFactory(cluster=cluster, name="alpha", partition=partition)
    gpu = NodeFactory(cluster=cluster, name="beta", partition=partition, gpus=2, rack="r1")
    PriorityClassFactory(name="NORMAL", value=50)
    QuotaFactory(project=cast.project, resource="cpu_millis", hard=8000, soft=6000)
    job = JobFactory(
        name="train",
        project=cast.project,
        user=cast.owner,
        queue=queue,
        reason_code="WaitingForResources",
        reason_category="wait",
        reason_text="Needs 4 GPUs; 2 are free.",
    )
    JobEventFactory(job=job)
    return SimpleNamespace(
        cast=cast, cluster=cluster, partition=partition, queue=queue, plain=plain, gpu=gpu, job=job
    )


def a_running_job(world: SimpleNamespace, **fields: Any) -> Job:
    """A job that runs on the GPU node, holds its first GPU, and has printed a line."""
    job = JobFactory(
        project=world.cast.project, user=world.cast.owner, queue=world.queue, state=JobState.RUNNING,
        epoch=1, gpus=1, gpu_model="A100", **fields,
    )  # fmt: skip
    job.started_at = job.scheduled_at = job.created_at
    job.save(update_fields=["started_at", "scheduled_at"])
    attempt = AttemptFactory(job=job)
    device = Device.objects.filter(node=world.gpu).order_by("index").first()
    AllocationFactory(attempt=attempt, node=world.gpu, device_ids=[device.pk], gpu_millis=1000)
    Device.objects.filter(pk=device.pk).update(used_millis=1000)
    task = TaskFactory(attempt=attempt, node=world.gpu, state=TaskState.RUNNING)
    LogChunkFactory(task=task, data=b"epoch 1\n")
    return job
