"""Shares in rows: use is counted as attempts end, nothing drifts, the planner follows the tree."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from quotas.core.decay import SLICE_SECONDS, Decay
from quotas.models import ShareUsage
from quotas.selectors.fair_share_source import Held, share_source, use_at
from quotas.services.shares import count_use, recount_shares
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.core.ordering.ordering import job_order
from scheduler.models import Allocation, Job
from scheduler.services.planning.replay import replay
from scheduler.state.load.snapshots import load_snapshot
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    MembershipFactory,
    OrganizationFactory,
    ProjectFactory,
    SchedulerProfileFactory,
)

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


class Sharing(SmallWorld):
    """A world that is planned by fair share; its node has room for whatever is held."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster.profile = SchedulerProfileFactory(policy="fairshare")
        self.cluster.save()
        self.big = self.node("n1", gpus=8)

    def used(self, *, hours: float, gpus: int = 1, ago: timedelta = timedelta(0), **words) -> Allocation:
        """A job that ended so long ago, after holding GPUs for so many hours."""
        end = timezone.now() - ago
        job = self.job(state=JobState.COMPLETED, epoch=1, completed_at=end, **words)
        return AllocationFactory(
            attempt=AttemptFactory(job=job, state=AttemptState.SUCCEEDED, ended_at=end), node=self.big,
            gpu_millis=1000 * gpus, device_ids=[], held_at=end - hours * HOUR, released_at=end,
        )  # fmt: skip

    def order(self) -> list[str]:
        loaded = load_snapshot(cluster_id=self.cluster.pk)
        rows = job_order(ClusterIndex(loaded.snapshot), loaded.policy)
        names = dict(Job.objects.values_list("number", "name"))
        return [names[number] for number in loaded.snapshot.pending.id[rows].tolist()]


def gpu_seconds(pair: tuple[int, int], at: float, decay: Decay | None = None) -> float:
    return use_at(at, decay=decay or Decay()).get(pair, (0.0, 0.0, 0.0))[0]


def test_what_runs_counts_and_its_end_changes_nothing_but_where_it_is_kept() -> None:
    world = Sharing()
    job = world.job(state=JobState.RUNNING, epoch=1)
    start = timezone.now() - 30 * HOUR
    attempt = AttemptFactory(job=job, state=AttemptState.RUNNING, started_at=start)
    held = AllocationFactory(
        attempt=attempt,
        node=world.big,
        cpu_millis=0,
        memory_mib=0,
        gpu_millis=0,
        device_ids=[],
        held_at=start,
    )
    Allocation.objects.filter(pk=held.pk).update(gpu_millis=4000)
    pair, end = (job.project_id, job.user_id), timezone.now()

    running = gpu_seconds(pair, end.timestamp())
    assert not ShareUsage.objects.exists()
    Allocation.objects.filter(pk=held.pk).update(
        gpu_millis=0
    )  # the counters of its node are not what is tested
    end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="the node is gone", at=end)
    Allocation.objects.filter(pk=held.pk).update(gpu_millis=4000)
    recount_shares()

    assert running == pytest.approx(Decay().used(4, start.timestamp(), end.timestamp(), end.timestamp()))
    assert gpu_seconds(pair, end.timestamp()) == pytest.approx(running, rel=1e-9)
    later = end.timestamp() + 24 * 3600
    assert gpu_seconds(pair, later) == pytest.approx(running / 2, rel=1e-9)


def test_an_attempt_that_ends_is_counted_in_the_same_transaction_and_a_recount_agrees() -> None:
    world = Sharing()
    job = world.job(gpus=1)
    world.plan()
    job.refresh_from_db()
    attempt = job.attempts.get()
    Allocation.objects.filter(attempt=attempt).update(held_at=timezone.now() - 9 * HOUR)

    end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="the node is gone")

    kept = ShareUsage.objects.filter(project=job.project, user=job.user)
    assert sum(row.gpu_seconds for row in kept) == pytest.approx(9 * 3600, rel=0.01)
    assert recount_shares() == 0


def test_a_recount_repairs_what_somebody_changed_and_finds_nothing_twice() -> None:
    world = Sharing()
    held = world.used(hours=2, gpus=3)
    pair = (held.attempt.job.project_id, held.attempt.job.user_id)
    now = timezone.now().timestamp()

    assert recount_shares() >= 1
    right = gpu_seconds(pair, now)
    ShareUsage.objects.update(gpu_decayed=1e9, gpu_seconds=5)

    assert recount_shares() >= 1
    assert gpu_seconds(pair, now) == pytest.approx(right, rel=1e-6)
    assert recount_shares() == 0


def test_what_a_repair_took_away_leaves_nothing_behind_that_counts() -> None:
    world = Sharing()
    now = timezone.now().timestamp()
    for number in range(1, 6):
        count_use(
            [Held(world.project.pk, world.person.pk, now - 7200 / number, now - 7, 0.1 * number, 0.7, 0.3)]
        )

    assert recount_shares() > 0

    assert set(use_at(now, decay=Decay()).values()) <= {(0.0, 0.0, 0.0)}


@pytest.mark.parametrize("mode", ["exponential", "window", "none"])
def test_slices_say_what_the_allocations_say(mode: str) -> None:
    world = Sharing()
    for number in range(6):
        world.used(hours=5 + 7 * number, gpus=1 + number % 3, ago=number * 11 * HOUR)
    recount_shares()
    decay, at = Decay(mode=mode), timezone.now().timestamp()

    kept = use_at(at, decay=decay)
    truth = share_source().used(decay=decay, at=at, running_only=False)

    assert kept.keys() == truth.keys()
    for pair, use in truth.items():
        assert kept[pair] == pytest.approx(use, rel=1e-6)


def test_another_half_life_is_put_right_by_the_recount(settings) -> None:
    world = Sharing()
    into_the_slice = timedelta(seconds=timezone.now().timestamp() % SLICE_SECONDS)
    world.used(hours=1, ago=22 * HOUR + into_the_slice)  # in the middle of one slice, whatever time it is
    recount_shares()
    settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS = 12 * 3600

    assert recount_shares() == ShareUsage.objects.count()

    at = timezone.now().timestamp()
    decay = Decay(half_life_seconds=12 * 3600)
    truth = share_source().used(decay=decay, at=at, running_only=False)
    assert use_at(at, decay=decay) == {pair: pytest.approx(use) for pair, use in truth.items()}


def test_side_by_side_projects_keep_the_flat_order() -> None:
    world = Sharing()
    other = ProjectFactory(organization=world.project.organization)
    member = MembershipFactory(project=other).user
    world.used(hours=5)
    world.job("mine")
    world.job("theirs", project=other, user=member)
    recount_shares()

    loaded = load_snapshot(cluster_id=world.cluster.pk)

    assert len(loaded.snapshot.shares) == 0
    assert loaded.snapshot.projects.share_weight.tolist() == [1, 1]
    assert world.order() == ["theirs", "mine"]


def test_a_weight_counts_in_the_flat_order() -> None:
    world = Sharing()
    other = ProjectFactory(organization=world.project.organization)
    member = MembershipFactory(project=other).user
    world.used(hours=3)
    world.used(hours=2, project=other, user=member)
    world.job("mine")
    world.job("theirs", project=other, user=member)
    recount_shares()

    assert world.order() == ["theirs", "mine"]
    world.project.share_weight = 2
    world.project.save()
    assert world.order() == ["mine", "theirs"]


def test_the_tree_goes_before_what_single_projects_used() -> None:
    """A project that used most goes first where its organization as a whole used least."""
    world = Sharing()
    physics = OrganizationFactory(name="Physics", share_weight=4)
    heavy = ProjectFactory(organization=physics)
    member = MembershipFactory(project=heavy).user
    world.used(hours=3)
    world.used(hours=4, project=heavy, user=member)
    world.job("mine")
    world.job("theirs", project=heavy, user=member)
    recount_shares()

    assert world.order() == ["theirs", "mine"]

    world.cluster.profile.options = {"shares": "flat"}
    world.cluster.profile.save()
    assert world.order() == ["mine", "theirs"]


def test_shares_multiplied_down_the_tree_order_people_by_their_own_use() -> None:
    """Weights of all levels count, and what others of the same organization used does not."""
    world = Sharing()
    physics = OrganizationFactory(name="Physics", share_weight=4)
    project = ProjectFactory(organization=physics)
    heavy, fresh = (MembershipFactory(project=project).user for _ in range(2))
    world.used(hours=30, project=project, user=heavy)
    world.job("fresh", project=project, user=fresh)
    world.job("mine")
    world.job("heavy", project=project, user=heavy)
    recount_shares()

    assert world.order() == ["mine", "fresh", "heavy"]  # Fair Tree: the organization as a whole has used most
    world.cluster.profile.options = {"shares": "product"}
    world.cluster.profile.save()
    assert world.order() == ["fresh", "mine", "heavy"]
    physics.share_weight = 1
    physics.save()
    MembershipFactory.create_batch(8, project=project)
    assert world.order() == ["mine", "fresh", "heavy"]  # a tenth of a half against one whole half


def test_people_of_one_project_take_turns_once_their_weights_differ() -> None:
    world = Sharing()
    second = MembershipFactory(project=world.project, share_weight=3).user
    world.used(hours=2)
    world.used(hours=4, user=second)
    world.job("light")
    world.job("heavy", user=second)
    recount_shares()

    assert world.order() == ["heavy", "light"]
    assert world.cluster.profile.policy == "fairshare"


def test_a_hard_limit_of_a_share_holds_jobs_and_says_so() -> None:
    world = Sharing()
    world.cluster.profile.policy = "fifo"
    world.cluster.profile.save()
    world.project.share_hard_percent = 10
    world.project.save()
    world.used(hours=48, gpus=2)
    recount_shares()
    job = world.job("train", gpus=1)

    world.plan()

    job.refresh_from_db()
    assert (job.state, job.reason_code) == (JobState.QUEUED, "FairShareBehind")
    assert job.reason_text.startswith(f"Project {world.project} recently used 18 %")
    assert "the limit is 10 %" in job.reason_text

    world.project.share_hard_percent = 90
    world.project.save()
    world.plan()
    job.refresh_from_db()
    assert job.state == JobState.SCHEDULED


def test_a_soft_limit_sends_jobs_behind_the_others() -> None:
    world = Sharing()
    other = ProjectFactory(organization=world.project.organization)
    member = MembershipFactory(project=other).user
    world.used(hours=20)
    world.used(hours=24, project=other, user=member)
    world.job("mine")
    world.job("theirs", project=other, user=member)
    recount_shares()
    assert world.order() == ["mine", "theirs"]

    world.project.share_soft_percent = 5
    world.project.save()

    assert world.order() == ["theirs", "mine"]


def test_a_cycle_of_the_tree_replays_to_the_same_plan() -> None:
    world = Sharing()
    other = ProjectFactory(organization=OrganizationFactory(share_weight=3))
    member = MembershipFactory(project=other).user
    world.used(hours=20)
    for number in range(3):
        world.job(f"mine{number}", gpus=8)
        world.job(f"theirs{number}", gpus=8, project=other, user=member)
    recount_shares()

    result = world.plan()

    again = replay(cycle_id=result.cycle_id)
    assert again.identical
    assert len(again.snapshot.shares) > 0
    assert Job.objects.get(state=JobState.SCHEDULED).name.startswith("theirs")
