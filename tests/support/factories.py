"""Rows for tests, by factory-boy: one factory a model, and the cast that every door is tried with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import factory
from django.utils import timezone
from factory.django import DjangoModelFactory

from accounts.models import ApiToken, Membership, Organization, Project, ProjectRole, SiteRole, User
from accounts.services.tokens import issue_token
from quotas.models import Quota, QuotaResource
from scheduler.core.lifecycle import AttemptState, JobState, TaskState
from scheduler.models import (
    Allocation,
    Attempt,
    Checkpoint,
    Cluster,
    Cycle,
    Dataset,
    Device,
    FolderUpload,
    IdempotencyKey,
    Job,
    JobDependency,
    JobEvent,
    JobRequest,
    JoinToken,
    Lease,
    LogChunk,
    Node,
    NodeHeartbeat,
    Partition,
    PolicyFault,
    PriorityClass,
    ProfileVersion,
    Queue,
    Reservation,
    RetentionRun,
    SchedulerProfile,
    ShadowRun,
    Task,
    UnknownTask,
)
from scheduler.state.records.profile_versions import content_of
from tests.support.copies import copied

PASSWORD = "correct horse battery staple"


# ---------------------------------------------------------------- accounts


class UserFactory(DjangoModelFactory):
    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda n: f"person{n}")
    email = factory.LazyAttribute(lambda user: f"{user.username}@example.org")
    password = factory.django.Password(PASSWORD)


class OperatorFactory(UserFactory):
    username = factory.Sequence(lambda n: f"operator{n}")
    site_role = SiteRole.OPERATOR
    is_staff = True


class AuditorFactory(UserFactory):
    username = factory.Sequence(lambda n: f"auditor{n}")
    site_role = SiteRole.AUDITOR


class AdminFactory(UserFactory):
    username = factory.Sequence(lambda n: f"admin{n}")
    site_role = SiteRole.ADMIN
    is_staff = True


class OrganizationFactory(DjangoModelFactory):
    class Meta:
        model = Organization

    slug = factory.Sequence(lambda n: f"department-{n}")
    name = factory.LazyAttribute(lambda organization: organization.slug.replace("-", " ").title())


class ProjectFactory(DjangoModelFactory):
    """`ProjectFactory(lead=alice, member=bob, viewer=vera)` writes the memberships as well."""

    class Meta:
        model = Project
        skip_postgeneration_save = True

    organization = factory.SubFactory(OrganizationFactory)
    slug = factory.Sequence(lambda n: f"project-{n}")
    name = factory.LazyAttribute(lambda project: project.slug.replace("-", " ").title())

    @factory.post_generation
    def lead(project: Project, create: bool, person: User | None, **_: Any) -> None:
        _join(project, person, ProjectRole.LEAD)

    @factory.post_generation
    def member(project: Project, create: bool, person: User | None, **_: Any) -> None:
        _join(project, person, ProjectRole.MEMBER)

    @factory.post_generation
    def viewer(project: Project, create: bool, person: User | None, **_: Any) -> None:
        _join(project, person, ProjectRole.VIEWER)


def _join(project: Project, person: User | None, role: ProjectRole) -> None:
    if person is not None:
        MembershipFactory(project=project, user=person, role=role)


class MembershipFactory(DjangoModelFactory):
    class Meta:
        model = Membership

    user = factory.SubFactory(UserFactory)
    project = factory.SubFactory(ProjectFactory)
    role = ProjectRole.MEMBER


class ApiTokenFactory(DjangoModelFactory):
    """A row that no plain token fits; `a_token` makes one that works."""

    class Meta:
        model = ApiToken

    user = factory.SubFactory(UserFactory)
    name = "a token"
    prefix = factory.Sequence(lambda n: f"t{n:09d}")
    digest = "0" * 64
    scopes = ["jobs:read"]
    expires_at = factory.LazyFunction(lambda: timezone.now() + timedelta(days=90))


def a_token(user: User, *scopes: str, project: Project | None = None, days: int = 90) -> str:
    """The plain text of a working token."""
    return issue_token(user=user, by=user, name="a test", scopes=scopes, project=project, days=days)[1]


def bearer(user: User, *scopes: str, project: Project | None = None) -> dict[str, str]:
    """Headers for a test client: `client.get(url, headers=bearer(alice, "jobs:read"))`."""
    return {"Authorization": f"Bearer {a_token(user, *scopes, project=project)}"}


# ---------------------------------------------------------------- quotas


class QuotaFactory(DjangoModelFactory):
    class Meta:
        model = Quota

    project = factory.SubFactory(ProjectFactory)
    resource = QuotaResource.CPU_MILLIS
    nominal = factory.SelfAttribute("hard")
    hard = 100_000


# ---------------------------------------------------------------- scheduler: machines and queues


class ClusterFactory(DjangoModelFactory):
    class Meta:
        model = Cluster

    slug = factory.Sequence(lambda n: f"cluster-{n}")
    name = factory.SelfAttribute("slug")


class PartitionFactory(DjangoModelFactory):
    class Meta:
        model = Partition

    cluster = factory.SubFactory(ClusterFactory)
    name = factory.Sequence(lambda n: f"partition-{n}")


class PolicyFaultFactory(DjangoModelFactory):
    class Meta:
        model = PolicyFault

    cluster = factory.SubFactory(ClusterFactory)
    subject = factory.Sequence(lambda n: f"plugin p{n}")
    reason = "raised ValueError in filter"
    began_at = factory.LazyFunction(timezone.now)


class JoinTokenFactory(DjangoModelFactory):
    class Meta:
        model = JoinToken

    cluster = factory.SubFactory(ClusterFactory)
    prefix = factory.Sequence(lambda n: f"j{n:09d}")
    digest = "0" * 64
    expires_at = factory.LazyFunction(lambda: timezone.now() + timedelta(days=1))


class NodeFactory(DjangoModelFactory):
    """16 cores, 64 GiB, no GPU; `NodeFactory(gpus=4)` also writes its devices."""

    class Meta:
        model = Node
        skip_postgeneration_save = True

    cluster = factory.SubFactory(ClusterFactory)
    name = factory.Sequence(lambda n: f"node-{n}")
    cpu_millis = 16_000
    memory_mib = 65_536
    storage_mib = 102_400
    cpu_millis_capacity = factory.SelfAttribute("cpu_millis")
    memory_mib_capacity = factory.SelfAttribute("memory_mib")

    @factory.post_generation
    def lease_expires_at(node: Node, create: bool, moment: datetime | None, **_: Any) -> None:
        """It has an agent that was in contact just now; by default for a lease of a minute."""
        until = moment or timezone.now() + timedelta(minutes=1)
        if create:
            NodeHeartbeat.objects.create(node=node, last_seen_at=timezone.now(), lease_expires_at=until)

    @factory.post_generation
    def gpus(node: Node, create: bool, count: int | None, **kwargs: Any) -> None:
        if count:
            Device.objects.bulk_create(
                DeviceFactory.build(node=node, **({"index": index} | kwargs)) for index in range(count)
            )
            node.gpu_millis = 1000 * count
            node.save(update_fields=["gpu_millis"])

    @factory.post_generation
    def partition(node: Node, create: bool, partition: Partition | None, **_: Any) -> None:
        if partition is not None:
            node.partitions.add(partition)


class UnknownTaskFactory(DjangoModelFactory):
    class Meta:
        model = UnknownTask

    node = factory.SubFactory(NodeFactory)
    task = factory.Sequence(lambda n: 118_000_000_000_000 + n)
    epoch = 1
    found_at = factory.LazyFunction(timezone.now)


class DeviceFactory(DjangoModelFactory):
    class Meta:
        model = Device

    node = factory.SubFactory(NodeFactory)
    index = factory.LazyAttribute(lambda device: device.node.devices.count())
    uuid = factory.LazyAttribute(lambda device: f"GPU-{device.node.pk}-{device.index}")
    model = "A100"
    memory_mib = 81_920


class SchedulerProfileFactory(DjangoModelFactory):
    class Meta:
        model = SchedulerProfile

    name = factory.Sequence(lambda n: f"profile {n}")
    backfill = "none"


class ProfileVersionFactory(DjangoModelFactory):
    class Meta:
        model = ProfileVersion

    profile_id = factory.LazyAttribute(lambda _: SchedulerProfileFactory().pk)
    profile_name = "day"
    number = factory.Sequence(lambda n: n + 1)
    content = factory.LazyFunction(lambda: content_of(SchedulerProfile()))
    origin = "edit"
    made_at = factory.LazyFunction(timezone.now)
    made_by = "olga"


class ShadowRunFactory(DjangoModelFactory):
    class Meta:
        model = ShadowRun

    cluster = factory.SubFactory(ClusterFactory)
    profile = factory.SubFactory(SchedulerProfileFactory)
    profile_version = 1
    content = factory.LazyFunction(lambda: content_of(SchedulerProfile(policy="sjf")))
    until = factory.LazyFunction(lambda: timezone.now() + timedelta(hours=1))
    made_at = factory.LazyFunction(timezone.now)
    made_by = "olga"
    reason = "shorter waits"


class PriorityClassFactory(DjangoModelFactory):
    class Meta:
        model = PriorityClass

    name = factory.Sequence(lambda n: f"CLASS{n}")
    value = factory.Sequence(lambda n: n % 101)


class QueueFactory(DjangoModelFactory):
    """Its cluster gets a partition unless `partition` gives one."""

    class Meta:
        model = Queue
        skip_postgeneration_save = True

    cluster = factory.SubFactory(ClusterFactory)
    slug = factory.Sequence(lambda n: f"queue-{n}")
    name = factory.SelfAttribute("slug")

    @factory.post_generation
    def partition(queue: Queue, create: bool, partition: Partition | None, **_: Any) -> None:
        queue.partitions.add(partition or PartitionFactory(cluster=queue.cluster))


class ReservationFactory(DjangoModelFactory):
    class Meta:
        model = Reservation

    cluster = factory.SubFactory(ClusterFactory)
    name = "maintenance"
    starts_at = factory.LazyFunction(lambda: timezone.now() + timedelta(hours=1))
    ends_at = factory.LazyAttribute(lambda reservation: reservation.starts_at + timedelta(hours=2))


class CycleFactory(DjangoModelFactory):
    class Meta:
        model = Cycle

    cluster = factory.SubFactory(ClusterFactory)
    fencing_token = 1
    trigger = "test"
    started_at = factory.LazyFunction(timezone.now)
    snapshot_digest = "0" * 64
    plan_digest = "0" * 64


class DatasetFactory(DjangoModelFactory):
    class Meta:
        model = Dataset

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"images-{n}")


class RetentionRunFactory(DjangoModelFactory):
    class Meta:
        model = RetentionRun

    started_at = factory.LazyFunction(timezone.now)


class LeaseFactory(DjangoModelFactory):
    class Meta:
        model = Lease

    scope = factory.Sequence(lambda n: f"cluster:{n}")


# ---------------------------------------------------------------- scheduler: jobs


class JobFactory(DjangoModelFactory):
    """A queued job of one task and one core, of a member of its project."""

    class Meta:
        model = Job

    @classmethod
    def _create(cls, model_class: type[Job], *args: Any, **kwargs: Any) -> Job:
        """Both rows are new, also where the test names the number."""
        job = model_class(*args, **kwargs)
        job.save(force_insert=(JobRequest, model_class))
        return job

    name = factory.Sequence(lambda n: f"job {n}")
    project = factory.SubFactory(ProjectFactory)
    user = factory.LazyAttribute(lambda job: MembershipFactory(project=job.project).user)
    queue = factory.SubFactory(QueueFactory)
    command = "true"
    cpu_millis = 1000
    memory_mib = 1024
    state = JobState.QUEUED
    created_at = factory.LazyFunction(timezone.now)
    eligible_at = factory.SelfAttribute("created_at")


class AttemptFactory(DjangoModelFactory):
    """A running attempt; the job's own state is the test's to set."""

    class Meta:
        model = Attempt

    job = factory.SubFactory(JobFactory, state=JobState.RUNNING, epoch=1)
    epoch = factory.SelfAttribute("job.epoch")
    backend = "agents"
    state = AttemptState.RUNNING
    scheduled_at = factory.LazyFunction(timezone.now)
    started_at = factory.SelfAttribute("scheduled_at")


class TaskFactory(DjangoModelFactory):
    """A task; the one that `AllocationFactory` made, where there is one."""

    class Meta:
        model = Task

    @classmethod
    def _create(cls, model_class, *args, **kwargs):
        made = Task.objects.filter(attempt=kwargs["attempt"], rank=kwargs["rank"], held_at__isnull=False)
        if not made.update(**kwargs):
            return super()._create(model_class, *args, **kwargs)
        return made.get()

    attempt = factory.SubFactory(AttemptFactory)
    rank = 0
    node = factory.SubFactory(NodeFactory)
    state = TaskState.RUNNING


class CheckpointFactory(DjangoModelFactory):
    """A complete one, without bytes."""

    class Meta:
        model = Checkpoint

    job = factory.SubFactory("tests.support.factories.JobFactory")
    epoch = 1
    rank = 0
    name = "step-1"
    marked_ns = 1
    node = factory.SubFactory(NodeFactory)
    state = "complete"
    reason = "own"
    files = 1
    size_bytes = 7
    taken_at = factory.LazyFunction(timezone.now)
    seen_at = factory.SelfAttribute("taken_at")
    stored_at = factory.SelfAttribute("taken_at")


class FolderUploadFactory(DjangoModelFactory):
    """A ready one, without bytes."""

    class Meta:
        model = FolderUpload

    user = factory.SubFactory(UserFactory)
    name = "training"
    state = "ready"
    files = 1
    size_bytes = 7
    created_at = factory.LazyFunction(timezone.now)
    seen_at = factory.SelfAttribute("created_at")
    ready_at = factory.SelfAttribute("created_at")


class AllocationFactory(DjangoModelFactory):
    """What one task holds, with the task if that is not there; the counters of node, device and quota are the test's
    to set."""

    class Meta:
        model = Allocation

    @classmethod
    def _create(cls, model_class, *args, **kwargs):
        task = {"attempt": kwargs["attempt"], "rank": kwargs["rank"]}
        state = TaskState.SUCCEEDED if kwargs.get("released_at") else TaskState.RUNNING
        Task.objects.update_or_create(
            **task,
            defaults={"node": kwargs["node"]},
            create_defaults={"node": kwargs["node"], "state": state},
        )
        return super()._create(model_class, *args, **kwargs)

    attempt = factory.SubFactory(AttemptFactory)
    rank = 0
    node = factory.SubFactory(NodeFactory)
    cpu_millis = 1000
    memory_mib = 1024
    held_at = factory.LazyFunction(timezone.now)


class LogChunkFactory(DjangoModelFactory):
    class Meta:
        model = LogChunk

    task = factory.SubFactory(TaskFactory)
    stream = "stdout"
    offset = 0
    data = b"hello\n"
    length = factory.LazyAttribute(lambda chunk: len(chunk.data))
    received_at = factory.LazyFunction(timezone.now)


class JobEventFactory(DjangoModelFactory):
    class Meta:
        model = JobEvent

    job = factory.SubFactory(JobFactory)
    at = factory.LazyFunction(timezone.now)
    kind = "job.queued"
    because = "submitted"


class JobDependencyFactory(DjangoModelFactory):
    class Meta:
        model = JobDependency

    job = factory.SubFactory(JobFactory)
    on = factory.SubFactory(JobFactory)


class IdempotencyKeyFactory(DjangoModelFactory):
    class Meta:
        model = IdempotencyKey

    user = factory.SubFactory(UserFactory)
    key = factory.Sequence(lambda n: f"key-{n}")
    request_hash = "0" * 64


# ---------------------------------------------------------------- the cast


@dataclass(frozen=True, slots=True)
class Cast:
    """Who every door is tried with: `owner` and `colleague` are members, `stranger` is of another project."""

    project: Project
    owner: User
    colleague: User
    lead: User
    viewer: User
    stranger: User
    operator: User
    auditor: User
    admin: User

    def people(self) -> dict[str, User]:
        return {
            name: getattr(self, name)
            for name in ("owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin")
        }


@copied
def the_cast() -> Cast:
    """A project with its owner (of jobs), a colleague, a lead and a viewer; a stranger; the three site roles.

    The stranger is a member of another project, so that "no project at all" hides no mistake.
    """
    factories = {
        **dict.fromkeys(("owner", "colleague", "lead", "viewer", "stranger"), UserFactory),
        "operator": OperatorFactory,
        "auditor": AuditorFactory,
        "admin": AdminFactory,
    }
    # By thousands of tests: a statement a table, not one a row.
    people = {name: factory.build(username=name) for name, factory in factories.items()}
    User.objects.bulk_create(people.values())
    project = ProjectFactory(slug="vision", name="Vision")
    elsewhere = ProjectFactory(slug="elsewhere", name="Elsewhere")
    roles = (
        (project, "lead", ProjectRole.LEAD),
        (project, "owner", ProjectRole.MEMBER),
        (project, "viewer", ProjectRole.VIEWER),
        (project, "colleague", ProjectRole.MEMBER),
        (elsewhere, "stranger", ProjectRole.MEMBER),
    )
    Membership.objects.bulk_create(
        Membership(project=where, user=people[name], role=role) for where, name, role in roles
    )
    return Cast(project=project, **people)
