"""The conductor, on real rows: lease, load, plan, apply, record, and again after a crash at any point."""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quotas.models import Quota
from scheduler.core.lifecycle import JobState
from scheduler.core.plan import Plan
from scheduler.core.snapshot import codec
from scheduler.models import Attempt, Cycle, Job, Lease, Node
from scheduler.services.planning import cycles
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.replay import replay
from scheduler.state.apply import apply_plan, apply_starts, pending_reasons
from scheduler.state.lease import leases
from scheduler.state.lease.lease_holder import new_holder
from scheduler.state.records import recordings
from tests.scheduler.state.small import SmallWorld, broken_invariants

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", gpus=2)
    return world


@pytest.fixture(autouse=True)
def nothing_contradicts_itself() -> Iterator[None]:
    yield
    assert broken_invariants() == []


# ------------------------------------------------------------------ one cycle


def test_a_cycle_starts_what_fits_and_tells_the_others_why(world: SmallWorld) -> None:
    first, second = world.job(gpus=2), world.job(gpus=2)

    result = world.plan()

    assert (result.planned, result.started, result.started_jobs) == (True, 1, (first.number,))
    assert (result.waiting, result.refused, result.rounds) == (1, (), 1)
    first.refresh_from_db()
    second.refresh_from_db()
    assert first.state == JobState.SCHEDULED
    assert (second.state, second.reason_code) == (JobState.QUEUED, "WaitingForResources")


def test_a_cycle_of_any_size_takes_the_same_number_of_queries(world: SmallWorld) -> None:
    world.job()
    world.plan()
    counts = []
    for jobs in (1, 3):
        for _ in range(jobs):
            world.job()
        world.job(gpus=8)
        with CaptureQueriesContext(connection) as captured:
            assert world.plan().started == jobs
        counts.append(len(captured))

    assert counts[0] == counts[1]


def test_planning_again_on_the_applied_result_starts_and_stops_nothing(world: SmallWorld) -> None:
    for _ in range(5):
        world.job(gpus=1)
    world.plan()
    before = list(Job.objects.order_by("number").values())

    again = world.plan()

    assert again.started == 0
    assert list(Job.objects.order_by("number").values()) == before


def test_in_a_paused_cluster_nothing_starts_and_the_reason_says_so(world: SmallWorld) -> None:
    job = world.job()
    world.cluster.paused, world.cluster.paused_reason, world.cluster.paused_by = True, "new disks", "olga"
    world.cluster.save()

    assert world.plan().started == 0

    job.refresh_from_db()
    assert (job.reason_code, job.reason_category) == ("QueueStopped", "ask")
    assert "olga" in job.reason_text
    assert "new disks" in job.reason_text


def test_a_planner_that_was_killed_amid_a_cycle_holds_up_nobody(world: SmallWorld) -> None:
    world.job()
    host, place, pid, started, unique = new_holder().rsplit(":", 4)
    dead = ":".join([host, place, pid, f"t{int(started.removeprefix('t')) - 6000}", unique])
    assert leases.acquire(leases.cluster_scope(world.cluster.pk), holder=dead, seconds=60)

    result = run_cycle(cluster_id=world.cluster.pk, trigger="test", patience_seconds=0.05)

    assert (result.planned, result.started) == (True, 1)


def test_the_lease_is_free_again_after_a_cycle_and_after_one_that_failed(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job()

    def fail(*_: Any, **__: Any) -> Plan:
        raise ZeroDivisionError

    monkeypatch.setattr(cycles, "plan_cycle", fail)
    with pytest.raises(ZeroDivisionError):
        world.plan()
    monkeypatch.undo()

    assert Lease.objects.get().expires_at is None
    assert world.plan().started == 1
    assert Lease.objects.get().token == 2


def test_a_lease_that_could_not_be_released_holds_up_nobody(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was killed in the middle of a cycle, and has the lease when it is back."""
    world.job()

    def away(lease: leases.HeldLease) -> bool:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(leases, "release", away)
    with pytest.raises(OperationalError):
        run_cycle(cluster_id=world.cluster.pk, trigger="test")
    monkeypatch.undo()
    assert Lease.objects.get().expires_at is not None
    world.job()

    result = run_cycle(cluster_id=world.cluster.pk, trigger="test", patience_seconds=0.05)

    assert (result.planned, result.started) == (True, 1)


def test_a_refusal_is_planned_again_at_once(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's first node drains while the plan is made; the second round finds the other node."""
    other = world.node("n2", gpus=2)
    job = world.job(gpus=2)
    plan_cycle = cycles.plan_cycle

    def slow_plan(*args: Any, **kwargs: Any) -> Plan:
        plan = plan_cycle(*args, **kwargs)
        Node.objects.filter(name="n1").update(draining=True)
        return plan

    monkeypatch.setattr(cycles, "plan_cycle", slow_plan)

    result = world.plan()

    assert (result.rounds, result.started, result.refused) == (2, 1, ())
    assert Attempt.objects.get(job=job).tasks.get().node == other
    refused = Cycle.objects.order_by("id").first()
    assert refused is not None
    assert refused.refused == [
        {
            "job": job.number,
            "code": "WaitingForResources",
            "message": "The start was planned on n1, which is draining now.",
        }
    ]


def test_a_plan_that_is_refused_every_time_is_not_tried_for_ever(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job()
    plan_cycle = cycles.plan_cycle

    def stale(*args: Any, **kwargs: Any) -> Plan:
        plan = plan_cycle(*args, **kwargs)
        job = Job.objects.get()
        Job.objects.update(generation=job.generation + 1)
        return plan

    monkeypatch.setattr(cycles, "plan_cycle", stale)

    result = world.plan()

    assert (result.rounds, result.started, len(result.refused)) == (cycles.MAX_ROUNDS, 0, 1)


def test_a_planner_that_lost_its_lease_while_it_thought_writes_nothing(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job()
    plan_cycle = cycles.plan_cycle

    def overtaken(*args: Any, **kwargs: Any) -> Plan:
        plan = plan_cycle(*args, **kwargs)
        Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        assert leases.acquire(leases.cluster_scope(world.cluster.pk), holder="new", seconds=60)
        return plan

    monkeypatch.setattr(cycles, "plan_cycle", overtaken)

    assert world.plan().started == 0

    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    assert Lease.objects.get().holder == "new"


def test_under_a_storm_of_changes_planning_rests_as_long_as_it_worked(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_cycle = cycles.plan_cycle

    def slow_plan(*args: Any, **kwargs: Any) -> Plan:
        time.sleep(0.2)
        return plan_cycle(*args, **kwargs)

    monkeypatch.setattr(cycles, "plan_cycle", slow_plan)
    assert cycles.next_cycle_at(world.cluster.pk) == 0  # nothing was planned yet: nobody waits

    world.plan()

    assert 0.1 < cycles.next_cycle_at(world.cluster.pk) - time.monotonic() <= cycles.MAX_PAUSE_SECONDS


# ------------------------------------------------------------------ crashes


class Killed(BaseException):
    """What a process that is killed leaves behind: no handler of ours may catch it."""


STEPS: dict[str, tuple[object, str]] = {
    "after the snapshot": (cycles, "plan_cycle"),
    "between plan and apply": (apply_plan, "apply_plan"),
    "after the locks": (apply_starts, "schedule_jobs"),
    "after the jobs and attempts": (apply_starts, "ask_together"),
    "before the recording": (recordings, "record"),
    "after the starts": (pending_reasons, "write_pending_reasons"),
}


@pytest.mark.parametrize("step", STEPS)
def test_t02_a_planner_killed_at_any_point_leaves_nothing_half_written(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world.quota("gpu_millis", 4000)
    gang = world.job(tasks=2, gpus=1)
    waits = world.job(gpus=2)

    def die(*_: Any, **__: Any) -> None:
        connection.close()  # what the database sees when the process dies
        raise Killed

    monkeypatch.setattr(*STEPS[step], die)
    monkeypatch.setattr(leases, "release", lambda _: None)
    with pytest.raises(Killed):
        world.plan()
    monkeypatch.undo()

    gang.refresh_from_db()
    assert gang.state == (JobState.SCHEDULED if step == "after the starts" else JobState.QUEUED)
    assert broken_invariants() == []
    # The dead planner's term runs out by itself; then the next cycle completes what was not done.
    assert not run_cycle(cluster_id=world.cluster.pk, trigger="test", patience_seconds=0).planned
    Lease.objects.update(expires_at=timezone.now())
    assert world.plan().planned
    gang.refresh_from_db()
    waits.refresh_from_db()
    assert (gang.state, gang.epoch) == (JobState.SCHEDULED, 1)
    assert waits.reason_code == "WaitingForResources"
    assert Quota.objects.get().used == 2000


def test_t21_a_restarted_planner_counts_use_once(world: SmallWorld) -> None:
    line = world.quota("gpu_millis", 2000)
    for _ in range(4):
        world.job(gpus=1)

    for _ in range(3):  # each cycle loads everything again, as a new process does
        world.plan()

    line.refresh_from_db()
    assert line.used == 2000
    assert Job.objects.filter(state=JobState.SCHEDULED).count() == 2


# ------------------------------------------------------------------ recordings


def test_a_recorded_cycle_is_replayed_to_the_same_bytes(world: SmallWorld) -> None:
    for gpus in (1, 2, 0, 1, 16):
        world.job(gpus=gpus)
    result = world.plan()

    cycle = Cycle.objects.get()
    assert (cycle.pk, cycle.trigger, cycle.pending_count) == (result.cycle_id, "test", 5)
    assert cycle.started_count == result.started == Attempt.objects.filter(cycle_id=cycle.pk).count()
    out = io.StringIO()
    call_command("replay_cycle", str(cycle.pk), "--show", stdout=out)
    assert f"cycle {cycle.pk}: identical" in out.getvalue()
    assert "start job" in out.getvalue()
    assert "wait WaitingForResources" in out.getvalue()


def test_a_plan_that_an_older_program_wrote_in_other_bytes_is_the_same_plan(world: SmallWorld) -> None:
    world.job(gpus=1)
    world.plan()
    cycle = Cycle.objects.get()
    packed = bytes(cycle.plan or b"")
    magic = packed[: packed.index(b"\x01") + 1]
    cycle.plan = magic + zlib.compress(zlib.decompress(packed[len(magic) :]), 9)
    cycle.save()
    assert cycle.plan != packed

    assert replay(cycle_id=cycle.pk).identical


def test_a_replay_that_differs_names_the_first_difference_and_fails(world: SmallWorld) -> None:
    job = world.job(gpus=1)
    world.plan()
    cycle = Cycle.objects.get()
    plan = codec.decode_plan(bytes(cycle.plan or b""))
    cycle.plan = codec.encode_plan(Plan())
    cycle.save()
    assert len(plan.starts) == 1

    with pytest.raises(CommandError, match="recorded 0 starts, now 1"):
        call_command("replay_cycle", str(cycle.pk))
    assert job.number


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda: Cycle.objects.update(snapshot=None), "pruned by age"),
        (lambda: Cycle.objects.update(plan=b"nonsense"), "not a recording"),
        (lambda: Cycle.objects.all().delete(), "there is no cycle"),
    ],
)
def test_a_cycle_that_cannot_be_replayed_says_why(
    world: SmallWorld, spoil: Callable[[], object], message: str
) -> None:
    world.job()
    cycle_id = world.plan().cycle_id
    spoil()

    with pytest.raises(CommandError, match=message):
        call_command("replay_cycle", str(cycle_id))


def test_cycles_that_decide_nothing_new_are_not_recorded(world: SmallWorld) -> None:
    world.job(gpus=2)
    world.job(gpus=2)

    recorded = [world.plan().cycle_id for _ in range(4)]

    # The first starts one; the second sees the other wait beside a running job; then nothing is new.
    assert recorded[0] is not None
    assert recorded[2:] == [None, None]
    assert Cycle.objects.count() == len([cycle for cycle in recorded if cycle])


def test_recordings_are_deltas_on_a_whole_one_and_each_is_replayed(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LARGEST_DELTA", 10)  # in a world as small as this every delta is large
    for number in range(40):
        world.job(name=f"waits-{number}", gpus=2, tasks=number % 3 + 1)
    for number in range(6):
        world.job(gpus=0, cpu_millis=100 + number)
        Job.objects.filter(name="waits-30").update(assemblies_failed=number, generation=number + 2)
        assert world.plan().started

    cycles_ = list(Cycle.objects.order_by("id"))
    assert [one.base_id for one in cycles_] == [None, *[cycles_[0].pk] * (len(cycles_) - 1)]
    assert all(replay(cycle_id=one.pk).identical for one in cycles_)
    Cycle.objects.filter(pk=cycles_[0].pk).update(snapshot=None)
    world.job(gpus=0)
    world.plan()
    assert Cycle.objects.latest("id").base_id is None
    with pytest.raises(recordings.NotRecorded, match=f"on top of cycle {cycles_[0].pk}"):
        replay(cycle_id=cycles_[1].pk)
