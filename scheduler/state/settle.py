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

from quotas.core.limits import RUNNING_JOBS
from quotas.services.shares import count_use
from quotas.sharing import Held
from scheduler import outbox
from scheduler.core.lifecycle import (
    ENDED_ATTEMPT,
    LIVE_ATTEMPT,
    LIVE_TASK,
    AttemptState,
    StopReason,
    TaskFailure,
    TaskState,
)
from scheduler.core.reasons import CATEGORY, ReasonCode
from scheduler.models import Job
from scheduler.state import dependencies, ledger, queries
from scheduler.state.capacity import giving_back
from scheduler.state.endings import JobFacts, TaskEnd, Verdict, judge
from scheduler.state.lines import Lines, amount_held
from scheduler.state.sql import run, run_together, select_together

_LIVE_ATTEMPT: Final = sorted(s.value for s in LIVE_ATTEMPT)
_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
_ENDED_ATTEMPT: Final = sorted(s.value for s in ENDED_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Settled:
    """One attempt that this call ended."""

    attempt_id: int
    job_number: int
    verdict: Verdict


@dataclass(slots=True)
class _Attempt:
    id: int
    epoch: int
    stop_reason: str
    started_at: datetime | None
    job: Job
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
    lines = lock_rows(wanted)
    at = at or timezone.now()
    attempts = _read_live(wanted, epochs or {})
    if lost:
        _lose_tasks([a.id for a in attempts if a.id in lost], lost, at)
    tasks = _read_tasks([a.id for a in attempts])
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
    freed, held = _release(attempts, at)
    _lower_quotas(attempts, freed, lines)
    _charge(attempts, verdicts, at)
    _write_attempts(verdicts, at)
    _write_jobs(attempts, verdicts, at)
    _write_events(attempts, verdicts, at)
    count_use(held)
    _tell(attempts, freed, at)
    return [Settled(a.id, a.job.number, verdicts[a.id]) for a in attempts]


# ---------------------------------------------------------------- read, under locks


def lock_rows(attempt_ids: list[int]) -> Lines:
    """Take the rows that will change, in the one order; answers the quota lines that the jobs count on."""
    held = "SELECT {} FROM scheduler_allocation a WHERE a.attempt_id = ANY(%s) AND a.released_at IS NULL"
    jobs = "SELECT job_id FROM scheduler_attempt WHERE id = ANY(%s)"
    for sql in (
        f"SELECT id FROM scheduler_node WHERE id IN ({held.format('a.node_id')}) ORDER BY id",
        f"SELECT id FROM scheduler_device WHERE id IN ({held.format('unnest(a.device_ids)')}) ORDER BY id",
    ):
        run(sql + " FOR NO KEY UPDATE", [attempt_ids])
    of_jobs = f"ANY(ARRAY(SELECT {{}} FROM scheduler_job WHERE number IN ({jobs})))"
    words = {"projects": of_jobs.format("project_id"), "users": of_jobs.format("user_id"), "bounded": ""}
    rows, organizations, projects = select_together(
        (queries.LINES.format(**words, lock="FOR NO KEY UPDATE OF quota"), [attempt_ids] * 4),
        (queries.ORGANIZATIONS.format(**words), [attempt_ids]),
        (f"SELECT id, organization_id FROM accounts_project WHERE id = {words['projects']}", [attempt_ids]),
    )
    ledger.lock_periods(attempt_ids)
    for sql in (
        f"SELECT number FROM scheduler_job WHERE number IN ({jobs}) ORDER BY number",
        "SELECT id FROM scheduler_attempt WHERE id = ANY(%s) ORDER BY id",
    ):
        run(sql + " FOR NO KEY UPDATE", [attempt_ids])
    return Lines(rows, organizations, projects)


def _read_live(attempt_ids: list[int], epochs: Mapping[int, int]) -> list[_Attempt]:
    rows = run(
        "SELECT id, epoch, stop_reason, started_at, job_id, suspended_at IS NOT NULL OR suspended_ms > 0"
        " FROM scheduler_attempt"
        " WHERE id = ANY(%s) AND state = ANY(%s) ORDER BY id",
        [attempt_ids, _LIVE_ATTEMPT],
    )
    rows = [row for row in rows if epochs.get(row[0], row[1]) == row[1]]
    jobs = (
        Job.objects.filter(number__in=[row[4] for row in rows])
        .select_related("queue")
        .only(
            "number", "state", "epoch", "generation", "user_id", "project_id", "restart_policy", "max_restarts",
            "time_limit_seconds", "begin_at", "name", "saved_at", "job_type", "queue__cluster_id",
            "tasks", "min_tasks", "elastic", "on_task_failure",
        )
        .in_bulk()
    )  # fmt: skip
    return [_Attempt(row[0], row[1], row[2], row[3], jobs[row[4]], row[5]) for row in rows]


def _read_tasks(attempt_ids: list[int]) -> dict[int, list[TaskEnd]]:
    tasks: dict[int, list[TaskEnd]] = defaultdict(list)
    for attempt_id, *end in run(
        "SELECT t.attempt_id, t.rank, n.name, t.state, t.exit_code, t.exit_signal, t.end_text"
        " FROM scheduler_task t JOIN scheduler_node n ON n.id = t.node_id"
        " WHERE t.attempt_id = ANY(%s) ORDER BY t.attempt_id, t.rank",
        [attempt_ids],
    ):
        tasks[attempt_id].append(TaskEnd(*end))
    return tasks


def _lose_tasks(attempt_ids: list[int], lost: Mapping[int, str], at: datetime) -> None:
    run(
        "UPDATE scheduler_task t SET state = %s, ended_at = %s, end_text = l.text"
        " FROM unnest(%s::bigint[], %s::text[]) AS l(attempt_id, text)"
        " WHERE t.attempt_id = l.attempt_id AND t.state = ANY(%s)",
        [TaskState.LOST.value, at, attempt_ids, [lost[i][:300] for i in attempt_ids], _LIVE_TASK],
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
    lines = lock_rows(wanted)
    at = at or timezone.now()
    attempts = [
        a for a in _read_live(wanted, {}) if a.job.elastic or a.job.on_task_failure == TaskFailure.CONTINUE
    ]
    freed, held = _release(attempts, at, members=True)
    some = [a for a in attempts if any(freed[a.id])]
    if some:
        _lower_quotas(some, freed, lines, jobs=0)
        count_use(held)
        announce_jobs(a.job for a in some)
        outbox.announce(outbox.CLUSTER_TOPIC)
        for cluster_id in sorted({a.job.queue.cluster_id for a in some}):
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


def _release(
    attempts: list[_Attempt], at: datetime, *, members: bool = False
) -> tuple[dict[int, _Freed], list[Held]]:
    """Free nodes and devices; with `members` only what tasks hold that have ended.

    Answers what each attempt held, and what each task held how long.
    """
    attempt_ids = [a.id for a in attempts]
    jobs = {a.id: a.job for a in attempts}
    rows = run(
        "UPDATE scheduler_allocation SET released_at = greatest(%s, held_at)"
        " WHERE attempt_id = ANY(%s) AND released_at IS NULL AND (NOT %s OR EXISTS ("
        "  SELECT 1 FROM scheduler_task t WHERE t.attempt_id = scheduler_allocation.attempt_id"
        "  AND t.rank = scheduler_allocation.rank AND t.state <> ALL(%s)))"
        " RETURNING attempt_id, node_id, cpu_millis, memory_mib, storage_mib, gpu_millis, device_ids,"
        " extract(epoch FROM held_at)::float8, extract(epoch FROM released_at)::float8, suspended_cpu_millis",
        [at, attempt_ids, members, _LIVE_TASK],
    )
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
    if nodes:
        run(
            f"UPDATE scheduler_node n SET {giving_back('cpu', 'l.cpu')}, {giving_back('memory', 'l.memory')},"
            " used_storage_mib = n.used_storage_mib - l.storage, used_gpu_millis = n.used_gpu_millis - l.gpu"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
            " AS l(id, cpu, memory, storage, gpu) WHERE n.id = l.id",
            [list(nodes), *(list(column) for column in zip(*nodes.values(), strict=True))],
        )
    if devices:
        run(
            "UPDATE scheduler_device d SET used_millis = d.used_millis - l.millis"
            " FROM unnest(%s::bigint[], %s::int[]) AS l(id, millis) WHERE d.id = l.id",
            [list(devices), list(devices.values())],
        )
    return {number: _Freed(*amounts, on_devices[number]) for number, amounts in held.items()}, spans


def _lower_quotas(
    attempts: list[_Attempt], held: Mapping[int, _Freed], lines: Lines, *, jobs: int = 1
) -> None:
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
    run(
        # A line made while the job ran did not count it: it never goes below nothing.
        "UPDATE quotas_quota q SET used = greatest(0, q.used - l.amount)"
        " FROM unnest(%s::bigint[], %s::bigint[]) AS l(id, amount) WHERE q.id = l.id AND l.amount > 0",
        [list(less), list(less.values())],
    )


def _charge(attempts: list[_Attempt], verdicts: Mapping[int, Verdict], at: datetime) -> None:
    """Write what each attempt used, and what is forgiven by the rule of the site (LEDGER_FORGIVES)."""
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
    lines, books = ledger.charges(endings, at=at)
    still = {a.id for a in attempts if a.stood_still}
    if still:
        some = [ending for ending in endings if ending.attempt_id in still and not ending.forgiven]
        lines += ledger.given_back_suspended(some, books, at=at)
    partly = {a.id for a in attempts if a.job.elastic or a.job.on_task_failure == TaskFailure.CONTINUE}
    if partly:
        some = [ending for ending in endings if ending.attempt_id in partly and not ending.forgiven]
        lines += ledger.given_back_early(some, books, at=at)
    statements = ledger.write(lines, books, at=at)
    if statements:
        run_together(*statements)


# ---------------------------------------------------------------- write


def _write_attempts(verdicts: Mapping[int, Verdict], at: datetime) -> None:
    run(
        "UPDATE scheduler_attempt a SET state = v.state, ended_at = %s, exit_code = v.code,"
        " exit_signal = v.signal, end_text = v.text"
        " FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::int[], %s::text[])"
        " AS v(id, state, code, signal, text) WHERE a.id = v.id",
        [
            at, list(verdicts), [v.attempt.value for v in verdicts.values()],
            [v.exit_code for v in verdicts.values()], [v.exit_signal for v in verdicts.values()],
            [v.text[:300] for v in verdicts.values()],
        ],
    )  # fmt: skip


def _write_jobs(attempts: list[_Attempt], verdicts: Mapping[int, Verdict], at: datetime) -> None:
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
        job.state, job.generation = verdict.job.value, job.generation + 1
    run(
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
        [at, *columns],
    )


def _waiting(verdict: Verdict, at: datetime) -> tuple[str, str, str, str]:
    """The reason columns of a job that is queued again."""
    seconds = verdict.retry_seconds or 0
    if seconds == 0:
        code, text = ReasonCode.NOT_EVALUATED_YET, "Queued again; the next planning cycle looks at it."
        return code.value, CATEGORY[code].value, text, "{}"
    code, until = ReasonCode.BACKOFF, at + timedelta(seconds=seconds)
    text = f"Starts again after {until:%H:%M:%S} UTC. Last try: {verdict.text}"
    details = json.dumps({"until": until.isoformat(), "wait_seconds": seconds})
    return code.value, CATEGORY[code].value, text, details


def _write_events(attempts: list[_Attempt], verdicts: Mapping[int, Verdict], at: datetime) -> None:
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
    write_events(rows, at=at)


def write_events(
    rows: Sequence[tuple[int, int, str, str, str]], *, at: datetime | Sequence[datetime]
) -> None:
    """Events as (job number, epoch, kind, because, details in JSON), in this order, in one statement.

    `at` is the moment of all, or of each.
    """
    if rows:
        moments = [at] * len(rows) if isinstance(at, datetime) else list(at)
        run(
            "INSERT INTO scheduler_jobevent (job_id, epoch, kind, because, details, at)"
            " SELECT number, epoch, kind, because, details::jsonb, at"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])"
            " WITH ORDINALITY AS e(number, epoch, kind, because, details, at, place) ORDER BY place",
            [*(list(column) for column in zip(*rows, strict=True)), moments],
        )


def _tell(attempts: list[_Attempt], freed: Mapping[int, _Freed], at: datetime) -> None:
    jobs = [attempt.job for attempt in attempts]
    clusters = {job.queue.cluster_id for job in jobs}
    clusters |= dependencies.resolve_dependants([job for job in jobs if job.is_terminal], at=at)
    announce_jobs(jobs)
    outbox.announce(outbox.CLUSTER_TOPIC)
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="ended")


def announce_jobs(jobs: Iterable[Job]) -> None:
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
    "release_members",
    "settle_many",
    "shrunk_attempts",
    "waiting_attempts",
    "write_events",
]
