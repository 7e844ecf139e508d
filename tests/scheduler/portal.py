"""A small portal for tests of doors and services: a cast, one cluster of two nodes, its default queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from accounts.models import User
from infra.errors import MusterError
from scheduler.models import Cluster, Job, Node, Partition, Queue
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.jobs.submit import parse_many, refused_whole, submit_job, submit_specs
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import parse_job
from tests.support.copies import copied
from tests.support.factories import Cast, NodeFactory, the_cast


@dataclass(frozen=True, slots=True)
class Portal:
    """n1 has 16 cores and 64 GiB, n2 four A100 besides."""

    cast: Cast
    cluster: Cluster
    queue: Queue
    n1: Node
    n2: Node

    def submit(self, *, by: User | None = None, **payload: object) -> Job:
        return submit_job(payload={"command": "true", **payload}, by=by or self.cast.owner)


def submit_many(*, payloads: Sequence[Any], by: User) -> list[Job]:
    """What the door for several jobs does without `atomic=false`: all of them are taken, or none."""
    specs, errors = parse_many(payloads=payloads, by=by)
    if errors:
        raise refused_whole(errors)
    return submit_specs(specs=[spec for spec in specs if spec is not None], by=by, via="api")


@copied
def a_portal() -> Portal:
    cast = the_cast()
    cluster = ensure_defaults()
    partition = Partition.objects.get(cluster=cluster)
    return Portal(
        cast=cast,
        cluster=cluster,
        queue=Queue.objects.get(cluster=cluster, is_default=True),
        n1=NodeFactory(cluster=cluster, name="n1", partition=partition),
        n2=NodeFactory(cluster=cluster, name="n2", partition=partition, gpus=4),
    )


def read(portal: Portal, **payload: Any) -> JobSpec:
    """The request of the owner for a job of `true`, read as every door reads it."""
    return parse_job({"command": "true", **payload}, by=portal.cast.owner)


def problems(portal: Portal, **payload: Any) -> dict[str, str]:
    """Field -> code of everything that is wrong with a request."""
    with pytest.raises(MusterError) as refused:
        read(portal, **payload)
    return {problem.field: problem.code for problem in refused.value.problems}
