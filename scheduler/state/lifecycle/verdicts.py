"""What the end of an attempt means for its job: finished, failed, cancelled, or once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.agent.protocol import NEVER_BEGAN, SHUT_DOWN
from scheduler.core.lifecycle import AttemptState, JobState, RestartPolicy, StopReason, TaskFailure, TaskState

#: The first wait before another try; it doubles with each, up to the longest (H4).
BACKOFF_SECONDS: Final = 5
LONGEST_BACKOFF_SECONDS: Final = 15 * 60

#: What is written of tasks that no agent was given.
NEVER_GIVEN: Final = "The job was never sent to its node."
NEVER_STARTED: Final = "Never started."
_CERTAINLY_NOT_BEGUN: Final = frozenset({NEVER_BEGAN, NEVER_GIVEN, NEVER_STARTED})
AT_MOST_ONCE: Final = "The job runs at most once, so it is not restarted."


@dataclass(frozen=True, slots=True)
class TaskEnd:
    rank: int
    node: str
    state: str
    exit_code: int | None = None
    exit_signal: int | None = None
    text: str = ""

    @property
    def may_have_begun(self) -> bool:
        return self.text not in _CERTAINLY_NOT_BEGUN


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Of the job: what decides whether it is tried again. The counts are of its earlier attempts."""

    state: str
    restart_policy: str
    max_restarts: int
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


def judge(job: JobFacts, stop_reason: str, tasks: Sequence[TaskEnd], *, lost_text: str = "") -> Verdict:
    """Decide from the ends of all tasks; with `lost_text` the attempt is lost whatever they say.

    A job that runs at most once never waits again after an attempt that may have begun.
    """
    verdict = _judge(job, stop_reason, tasks, lost_text=lost_text)
    again = verdict.retry_seconds is not None
    if not again or job.restart_policy != RestartPolicy.NEVER or stop_reason == StopReason.QUOTA_REFUSED:
        return verdict
    if tasks and not any(task.may_have_begun for task in tasks):
        return verdict
    why = f"Stopped ({stop_reason})." if verdict.attempt == AttemptState.STOPPED else verdict.text
    return replace(verdict, job=JobState.FAILED, text=f"{why} {AT_MOST_ONCE}", retry_seconds=None)


def _judge(job: JobFacts, stop_reason: str, tasks: Sequence[TaskEnd], *, lost_text: str) -> Verdict:
    if job.elastic and not stop_reason:
        tasks = [task for task in tasks if task.state != TaskState.STOPPED]
    first_bad = next((task for task in tasks if task.state != TaskState.SUCCEEDED), None)
    culprit = next((task for task in tasks if task.state == TaskState.FAILED), first_bad)
    if not lost_text and first_bad is None:
        return _succeeded(job)
    if job.on_task_failure == TaskFailure.CONTINUE and not lost_text and not stop_reason:
        good = sum(task.state == TaskState.SUCCEEDED for task in tasks)
        if good >= max(job.least_tasks, 1):
            text = f"{len(tasks) - good} of {len(tasks)} tasks failed; the other {good} were enough."
            return replace(_succeeded(job), text=text)
    if not lost_text and any(task.state == TaskState.LOST for task in tasks):
        lost_text = next(task.text for task in tasks if task.state == TaskState.LOST) or "A task was lost."
    code = culprit.exit_code if culprit else None
    exit_signal = culprit.exit_signal if culprit else None
    if job.state == JobState.STOPPING:
        attempt = AttemptState.LOST if lost_text else AttemptState.STOPPED
        return Verdict(attempt, JobState.CANCELLED, code, exit_signal, "Cancelled.")
    if lost_text:
        return _lost(job, lost_text)
    if stop_reason in (
        StopReason.PREEMPTED,
        StopReason.DRAINED,
        StopReason.EVICTED,
        StopReason.STALE_EPOCH,
    ):
        text = f"Stopped ({stop_reason}); waiting to start again."
        return Verdict(AttemptState.STOPPED, JobState.QUEUED, code, exit_signal, text, retry_seconds=0)
    if stop_reason == StopReason.QUOTA_REFUSED:
        text = next((task.text for task in tasks if task.text), "") or "The quota provider refused the start."
        wait = backoff_seconds(job.earlier_refused)
        return Verdict(AttemptState.STOPPED, JobState.QUEUED, None, None, text, retry_seconds=wait)
    if stop_reason == StopReason.TIME_LIMIT:
        limit = f" of {duration(job.time_limit_seconds)}" if job.time_limit_seconds else ""
        text = f"Stopped at the time limit{limit}."
        return Verdict(AttemptState.FAILED, JobState.FAILED, code, exit_signal, text)
    text = describe(culprit, tasks) if culprit else "Ended."
    return _failed(job, code, exit_signal, text)


def _succeeded(job: JobFacts) -> Verdict:
    if (
        job.restart_policy == RestartPolicy.ALWAYS
        and job.state != JobState.STOPPING
        and job.earlier_ended < job.max_restarts
    ):
        wait = backoff_seconds(job.earlier_ended)
        text = "Ended; restarted by the restart policy."
        return Verdict(AttemptState.SUCCEEDED, JobState.QUEUED, 0, None, text, retry_seconds=wait)
    return Verdict(AttemptState.SUCCEEDED, JobState.COMPLETED, 0, None, "")


def _lost(job: JobFacts, text: str) -> Verdict:
    """Not the job's fault, so it is tried again whatever its policy, but not for ever.

    Stopping Muster in good order never fails a job; it only waits longer where that happens again and again.
    """
    if job.earlier_lost < job.max_restarts or text == SHUT_DOWN:
        wait = backoff_seconds(job.earlier_lost)
        return Verdict(AttemptState.LOST, JobState.QUEUED, None, None, text, retry_seconds=wait)
    times = job.earlier_lost + 1
    return Verdict(AttemptState.LOST, JobState.FAILED, None, None, f"Lost {times} times. {text}")


def _failed(job: JobFacts, code: int | None, exit_signal: int | None, text: str) -> Verdict:
    again = (
        job.restart_policy in (RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS)
        or job.on_task_failure == TaskFailure.REQUEUE
    )
    if again and job.earlier_ended < job.max_restarts:
        wait = backoff_seconds(job.earlier_ended)
        return Verdict(AttemptState.FAILED, JobState.QUEUED, code, exit_signal, text, retry_seconds=wait)
    return Verdict(AttemptState.FAILED, JobState.FAILED, code, exit_signal, text)


def backoff_seconds(earlier: int) -> int:
    return min(LONGEST_BACKOFF_SECONDS, BACKOFF_SECONDS * 2 ** min(earlier, 20))


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
    import signal

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
