"""What the end of an attempt means for its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.agent.protocol import GUARD_KILLED, NEVER_BEGAN, SHUT_DOWN
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.core.restart_rules import RestartRule, rules_of
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


@pytest.mark.parametrize(
    ("stop_reason", "task", "failure"),
    [
        ("", GOOD, None),
        ("", BAD, "user-error"),
        (
            "",
            TaskEnd(0, "n1", "failed", None, 9, text="It held 9 MiB.", failure="out-of-memory"),
            "out-of-memory",
        ),
        ("", TaskEnd(0, "n1", "failed", None, 9, text=GUARD_KILLED), "infrastructure"),
        ("time_limit", STOPPED, "time-limit"),
        ("preempted", STOPPED, "preempted"),
        ("drained", STOPPED, "preempted"),
        (
            "",
            TaskEnd(0, "n1", "lost", text="The end of the task was not seen: the machine was restarted."),
            "node-lost",
        ),
        ("", TaskEnd(0, "n1", "lost", text=SHUT_DOWN), "infrastructure"),
        ("", TaskEnd(0, "n1", "lost", text=NEVER_BEGAN), "infrastructure"),
        ("quota_refused", TaskEnd(0, "n1", "stopped", text="no quota"), "infrastructure"),
    ],
)
def test_an_attempt_that_does_not_succeed_has_a_class(
    stop_reason: str, task: TaskEnd, failure: str | None
) -> None:
    assert judge(RUNNING, stop_reason, [task]).failure == failure
    once = judge(replace(RUNNING, restart_policy="never"), stop_reason, [task])
    assert once.failure == failure


@pytest.mark.parametrize(
    ("text", "repeatable"),
    [
        ("It never began: its node was stopped before it could start it.", True),
        ("It never began: its node cannot isolate tasks at the moment.", True),
        ("Its supervisor process on the node was killed, and its processes were ended with it.", False),
        ("Its checkpoint could not be fetched to the node: the checksum of a is wrong", False),
    ],
)
def test_ends_in_the_words_of_older_agents_are_understood(text: str, repeatable: bool) -> None:
    """An agent of the release before keeps the sentences of its release."""
    end = TaskEnd(0, "n1", "lost", text=text)

    assert judge(RUNNING, "", [end]).failure == "infrastructure"
    assert end.may_have_begun is not repeatable


def test_a_cancelled_job_has_no_class() -> None:
    assert judge(replace(RUNNING, state="stopping"), "cancelled", [STOPPED]).failure is None


def test_a_node_that_is_given_up_is_a_lost_node() -> None:
    assert judge(RUNNING, "", [GOOD], lost_text="Node n1 stopped responding.").failure == "node-lost"


def test_a_process_that_ends_well_at_its_time_limit_has_not_succeeded() -> None:
    verdict = judge(RUNNING, "time_limit", [TaskEnd(0, "n1", "stopped", 0)])

    assert (verdict.job, verdict.exit_code) == ("failed", None)


def rules(*kept: tuple[list[str], str]) -> tuple[RestartRule, ...]:
    return rules_of([{"on": on, "action": action} for on, action in kept])


@pytest.mark.parametrize(
    ("policy", "kept", "task", "again"),
    [
        ("interrupted", [(["3"], "restart")], BAD, True),
        ("interrupted", [(["4"], "restart")], BAD, False),
        ("interrupted", [(["1-9"], "restart")], BAD, True),
        ("interrupted", [(["user-error"], "restart")], BAD, True),
        ("on_failure", [(["3"], "fail")], BAD, False),
        ("on_failure", [(["4"], "fail")], BAD, True),
        ("on_failure", [(["3"], "fail"), (["user-error"], "restart")], BAD, False),
        ("interrupted", [(["3"], "restart"), (["user-error"], "fail")], BAD, True),
        ("interrupted", [(["1-255"], "restart")], TaskEnd(0, "n1", "failed", None, 9), False),
    ],
)
def test_the_first_rule_that_applies_decides_before_the_policy(
    policy: str, kept: list[tuple[list[str], str]], task: TaskEnd, again: bool
) -> None:
    job = replace(RUNNING, restart_policy=policy, restart_rules=rules(*kept))

    assert judge(job, "", [task]).job == ("queued" if again else "failed")


def test_a_rule_may_restart_what_met_its_time_limit_but_no_oftener_than_the_job_may() -> None:
    job = replace(RUNNING, restart_rules=rules((["time-limit"], "restart")))

    assert judge(job, "time_limit", [STOPPED]).job == "queued"
    assert judge(replace(job, earlier_ended=3), "time_limit", [STOPPED]).job == "failed"


def test_no_rule_keeps_a_job_from_starting_again_after_a_lost_node() -> None:
    job = replace(RUNNING, restart_rules=rules((["node-lost", "preempted"], "fail")))

    assert judge(job, "", [TaskEnd(0, "n1", "lost")]).job == "queued"
    assert judge(job, "preempted", [STOPPED]).job == "queued"


def test_waits_are_as_long_as_the_job_says() -> None:
    job = replace(
        RUNNING, restart_policy="on_failure", max_restarts=99,
        restart_delay_seconds=60, restart_delay_max_seconds=200,
    )  # fmt: skip

    waits = [judge(replace(job, earlier_ended=n), "", [BAD]).retry_seconds for n in range(4)]

    assert waits == [60, 120, 200, 200]


ONCE = replace(RUNNING, restart_policy="never")


@pytest.mark.parametrize(
    ("stop_reason", "task", "text"),
    [
        ("", TaskEnd(0, "n1", "lost", text="Its end was not seen."), "Its end was not seen."),
        ("", TaskEnd(0, "n1", "lost", text=SHUT_DOWN), SHUT_DOWN),
        ("preempted", STOPPED, "Stopped for another job."),
        ("drained", STOPPED, "Stopped to leave the node."),
        ("evicted", STOPPED, "Evicted from the node."),
        ("stale_epoch", STOPPED, "Stopped, because a later attempt had begun."),
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
