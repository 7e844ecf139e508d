"""Rows to Snapshot: a fixed number of queries, and every fact in its column."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pghistory
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quotas.core.resources import Resources
from quotas.models import ProviderState
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import TERMINAL, JobState
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import JobSelector, JobTerm, Requirement, Taint, Toleration
from scheduler.core.snapshot.request_classes import request_class
from scheduler.core.snapshot.snapshot import JobGate
from scheduler.models import Cluster, Partition, PriorityClass, SchedulerProfile
from scheduler.state.db.sql import run, select_together
from scheduler.state.load.job_rows import RUNNING
from scheduler.state.load.reason_marks import reason_marks
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.state.small import SmallWorld, a_queue
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    ClusterFactory,
    MembershipFactory,
    PartitionFactory,
    ProjectFactory,
    QuotaFactory,
    ReservationFactory,
    SchedulerProfileFactory,
)

pytestmark = pytest.mark.django_db


def fill(world: SmallWorld, number: int) -> None:
    """One more of everything that a snapshot holds."""
    node = world.node(f"n{number}", gpus=2)
    node.partitions.add(PartitionFactory(cluster=world.cluster))
    queue = a_queue(world.cluster, f"queue{number}")
    project = ProjectFactory()
    QuotaFactory(project=project)
    world.job(queue=queue, project=project, array_id=uuid.uuid4(), array_index=number)
    running = world.job(queue=queue, project=project, state=JobState.RUNNING, epoch=1)
    AllocationFactory(attempt=AttemptFactory(job=running), node=node, device_ids=[node.devices.first().pk])
    ReservationFactory(cluster=world.cluster).nodes.add(node)


def test_one_and_three_of_everything_take_the_same_queries() -> None:
    world = SmallWorld()
    counts = []
    for number in range(1, 4):
        fill(world, number)
        with CaptureQueriesContext(connection) as captured:
            loaded = load_snapshot(cluster_id=world.cluster.pk)
        counts.append(len(captured))
        assert len(loaded.snapshot.pending) == len(loaded.snapshot.running) == number
        assert len(loaded.snapshot.devices) == 2 * number

    assert counts == [2, 2, 2]


def test_a_node_is_read_with_everything_that_decides_about_it() -> None:
    world = SmallWorld()
    partition = PartitionFactory(cluster=world.cluster)
    node = world.node(
        "n1", labels={"arch": "amd64", "disk": "nvme"}, taints=[{"key": "spot", "value": "yes"}], rack="r1",
        cpu_millis=16_000, cpu_millis_capacity=24_000, draining=True, gpus=2, used_cpu_millis=500,
        partition=partition,
    )  # fmt: skip

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    nodes = snapshot.nodes
    assert nodes.id.tolist() == [node.pk]
    assert nodes.cpu_millis.tolist() == [24_000]  # overcommit included
    assert nodes.used_cpu_millis.tolist() == [500]
    assert nodes.labels == ((("arch", "amd64"), ("disk", "nvme")),)
    assert nodes.taints == ((Taint("spot", "yes", "NoSchedule"),),)
    assert nodes.partition_ids == ((partition.pk,),)
    assert (nodes.draining.tolist(), nodes.cordoned.tolist(), nodes.rack) == ([True], [False], ("r1",))
    assert snapshot.devices.model == ("A100", "A100")
    assert snapshot.devices.position.tolist() == [0, 1]


def test_a_device_that_is_gone_stays_while_a_job_holds_it_and_takes_nobody_new() -> None:
    world = SmallWorld()
    held, free = world.node("n1", gpus=2).devices.order_by("index")
    for device, used in ((held, 1000), (free, 0)):
        device.gone, device.used_millis = True, used
        device.save()

    devices = load_snapshot(cluster_id=world.cluster.pk).snapshot.devices

    assert devices.id.tolist() == [held.pk]
    assert devices.healthy.tolist() == [False]


def test_a_job_is_read_as_the_question_it_asks() -> None:
    world = SmallWorld()
    first = world.job(
        cpu_millis=2000, memory_mib=4096, gpus=1, gpu_millis=500, gpu_model="A100", tasks=3, nodes=2,
        time_limit_seconds=60, priority=75, extras={"licence/matlab": 2}, node_selector={"disk": "nvme"},
        tolerations=[{"key": "spot", "operator": "Exists"}],
        affinity={"required": [[{"key": "zone", "operator": "In", "values": ["a", "b"]}]]},
    )  # fmt: skip
    second = world.job()

    loaded = load_snapshot(cluster_id=world.cluster.pk)

    pending = loaded.snapshot.pending
    assert pending.id.tolist() == [first.number, second.number]
    assert loaded.snapshot.job_class(first.number) == request_class(
        Resources(cpu_millis=2000, memory_mib=4096, gpus=1, gpu_millis=500, extras=(("licence/matlab", 2),)),
        gpu_model="A100",
        node_selector=[("disk", "nvme")],
        tolerations=[Toleration("spot", "Exists")],
        required_affinity=[[Requirement("zone", "In", ("a", "b"))]],
    )
    row = loaded.snapshot.job_row(first.number)
    assert (pending.tasks[row], pending.nodes[row], pending.tasks_per_node[row]) == (3, 2, 0)
    assert (pending.priority[row], pending.time_limit_seconds[row]) == (75, 60)
    assert pending.submitted_ms[row] == int(first.created_at.timestamp() * 1000)
    assert pending.gate.tolist() == [JobGate.OPEN, JobGate.OPEN]


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL - {JobState.QUEUED, JobState.RESERVED}))
def test_only_jobs_in_line_are_pending(state: JobState) -> None:
    world = SmallWorld()
    world.job(state=state)

    assert len(load_snapshot(cluster_id=world.cluster.pk).snapshot.pending) == 0


def test_other_clusters_are_not_in_the_picture() -> None:
    world, other = SmallWorld(), SmallWorld()
    mine = world.job()
    fill(other, 1)

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert snapshot.pending.id.tolist() == [mine.number]
    assert [
        len(group) for group in (snapshot.nodes, snapshot.devices, snapshot.running, snapshot.allocations)
    ] == [0] * 4
    assert snapshot.queues.name == ("default",)


def test_an_unknown_cluster_is_named() -> None:
    with pytest.raises(LookupError, match="no cluster with id 4711"):
        load_snapshot(cluster_id=4711)


def test_begin_times_and_back_offs_are_told_apart() -> None:
    world = SmallWorld()
    later = timezone.now() + timedelta(hours=1)
    begins = world.job(begin_at=later, eligible_at=later)
    backs_off = world.job(eligible_at=later)

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert snapshot.pending.eligible_ms.tolist() == [int(later.timestamp() * 1000)] * 2
    gates = dict(zip(snapshot.pending.id.tolist(), snapshot.pending.gate.tolist(), strict=True))
    assert gates == {begins.number: JobGate.OPEN, backs_off.number: JobGate.BACKOFF}


def test_jobs_of_closed_projects_and_disabled_people_wait_with_a_reason() -> None:
    world = SmallWorld()
    closed = world.job(project=ProjectFactory(active=False))
    gone = MembershipFactory(project=world.project, user__is_active=False).user
    disabled = world.job(user=gone)

    pending = load_snapshot(cluster_id=world.cluster.pk).snapshot.pending

    assert pending.id.tolist() == [closed.number, disabled.number]
    assert pending.gate.tolist() == [JobGate.ACCOUNT_EXPIRED] * 2


@pytest.mark.parametrize(
    ("status", "seconds", "waits"),
    [
        ("refused", 0, True),
        ("unreachable", 61, True),
        ("unreachable", 10, False),
        ("drift", 900, False),
        ("ok", 900, False),
    ],
)
def test_a_project_waits_while_the_keeper_of_its_quota_is_away(
    settings, status: str, seconds: int, waits: bool
) -> None:
    world = SmallWorld()
    world.node("n1")
    job = world.job()
    ProviderState.objects.create(
        project=world.project, provider="slurm", status=status, text="It is gone.",
        since=timezone.now() - timedelta(seconds=seconds),
    )  # fmt: skip

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot
    plan = plan_cycle(snapshot, Policy())

    if waits:
        what = "is unreachable" if status == "unreachable" else "refuses the limits"
        text = f"Slurm, the provider of this quota, {what}: It is gone."
        assert plan.reasons[job.number] == ReasonCode.QUOTA_PROVIDER_AWAY
        assert sentence(ReasonCode.QUOTA_PROVIDER_AWAY, plan.details_of(job.number)) == text
    else:
        assert plan.start_of(job.number) is not None
    settings.QUOTA_PROVIDER_WHEN_AWAY = "run"
    assert not any(load_snapshot(cluster_id=world.cluster.pk).snapshot.projects.away_text)


def test_slurm_says_who_goes_first_where_the_profile_says_so(settings) -> None:
    """The factor `fairshare` is the FairShare of the account's user; who has none has 0, and comes last."""
    world = SmallWorld()
    world.node("n1", gpus=1)
    profile = SchedulerProfile.objects.create(
        name="by slurm", policy="priority", options={"shares": "slurm", "factors": {"fairshare": 1000}}
    )
    world.cluster.profile = profile
    world.cluster.save()
    people = {
        name: MembershipFactory(project=world.project, user__username=name).user
        for name in ("Ann", "bob", "cy")
    }
    jobs = {name: world.job(user=person, gpus=1) for name, person in people.items()}
    users = {"ann": {"fair_share": 0.2}, "bob": {"fair_share": 0.75}, "cy": {"fair_share": None}}
    ProviderState.objects.create(
        project=world.project, provider="slurm", status="ok", since=timezone.now(),
        facts={"fair_share": {"norm_shares": 0.5, "users": users}},
    )  # fmt: skip

    loaded = load_snapshot(cluster_id=world.cluster.pk)

    snapshot = loaded.snapshot
    factors = dict(zip(snapshot.shares.id.tolist(), snapshot.shares.factor.tolist(), strict=True))
    of = {name: factors[(world.project.pk << 31) | person.pk] for name, person in people.items()}
    assert of == {"Ann": 200_000, "bob": 750_000, "cy": 0}
    plan = plan_cycle(snapshot, loaded.policy)
    assert [start.job_id for start in plan.starts] == [jobs["bob"].number]


def test_what_runs_is_read_with_its_expected_end_and_each_device_apart() -> None:
    world = SmallWorld()
    node = world.node("n1", gpus=2)
    devices = [device.pk for device in node.devices.order_by("index")]
    job = world.job(state=JobState.RUNNING, epoch=1, gpus=2, time_limit_seconds=600)
    attempt = AttemptFactory(job=job)
    AllocationFactory(attempt=attempt, node=node, device_ids=devices, gpu_millis=2000)
    AllocationFactory(
        attempt=attempt, node=node, rank=1, held_at=attempt.started_at, released_at=timezone.now()
    )

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert snapshot.running.attempt_id.tolist() == [attempt.pk]
    started_ms = int(attempt.started_at.timestamp() * 1000)
    assert snapshot.running.expected_end_ms.tolist() == [started_ms + 600_000]
    assert snapshot.allocations.job_id.tolist() == [job.number]
    assert snapshot.allocations.device_ids == (tuple(devices),)
    assert snapshot.allocations.gpu_millis.tolist() == [1000]
    assert snapshot.queues.running_jobs.tolist() == [1]


def test_quota_lines_come_with_their_projects() -> None:
    world = SmallWorld()
    gpus = world.quota("gpu_millis", 4000, used=1000)
    jobs = world.quota("running_jobs", 5, enforce=False)
    world.quota("cpu_millis", None)
    QuotaFactory()  # of a project without jobs here
    world.job()

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert snapshot.projects.name == (world.project.slug,)
    assert snapshot.projects.quota_line_ids == ((gpus.pk, jobs.pk),)
    assert snapshot.quotas.resource == ("gpu_millis", "running_jobs")
    assert snapshot.quotas.used.tolist() == [1000, 0]
    assert snapshot.quotas.enforce.tolist() == [True, False]
    assert snapshot.quotas.owner == (f"project {world.project.slug}",) * 2


def test_countable_things_belong_to_the_whole_cluster() -> None:
    world = SmallWorld()
    node = world.node("n1", extras={"licence/matlab": 5})
    world.node("n2", extras={"licence/matlab": 1, "bandwidth": 10})
    job = world.job(state=JobState.RUNNING, epoch=1)
    AllocationFactory(attempt=AttemptFactory(job=job), node=node, extras={"licence/matlab": 2})

    pools = load_snapshot(cluster_id=world.cluster.pk).snapshot.pools

    assert (pools.name, pools.capacity.tolist(), pools.used.tolist()) == (
        ("bandwidth", "licence/matlab"), [10, 6], [0, 2],
    )  # fmt: skip


def test_reservations_now_and_later_are_seen_and_past_or_cancelled_ones_are_not() -> None:
    world = SmallWorld()
    node, now = world.node("n1"), timezone.now()
    mine = ReservationFactory(cluster=world.cluster, project=world.project, starts_at=now)
    mine.nodes.add(node)
    maintenance = ReservationFactory(cluster=world.cluster)
    ReservationFactory(cluster=world.cluster, cancelled_at=now)
    ReservationFactory(
        cluster=world.cluster, starts_at=now - timedelta(hours=3), ends_at=now - timedelta(hours=1)
    )

    reservations = load_snapshot(cluster_id=world.cluster.pk).snapshot.reservations

    assert reservations.id.tolist() == [mine.pk, maintenance.pk]
    assert reservations.node_ids == ((node.pk,), ())
    assert reservations.project_ids == ((world.project.pk,), ())


def test_a_paused_cluster_pauses_every_queue_and_says_who_and_why() -> None:
    cluster = ClusterFactory(
        name="main", paused=True, paused_by="A. Admin", paused_reason="maintenance",
        paused_at=timezone.now().replace(year=2026, month=11, day=28, hour=9, minute=12, second=0),
    )  # fmt: skip
    world = SmallWorld(cluster=cluster)

    queues = load_snapshot(cluster_id=world.cluster.pk).snapshot.queues

    assert queues.paused.tolist() == [True]
    assert queues.paused_text == (
        "with the whole cluster main by A. Admin since 2026-11-28T09:12:00Z: maintenance",
    )


def test_the_policy_is_the_clusters_profile_or_the_setting(settings) -> None:  # type: ignore[no-untyped-def]
    settings.SCHEDULING_POLICY = "priority"
    world = SmallWorld()
    assert load_snapshot(cluster_id=world.cluster.pk).policy == Policy(name="priority")

    world.cluster.profile = SchedulerProfileFactory(
        policy="fifo", tie_breakers=["submitted"], strict_order=True, placement="spread",
        score_weights={"pack": 2, "balance": 1},
    )  # fmt: skip
    world.cluster.save()

    assert load_snapshot(cluster_id=world.cluster.pk).policy == Policy(
        name="fifo", tie_breakers=("submitted_ms",), strict_order=True, placement="spread",
        weights=(("balance", 1), ("pack", 2)),
    )  # fmt: skip


def test_a_job_shows_the_mark_of_its_reason() -> None:
    world = SmallWorld()
    world.job(reason_code="WaitingForResources", reason_text="Needs 4 GPUs.")
    world.job()

    told = load_snapshot(cluster_id=world.cluster.pk).reported_reasons

    assert told.tolist() == reason_marks([("WaitingForResources", "Needs 4 GPUs."), ("", "")]).tolist()


NEAR_DB = {"jobs": [{"apart": False, "topology_key": "rack", "labels": {"app": "db"}}]}


def test_names_and_labels_are_read_where_a_job_of_the_project_asks_about_them() -> None:
    world = SmallWorld()
    world.node("n1", labels={"topology.kubernetes.io/region": "east", "rack": "r9"}, zone="z1")
    plain = world.job("plain", labels={"app": "db"})
    assert load_snapshot(cluster_id=world.cluster.pk).snapshot.pending.labels == ((),)

    choosy = world.job("choosy", affinity=NEAR_DB)
    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert dict(zip(snapshot.pending.id.tolist(), snapshot.pending.labels, strict=True)) == {
        plain.number: (("app", "db"),), choosy.number: (),
    }  # fmt: skip
    (term,) = snapshot.job_class(choosy.number).job_terms
    assert term == JobTerm("rack", JobSelector(labels=(("app", "db"),)))
    assert (snapshot.nodes.rack, snapshot.nodes.zone, snapshot.nodes.region) == (("r9",), ("z1",), ("east",))


def test_a_queue_with_a_profile_of_its_own_is_planned_by_it() -> None:
    world = SmallWorld()
    profile = SchedulerProfile.objects.create(
        name="short first", policy="sjf", placement="spread", backfill="none",
        options={"backfill_max_priority": 66},
    )  # fmt: skip
    own = a_queue(world.cluster, "quick", profile=profile)
    a_queue(world.cluster, "same", profile=world.cluster.profile)

    policy = load_snapshot(cluster_id=world.cluster.pk).policy

    assert policy.queues == ((own.pk, Policy(name="sjf", placement="spread", backfill_max_priority=66)),)


def test_a_profile_says_by_the_name_of_a_class_who_may_pass_others() -> None:
    cluster = SmallWorld().cluster
    profile = SchedulerProfile.objects.create(name="by class", options={"backfill_max_class": "normal"})
    Cluster.objects.filter(pk=cluster.pk).update(profile=profile)
    PriorityClass.objects.all().delete()
    for name, value in (("HIGH", 75), ("NORMAL", 50), ("LOW", 25)):
        PriorityClass.objects.create(name=name, value=value)

    assert load_snapshot(cluster_id=cluster.pk).policy.backfill_max_priority == 74

    for wrong in (
        {"backfill_max_class": "URGENT"},
        {"backfill_max_class": "LOW", "backfill_max_priority": 3},
    ):
        SchedulerProfile.objects.filter(pk=profile.pk).update(options=wrong)
        loaded = load_snapshot(cluster_id=cluster.pk)
        assert "priority class" in loaded.profile_problem or "either" in loaded.profile_problem
        assert loaded.policy == Policy()


def test_a_node_allows_as_long_as_the_longest_of_its_partitions() -> None:
    world = SmallWorld()
    short, long, endless = (
        Partition.objects.create(cluster=world.cluster, name=name, max_wall_seconds=most)
        for name, most in (("short", 600), ("long", 1800), ("endless", None))
    )
    world.node("n1").partitions.set([short])
    world.node("n2").partitions.set([short, long])
    world.node("n3").partitions.set([short, endless])
    world.node("n4")
    world.queue.partitions.set([short, long])

    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot

    assert snapshot.nodes.max_wall_seconds.tolist() == [600, 1800, 0, 0]
    assert snapshot.queues.max_wall_seconds.tolist() == [1800]


def test_statements_that_run_together_give_their_own_rows_whoever_adds_one_before_them() -> None:
    """Row history names the request in a statement of its own, before all that does not begin with SELECT."""
    with pghistory.context(url="/"):
        first, second = select_together(("WITH one AS (SELECT 1) SELECT * FROM one", []), ("SELECT 2", []))

    assert (first, second) == ([(1,)], [(2,)])


def test_jobs_that_run_are_looked_up_and_the_others_are_not_read() -> None:
    world = SmallWorld()
    world.node("n1")
    world.job()
    world.plan()
    switches = ("enable_seqscan", "enable_bitmapscan", "enable_nestloop")
    with connection.cursor() as cursor:
        for name in switches:  # so that even three rows are read as a million would be
            cursor.execute(f"SET LOCAL {name} = off")
        cursor.execute("EXPLAIN " + RUNNING.sql(), [world.cluster.pk])
        plan = "\n".join(row[0] for row in cursor.fetchall())
        for name in switches:
            cursor.execute(f"SET LOCAL {name} = on")

    assert re.search(r"Index Cond: \(number = \w+\.job_id\)", plan), plan
    assert re.search(r"Index Cond: \(id = \w+\.attempt_id\)", plan), plan
    assert load_snapshot(cluster_id=world.cluster.pk).snapshot.running.id.size == 1


def test_a_picture_is_planned_anew_each_time() -> None:
    """A plan that was kept from when the tables were small would read them whole once they are not."""
    world = SmallWorld()
    world.node("n1")
    world.job()

    def kept() -> int:
        return int(run("SELECT count(*) FROM pg_prepared_statements")[0][0])

    before = kept()
    load_snapshot(cluster_id=world.cluster.pk)

    assert kept() == before
