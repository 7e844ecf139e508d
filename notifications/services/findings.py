"""What no event tells of, found by looking: jobs that can never start, limits that come near, idle GPUs, nodes.

Each thing found has a key. The first look that finds it writes the key and what follows from it in one transaction;
later looks, and others at the same time, find the key and do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from accounts.models import User
from infra.models import System
from infra.times_in_text import written
from notifications.core.grouping import group_of_job, thing_of_job
from notifications.core.kinds import TIME_SHARES, USUAL_TIME_SHARE, Kind, mail_of_job
from notifications.services.job_events import who_asks_for
from notifications.services.occurrences import Occurrence, take_in
from scheduler.core.lifecycle import LIVE_ATTEMPT, PENDING
from scheduler.core.mail_types import MailType
from scheduler.deadlines import outlook
from scheduler.models import DRAINED_BY_MUSTER, Job
from scheduler.models.job import said_number
from scheduler.state.lifecycle.verdicts import duration

SOURCE: Final = "findings"
#: Of one look; the next goes on.
BATCH: Final = 2000
#: A reason to wait that a cycle gives while a node comes back is gone with the next cycles.
LASTING_SECONDS: Final = 60
#: A GPU is idle when it was busy for less than this part of the time it was watched, in percent, and watched so long.
IDLE_PERCENT: Final = 5
IDLE_AFTER_SECONDS: Final = 1800
#: A node that is silent for longer is no news.
NEWS_SECONDS: Final = 86_400

_PENDING: Final = sorted(state.value for state in PENDING)
_LIVE: Final = sorted(state.value for state in LIVE_ATTEMPT)

Row = Mapping[str, Any]
#: A key, and the occurrence it makes, given the number of the key's row.
Found = tuple[str, Callable[[int], list[Occurrence]]]

_NEVER: Final = """
SELECT 'never:' || j.number || ':' || j.reason_code AS key, j.number, j.user_id, j.project_id, j.reason_text AS text,
    j.reason_code, r.array_number::text AS array, r.array_index, r.name, r.mail_types
FROM scheduler_job j JOIN scheduler_jobrequest r ON r.number = j.number
    JOIN scheduler_unfinishedjob unfinished ON unfinished.queue_id = j.queue_id AND unfinished.number = j.number
WHERE j.state = ANY(%(pending)s) AND j.reason_category = 'fix'
    AND j.reason_at < %(now)s - %(lasting)s * interval '1 second'
    AND NOT EXISTS (
        SELECT FROM notifications_finding f WHERE f.key = 'never:' || j.number || ':' || j.reason_code)
ORDER BY j.number LIMIT %(batch)s
"""
_LIMITS: Final = """
WITH running AS (
    SELECT a.id, j.number, j.user_id, j.project_id, r.array_number::text AS array, r.array_index, r.name, r.mail_types,
        r.time_limit_seconds AS limit_s,
        100 * (extract(epoch FROM %(now)s - a.started_at) - a.suspended_ms / 1000.0) / r.time_limit_seconds AS passed
    FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id
        JOIN scheduler_jobrequest r ON r.number = a.job_id
    WHERE a.state = 'running' AND a.suspended_at IS NULL AND a.started_at IS NOT NULL AND r.time_limit_seconds > 0
        AND (r.mail_types LIKE '%%TIME_LIMIT%%' OR j.user_id = ANY(%(users)s) OR j.project_id = ANY(%(projects)s))
)
SELECT 'limit:' || id || ':' || share AS key, running.*, share FROM running, unnest(%(shares)s::int[]) AS share
WHERE passed >= share
    AND NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = 'limit:' || id || ':' || share)
ORDER BY id, share LIMIT %(batch)s
"""
#: The same as `scheduler.deadlines.outlook` says of jobs that have a deadline ahead.
_LATE: Final = """
SELECT 'late:' || j.number AS key, j.number, j.user_id, j.project_id, r.array_number::text AS array, r.array_index,
    r.name, r.mail_types,
    r.deadline_at AS deadline
FROM scheduler_job j JOIN scheduler_jobrequest r ON r.number = j.number
    LEFT JOIN scheduler_startforecast f ON f.job_id = j.number AND j.state = 'queued'
WHERE j.check_at IS NOT NULL AND j.outcome IS NULL AND r.deadline_at > %(now)s
    AND r.created_at < %(now)s - %(lasting)s * interval '1 second'
    AND CASE WHEN j.state = ANY(%(pending)s)
        THEN greatest(%(now)s, r.begin_at, coalesce(f.p50_at, j.expected_start_at))
        ELSE coalesce(j.started_at, %(now)s) END
        + coalesce(r.time_limit_seconds, 0) * interval '1 second' > r.deadline_at
    AND NOT EXISTS (SELECT FROM notifications_finding k WHERE k.key = 'late:' || j.number)
ORDER BY j.number LIMIT %(batch)s
"""
_IDLE: Final = """
SELECT 'idle:' || a.id AS key, j.number, j.user_id, j.project_id, r.array_number::text AS array,
    r.array_index, r.name, r.mail_types,
    sum(t.gpu_busy_ms) * 100 / sum(t.gpu_watched_ms) AS percent, max(t.gpu_watched_ms) / 60000 AS minutes
FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id JOIN scheduler_job j ON j.number = a.job_id
    JOIN scheduler_jobrequest r ON r.number = a.job_id
WHERE a.state = 'running' AND t.gpu_watched_ms > 0
    AND NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = 'idle:' || a.id)
GROUP BY a.id, j.number, r.number
HAVING max(t.gpu_watched_ms) >= %(after)s * 1000 AND sum(t.gpu_busy_ms) * 100 < %(percent)s * sum(t.gpu_watched_ms)
ORDER BY a.id LIMIT %(batch)s
"""
_DOWN: Final = """
SELECT key, id, name, last_seen_at, trouble FROM (
    SELECT 'down:' || n.id || ':' || floor(extract(epoch FROM h.last_seen_at))::bigint AS key, n.id, n.name,
        h.last_seen_at, n.trouble
    FROM scheduler_node n JOIN scheduler_nodeheartbeat h ON h.node_id = n.id
    WHERE n.state = 'down' AND h.last_seen_at > %(now)s - %(news)s * interval '1 second'
) silent
WHERE NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = silent.key) ORDER BY id LIMIT %(batch)s
"""
_OUT: Final = """
SELECT key, id, name, drain_reason AS reason FROM (
    SELECT 'out:' || id || ':' || floor(extract(epoch FROM drained_at))::bigint AS key, id, name, drain_reason
    FROM scheduler_node WHERE draining AND drained_at IS NOT NULL AND drained_by = ANY(%(by)s)
) drained
WHERE NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = drained.key) ORDER BY id LIMIT %(batch)s
"""
_FAULTS: Final = """
SELECT key, subject, reason FROM (
    SELECT 'fault:' || id || ':' || floor(extract(epoch FROM began_at))::bigint AS key, id, subject, reason
    FROM scheduler_policyfault
) faulty
WHERE NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = faulty.key) ORDER BY id LIMIT %(batch)s
"""
#: Receivers of webhooks are their owners' concern, who hear when one is disabled.
_CIRCUITS: Final = """
SELECT key, name, system, label, text FROM (
    SELECT 'circuit:' || name || ':' || floor(extract(epoch FROM opened_at))::bigint AS key, name, system, label, text
    FROM infra_circuit
    WHERE system <> 'webhook' AND opened_at < %(now)s - %(lasting)s * interval '1 second'
) left_alone
WHERE NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = left_alone.key) ORDER BY name LIMIT %(batch)s
"""
_DRAINS: Final = """
SELECT key, node_id, node, number, array_number, array_index, user_id, project_id, name, drain_reason, drained_by,
    deadline, saves, once FROM (
    SELECT DISTINCT
        'drain:' || n.id || ':' || floor(extract(epoch FROM n.drained_at))::bigint || ':' || j.number AS key,
        n.id AS node_id, n.name AS node, j.number, r.array_number, r.array_index, j.user_id, j.project_id, r.name,
        n.drain_reason, n.drained_by,
        n.drain_deadline_at AS deadline, r.checkpoint <> '{}' AS saves, r.restart_policy = 'never' AS once
    FROM scheduler_node n JOIN scheduler_allocation held ON held.node_id = n.id AND held.released_at IS NULL
        JOIN scheduler_attempt a ON a.id = held.attempt_id JOIN scheduler_job j ON j.number = a.job_id
        JOIN scheduler_jobrequest r ON r.number = j.number
    WHERE n.draining AND n.drained_at IS NOT NULL AND a.state = ANY(%(live)s)
) drained
WHERE NOT EXISTS (SELECT FROM notifications_finding f WHERE f.key = drained.key) ORDER BY number LIMIT %(batch)s
"""


def look(*, now: datetime | None = None) -> int:
    """Look for each of these once; answers how many rows were written."""
    now = now or timezone.now()
    return sum(
        _take_in(find(now), now)
        for find in (
            never_starts,
            limits_near,
            deadlines_late,
            idle_gpus,
            nodes_down,
            nodes_out,
            node_drains,
            faults,
            outside,
        )
    )


def _take_in(found: Sequence[Found], now: datetime) -> int:
    if not found:
        return 0
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO notifications_finding (key, at) SELECT key, %s FROM unnest(%s::text[]) AS key"
                " ON CONFLICT (key) DO NOTHING RETURNING key, id",
                [now, [key for key, _ in found]],
            )
            new = dict(cursor.fetchall())
        made = sorted((new[key], make) for key, make in found if key in new) if new else []
        return take_in([one for number, make in made for one in make(number)], now=now)


def _rows(sql: str, now: datetime, **words: Any) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"now": now, "batch": BATCH, **words})
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _of_job(row: Row, kind: Kind, text: str, now: datetime, **more: Any) -> Found:
    """What concerns one job, with the words that it was sent with."""
    words = row["mail_types"].split(",") if row["mail_types"] else ()
    mail = mail_of_job(kind, words, more.pop("share", 0))
    group = group_of_job(
        number=row["number"], project_id=row["project_id"], array_id=row["array"],
        each=MailType.ARRAY_TASKS in words, mail=mail,
    )  # fmt: skip

    def make(number: int) -> list[Occurrence]:
        return [
            Occurrence(
                kind=kind, source=SOURCE, event=number, at=now, user_id=row["user_id"], group=group, text=text,
                project_id=row["project_id"], job=row["number"], name=row["name"],
                thing=thing_of_job(row["array"], row["array_index"]), mail=mail,
                **more,
            )
        ]  # fmt: skip

    return row["key"], make


# ---------------------------------------------------------------- jobs


def never_starts(now: datetime) -> list[Found]:
    """Jobs whose reason to wait asks the person to change the request, for longer than a moment."""
    rows = _rows(_NEVER, now, pending=_PENDING, lasting=LASTING_SECONDS)
    return [_of_job(row, Kind.NEVER_STARTS, row["text"], now) for row in rows]


def limits_near(now: datetime) -> list[Found]:
    """Running jobs of which a part of the time limit has passed that somebody asked to be notified of."""
    users, projects = who_asks_for(Kind.TIME_LIMIT)
    shares = sorted({share for share in TIME_SHARES.values() if share < 100})
    return list(_limits(_rows(_LIMITS, now, users=users, projects=projects, shares=shares), now))


def _limits(rows: Sequence[Row], now: datetime) -> Iterator[Found]:
    for row in rows:
        words = (row["mail_types"] or "").split(",")
        asked = any(word in words and share == row["share"] for word, share in TIME_SHARES.items())
        usual = row["share"] == USUAL_TIME_SHARE
        if asked or usual:
            left = max(0, int(row["limit_s"] * (100 - float(row["passed"])) / 100))
            text = f"{row['share']} % of the time limit has passed; {duration(left)} left."
            yield _of_job(
                row, Kind.TIME_LIMIT, text, now, share=row["share"], only_mail=not usual, sent=usual
            )


def deadlines_late(now: datetime) -> list[Found]:
    """Jobs that are likely to end after their deadline, for longer than a moment, once each."""
    rows = _rows(_LATE, now, pending=_PENDING, lasting=LASTING_SECONDS)
    jobs = Job.objects.select_related("forecast").in_bulk([row["number"] for row in rows]) if rows else {}
    found = [(row, outlook(jobs[row["number"]], now)) for row in rows if row["number"] in jobs]
    return [
        _of_job(row, Kind.DEADLINE_LATE, f"{late.text} Deadline: {written(row['deadline'])}.", now)
        for row, late in found
        if late is not None
    ]


def idle_gpus(now: datetime) -> list[Found]:
    """Attempts that have hardly used their GPUs since they began, once each."""
    return [
        _of_job(
            row, Kind.IDLE_GPU,
            f"GPUs were busy for {int(row['percent'])} % of the {int(row['minutes'])} minutes since the start.", now,
        )
        for row in _rows(_IDLE, now, after=IDLE_AFTER_SECONDS, percent=IDLE_PERCENT)
    ]  # fmt: skip


# ---------------------------------------------------------------- nodes and the scheduler


def nodes_down(now: datetime) -> list[Found]:
    """Nodes that are down, for the operators, once each time."""
    rows = _rows(_DOWN, now, news=NEWS_SECONDS)
    people = [person.pk for person in operators()] if rows else []
    return [(row["key"], _down(row, people, now)) for row in rows]


def nodes_out(now: datetime) -> list[Found]:
    """Nodes that Muster has drained itself, for the operators, once each time."""
    rows = _rows(_OUT, now, by=list(DRAINED_BY_MUSTER))
    people = [person.pk for person in operators()] if rows else []
    return [(row["key"], _down({**row, "trouble": row["reason"]}, people, now)) for row in rows]


def _down(row: Row, people: Sequence[int], now: datetime) -> Callable[[int], list[Occurrence]]:
    text = f"{row['name']}: {row['trouble'] or 'the agent was last in contact at ' + written(row['last_seen_at'])}"
    return lambda number: [
        Occurrence(
            kind=Kind.NODE_DOWN, source=SOURCE, event=number, at=now, user_id=person, group="nodes", text=text,
            name=row["name"], thing=f"node:{row['id']}",
        )
        for person in people
    ]  # fmt: skip


def faults(now: datetime) -> list[Found]:
    """Plugins that are out of use and profiles that cannot be followed, for the operators, once each time."""
    rows = _rows(_FAULTS, now)
    people = [person.pk for person in operators()] if rows else []
    return [(row["key"], _fault(row, people, now)) for row in rows]


def _fault(row: Row, people: Sequence[int], now: datetime) -> Callable[[int], list[Occurrence]]:
    return lambda number: [
        Occurrence(
            kind=Kind.POLICY_FAULT, source=SOURCE, event=number, at=now, user_id=person, group="faults",
            text=f"{row['subject']}: {row['reason']}", name=row["subject"], thing="cluster",
        )
        for person in people
    ]  # fmt: skip


def outside(now: datetime) -> list[Found]:
    """Systems outside Muster that do not answer for longer than a moment, for the operators, once each time."""
    rows = _rows(_CIRCUITS, now, lasting=LASTING_SECONDS)
    people = [person.pk for person in operators()] if rows else []
    return [(row["key"], _outside(row, people, now)) for row in rows]


def _outside(row: Row, people: Sequence[int], now: datetime) -> Callable[[int], list[Occurrence]]:
    name = f"{System(row['system']).label} {row['label']}".strip()
    return lambda number: [
        Occurrence(
            kind=Kind.OUTSIDE_AWAY, source=SOURCE, event=number, at=now, user_id=person, group="outside",
            text=f"{name}: {row['text']}", name=name, thing="system",
        )
        for person in people
    ]  # fmt: skip


def node_drains(now: datetime) -> list[Found]:
    """Jobs on nodes that drain, for their owners; each job once."""
    return [(row["key"], _drain(row, now)) for row in _rows(_DRAINS, now, live=_LIVE)]


def _drain(row: Row, now: datetime) -> Callable[[int], list[Occurrence]]:
    because = f": {row['drain_reason']}" if row["drain_reason"] else ""
    by = "Muster" if row["drained_by"] in DRAINED_BY_MUSTER else row["drained_by"] or "an operator"
    said = said_number(row["number"], row["array_number"], row["array_index"])
    text = f"Job {said} {_until(row)}. Drained by {by}{because}"
    return lambda number: [
        Occurrence(
            kind=Kind.NODE_DRAINS, source=SOURCE, event=number, at=now, user_id=row["user_id"],
            group=f"node:{row['node_id']}:{row['project_id']}", text=text, project_id=row["project_id"],
            job=row["number"], name=row["node"], thing=f"node:{row['node_id']}",
        )
    ]  # fmt: skip


def _until(row: Row) -> str:
    """What a drain means for a job, as far as its request says it."""
    if row["deadline"] is None:
        return "runs there until it ends"
    deadline = written(row["deadline"])
    if row["once"]:
        return f"fails at {deadline} if still running there: it runs at most once"
    if row["saves"]:
        return f"is moved to another node by a checkpoint, and requeued at {deadline} if still running there"
    return f"is requeued at {deadline} if still running there"


def operators() -> list[User]:
    """Active operators and admins of the site."""
    return [user for user in User.objects.filter(is_active=True).exclude(site_role="none", is_superuser=False)
            if user.is_operator]  # fmt: skip
