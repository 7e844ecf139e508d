"""The memory of fair queueing in rows: written with the starts, read by the next cycle, kept by a replay."""

from __future__ import annotations

import pytest
from django.db.models import F

from accounts.models import User
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.core.ordering.fair_queue import FAR, WHOLE
from scheduler.models import Attempt, FairQueueTurn, Job
from scheduler.state.load.snapshots import load_snapshot
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import MembershipFactory, SchedulerProfileFactory

pytestmark = pytest.mark.django_db


class TakingTurns(SmallWorld):
    """One slot of one core; people take turns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster.profile = SchedulerProfileFactory(policy="fair_queue", options={"tenant": "user"})
        self.cluster.save()
        self.node("n1", cpu_millis=1000, memory_mib=64 * 1024)
        self.other = MembershipFactory(project=self.project).user

    def submit(self, letter: str, count: int, user: User) -> None:
        for number in range(count):
            self.job(f"{letter}{number}", user=user, cpu_millis=1000, memory_mib=64)


def order_of(world: TakingTurns, turns: int) -> str:
    found = ""
    for _ in range(turns):
        world.plan()
        attempt = Attempt.objects.get(state=AttemptState.ASSIGNED)
        found += "c" if Job.objects.get(pk=attempt.job_id).user_id == world.other.pk else "a"
        end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="the node is gone")
        Job.objects.filter(pk=attempt.job_id, state=JobState.QUEUED).delete()
    return found


def test_one_slot_alternates_through_the_planner_finding_18() -> None:
    world = TakingTurns()
    world.submit("a", 3, world.person)
    world.submit("c", 2, world.other)

    assert order_of(world, 1) == "a"
    kept = {turn.tenant_id: turn for turn in FairQueueTurn.objects.all()}
    assert kept[world.person.pk].waiting
    assert kept[world.other.pk].waiting
    assert kept[world.person.pk].virtual > kept[world.other.pk].virtual == kept[0].virtual == 0
    assert order_of(world, 1) == "c"


def test_a_person_of_weight_2_moves_half_as_far_for_a_start() -> None:
    world = TakingTurns()
    User.objects.filter(pk=world.other.pk).update(share_weight=2)
    world.submit("a", 2, world.person)
    world.submit("c", 2, world.other)

    order = order_of(world, 2)

    turns = dict(FairQueueTurn.objects.values_list("tenant_id", "virtual"))
    assert sorted(order) == ["a", "c"]
    assert turns[world.person.pk] == 2 * turns[world.other.pk] > 0


def test_the_virtual_time_moves_back_before_its_numbers_are_too_large() -> None:
    world = TakingTurns()
    world.submit("a", 4, world.person)
    world.submit("c", 3, world.other)
    assert order_of(world, 2) == "ac"
    FairQueueTurn.objects.update(virtual=F("virtual") + FAR)

    assert order_of(world, 4) == "acac"

    kept = dict(FairQueueTurn.objects.values_list("tenant_id", "virtual"))
    assert 0 < min(kept.values()) <= max(kept.values()) < 10 * WHOLE
    assert order_of(world, 1) == "a"


def test_a_cycle_without_fair_queueing_reads_and_writes_no_memory() -> None:
    world = SmallWorld()
    world.node("n1")
    world.job("one")

    world.plan()

    assert not FairQueueTurn.objects.exists()
    assert not len(load_snapshot(cluster_id=world.cluster.pk).snapshot.turns)
