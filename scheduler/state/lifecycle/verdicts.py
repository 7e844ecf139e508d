"""What the end of an attempt means for its job: finished, failed, cancelled, or once more."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.agent.protocol import (
    GUARD_KILLED,
    NEVER_BEGAN,
    NOT_ISOLATED,
    NOT_RESTORED,
    NOT_UPLOADED,
    SHUT_DOWN,
)
from scheduler.core.lifecycle import (
    AttemptState,
    FailureClass,
    JobState,
    RestartPolicy,
    StopReason,
    TaskFailure,
    TaskState,
)
from scheduler.core.restart_rules import DEFAULT_DELAY, DEFAULT_DELAY_MAX, RestartRule, action_of

#: What is written of tasks that no agent was given.
NEVER_GIVEN: Final = "The job was never sent to its node."
NEVER_STARTED: Final = "Never started."
#: How the end of an attempt begins whose node's agent does not know what its job needs; the next planning avoids it.
AGENT_TOO_OLD: Final = "The job was put back: the agent is older than needed for"
#: The same ends in the words of agents of the release before, and of records that such agents left.
_FORMER_NEVER_BEGAN: Final = "It never began: its node was stopped before it could start it."
_FORMER_NOT_ISOLATED: Final = "It never began: its node cannot isolate tasks at the moment."
_FORMER_GUARD_KILLED: Final = (
    "Its supervisor process on the node was killed, and its processes were ended with it."
)
_FORMER_NOT_RESTORED: Final = "Its checkpoint could not be fetched to the node"
_CERTAINLY_NOT_BEGUN: Final = frozenset(
    {NEVER_BEGAN, NOT_ISOLATED, NEVER_GIVEN, NEVER_STARTED, _FORMER_NEVER_BEGAN, _FORMER_NOT_ISOLATED}
)
#: Ends that are neither the job's fault nor its node's.
_OF_MUSTER: Final = _CERTAINLY_NOT_BEGUN | {SHUT_DOWN, GUARD_KILLED, _FORMER_GUARD_KILLED}
AT_MOST_ONCE: Final = "The job runs at most once, so it is not restarted."


@dataclass(frozen=True, slots=True)
class TaskEnd:
    rank: int
    node: str
    state: str
    exit_code: int | None = None
    exit_signal: int | None = None
    text: str = ""
    #: A class that the node knows, such as out-of-memory; "" where the exit alone says it.
    failure: str = ""

    @property
    def may_have_begun(self) -> bool:
        return self.text not in _CERTAINLY_NOT_BEGUN


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Of the job: what decides whether it is tried again. The counts are of its earlier attempts."""

    state: str
    restart_policy: str
    max_restarts: int
    restart_rules: tuple[RestartRule, ...] = ()
    #: The first wait before a restart, and the longest.
    restart_delay_seconds: int = DEFAULT_DELAY
    restart_delay_max_seconds: int = DEFAULT_DELAY_MAX
    time_limit_seconds: int | None = None
    earlier_lost: int = 0
    earlier_ended: int = 0
    earlier_refused: int = 0
    #: What the failure of one task means, and how many tasks are enough.
    on_task_failure: str = TaskFailure.FAIL
    least_tasks: int = 0
    #: Some of its tasks may have been stopped to make it smaller.
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where attempt and job go; `retry_seconds` is set when the job is queued again."""

    attempt: AttemptState
    job: JobState
    exit_code: int | None
    exit_signal: int | None
    text: str
    retry_seconds: int | None = None
    #: Of an attempt that did not succeed and was not cancelled.
    failure: FailureClass | None = None


def judge(job: JobFacts, stop_reason: str, tasks: Sequence[TaskEnd], *, lost_text: str = "") -> Verdict:
    """Decide from the ends of all tasks; with `lost_text` the attempt is lost whatever they say.

    The first rule of `RULES` that applies decides. A job that runs at most once never waits again after an
    attempt that may have begun.
    """
    case = Case.of(job, stop_reason, tasks, lost_text=lost_text)
    verdict = next(found for rule in RULES if (found := rule(case)) is not None)
    return _at_most_once(verdict, job, stop_reason, tasks)


@dataclass(frozen=True, slots=True)
class Case:
    """An attempt that is over, with what its verdict depends on."""

    job: JobFacts
    stop_reason: str
    #: Without those that were stopped to make an elastic job smaller.
    tasks: Sequence[TaskEnd]
    #: It was declared lost, whatever its tasks did.
    declared_lost: bool
    #: Why it is lost; "" = it is not.
    lost_text: str
    #: The task that the verdict names: the first that failed, else the first that did not succeed.
    culprit: TaskEnd | None

    @classmethod
    def of(cls, job: JobFacts, stop_reason: str, tasks: Sequence[TaskEnd], *, lost_text: str) -> Case:
        if job.elastic and not stop_reason:
            tasks = [task for task in tasks if task.state != TaskState.STOPPED]
        failed = (task for task in tasks if task.state == TaskState.FAILED)
        unsuccessful = (task for task in tasks if task.state != TaskState.SUCCEEDED)
        lost_task = next((task for task in tasks if task.state == TaskState.LOST), None)
        text_of_task = (lost_task.text or "A task was lost.") if lost_task else ""
        return cls(
            job, stop_reason, tasks,
            declared_lost=bool(lost_text),
            lost_text=lost_text or text_of_task,
            culprit=next(failed, None) or next(unsuccessful, None),
        )  # fmt: skip

    @property
    def exit_code(self) -> int | None:
        return self.culprit.exit_code if self.culprit else None

    @property
    def exit_signal(self) -> int | None:
        return self.culprit.exit_signal if self.culprit else None


def all_succeeded(case: Case) -> Verdict | None:
    """Every task succeeded."""
    return _succeeded(case.job) if case.culprit is None and not case.declared_lost else None


def enough_succeeded(case: Case) -> Verdict | None:
    """Some tasks failed, but the job goes on without them and enough succeeded."""
    if case.job.on_task_failure != TaskFailure.CONTINUE or case.declared_lost or case.stop_reason:
        return None
    count = len(case.tasks)
    good = sum(task.state == TaskState.SUCCEEDED for task in case.tasks)
    if good < max(case.job.least_tasks, 1):
        return None
    text = f"{count - good} of {count} tasks failed; the other {good} were enough."
    return replace(_succeeded(case.job), text=text)


def cancelled(case: Case) -> Verdict | None:
    """Somebody cancelled the job."""
    if case.job.state != JobState.STOPPING:
        return None
    attempt = AttemptState.LOST if case.lost_text else AttemptState.STOPPED
    return Verdict(attempt, JobState.CANCELLED, case.exit_code, case.exit_signal, "Cancelled.")


def lost(case: Case) -> Verdict | None:
    """Not the job's fault, so it is tried again whatever its policy, but not without end.

    Stopping Muster in good order never fails a job; it only waits longer where that happens again and again.
    """
    if not case.lost_text:
        return None
    job, text = case.job, case.lost_text
    of_muster = text in _OF_MUSTER or text.startswith(
        (NOT_RESTORED, _FORMER_NOT_RESTORED, NOT_UPLOADED, AGENT_TOO_OLD)
    )
    failure = FailureClass.INFRASTRUCTURE if of_muster else FailureClass.NODE_LOST
    if job.earlier_lost < job.max_restarts or text == SHUT_DOWN or text.startswith(AGENT_TOO_OLD):
        wait = backoff_seconds(job.earlier_lost)
        return Verdict(
            AttemptState.LOST, JobState.QUEUED, None, None, text, retry_seconds=wait, failure=failure
        )
    times = job.earlier_lost + 1
    return Verdict(
        AttemptState.LOST, JobState.FAILED, None, None, f"Lost {times} times. {text}", failure=failure
    )


#: Stopped by no fault of its own, and what is said of that.
_STOPPED_FOR_OTHERS: Final[Mapping[str, str]] = {
    StopReason.PREEMPTED: "Stopped for another job",
    StopReason.DRAINED: "Stopped to leave the node",
    StopReason.EVICTED: "Evicted from the node",
    StopReason.STALE_EPOCH: "Stopped, because a later attempt had begun",
}


def stopped_for_others(case: Case) -> Verdict | None:
    """Preempted, drained or evicted: the job waits again at once."""
    if case.stop_reason not in _STOPPED_FOR_OTHERS:
        return None
    text = f"{_STOPPED_FOR_OTHERS[case.stop_reason]}; requeued."
    return Verdict(
        AttemptState.STOPPED, JobState.QUEUED, case.exit_code, case.exit_signal, text, retry_seconds=0,
        failure=FailureClass.PREEMPTED,
    )  # fmt: skip


def quota_refused(case: Case) -> Verdict | None:
    """The place where it was to start refused its quota: it waits, longer each time."""
    if case.stop_reason != StopReason.QUOTA_REFUSED:
        return None
    text = next((task.text for task in case.tasks if task.text), "")
    return Verdict(
        AttemptState.STOPPED, JobState.QUEUED, None, None,
        text or "The quota provider refused the start.",
        retry_seconds=backoff_seconds(case.job.earlier_refused), failure=FailureClass.INFRASTRUCTURE,
    )  # fmt: skip


def over_time_limit(case: Case) -> Verdict | None:
    """Stopped at the time limit, which is a failure; only a rule of the job starts it again.

    A process that ends well when it is asked to has not done its work for that: the job has no exit code 0.
    """
    if case.stop_reason != StopReason.TIME_LIMIT:
        return None
    seconds = case.job.time_limit_seconds
    text = f"Stopped at the time limit{f' of {duration(seconds)}' if seconds else ''}."
    verdict = Verdict(
        AttemptState.FAILED, JobState.FAILED, case.exit_code or None, case.exit_signal, text,
        failure=FailureClass.TIME_LIMIT,
    )  # fmt: skip
    return _restarted_where_it_may(verdict, case.job, otherwise=False)


def over_deadline(case: Case) -> Verdict | None:
    """Stopped at its deadline, as the job asked: a failure, and never started again, since that is too late."""
    if case.stop_reason != StopReason.DEADLINE:
        return None
    return Verdict(
        AttemptState.FAILED, JobState.FAILED, case.exit_code or None, case.exit_signal,
        "Stopped at its deadline (deadline_action end).", failure=FailureClass.TIME_LIMIT,
    )  # fmt: skip


def failed(case: Case) -> Verdict:
    """A task failed: tried again where the job's rules or its policy say so, and often enough."""
    job, text = case.job, describe(case.culprit, case.tasks) if case.culprit else "Ended."
    verdict = Verdict(
        AttemptState.FAILED, JobState.FAILED, case.exit_code, case.exit_signal, text,
        failure=_class_of(case.culprit),
    )  # fmt: skip
    by_policy = (
        job.restart_policy in (RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS)
        or job.on_task_failure == TaskFailure.REQUEUE
    )
    return _restarted_where_it_may(verdict, job, otherwise=by_policy)


def _class_of(culprit: TaskEnd | None) -> FailureClass:
    if culprit is not None and culprit.failure:
        return FailureClass(culprit.failure)
    if culprit is not None and culprit.text in _OF_MUSTER:
        return FailureClass.INFRASTRUCTURE
    return FailureClass.USER_ERROR


def _restarted_where_it_may(verdict: Verdict, job: JobFacts, *, otherwise: bool) -> Verdict:
    """Queued again where the first rule of the job that applies says so, without one where `otherwise` does."""
    assert verdict.failure is not None
    again = action_of(job.restart_rules, verdict.failure, verdict.exit_code)
    if not (otherwise if again is None else again) or job.earlier_ended >= job.max_restarts:
        return verdict
    return replace(verdict, job=JobState.QUEUED, retry_seconds=_wait_of(job))


def _wait_of(job: JobFacts) -> int:
    """Seconds before the next restart: twice as long as before the last one."""
    return backoff_seconds(
        job.earlier_ended, first=job.restart_delay_seconds, longest=job.restart_delay_max_seconds
    )


#: Asked in this order; the last always applies.
RULES: Final[tuple[Callable[[Case], Verdict | None], ...]] = (
    all_succeeded,
    enough_succeeded,
    cancelled,
    lost,
    stopped_for_others,
    quota_refused,
    over_time_limit,
    over_deadline,
    failed,
)


def _at_most_once(verdict: Verdict, job: JobFacts, stop_reason: str, tasks: Sequence[TaskEnd]) -> Verdict:
    """The same, or that a job which runs at most once is over since this attempt may have begun."""
    again = verdict.retry_seconds is not None
    if not again or job.restart_policy != RestartPolicy.NEVER or stop_reason == StopReason.QUOTA_REFUSED:
        return verdict
    if tasks and not any(task.may_have_begun for task in tasks):
        return verdict
    why = verdict.text
    if verdict.attempt == AttemptState.STOPPED:
        why = f"{_STOPPED_FOR_OTHERS.get(stop_reason, f'Stopped ({stop_reason})')}."
    return replace(verdict, job=JobState.FAILED, text=f"{why} {AT_MOST_ONCE}", retry_seconds=None)


def _succeeded(job: JobFacts) -> Verdict:
    if (
        job.restart_policy == RestartPolicy.ALWAYS
        and job.state != JobState.STOPPING
        and job.earlier_ended < job.max_restarts
    ):
        wait = _wait_of(job)
        text = "Ended; restarted by the restart policy."
        return Verdict(AttemptState.SUCCEEDED, JobState.QUEUED, 0, None, text, retry_seconds=wait)
    return Verdict(AttemptState.SUCCEEDED, JobState.COMPLETED, 0, None, "")


def backoff_seconds(earlier: int, *, first: int = DEFAULT_DELAY, longest: int = DEFAULT_DELAY_MAX) -> int:
    """Seconds to wait after `earlier` tries before this one: `first`, doubled each time, at most `longest`."""
    return min(longest, first << min(earlier, 20))


#: What shells mean by a code (bash manual, "Exit Status").
_MEANINGS: Final = {126: ": command not executable", 127: ": command not found"}


def describe(task: TaskEnd, tasks: Sequence[TaskEnd]) -> str:
    """`Ended with exit code 3.`, naming the task when there are several."""
    who = f"Task {task.rank} on {task.node} ended" if len(tasks) > 1 else "Ended"
    if task.text:
        return f"{who}: {task.text}" if len(tasks) > 1 else task.text
    if task.exit_signal is not None:
        return f"{who} by {signal_name(task.exit_signal)}."
    return f"{who} with exit code {task.exit_code}{_MEANINGS.get(task.exit_code or 0, '')}."


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def duration(seconds: int | None) -> str:
    """`90` -> `1 min 30 s`."""
    rest = seconds or 0
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2]) or "0 s"
