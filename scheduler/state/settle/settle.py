"""Ends attempts: gives back what they held, once, and moves their jobs on; a batch costs what one costs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask, ask_together
from infra.times_in_text import written
from quotas.core.limits import RUNNING_JOBS
from quotas.selectors.fair_share_source import Held
from quotas.services.shares import count_use, statements_of_use
from scheduler import outbox
from scheduler.core.lifecycle import (
    ENDED_ATTEMPT,
    LIVE_ATTEMPT,
    LIVE_TASK,
    TERMINAL,
    AttemptState,
    StopReason,
    TaskFailure,
    TaskState,
)
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.state.db.sql import Rows, Statement, int_array, run, run_together
from scheduler.state.ledger import ledger
from scheduler.state.lifecycle import dependencies
from scheduler.state.lifecycle.verdicts import NEVER_GIVEN, JobFacts, TaskEnd, Verdict, judge
from scheduler.state.load import load_sql
from scheduler.state.load.quota_rows import Lines, amount_held
from scheduler.state.settle.release_capacity import giving_back

_LIVE_ATTEMPT: Final = sorted(s.value for s in LIVE_ATTEMPT)
_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
_ENDED_ATTEMPT: Final = sorted(s.value for s in ENDED_ATTEMPT)
#: As text of statements, so that indexes on just those rows are used however a statement is planned.
_IS_LIVE: Final = f"({', '.join(repr(state) for state in _LIVE_ATTEMPT)})"


@dataclass(frozen=True, slots=True)
class Settled:
    """One attempt that this call ended."""

    attempt_id: int
    job_number: int
    verdict: Verdict


@dataclass(slots=True)
class _Job:
    """What settling reads of a job."""

    number: int
    state: str
    user_id: int
    project_id: int
    cluster_id: int
    job_type: str
    restart_policy: str
    max_restarts: int
    time_limit_seconds: int | None
    saved_at: datetime | None
    tasks: int
    min_tasks: int | None
    elastic: bool
    on_task_failure: str

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


@dataclass(slots=True)
class _Attempt:
    id: int
    epoch: int
    stop_reason: str
    started_at: datetime | None
    job: _Job
    #: It stands still for another job, or has.
    stood_still: bool = False


def end_attempt(*, attempt_id: int, epoch: int, lost_text: str, at: datetime | None = None) -> Settled | None:
    """Declare one attempt lost, and what of it may still run stale; None when it has ended already."""
    settled = settle_many([attempt_id], lost={attempt_id: lost_text}, epochs={attempt_id: epoch}, at=at)
    return settled[0] if settled else None


@transaction.atomic
def settle_many(
    attempt_ids: Iterable[int],
    *,
    lost: Mapping[int, str] | None = None,
    epochs: Mapping[int, int] | None = None,
    at: datetime | None = None,
) -> list[Settled]:
    """End those of these attempts whose tasks have all ended, and those in `lost` whatever their tasks do.

    Safe to call again and from several processes at once:

    1. The rows are locked in the one order that apply takes too: nodes, devices, quotas, budget periods,
       jobs, attempts.
    2. Under the locks the attempts are read again; one that has ended meanwhile is left alone.
    3. Allocations give back what they hold as they go from held to released: never twice.
    4. The ledger charges what was used and gives back what was set aside and not needed.
    5. Attempt, job and event are written; dependants are let go; the planner is woken after commit.
    """
    lost = lost or {}
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return []
    locked, live, ends = _lock_and_read(wanted)
    at = at or timezone.now()
    attempts = _live_of(live, epochs or {})
    if lost:
        _lose_tasks([a.id for a in attempts if a.id in lost], lost, at)
        ends = ask(*_read_ends(wanted))
    tasks = _ends_of(ends)
    attempts = [
        a
        for a in attempts
        if a.id in lost or all(task.state not in LIVE_TASK for task in tasks.get(a.id, []))
    ]
    if not attempts:
        return []
    facts = _facts(attempts)
    verdicts = {
        a.id: judge(facts[a.id], a.stop_reason, tasks.get(a.id, []), lost_text=lost.get(a.id, ""))
        for a in attempts
    }
    _end_suspensions([a.id for a in attempts if a.stood_still], at)
    endings = _endings(attempts, verdicts)
    rows, *books = ask_together(_give_back(attempts, at), *ledger.to_read(endings))
    freed, held, giving = _freed(attempts, rows)
    ask_together(
        *giving,
        *_lower_quotas(attempts, freed, locked),
        *_charge(attempts, endings, books, at),
        _write_attempts(verdicts, at),
        _write_jobs(attempts, verdicts, at),
        *_write_events(attempts, verdicts, at),
        *statements_of_use(held),
    )
    _tell(attempts, at)
    return [Settled(a.id, a.job.number, verdicts[a.id]) for a in attempts]


# ---------------------------------------------------------------- read, under locks


_OF_ATTEMPTS: Final = "ANY(%s::bigint[])"
_HELD: Final = f"""SELECT {{}} FROM scheduler_allocation a
    WHERE a.attempt_id = {_OF_ATTEMPTS} AND a.released_at IS NULL"""
_JOBS: Final = f"SELECT job_id FROM scheduler_attempt WHERE id = {_OF_ATTEMPTS}"
_OF_JOBS: Final = f"ANY(ARRAY(SELECT {{}} FROM scheduler_job WHERE number IN ({_JOBS})))"
_WORDS: Final = {
    "projects": _OF_JOBS.format("project_id"), "users": _OF_JOBS.format("user_id"), "bounded": "",
}  # fmt: skip
#: The rows that settling changes, in the one order; each statement asks for the attempts so many times.
_LOCKS: Final = (
    (f"SELECT id FROM scheduler_node WHERE id IN ({_HELD.format('a.node_id')}) ORDER BY id"
     " FOR NO KEY UPDATE", 1),
    (f"SELECT id FROM scheduler_device WHERE id IN ({_HELD.format('unnest(a.device_ids)')}) ORDER BY id"
     " FOR NO KEY UPDATE", 1),
    (load_sql.LINES.format(**_WORDS, lock="FOR NO KEY UPDATE OF quota"), 4),
    (load_sql.ORGANIZATIONS.format(**_WORDS), 1),
    (f"SELECT id, organization_id FROM accounts_project WHERE id = {_WORDS['projects']}", 1),
    (load_sql.PERIODS_OF_ATTEMPTS, 2),
    (f"SELECT number FROM scheduler_job WHERE number IN ({_JOBS}) ORDER BY number FOR NO KEY UPDATE", 1),
    (f"SELECT id FROM scheduler_attempt WHERE id = {_OF_ATTEMPTS} ORDER BY id FOR NO KEY UPDATE", 1),
)  # fmt: skip
_READ_LIVE: Final = f"""
SELECT a.id, a.epoch, a.stop_reason, a.started_at, a.suspended_at IS NOT NULL OR a.suspended_ms > 0,
    j.number, j.state, j.user_id, j.project_id, q.cluster_id, j.job_type, j.restart_policy, j.max_restarts,
    j.time_limit_seconds, j.saved_at, j.tasks, j.min_tasks, j.elastic, j.on_task_failure
FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id JOIN scheduler_queue q ON q.id = j.queue_id
WHERE a.id = {_OF_ATTEMPTS} AND a.state IN {_IS_LIVE} ORDER BY a.id
"""
_READ_ENDS: Final = f"""
SELECT t.attempt_id, t.rank, n.name, t.state, t.exit_code, t.exit_signal, t.end_text
FROM scheduler_task t JOIN scheduler_node n ON n.id = t.node_id
WHERE t.attempt_id = {_OF_ATTEMPTS} ORDER BY t.attempt_id, t.rank
"""


def lock_rows(attempt_ids: list[int]) -> Lines:
    """Take the rows that will change, in the one order; answers the quota lines that the jobs count on."""
    return _lines_of(ask_together(*_locks(attempt_ids)))


def _lock_and_read(attempt_ids: list[int]) -> tuple[Lines, Rows, Rows]:
    """The same, and what attempts and jobs and the ends of tasks are once that is done, in one round trip."""
    ids = int_array(attempt_ids)
    *locked, live, ends = ask_together(*_locks(attempt_ids), (_READ_LIVE, [ids]), (_READ_ENDS, [ids]))
    return _lines_of(locked), live, ends


def _locks(attempt_ids: list[int]) -> list[Statement]:
    ids = int_array(attempt_ids)
    return [(sql, [ids] * times) for sql, times in _LOCKS]


def _lines_of(locked: Sequence[Rows]) -> Lines:
    return Lines(locked[2], locked[3], locked[4])


def _live_of(rows: Rows, epochs: Mapping[int, int]) -> list[_Attempt]:
    return [
        _Attempt(id_, epoch, stop_reason, started_at, _Job(*job), stood_still)
        for id_, epoch, stop_reason, started_at, stood_still, *job in rows
        if epochs.get(id_, epoch) == epoch
    ]


def _read_ends(attempt_ids: list[int]) -> Statement:
    return _READ_ENDS, [int_array(attempt_ids)]


def _ends_of(rows: Rows) -> dict[int, list[TaskEnd]]:
    tasks: dict[int, list[TaskEnd]] = defaultdict(list)
    for attempt_id, *end in rows:
        tasks[attempt_id].append(TaskEnd(*end))
    return tasks


def _lose_tasks(attempt_ids: list[int], lost: Mapping[int, str], at: datetime) -> None:
    run(
        "UPDATE scheduler_task t SET state = %s, ended_at = %s,"
        " end_text = CASE WHEN t.state = 'assigned' THEN %s ELSE l.text END"
        " FROM unnest(%s::bigint[], %s::text[]) AS l(attempt_id, text)"
        " WHERE t.attempt_id = l.attempt_id AND t.state = ANY(%s)",
        [
            TaskState.LOST.value,
            at,
            NEVER_GIVEN,
            attempt_ids,
            [lost[i][:300] for i in attempt_ids],
            _LIVE_TASK,
        ],
    )


def _facts(attempts: list[_Attempt]) -> dict[int, JobFacts]:
    """What the verdict needs of each job; earlier attempts are only counted for jobs that have some."""
    again = [a.job.number for a in attempts if a.epoch > 1]
    lost: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    refused: Counter[int] = Counter()
    if again:
        for number, state, is_refused, count in run(
            "SELECT job_id, state, stop_reason = %s, count(*) FROM scheduler_attempt"
            " WHERE job_id = ANY(%s) AND state = ANY(%s) GROUP BY job_id, state, stop_reason = %s",
            [StopReason.QUOTA_REFUSED.value, again, _ENDED_ATTEMPT, StopReason.QUOTA_REFUSED.value],
        ):
            if is_refused:
                refused[number] += count
            elif state == AttemptState.LOST:
                lost[number] += count
            elif state in (AttemptState.SUCCEEDED, AttemptState.FAILED):
                ended[number] += count
    return {
        a.id: JobFacts(
            state=a.job.state,
            restart_policy=a.job.restart_policy,
            max_restarts=a.job.max_restarts,
            time_limit_seconds=a.job.time_limit_seconds,
            earlier_lost=lost[a.job.number],
            earlier_ended=ended[a.job.number],
            earlier_refused=refused[a.job.number],
            on_task_failure=a.job.on_task_failure,
            least_tasks=a.job.min_tasks or a.job.tasks,
            elastic=a.job.elastic,
        )
        for a in attempts
    }


# ---------------------------------------------------------------- give back


@transaction.atomic
def release_members(attempt_ids: Iterable[int], *, at: datetime | None = None) -> int:
    """Give back what ended tasks hold of attempts that go on without them; answers of how many attempts.

    Locks, and is safe to call again, as `settle_many`. The ledger hears of it when the attempt ends.
    """
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return 0
    lines, live, _ = _lock_and_read(wanted)
    at = at or timezone.now()
    attempts = [
        a for a in _live_of(live, {}) if a.job.elastic or a.job.on_task_failure == TaskFailure.CONTINUE
    ]
    freed, held, giving = _freed(attempts, ask(*_give_back(attempts, at, members=True)))
    some = [a for a in attempts if any(freed[a.id])]
    if some:
        run_together(*giving, *_lower_quotas(some, freed, lines, jobs=0))
        count_use(held)
        announce_jobs(a.job for a in some)
        outbox.announce(outbox.CLUSTER_TOPIC)
        for cluster_id in sorted({a.job.cluster_id for a in some}):
            outbox.wake_planner(cluster_id, trigger="ended")
    return len(some)


def shrunk_attempts() -> list[int]:
    """Live attempts with tasks that have ended and hold something all the same: somebody was killed before
    it was given back, or there was nothing to give back it for yet."""
    return [
        row[0]
        for row in run(
            "SELECT DISTINCT a.id FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id"
            " JOIN scheduler_allocation held ON held.attempt_id = a.id AND held.released_at IS NULL"
            " JOIN scheduler_task t ON t.attempt_id = a.id AND t.rank = held.rank"
            " WHERE a.state = ANY(%s) AND t.state <> ALL(%s) AND (j.elastic OR j.on_task_failure = %s)"
            " ORDER BY a.id",
            [_LIVE_ATTEMPT, _LIVE_TASK, TaskFailure.CONTINUE.value],
        )
    ]


def _end_suspensions(attempt_ids: list[int], at: datetime) -> None:
    if not attempt_ids:
        return
    run(
        "UPDATE scheduler_suspension SET ends_at = greatest(%s, starts_at)"
        " WHERE attempt_id = ANY(%s) AND starts_at IS NOT NULL AND ends_at IS NULL",
        [at, attempt_ids],
    )


def _stood_still(attempt_ids: list[int]) -> dict[int, list[tuple[float, float | None]]]:
    """When attempts stood still, in epoch seconds; the end of one that still does is None."""
    found: dict[int, list[tuple[float, float | None]]] = defaultdict(list)
    if not attempt_ids:
        return found
    for attempt_id, start, end in run(
        "SELECT attempt_id, extract(epoch FROM starts_at)::float8, extract(epoch FROM ends_at)::float8"
        " FROM scheduler_suspension WHERE attempt_id = ANY(%s) AND starts_at IS NOT NULL ORDER BY id",
        [attempt_ids],
    ):
        found[attempt_id].append((start, end))
    return found


class _Freed(NamedTuple):
    """What one attempt gives back, its GPU thousandths also by device."""

    cpu_millis: int
    memory_mib: int
    storage_mib: int
    gpu_millis: int
    devices: Mapping[int, int]


#: Of whole attempts, or only what tasks hold that have ended.
_GIVE_BACK: Final = f"""
UPDATE scheduler_allocation held SET released_at = greatest(%s, held.held_at)
WHERE held.attempt_id = {_OF_ATTEMPTS} AND held.released_at IS NULL {{members}}
RETURNING held.attempt_id, held.node_id, held.cpu_millis, held.memory_mib, held.storage_mib, held.gpu_millis,
    held.device_ids, extract(epoch FROM held.held_at)::float8, extract(epoch FROM held.released_at)::float8,
    held.suspended_cpu_millis
"""
_OF_ENDED_TASKS: Final = f"""AND EXISTS (SELECT 1 FROM scheduler_task t WHERE t.attempt_id = held.attempt_id
    AND t.rank = held.rank AND t.state NOT IN ({", ".join(repr(state) for state in _LIVE_TASK)}))"""
_NODES_GIVEN_BACK: Final = (
    f"UPDATE scheduler_node n SET {giving_back('cpu', 'l.cpu')}, {giving_back('memory', 'l.memory')},"
    " used_storage_mib = n.used_storage_mib - l.storage, used_gpu_millis = n.used_gpu_millis - l.gpu"
    " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
    " AS l(id, cpu, memory, storage, gpu) WHERE n.id = l.id"
)


def _give_back(attempts: list[_Attempt], at: datetime, *, members: bool = False) -> Statement:
    """Free allocations, once; with `members` only those of tasks that have ended. Its rows go to `_freed`."""
    sql = _GIVE_BACK.format(members=_OF_ENDED_TASKS if members else "")
    return sql, [at, int_array(a.id for a in attempts)]


def _freed(attempts: list[_Attempt], rows: Rows) -> tuple[dict[int, _Freed], list[Held], list[Statement]]:
    """What each attempt held, what each task held how long, and what gives it back to nodes and devices."""
    attempt_ids = [a.id for a in attempts]
    jobs = {a.id: a.job for a in attempts}
    stood = _stood_still([a.id for a in attempts if a.stood_still])
    held: dict[int, list[int]] = {attempt_id: [0, 0, 0, 0] for attempt_id in attempt_ids}
    on_devices: dict[int, Counter[int]] = {attempt_id: Counter() for attempt_id in attempt_ids}
    nodes: dict[int, list[int]] = {}
    devices: Counter[int] = Counter()
    spans: list[Held] = []
    for attempt_id, node_id, *amounts, device_ids, start, end, given_back in rows:
        job = jobs[attempt_id]
        cpu, memory, _, gpu = amounts
        cores = (cpu + given_back) / 1000
        spans.append(Held(job.project_id, job.user_id, start, end, gpu / 1000, cores, memory / 1024))
        for still_from, still_until in stood.get(attempt_id, ()):
            until = min(still_until or end, end)
            if still_from < until:
                spans.append(Held(job.project_id, job.user_id, still_from, until, 0, -cores, 0))
        node = nodes.setdefault(node_id, [0, 0, 0, 0])
        for position, amount in enumerate(amounts):
            held[attempt_id][position] += amount
            node[position] += amount
        for device_id in device_ids:
            devices[device_id] += amounts[3] // len(device_ids)
            on_devices[attempt_id][device_id] += amounts[3] // len(device_ids)
    giving: list[Statement] = []
    if nodes:
        giving.append(
            (_NODES_GIVEN_BACK, [int_array(nodes), *map(int_array, zip(*nodes.values(), strict=True))])
        )
    if devices:
        giving.append(
            (
                "UPDATE scheduler_device d SET used_millis = d.used_millis - l.millis"
                " FROM unnest(%s::bigint[], %s::int[]) AS l(id, millis) WHERE d.id = l.id",
                [int_array(devices), int_array(devices.values())],
            )
        )
    return {number: _Freed(*amounts, on_devices[number]) for number, amounts in held.items()}, spans, giving


def _lower_quotas(
    attempts: list[_Attempt], held: Mapping[int, _Freed], lines: Lines, *, jobs: int = 1
) -> list[Statement]:
    models: dict[int, str] = {}
    if lines.has_models:
        devices = sorted({device for freed in held.values() for device in freed.devices})
        models = dict(run("SELECT id, model FROM scheduler_device WHERE id = ANY(%s)", [devices]))
    less: Counter[int] = Counter()
    for attempt in attempts:
        job, freed = attempt.job, held[attempt.id]
        by_model: Counter[str] = Counter()
        for device, millis in freed.devices.items():
            by_model[models.get(device, "")] += millis
        for row in lines.of_job(job.project_id, job.user_id, job.job_type):
            less[row.id] += jobs if row.resource == RUNNING_JOBS else amount_held(row, freed, by_model)
    if not any(less.values()):
        return []
    return [
        (
            # A line made while the job ran did not count it: it never goes below nothing.
            "UPDATE quotas_quota q SET used = greatest(0, q.used - l.amount)"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS l(id, amount) WHERE q.id = l.id AND l.amount > 0",
            [int_array(less), int_array(less.values())],
        )
    ]


def _endings(attempts: list[_Attempt], verdicts: Mapping[int, Verdict]) -> list[ledger.Ending]:
    """What is charged, and what is forgiven by the rule of the site (LEDGER_FORGIVES)."""
    endings = []
    for attempt in attempts:
        verdict, job, forgiven = verdicts[attempt.id], attempt.job, ""
        if verdict.attempt is AttemptState.LOST and "lost" in settings.LEDGER_FORGIVES:
            forgiven = f"lost: {verdict.text}"
        elif (
            attempt.stop_reason == StopReason.PREEMPTED
            and verdict.retry_seconds is not None
            and "preempted" in settings.LEDGER_FORGIVES
        ):
            forgiven = "stopped for another job"
        endings.append(ledger.Ending(attempt.id, job.number, job.project_id, job.user_id, forgiven))
    return endings


def _charge(
    attempts: list[_Attempt], endings: Sequence[ledger.Ending], found: Sequence[Rows], at: datetime
) -> list[Statement]:
    """Write what each attempt used; `found` are the rows of `ledger.to_read`."""
    entries, books = ledger.as_read(found)
    lines = ledger.charged(endings, entries, books, at=at)
    still = {a.id for a in attempts if a.stood_still}
    if still:
        some = [ending for ending in endings if ending.attempt_id in still and not ending.forgiven]
        lines += ledger.given_back_suspended(some, books, at=at)
    partly = {a.id for a in attempts if a.job.elastic or a.job.on_task_failure == TaskFailure.CONTINUE}
    if partly:
        some = [ending for ending in endings if ending.attempt_id in partly and not ending.forgiven]
        lines += ledger.given_back_early(some, books, at=at)
    return ledger.write(lines, books, at=at)


# ---------------------------------------------------------------- write


def _write_attempts(verdicts: Mapping[int, Verdict], at: datetime) -> Statement:
    return (
        "UPDATE scheduler_attempt a SET state = v.state, ended_at = %s, exit_code = v.code,"
        " exit_signal = v.signal, end_text = v.text"
        " FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::text[])"
        " AS v(id, state, code, signal, text) WHERE a.id = v.id",
        [
            at, int_array(verdicts), [v.attempt.value for v in verdicts.values()],
            int_array(v.exit_code for v in verdicts.values()),
            int_array(v.exit_signal for v in verdicts.values()), [v.text[:300] for v in verdicts.values()],
        ],
    )  # fmt: skip


def _write_jobs(attempts: list[_Attempt], verdicts: Mapping[int, Verdict], at: datetime) -> Statement:
    """The jobs are locked and were read under the lock, so this update cannot race."""
    columns: list[list[Any]] = [[] for _ in range(11)]
    for attempt in attempts:
        verdict, job = verdicts[attempt.id], attempt.job
        retry_at = (
            at + timedelta(seconds=verdict.retry_seconds) if verdict.retry_seconds is not None else None
        )
        reason = _waiting(verdict, at) if retry_at else ("", "", "", "{}")
        row = (job.number, verdict.job.value, verdict.exit_code, verdict.exit_signal, verdict.text[:300],
               None if retry_at else at, retry_at, *reason)  # fmt: skip
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        job.state = verdict.job.value
    numbers, states, codes, signals, *others = columns
    return (
        "UPDATE scheduler_job j SET state = v.state, generation = j.generation + 1, exit_code = v.code,"
        " exit_signal = v.signal, end_text = v.text, completed_at = v.completed_at,"
        # Who starts again without a wait was stopped by no fault of its own and keeps its place.
        " eligible_at = CASE WHEN v.retry_at IS NULL OR v.reason_code = 'NotEvaluatedYet'"
        " THEN coalesce(j.eligible_at, v.retry_at) ELSE v.retry_at END,"
        " started_at = CASE WHEN v.retry_at IS NULL THEN j.started_at END,"
        " scheduled_at = CASE WHEN v.retry_at IS NULL THEN j.scheduled_at END,"
        " reason_code = v.reason_code, reason_text = v.reason_text, reason_details = v.details::jsonb,"
        " reason_category = v.category,"
        " reason_at = CASE WHEN v.reason_code = '' THEN NULL ELSE %s END, expected_start_at = NULL"
        " FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::text[], %s::timestamptz[],"
        " %s::timestamptz[], %s::text[], %s::text[], %s::text[], %s::text[]) AS v(number, state, code, signal,"
        " text, completed_at, retry_at, reason_code, category, reason_text, details) WHERE j.number = v.number",
        [at, int_array(numbers), states, int_array(codes), int_array(signals), *others],
    )


def _waiting(verdict: Verdict, at: datetime) -> tuple[str, str, str, str]:
    """The reason columns of a job that is queued again."""
    seconds = verdict.retry_seconds or 0
    if seconds == 0:
        code, text = ReasonCode.NOT_EVALUATED_YET, "Requeued; the next cycle evaluates the job."
        return code.value, CATEGORY[code].value, text, "{}"
    code, until = ReasonCode.BACKOFF, at + timedelta(seconds=seconds)
    text = f"Next attempt at {written(until)} or later. Last attempt: {verdict.text}"
    details = json.dumps({"until": until.isoformat(), "wait_seconds": seconds})
    return code.value, CATEGORY[code].value, text, details


def _write_events(attempts: list[_Attempt], verdicts: Mapping[int, Verdict], at: datetime) -> list[Statement]:
    rows: list[tuple[int, int, str, str, str]] = []
    for attempt in attempts:
        verdict, number = verdicts[attempt.id], attempt.job.number
        details = {"attempt": verdict.attempt.value, "exit_code": verdict.exit_code}
        if verdict.exit_signal is not None:
            details["exit_signal"] = verdict.exit_signal
        if attempt.stop_reason:
            details["stop_reason"] = attempt.stop_reason
        text = verdict.text or "every task ended with exit code 0"
        if verdict.retry_seconds is not None:
            details["retry_seconds"] = verdict.retry_seconds
            kind = (
                "job.preempted" if attempt.stop_reason == "preempted" else f"attempt.{verdict.attempt.value}"
            )
            rows.append((number, attempt.epoch, kind, text[:300], json.dumps(details)))
            rows.append((number, attempt.epoch, "job.queued", "to be tried again", "{}"))
        else:
            rows.append((number, attempt.epoch, f"job.{verdict.job.value}", text[:300], json.dumps(details)))
    return events(rows, at=at)


Event = tuple[int, int, str, str, str]


def write_events(rows: Sequence[Event], *, at: datetime | Sequence[datetime]) -> None:
    """Events as (job number, epoch, kind, because, details in JSON), in this order, in one statement.

    `at` is the moment of all, or of each.
    """
    for statement in events(rows, at=at):
        ask(*statement)


def events(rows: Sequence[Event], *, at: datetime | Sequence[datetime]) -> list[Statement]:
    """The statement that writes them, if there are any."""
    if not rows:
        return []
    numbers, epochs, *texts = zip(*rows, strict=True)
    moments = [at] * len(rows) if isinstance(at, datetime) else list(at)
    return [
        (
            "INSERT INTO scheduler_jobevent (job_id, epoch, kind, because, details, at)"
            " SELECT number, epoch, kind, because, details::jsonb, at"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])"
            " WITH ORDINALITY AS e(number, epoch, kind, because, details, at, place) ORDER BY place",
            [int_array(numbers), int_array(epochs), *map(list, texts), moments],
        )
    ]


def _tell(attempts: list[_Attempt], at: datetime) -> None:
    jobs = [attempt.job for attempt in attempts]
    clusters = {job.cluster_id for job in jobs}
    clusters |= dependencies.resolve_dependants([job for job in jobs if job.is_terminal], at=at)
    announce_jobs(jobs)
    outbox.announce(outbox.CLUSTER_TOPIC)
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="ended")


def announce_jobs(jobs: Iterable[_Job]) -> None:
    topics = {outbox.QUEUES_TOPIC}
    for job in jobs:
        topics |= {
            outbox.job_topic(job.number),
            outbox.user_topic(job.user_id),
            outbox.project_topic(job.project_id),
        }
    outbox.announce_many(topics)


def waiting_attempts() -> list[int]:
    """Live attempts whose tasks have all ended: somebody was killed between the report and the settling."""
    return [
        row[0]
        for row in run(
            "SELECT a.id FROM scheduler_attempt a WHERE a.state = ANY(%s) AND NOT EXISTS ("
            " SELECT 1 FROM scheduler_task t WHERE t.attempt_id = a.id AND t.state = ANY(%s)) ORDER BY a.id",
            [_LIVE_ATTEMPT, _LIVE_TASK],
        )
    ]


__all__ = [
    "Settled",
    "announce_jobs",
    "end_attempt",
    "events",
    "release_members",
    "settle_many",
    "shrunk_attempts",
    "waiting_attempts",
    "write_events",
]
