"""One world for all questions of who sees what: three projects, each with a mark in every text it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from django.utils import timezone

from accounts.models import Project, ProjectRole, Secret, User
from accounts.services.tokens import issue_token
from infra.storage.sealed import seal
from notifications.models import Endpoint, Message, Notification
from quotas.models import Alert, Budget, BudgetPeriod, DriftFinding, Grant, Notice, ShareUsage
from scheduler.core.lifecycle import AttemptState, JobState, TaskState
from scheduler.models import (
    Artifact,
    Cluster,
    Device,
    ForecastOutcome,
    Job,
    Node,
    Partition,
    Queue,
    SchedulerProfile,
)
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.forecasts import forecast_cluster
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    Cast,
    CheckpointFactory,
    DatasetFactory,
    FolderUploadFactory,
    JobDependencyFactory,
    JobEventFactory,
    JobFactory,
    JoinTokenFactory,
    LogChunkFactory,
    MembershipFactory,
    NodeFactory,
    OrganizationFactory,
    PartitionFactory,
    ProjectFactory,
    QueueFactory,
    QuotaFactory,
    ReservationFactory,
    RetentionRunFactory,
    ShadowRunFactory,
    TaskFactory,
    UserFactory,
    the_cast,
)
from tests.support.ledgers import a_life

#: In every text of the project that most of the cast belong to, of the owner's second one, and of a foreign one.
VISION: Final = "zvisionz"
OTHER: Final = "zotherz"
FOREIGN: Final = "zforeignz"
MARKS: Final = (VISION, OTHER, FOREIGN)
#: Of every secret: no door shows it to anybody.
SECRET_VALUE: Final = "never-shown-to-anybody"


@dataclass
class Side:
    """One project and all that it has; every name, text and value of it holds the mark."""

    mark: str
    project: Project
    person: User
    queue: Queue
    partition: Partition
    ids: dict[str, Any] = field(default_factory=dict)


@dataclass
class World:
    cast: Cast
    cluster: Cluster
    open_queue: Queue
    nodes: list[Node]
    sides: dict[str, Side]
    #: Callers who can do nothing, and what they hold.
    disabled: User

    def __getitem__(self, mark: str) -> Side:
        return self.sides[mark]


def a_world() -> World:
    """The cast belongs to VISION; the owner belongs to OTHER as well, the stranger to none of the three."""
    cast = the_cast()
    cluster = ensure_defaults()
    SchedulerProfile.objects.update(preemption_enabled=True, policy="priority")
    open_queue = Queue.objects.get(slug="default")
    plain = Partition.objects.get(name="default")
    nodes = [
        NodeFactory(
            cluster=cluster, name="alpha", partition=plain, rack="r1", gpus=2, labels={"hall": "one"}
        ),
        NodeFactory(cluster=cluster, name="beta", partition=plain, rack="r2", gpus=4, used_cpu_millis=0),
        NodeFactory(cluster=cluster, name="gamma", partition=plain, rack="r2"),
    ]
    vision = cast.project
    Project.objects.filter(pk=vision.pk).update(slug=f"{VISION}-project", name=f"{VISION} project")
    vision.refresh_from_db()
    vision.organization.name, vision.organization.slug = f"{VISION} faculty", f"{VISION}-faculty"
    vision.organization.save()
    projects = {VISION: vision}
    for mark in (OTHER, FOREIGN):
        above = OrganizationFactory(slug=f"{mark}-faculty", name=f"{mark} faculty")
        projects[mark] = ProjectFactory(organization=above, slug=f"{mark}-project", name=f"{mark} project")
    MembershipFactory(project=projects[OTHER], user=cast.owner, role=ProjectRole.LEAD)
    ended = timezone.now() - timedelta(days=1)
    MembershipFactory(project=projects[FOREIGN], user=cast.colleague, role=ProjectRole.LEAD, expires_at=ended)
    disabled = UserFactory(username="disabled", is_active=False)
    MembershipFactory(project=vision, user=disabled, role=ProjectRole.LEAD)
    sides = {mark: _side(mark, project, cluster, open_queue, nodes) for mark, project in projects.items()}
    world = World(cast, cluster, open_queue, nodes, sides, disabled)
    for side in sides.values():
        _depend(side, sides)
    _waits(world)
    RetentionRunFactory()
    ShadowRunFactory(cluster=cluster, profile=SchedulerProfile.objects.get(name="default"))
    JoinTokenFactory(cluster=cluster)
    run_cycle(cluster_id=cluster.pk, trigger="test")
    forecast_cluster(cluster_id=cluster.pk)
    return world


def _side(mark: str, project: Project, cluster: Cluster, open_queue: Queue, nodes: list[Node]) -> Side:
    person = UserFactory(
        username=f"{mark}-person", first_name=mark, last_name=mark, email=f"{mark}@example.org"
    )
    membership = MembershipFactory(project=project, user=person, role=ProjectRole.LEAD)
    partition = PartitionFactory(cluster=cluster, name=f"{mark}-partition")
    nodes[2].partitions.add(partition)
    queue = QueueFactory(
        cluster=cluster, slug=f"{mark}-queue", name=f"{mark} queue", project=project, partition=partition,
        paused=True, paused_reason=f"{mark} pause", paused_by=person.username, paused_at=timezone.now(),
    )  # fmt: skip
    side = Side(mark, project, person, queue, partition)
    side.ids |= {
        "project": project.slug, "project_pk": project.pk, "queue": queue.slug, "queue_pk": queue.pk,
        "username": person.username, "member": membership.pk, "organization": project.organization_id,
        "partition": partition.name,
    }  # fmt: skip
    _jobs(side, open_queue, nodes[1])
    _amounts(side)
    _notified(side)
    reservation = ReservationFactory(
        cluster=cluster, name=f"{mark} course", reason=f"{mark} because", project=project, created_by=person,
        # One node is reserved once at a time.
        starts_at=timezone.now() + timedelta(hours=4 if mark == OTHER else 0, minutes=-5),
    )  # fmt: skip
    reservation.nodes.add(nodes[0] if mark == FOREIGN else nodes[2])
    dataset = DatasetFactory(
        project=project,
        name=f"{mark}-images",
        path=f"/data/{mark}",
        ready_at=timezone.now(),
        declared_by=person,
    )
    token, _ = issue_token(
        user=person, by=person, name=f"{mark} token", scopes=["jobs:read"], project=project
    )
    secret = f"{side.mark}-secret"
    for owner in (person, project):
        row = Secret(
            **{"project" if owner is project else "user": owner},
            name=secret, created_at=timezone.now(), set_at=timezone.now(), set_by=person,
        )  # fmt: skip
        row.sealed = seal(SECRET_VALUE, row.about)
        row.save()
    upload = FolderUploadFactory(user=person, name=f"{mark}-folder")
    element = JobFactory(
        name=f"{mark} sweep", project=project, user=person, queue=open_queue, state=JobState.CANCELLED,
        completed_at=timezone.now(), array_id=uuid4(), array_index=1,
    )  # fmt: skip
    side.ids |= {
        "upload": str(upload.pk), "array": element.number,
        "reservation": str(reservation.uuid), "dataset": dataset.pk, "token": token.pk, "secret": secret,
    }  # fmt: skip
    return side


def _jobs(side: Side, open_queue: Queue, node: Node) -> None:
    """A job that waits, one that runs, one that has failed, and one in the project's own queue."""
    now = timezone.now()
    words = {
        "project": side.project, "user": side.person, "queue": open_queue, "command": f"run {side.mark}",
        "env": {f"KEY_{side.mark}": side.mark}, "labels": {side.mark: side.mark}, "working_dir": f"/home/{side.mark}",
        "job_type": "batch", "gpus": 1,
        "secrets": [{"name": f"{side.mark}-secret", "of": "project", "file": "key"}],
    }  # fmt: skip
    waiting = JobFactory(
        name=f"{side.mark} waits", priority=60, **{**words, "gpus": 4}, time_limit_seconds=3600
    )
    private = JobFactory(name=f"{side.mark} private", **words | {"queue": side.queue})
    devices = list(Device.objects.filter(node=node, used_millis=0).order_by("index")[:1])
    running = JobFactory(
        name=f"{side.mark} runs", state=JobState.RUNNING, epoch=1, started_at=now, priority=10,
        time_limit_seconds=7200, checkpoint={"signal": "USR1"}, **words,
    )  # fmt: skip
    attempt = AttemptFactory(job=running)
    task = TaskFactory(attempt=attempt, node=node, started_at=now)
    AllocationFactory(
        attempt=attempt, node=node, gpu_millis=1000, device_ids=[device.pk for device in devices]
    )
    Device.objects.filter(pk__in=[device.pk for device in devices]).update(used_millis=1000)
    Node.objects.filter(pk=node.pk).update(
        used_cpu_millis=node.used_cpu_millis + 1000, used_memory_mib=node.used_memory_mib + 1024,
        used_gpu_millis=node.used_gpu_millis + 1000,
    )  # fmt: skip
    node.refresh_from_db()
    LogChunkFactory(task=task, data=f"{side.mark} says\n".encode())
    failed = JobFactory(
        name=f"{side.mark} failed", state=JobState.FAILED, epoch=1, end_text=f"{side.mark} broke",
        completed_at=now - timedelta(minutes=1), started_at=now - timedelta(hours=3), **words,
    )  # fmt: skip
    checkpoint = CheckpointFactory(job=running, name=f"{side.mark}-step", node=node, text=f"{side.mark} text")
    ended = AttemptFactory(
        job=failed,
        state=AttemptState.FAILED,
        started_at=now - timedelta(hours=3),
        ended_at=now - timedelta(minutes=1),
    )
    TaskFactory(
        attempt=ended, node=node, state=TaskState.FAILED, cpu_time_ms=1000, end_text=f"{side.mark} broke"
    )
    AllocationFactory(
        attempt=ended, node=node, held_at=now - timedelta(hours=3), released_at=now - timedelta(minutes=1),
        gpu_millis=1000,
    )  # fmt: skip
    artifact = Artifact.objects.create(
        job=failed, epoch=1, rank=0, path=f"{side.mark}/model.pt", key=f"artifacts/{failed.number}/0", size_bytes=9,
        sha256="0" * 64, stored_at=now,
    )  # fmt: skip
    for job in (waiting, private, running, failed):
        JobEventFactory(job=job, because=f"{side.mark} event", actor=side.person, details={"said": side.mark})
    side.ids |= {
        "jobs": [waiting.number, private.number, running.number, failed.number],
        "task": task.pk, "attempt": attempt.pk, "artifact": artifact.pk, "uuid": str(waiting.uuid),
        "checkpoint": str(checkpoint.pk),
    }  # fmt: skip


def _notified(side: Side) -> None:
    """A notification of its person, and a webhook of the project with a message."""
    now, mark = timezone.now(), side.mark
    about: dict[str, Any] = {
        "kind": "job.failed", "group_key": f"project:{side.project.pk}", "project": side.project,
        "name": f"{mark} failed", "text": f"{mark} broke",
        "jobs": side.ids["jobs"][-1:], "first_at": now, "last_at": now, "source": "jobs",
        "first_event": 1, "last_event": 1,
    }  # fmt: skip
    webhook = Endpoint.objects.create(
        project=side.project, name=f"{mark} hook", url=f"https://{mark}.example.org/", kinds=["job.failed"],
        key_fingerprint="0" * 16, created_by=side.person,
    )  # fmt: skip
    message = Message.objects.create(
        endpoint=webhook,
        user=side.person,
        due_at=now,
        body=f'{{"said": "{mark}"}}',
        state="delivered",
        **about,
    )
    side.ids |= {
        "notification": Notification.objects.create(user=side.person, **about).pk,
        "webhook": webhook.pk, "message": message.pk,
    }  # fmt: skip


def _amounts(side: Side) -> None:
    """Limits, budgets, grants, ledger, shares, alerts and drift."""
    now, mark, project = timezone.now(), side.mark, side.project
    line = QuotaFactory(project=project, resource="cpu_millis", hard=90_000, soft=60_000)
    QuotaFactory(project=None, organization=project.organization, resource="gpu_millis", hard=90_000)
    QuotaFactory(project=project, user=side.person, resource="memory_mib", hard=900_000)
    budget = Budget.objects.create(
        name=f"{mark} budget", project=project, resource="gpu_milli_seconds", amount=10**12, period="month",
        starts_at=now.replace(day=1, hour=0, minute=0, second=0, microsecond=0),
    )  # fmt: skip
    BudgetPeriod.objects.create(
        budget=budget,
        starts_at=budget.starts_at,
        ends_at=budget.starts_at + timedelta(days=32),
        amount=10**12,
    )
    in_use = {"used": 1000, "bound": 90_000, "demand": {"running_jobs": 1, "pending_jobs": 1, "asked": 1000}}
    grant = Grant.objects.create(
        project=project, resource="cpu_millis", amount=1000, reason=f"{mark} asks", asked_by=side.person, asked_at=now,
        evidence={**in_use, "lately": {"days": 28, "jobs_submitted": 2, "jobs_started": 1}},
    )  # fmt: skip
    a_life(project, side.person, began=now - timedelta(hours=2), used=600)
    ShareUsage.objects.create(
        project=project, user=side.person, starts_at=now - timedelta(days=1), gpu_seconds=100, gpu_decayed=100
    )
    alert = Alert.objects.create(
        kind="soft_passed", project=project, subject=mark, text=f"{mark} is nearly full", at=now
    )
    notice = Notice.objects.create(user=side.person, period_starts_at=now, created_at=now)
    notice.alerts.add(alert)
    DriftFinding.objects.create(
        kind="", project=project, subject=f"{mark} line", was=1, found=2, found_at=now, reason=mark
    )
    side.ids |= {"line": line.pk, "budget": budget.pk, "grant": grant.pk, "notice": notice.pk}


def _depend(side: Side, sides: dict[str, Side]) -> None:
    """A job that waits for one of each project: its colleagues may not see the others."""
    job = JobFactory(
        name=f"{side.mark} depends", project=side.project, user=side.person, state=JobState.BLOCKED,
        queue=Queue.objects.get(slug="default"), command=f"after {side.mark}",
    )  # fmt: skip
    for other in sides.values():
        JobDependencyFactory(job=job, on=Job.objects.get(pk=other.ids["jobs"][0]))
    side.ids["jobs"].append(job.number)


def _waits(world: World) -> None:
    """Jobs of VISION that wait for what others have: a node others booked, GPUs others use, a place in line."""
    side, now = world[VISION], timezone.now()
    words = {"project": side.project, "user": side.person, "queue": world.open_queue}
    booked = JobFactory(
        name=f"{VISION} booked", gpus=2, node_selector={"hall": "one"}, time_limit_seconds=36_000, **words
    )
    preempted = JobFactory(name=f"{VISION} made way", epoch=1, **words)
    AttemptFactory(
        job=preempted, state=AttemptState.STOPPED, stop_reason="preempted", ended_at=now, stop_asked_at=now,
        stopped_for=world[FOREIGN].ids["jobs"][0],
    )  # fmt: skip
    for other in world.sides.values():
        waiting, _, running, _, depends = other.ids["jobs"]
        other.ids["jobs"] = [running, waiting, depends]
    side.ids["jobs"] += [booked.number, preempted.number]
    # A node that others booked, a wait for others' jobs: in these their names would stand.
    side.ids["jobs"] = [side.ids["jobs"][number] for number in (0, 2, 3)]
    ForecastOutcome.objects.create(
        cluster=world.cluster, job_number=world[FOREIGN].ids["jobs"][2], told_at=now, p10_at=now, p90_at=now,
        started_at=now, missed_seconds=0,
    )  # fmt: skip
