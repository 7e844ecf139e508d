"""A portal whose jobs run without agents: what agents would report is written by the test."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from scheduler.models import Attempt, Checkpoint, Job, JobEvent, JobMove, Node, Task
from scheduler.services.planning.cycles import run_cycle
from scheduler.state.settle.settle import settle_many
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import CheckpointFactory


class Lab:
    """n1 and n2 of the portal, and jobs on them."""

    def __init__(self) -> None:
        self.portal: Portal = a_portal()
        self.cast = self.portal.cast

    def run(self, *, on: str = "", by: Any = None, **payload: Any) -> Job:
        """A job that runs, on the node `on`."""
        others = Node.objects.exclude(name=on) if on else Node.objects.none()
        free = list(others.filter(cordoned=False).values_list("pk", flat=True))
        Node.objects.filter(pk__in=free).update(cordoned=True)
        job = self.portal.submit(by=by or self.cast.owner, **{"cpu_cores": 1, **payload})
        self.start()
        Node.objects.filter(pk__in=free).update(cordoned=False)
        job.refresh_from_db()
        assert job.state == "running", job.reason_text
        return job

    def plan(self) -> None:
        run_cycle(cluster_id=self.portal.cluster.pk, trigger="test")

    def start(self) -> None:
        """Plan, and let all that was placed run."""
        self.plan()
        now = timezone.now()
        Attempt.objects.filter(state="assigned").update(state="running", started_at=now)
        Task.objects.filter(state="assigned").update(state="running", started_at=now)
        Job.objects.filter(state="scheduled").update(state="running", started_at=now)

    def save(self, job: Job, *, ago: float = 0, seconds: float = 2, **more: Any) -> Checkpoint:
        """The job has stored a checkpoint, which took `seconds`."""
        at = timezone.now() - timedelta(seconds=ago)
        Job.objects.filter(pk=job.pk).update(saved_at=at, state="running")
        row: Checkpoint = CheckpointFactory(
            job=job, epoch=job.epoch, node=self.node_of(job), name=f"step-{timezone.now().timestamp()}",
            taken_at=at, stored_at=at + timedelta(seconds=seconds), **more,
        )  # fmt: skip
        return row

    def stop(self, job: Job) -> None:
        """The processes of the job have ended, as they were asked to."""
        attempt = job.attempts.live().get()
        assert attempt.stop_asked_at is not None
        attempt.tasks.update(state="stopped", exit_code=0, ended_at=timezone.now())
        settle_many([attempt.pk])

    def lose(self, job: Job) -> None:
        """The node of the job's attempt is lost."""
        attempt = job.attempts.live().get()
        settle_many([attempt.pk], lost={attempt.pk: "Node n2 stopped responding."})
        Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())

    def node_of(self, job: Job) -> Node:
        node: Node = job.attempts.live().get().tasks.get(rank=0).node
        return node

    def node(self, name: str) -> Node:
        return Node.objects.get(name=name)

    def state(self, job: Job) -> str:
        return str(Job.objects.get(pk=job.pk).state)

    def moves(self, job: Job) -> list[tuple[str, str]]:
        rows = JobMove.objects.filter(job=job).order_by("id")
        return [(row.state, row.text) for row in rows]

    def events(self, job: Job) -> list[str]:
        return list(JobEvent.objects.filter(job=job).order_by("id").values_list("kind", flat=True))


def hours(number: float) -> datetime:
    """This number of hours from now."""
    return timezone.now() + timedelta(hours=number)
