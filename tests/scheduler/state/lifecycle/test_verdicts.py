"""What the end of an attempt means for its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.agent.protocol import NEVER_BEGAN, SHUT_DOWN
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.state.lifecycle.verdicts import (
    AT_MOST_ONCE,
    NEVER_GIVEN,
    NEVER_STARTED,
    JobFacts,
    TaskEnd,
    backoff_seconds,
    duration,
    judge,
)

RUNNING = JobFacts(state="running", restart_policy="interrupted", max_restarts=3)
GOOD = TaskEnd(0, "n1", "succeeded", 0)
BAD = TaskEnd(1, "n2", "failed", 3)
STOPPED = TaskEnd(0, "n1", "stopped", None, 15)


@pytest.mark.parametrize(
    ("job", "stop_reason", "tasks", "attempt", "state", "retry_seconds"),
    [
        ({}, "", [GOOD], "succeeded", "completed", None),
        ({}, "", [GOOD, BAD], "failed", "failed", None),
        ({}, "gang_member_failed", [STOPPED, BAD], "failed", "failed", None),
        ({}, "time_limit", [STOPPED], "failed", "failed", None),
        ({"restart_policy": "always"}, "time_limit", [STOPPED], "failed", "failed", None),
        ({"state": "stopping"}, "cancelled", [STOPPED], "stopped", "cancelled", None),
        ({"state": "stopping"}, "cancelled", [GOOD], "succeeded", "completed", None),
        (
            {"state": "stopping", "restart_policy": "always"},
            "cancelled",
            [GOOD],
            "succeeded",
            "completed",
            None,
        ),
        ({"state": "preempting"}, "preempted", [STOPPED], "stopped", "queued", 0),
        ({"state": "preempting"}, "preempted", [GOOD], "succeeded", "completed", None),
        ({}, "drained", [STOPPED], "stopped", "queued", 0),
        ({"restart_policy": "on_failure"}, "", [BAD], "failed", "queued", 5),
        ({"restart_policy": "on_failure", "earlier_ended": 2}, "", [BAD], "failed", "queued", 20),
        ({"restart_policy": "on_failure", "earlier_ended": 3}, "", [BAD], "failed", "failed", None),
        ({"restart_policy": "on_failure"}, "", [GOOD], "succeeded", "completed", None),
        ({"restart_policy": "always"}, "", [GOOD], "succeeded", "queued", 5),
        ({"restart_policy": "always", "earlier_ended": 3}, "", [GOOD], "succeeded", "completed", None),
        ({}, "", [GOOD, TaskEnd(1, "n2", "lost")], "lost", "queued", 5),
        ({"earlier_lost": 3}, "", [TaskEnd(0, "n1", "lost")], "lost", "failed", None),
        ({"earlier_lost": 3}, "", [TaskEnd(0, "n1", "lost", text=SHUT_DOWN)], "lost", "queued", 40),
        ({"earlier_lost": 90}, "", [TaskEnd(0, "n1", "lost", text=SHUT_DOWN)], "lost", "queued", 900),
        ({"state": "stopping"}, "cancelled", [TaskEnd(0, "n1", "lost")], "lost", "cancelled", None),
    ],
)
def test_verdicts(
    job: dict[str, object],
    stop_reason: str,
    tasks: list[TaskEnd],
    attempt: str,
    state: str,
    retry_seconds: int | None,
) -> None:
    facts = JobFacts(**({"state": "running", "restart_policy": "interrupted", "max_restarts": 3} | job))  # type: ignore[arg-type]

    verdict = judge(facts, stop_reason, tasks)

    assert (verdict.attempt, verdict.job) == (AttemptState(attempt), JobState(state))
    assert verdict.retry_seconds == retry_seconds


def test_the_words_name_what_happened() -> None:
    assert judge(RUNNING, "", [GOOD, BAD]).text == "Task 1 on n2 ended with exit code 3."
    assert judge(RUNNING, "", [TaskEnd(0, "n1", "failed", None, 9)]).text == "Ended by signal 9 (SIGKILL)."
    assert (
        judge(RUNNING, "", [TaskEnd(0, "n1", "failed", 126, text="No such folder.")]).text
        == "No such folder."
    )
    limited = JobFacts(state="running", restart_policy="interrupted", max_restarts=0, time_limit_seconds=90)
    assert judge(limited, "time_limit", [STOPPED]).text == "Stopped at the time limit of 1 min 30 s."
    assert (
        judge(RUNNING, "", [GOOD], lost_text="Node n1 stopped responding.").text
        == "Node n1 stopped responding."
    )


def test_codes_of_the_shell_are_told_in_words() -> None:
    lacking = replace(BAD, exit_code=127)

    assert judge(RUNNING, "", [lacking]).text == "Ended with exit code 127: command not found."


def test_waits_double_up_to_a_bound() -> None:
    assert [backoff_seconds(n) for n in (0, 1, 2, 3, 50)] == [5, 10, 20, 40, 900]


def test_durations_read_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 1, 60, 3601, 90000)] == ["0 s", "1 s", "1 min", "1 h 1 s", "1 d 1 h"]


ONCE = replace(RUNNING, restart_policy="never")


@pytest.mark.parametrize(
    ("stop_reason", "task", "text"),
    [
        ("", TaskEnd(0, "n1", "lost", text="Its end was not seen."), "Its end was not seen."),
        ("", TaskEnd(0, "n1", "lost", text=SHUT_DOWN), SHUT_DOWN),
        ("preempted", STOPPED, "Stopped (preempted)."),
        ("drained", STOPPED, "Stopped (drained)."),
        ("evicted", STOPPED, "Stopped (evicted)."),
        ("stale_epoch", STOPPED, "Stopped (stale_epoch)."),
    ],
)
def test_a_job_that_runs_at_most_once_is_over_when_it_may_have_begun(
    stop_reason: str, task: TaskEnd, text: str
) -> None:
    verdict = judge(ONCE, stop_reason, [task])

    assert (verdict.job, verdict.retry_seconds, verdict.text) == ("failed", None, f"{text} {AT_MOST_ONCE}")
    one_of_two = judge(ONCE, stop_reason, [replace(task, text=NEVER_GIVEN), task])
    assert one_of_two.job == "failed"
    requeued = judge(replace(ONCE, on_task_failure="requeue"), "", [BAD])
    assert requeued.job == "failed"


@pytest.mark.parametrize("text", [NEVER_BEGAN, NEVER_GIVEN, NEVER_STARTED])
def test_it_may_be_tried_again_where_it_certainly_never_began(text: str) -> None:
    assert judge(ONCE, "", [TaskEnd(0, "n1", "lost", text=text)]).retry_seconds == 5
    assert judge(ONCE, "drained", [TaskEnd(0, "n1", "stopped", text=text)]).retry_seconds == 0
    assert (
        judge(ONCE, "", [TaskEnd(0, "n1", "lost", text=text)], lost_text="Node n1 is gone.").retry_seconds
        == 5
    )
    assert judge(ONCE, "quota_refused", [TaskEnd(0, "n1", "stopped", text="no quota")]).job == "queued"
