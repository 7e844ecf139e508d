"""Elements of an array that share a job: each has its own end, output, limit and line of the ledger."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from infra.errors import Conflict, InvalidInput
from quotas.models import LedgerEntry
from scheduler.agent.protocol import Assignment
from scheduler.models import ElementEnd, Job, JobElements, JobEvent, Node, SchedulerProfile
from scheduler.services.accounting import usage_audit
from scheduler.services.jobs import logs
from scheduler.services.jobs.elements import cancel_element, elements_of
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.planning import cycles
from scheduler.services.retention import JOBS
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for

pytestmark = pytest.mark.either


def ends(job: Job) -> dict[int, tuple[str, int | None, int | None]]:
    return {e.index: (e.state, e.exit_code, e.exit_signal) for e in ElementEnd.objects.filter(job=job)}


def printed(job: Job, index: int) -> bytes:
    """What the element printed, by the part of its attempt's output that its row names."""
    end = ElementEnd.objects.get(job=job, index=index)
    part = logs.read_log(
        job=job, stream="stdout", offset=end.stdout_offset, limit=max(1, end.stdout_bytes), epoch=end.epoch
    )
    return part.data[: end.stdout_bytes]


def jobs_of(first: Job) -> list[Job]:
    return list(Job.objects.filter(array_id=first.array_id).order_by("number"))


def test_an_array_becomes_jobs_of_several_elements(world: World) -> None:
    first = world.submit(array="0-9,20", elements_per_job=4, time_limit=30)

    jobs = jobs_of(first)

    assert [[e.index for e in elements_of(job)] for job in jobs] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 20]]
    assert [job.time_limit_seconds for job in jobs] == [120, 120, 120]
    assert {job.elements.limit_seconds for job in jobs} == {30}


@pytest.mark.parametrize(
    "more",
    [
        {}, {"array": "0-9", "tasks": 2}, {"array": "0-9", "restart_policy": "on_failure"},
        {"array": "0-9", "elements_per_job": 1}, {"array": "0-9", "elements_per_job": 1001},
    ],
)  # fmt: skip
def test_what_cannot_share_a_job_is_refused(world: World, more: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        world.submit(**{"elements_per_job": 4, **more})  # type: ignore[arg-type]


def test_each_element_has_its_own_end_and_output(world: World, start_agent: StartAgent) -> None:
    start_agent()
    command = (
        "echo out $MUSTER_ARRAY_INDEX $SLURM_ARRAY_TASK_ID; echo err >&2; "
        "case $MUSTER_ARRAY_INDEX in 2) exit 3;; 3) kill -9 $$;; esac"
    )
    job = world.submit(command, array="0-4", elements_per_job=5)

    world.run_until(job, "failed")

    assert ends(job) == {
        0: ("succeeded", 0, None), 1: ("succeeded", 0, None), 2: ("failed", 3, None), 3: ("failed", None, 9),
        4: ("succeeded", 0, None),
    }  # fmt: skip
    assert job.exit_code == 137  # the highest, as a shell says it
    world.output(job)
    assert [printed(job, index) for index in range(5)] == [f"out {n} {n}\n".encode() for n in range(5)]
    world.assert_nothing_is_held()


def test_elements_run_where_the_agent_was_started_through_a_link(
    world: World, start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is in `/tmp`, of which jobs have their own."""
    environment = tmp_path / "environment"
    environment.symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "executable", f"{environment}/bin/python")
    start_agent()
    job = world.submit("true", array="0-1", elements_per_job=2)

    world.run_until(job, "completed")

    assert ends(job) == {0: ("succeeded", 0, None), 1: ("succeeded", 0, None)}


def test_the_ledger_has_a_line_for_each_element_and_they_add_up(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit("sleep 0.4", array="0-5", elements_per_job=6)

    world.run_until(job, "completed")

    charges = LedgerEntry.objects.filter(job_number=job.number, kind="charge").order_by("id")
    attempt = job.attempts.get()
    held = attempt.allocations.get()
    assert [c.reason for c in charges][:6] == [f"element {n}" for n in range(6)]
    assert sum(c.charged_seconds for c in charges) == int(held.released_at.timestamp()) - int(
        held.held_at.timestamp()
    )
    assert sum(c.held_seconds for c in LedgerEntry.objects.filter(job_number=job.number)) == 0
    assert usage_audit.check_usage(now=timezone.now() + timedelta(hours=1)) == 0


def test_an_element_ends_at_its_own_limit_and_the_others_run(world: World, start_agent: StartAgent) -> None:
    start_agent()
    command = "test $MUSTER_ARRAY_INDEX != 1 || sleep 60"
    job = world.submit(command, array="0-2", elements_per_job=3, time_limit=1)

    world.run_until(job, "failed")

    assert ends(job) == {
        0: ("succeeded", 0, None),
        1: ("failed", None, signal.SIGTERM),
        2: ("succeeded", 0, None),
    }
    assert ElementEnd.objects.get(job=job, index=1).end_text == "time_limit"


def test_a_cancelled_job_keeps_what_its_elements_did_and_runs_no_more(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit("test $MUSTER_ARRAY_INDEX = 0 || sleep 60", array="0-3", elements_per_job=4)
    world.run_until(job, "running")
    wait_for(lambda: ends(job))

    cancel_job(job=job, by=world.user)
    world.run_until(job, "cancelled")

    assert ends(job) == {0: ("succeeded", 0, None)}
    world.assert_nothing_is_held()


def test_an_interrupted_job_runs_only_what_has_not_ended(world: World, start_agent: StartAgent) -> None:
    start_agent()
    command = "echo $MUSTER_ATTEMPT; test $MUSTER_ARRAY_INDEX != 2 -o $MUSTER_ATTEMPT != 1 || sleep 60"
    job = world.submit(command, array="0-3", elements_per_job=4)
    world.run_until(job, "running")
    wait_for(lambda: set(ends(job)) == {0, 1})

    requeue_job(job=job, by=world.user)
    wait_for(lambda: not job.attempts.live().exists())
    job.refresh_from_db()
    world.run_until(job, "completed")
    world.output(job)

    assert ends(job) == dict.fromkeys(range(4), ("succeeded", 0, None))
    assert [printed(job, index) for index in range(4)] == [b"1\n", b"1\n", b"2\n", b"2\n"]


def test_the_result_of_an_earlier_attempt_counts(world: World, start_agent: StartAgent) -> None:
    start_agent()
    command = "test $MUSTER_ARRAY_INDEX != 0 || exit 5; test $MUSTER_ATTEMPT != 1 || sleep 60"
    job = world.submit(command, array="0-1", elements_per_job=2)
    world.run_until(job, "running")
    wait_for(lambda: set(ends(job)) == {0})

    requeue_job(job=job, by=world.user)
    wait_for(lambda: not job.attempts.live().exists())
    job.refresh_from_db()
    world.run_until(job, "failed")

    assert (job.exit_code, ends(job)) == (5, {0: ("failed", 5, None), 1: ("succeeded", 0, None)})


def test_elements_of_a_lost_node_run_elsewhere_and_those_that_had_ended_do_not(
    world: World, start_agent: StartAgent
) -> None:
    agent = start_agent()
    command = "test $MUSTER_ARRAY_INDEX = 0 -o $MUSTER_ATTEMPT = 2 || sleep 60"
    job = world.submit(command, array="0-3", elements_per_job=4)
    world.run_until(job, "running")
    wait_for(lambda: ends(job))

    agent.clean_up()
    attempt = job.attempts.live().get()
    end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="the node does not answer")
    Node.objects.filter(name="n1").update(state="down")
    start_agent("n2")
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    world.run_until(job, "completed")

    assert [(e.index, e.state, e.epoch) for e in ElementEnd.objects.filter(job=job)] == [
        (0, "succeeded", 1), (1, "succeeded", 2), (2, "succeeded", 2), (3, "succeeded", 2),
    ]  # fmt: skip
    world.assert_nothing_is_held()


@pytest.mark.parametrize("mode", ["requeue", "suspend"])
def test_a_job_that_makes_way_keeps_what_its_elements_did(
    world: World, start_agent: StartAgent, mode: str
) -> None:
    words = {"protected_seconds": 0, "grace_seconds": 5, "mode": mode}
    SchedulerProfile.objects.update(preemption_enabled=True, preemption=words)
    start_agent()
    command = "test $MUSTER_ARRAY_INDEX = 0 || sleep 3"
    job = world.submit(command, array="0-1", elements_per_job=2, time_limit=3600, priority=10, cpu_cores=8)
    world.run_until(job, "running")
    wait_for(lambda: ends(job))

    urgent = world.submit("true", priority=90, cpu_cores=8)
    world.plan()
    world.run_until(urgent, "completed")
    wait_for(lambda: Job.objects.filter(pk=job.pk).exclude(state__in=("stopping", "running")).exists())
    world.plan()
    job.refresh_from_db()
    world.run_until(job, "completed")

    assert ends(job) == dict.fromkeys((0, 1), ("succeeded", 0, None))
    assert job.epoch == (1 if mode == "suspend" else 2)
    world.assert_nothing_is_held()


@pytest.mark.parametrize("victim", ["agent", "shim", "both"])
def test_what_is_killed_on_the_node_costs_no_element(
    world: World, start_agent: StartAgent, victim: str
) -> None:
    agent = start_agent()
    job = world.submit("echo $MUSTER_ARRAY_INDEX; sleep 0.1", array="0-19", elements_per_job=20)
    world.run_until(job, "running")
    wait_for(lambda: len(ends(job)) >= 3)

    if victim in ("shim", "both"):
        os.kill(agent.shim_pid, signal.SIGKILL)
    if victim in ("agent", "both"):
        agent.kill()
        agent.start()
    world.run_until(job, "completed")
    whole = world.output(job, "stdout")

    assert ends(job) == dict.fromkeys(range(20), ("succeeded", 0, None))
    assert whole == b"".join(b"%d\n" % index for index in range(20))
    assert job.epoch == 1


def test_an_element_is_cancelled_before_its_job_runs(world: World, start_agent: StartAgent) -> None:
    job = world.submit("true", array="0-3", elements_per_job=4)

    for _ in range(2):
        cancel_element(job=job, index=2, by=world.user, reason="wrong input")
    start_agent()
    world.run_until(job, "completed")

    assert ends(job) == {**dict.fromkeys((0, 1, 3), ("succeeded", 0, None)), 2: ("cancelled", None, None)}
    assert JobEvent.objects.filter(job=job, kind="element.cancelled").count() == 1
    with pytest.raises(Conflict):
        cancel_element(job=job, index=0, by=world.user)


def test_an_element_of_a_running_job_is_not_cancelled_by_itself(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit("sleep 60", array="0-3", elements_per_job=4)
    world.run_until(job, "running")

    with pytest.raises(Conflict, match="cannot be cancelled one by one"):
        cancel_element(job=job, index=3, by=world.user)


def test_an_agent_that_knows_no_elements_fails_the_job_and_says_why(
    world: World, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs what every version knows, the command."""
    from scheduler.services.execution import elements

    start_agent()
    add = elements.add_elements

    def as_an_earlier_agent_reads_it(assignment: Assignment, to_run: Any) -> None:
        add(assignment, to_run)
        del assignment["elements"]

    monkeypatch.setattr("scheduler.services.execution.assignments.add_elements", as_an_earlier_agent_reads_it)
    job = world.submit("true", array="0-3", elements_per_job=4)
    world.run_until(job, "failed")

    assert job.exit_code == 125
    assert b"older than the server" in world.output(job)


def test_a_job_with_elements_is_one_job_for_the_planner(world: World) -> None:
    first = world.submit("true", array="0-99", elements_per_job=50, time_limit=2)

    cycles.run_cycle(cluster_id=world.cluster.pk, trigger="test")

    assert [(job.time_limit_seconds, job.state) for job in jobs_of(first)] == [(100, "queued")] * 2


def test_a_report_of_elements_twice_changes_nothing_and_a_strange_one_is_left(world: World) -> None:
    from scheduler.services.execution.elements import ElementResult, EndedElement, read_results, write_ended
    from scheduler.state.db.sql import run

    job = world.submit("true", array="0-3", elements_per_job=4)
    result = ElementResult(1, 0, None, 20, 10, 1, 12, 0, 4, 0, 0, "")
    now = timezone.now()
    for one in (result, result, result._replace(exit_code=7), result._replace(element=9)):
        run(*write_ended([EndedElement(job.number, 1, job.created_at, now, one)]))

    assert ends(job) == {1: ("succeeded", 0, None)}
    assert read_results([list(result)]) == [result]
    for wrong in (
        [[1]],
        [[1, 0, 9, *list(result)[3:]]],
        [[-1, *list(result)[1:]]],
        "x",
        [[True, *list(result)[1:]]],
    ):
        assert read_results(wrong) is None


def test_elements_go_with_their_job(world: World) -> None:
    job = world.submit("true", array="0-3", elements_per_job=4)
    cancel_element(job=job, index=1, by=world.user)
    cancel_job(job=job, by=world.user)

    assert JOBS.remove is not None
    with transaction.atomic():
        assert JOBS.remove([job.number]) == 1

    assert (ElementEnd.objects.count(), JobElements.objects.count()) == (0, 0)
