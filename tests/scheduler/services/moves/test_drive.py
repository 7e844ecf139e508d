"""Drains with a deadline and moves go on by themselves, undo what comes to nothing, and lose no job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.models import AuditEvent
from infra.errors import InvalidInput
from scheduler.models import Attempt, Job, JobEvent, JobMove, Node
from scheduler.services.cluster.nodes import drain_node, uncordon_node
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.moves import drive as driver
from scheduler.services.moves.drive import drive
from scheduler.services.moves.verbs import migrate_job
from tests.scheduler.services.moves.lab import Lab, hours
from tests.scheduler.state.small import broken_invariants
from tests.support.factories import ClusterFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_contradicts_itself(db: None) -> Iterator[None]:
    yield
    assert broken_invariants() == []


def drain(lab: Lab, name: str = "n1", by_hours: float | None = 1) -> None:
    deadline = hours(by_hours) if by_hours else None
    drain_node(node=lab.node(name), by=lab.cast.operator, reason="new fans", deadline=deadline)


def is_over(name: str = "n1") -> None:
    """The deadline of the drain is reached."""
    Node.objects.filter(name=name).update(drain_deadline_at=timezone.now() - timedelta(seconds=1))


def test_a_job_with_a_checkpoint_leaves_at_once_and_goes_on_elsewhere(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    lab.save(job)
    drain(lab)

    drive()

    assert lab.state(job) == "migrating"
    attempt = job.attempts.live().get()
    assert attempt.stop_reason == "drained"
    lab.stop(job)
    assert lab.state(job) == "queued"
    drive()
    lab.start()
    drive()
    assert lab.node_of(job).name == "n2"
    assert lab.moves(job) == [("done", "moved from n1 to n2")]
    assert "job.moved" in lab.events(job)
    first = Attempt.objects.get(job=job, epoch=1)
    assert (first.failure_class, first.stop_reason) == ("preempted", "drained")
    event = JobEvent.objects.filter(job=job, kind="job.migrating").get()
    assert event.actor == lab.cast.operator
    assert "moved away from n1, which is draining" in event.because


def test_one_that_never_saved_is_asked_first_and_runs_on_until_that_is_stored(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    drain(lab)
    for _ in range(2):
        drive()
    assert lab.state(job) == "running"
    assert job.attempts.live().get().tasks.get().checkpoint_asked_at is not None
    assert lab.moves(job) == [("saving", "")]

    lab.save(job)
    drive()

    assert lab.state(job) == "migrating"


def test_a_job_that_cannot_save_runs_on_where_it_is(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    drain(lab)
    drive()
    JobEvent.objects.create(
        job=job,
        kind="job.checkpoint_missed",
        epoch=1,
        at=timezone.now(),
        because="no process handles SIGUSR1",
    )

    drive()

    assert lab.moves(job) == [("undone", "no process handles SIGUSR1")]
    assert lab.state(job) == "running"
    assert "job.move_undone" in lab.events(job)
    drive()
    assert len(lab.moves(job)) == 1  # the next try comes later


def test_after_three_tries_it_is_left_until_the_deadline(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    drain(lab)
    for _ in range(5):
        drive()
        JobMove.objects.filter(job=job, ended_at=None).update(asked_at=hours(-1))
        drive()
        JobMove.objects.filter(job=job).update(ended_at=hours(-1))
    assert [state for state, _ in lab.moves(job)] == ["undone"] * 3
    assert lab.moves(job)[0][1] == "no checkpoint came within 120 s"
    is_over()
    drive()
    assert lab.state(job) == "migrating"


def test_without_a_place_it_waits_for_one_and_is_requeued_at_the_deadline(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=16)
    job = lab.run(on="n1", cpu_cores=8, checkpoint={})
    lab.save(job)
    drain(lab)
    drive()
    assert (lab.state(job), lab.moves(job)) == ("running", [])

    is_over()
    drive()

    assert lab.state(job) == "migrating"
    lab.stop(job)
    assert lab.state(job) == "queued"
    lab.plan()
    assert lab.state(job) == "queued"  # it waits in line, and is not lost


def test_one_without_checkpoints_is_requeued_at_the_deadline_and_no_restart_is_counted(lab: Lab) -> None:
    job = lab.run(on="n1", max_restarts=0, restart_policy="on_failure")
    drain(lab)
    drive()
    assert lab.state(job) == "running"
    is_over()

    for _ in range(2):
        drive()

    assert lab.state(job) == "preempting"
    event = JobEvent.objects.filter(job=job, kind="job.preempting").get()
    assert event.because.startswith("the deadline of the drain of n1 has passed (new fans")
    assert event.actor == lab.cast.operator
    assert AuditEvent.objects.filter(action="job.drain", actor=lab.cast.operator).count() == 1
    lab.stop(job)
    assert lab.state(job) == "queued"
    lab.start()
    assert lab.node_of(job).name == "n2"


def test_one_that_runs_at_most_once_fails_at_the_deadline(lab: Lab) -> None:
    job = lab.run(on="n1", restart_policy="never", checkpoint={})
    drain(lab)
    drive()
    assert lab.state(job) == "running"
    is_over()
    drive()
    lab.stop(job)
    assert lab.state(job) == "failed"


def test_one_that_ends_before_the_deadline_is_left_alone(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={}, time_limit="30m")
    lab.save(job)
    drain(lab)
    drive()
    assert lab.state(job) == "running"


def test_without_a_deadline_a_drain_moves_nothing(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    lab.save(job)
    drain(lab, by_hours=None)
    drive()
    assert lab.state(job) == "running"


def test_a_drain_that_is_cancelled_keeps_what_has_not_left(lab: Lab) -> None:
    leaving, staying = lab.run(on="n1", checkpoint={}), lab.run(on="n1", checkpoint={})
    lab.save(leaving)
    drain(lab)
    drive()
    assert (lab.state(leaving), lab.state(staying)) == ("migrating", "running")

    uncordon_node(node=lab.node("n1"), by=lab.cast.operator)
    drive()

    assert lab.moves(staying) == [("undone", "the drain was cancelled")]
    assert lab.state(staying) == "running"
    assert lab.node("n1").drain_deadline_at is None
    lab.stop(leaving)  # and what was being stopped may start there again
    Node.objects.filter(name="n2").update(cordoned=True)
    lab.start()
    drive()
    assert lab.moves(leaving) == [("done", "moved from n1 to n1")]


def test_a_move_that_is_under_way_at_the_deadline_goes_on(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    drain(lab)
    drive()
    is_over()
    drive()
    assert (lab.state(job), lab.moves(job)) == ("migrating", [("stopping", "")])
    lab.stop(job)
    lab.start()
    drive()
    assert lab.moves(job) == [("done", "moved from n1 to n2")]


def test_few_move_together(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_TOGETHER", 2)
    jobs = [lab.run(on="n1", checkpoint={}) for _ in range(3)]
    drain(lab)
    for _ in range(2):
        drive()
    assert [len(lab.moves(job)) for job in jobs] == [1, 1, 0]


def test_places_are_counted_once(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=10)
    jobs = [lab.run(on="n1", cpu_cores=4, checkpoint={}) for _ in range(2)]
    for job in jobs:
        lab.save(job)
    drain(lab)
    drive()
    assert [lab.state(job) for job in jobs] == ["migrating", "running"]


# ---------------------------------------------------------------- a move that was asked for


def asked(lab: Lab, **payload: object) -> Job:
    job = lab.run(on="n1", checkpoint={}, **payload)
    lab.save(job)
    return migrate_job(job=job, by=lab.cast.owner, target=lab.node("n2"), reason="quieter")


def test_a_job_starts_only_where_it_was_sent(lab: Lab) -> None:
    job = asked(lab)
    assert job.state == "migrating"
    lab.stop(job)
    Node.objects.filter(name="n2").update(cordoned=True)
    drive()
    lab.start()
    assert lab.state(job) == "queued"
    Node.objects.filter(name="n2").update(cordoned=False)
    lab.start()
    drive()
    assert lab.moves(job) == [("done", "moved from n1 to n2")]
    assert Job.objects.get(pk=job.pk).move_terms is None


def test_where_the_target_is_gone_it_goes_on_from_its_checkpoint_anywhere(lab: Lab) -> None:
    job = asked(lab)
    lab.stop(job)
    Node.objects.filter(name="n2").update(state="down")
    drive()
    lab.start()
    assert lab.state(job) == "queued"
    Attempt.objects.filter(job=job).update(ended_at=hours(-1))

    drive()
    lab.start()
    drive()

    assert lab.node_of(job).name == "n1"
    assert lab.moves(job) == [("done", "moved from n1 to n1")]
    assert "job.move_changed" in lab.events(job)


def test_where_the_start_on_the_target_fails_any_node_will_do(lab: Lab) -> None:
    job = asked(lab)
    lab.stop(job)
    drive()
    lab.plan()
    lab.lose(job)
    Node.objects.filter(name="n2").update(state="down")
    drive()
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    lab.start()
    drive()
    assert lab.node_of(job).name == "n1"
    assert lab.moves(job)[0][0] == "done"


def test_a_job_that_is_cancelled_while_it_moves_ends(lab: Lab) -> None:
    job = asked(lab)
    cancel_job(job=job, by=lab.cast.owner)
    lab.stop(job)
    drive()
    assert lab.moves(job) == [("undone", "the job ended before the move (cancelled)")]


# ---------------------------------------------------------------- what the database and the verb refuse


def test_a_deadline_that_is_over_is_refused(lab: Lab) -> None:
    with pytest.raises(InvalidInput, match=r"The deadline .* has passed"):
        drain(lab, by_hours=-1)
    assert lab.node("n1").schedulable


def test_the_database_has_one_open_move_a_job_and_deadlines_of_drains_alone(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    drain(lab)
    drive()
    with pytest.raises(IntegrityError, match="move_one_open"), transaction.atomic():
        JobMove.objects.create(job=job, epoch=1, cause="asked", asked_at=timezone.now())
    with pytest.raises(IntegrityError, match="move_ended_has_time"), transaction.atomic():
        JobMove.objects.update(state="done")
    with pytest.raises(IntegrityError, match="node_deadline_is_of_a_drain"), transaction.atomic():
        Node.objects.filter(name="n1").update(draining=False)


# ---------------------------------------------------------------- what fails beside others


def test_a_step_that_fails_keeps_no_other_move_and_no_deadline_waiting(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, moved = (lab.run(on="n1", checkpoint={}) for _ in range(2))
    plain = lab.run(on="n2")
    for job in (broken, moved):
        migrate_job(job=job, by=lab.cast.owner)
        lab.save(job)
    drain(lab, "n2")
    is_over("n2")
    real = driver.has_saved

    def fails_for_one(move: JobMove) -> bool:
        if move.job_id == broken.number:
            raise ZeroDivisionError("of this move alone")
        return real(move)

    monkeypatch.setattr(driver, "has_saved", fails_for_one)
    drive()

    assert [lab.state(job) for job in (broken, moved, plain)] == ["running", "migrating", "preempting"]
    monkeypatch.setattr(driver, "has_saved", real)
    drive()
    assert lab.state(broken) == "migrating"


def test_a_plan_that_fails_keeps_no_job_beyond_the_deadline_of_another_cluster(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, saves = lab.run(on="n1"), lab.run(on="n1", checkpoint={})
    lab.run(on="n2", checkpoint={})
    for name in ("n1", "n2"):
        drain(lab, name)
    Node.objects.filter(name="n1").update(cluster=ClusterFactory(slug="looked-at-later"))
    monkeypatch.setattr(driver, "plan_drain", lambda *_, **__: 1 // 0)
    is_over()

    drive()

    assert [lab.state(plain), lab.state(saves)] == ["preempting", "migrating"]
