"""The rows of kept results, as nodes report them, and the policy by which they leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from infra.times_in_text import written
from scheduler import outbox
from scheduler.models import ArtifactUpload, Job, KeptResult, LeaveReason, Node, Queue
from scheduler.state.db.sql import int_array, run
from scheduler.state.db.task_numbers import assigned_at
from scheduler.state.settle.events import Event, write_events

log = structlog.get_logger(__name__)

MIB: Final = 1024 * 1024


class Reported(NamedTuple):
    """A kept folder as its node reports it."""

    job: int
    epoch: int
    rank: int
    files: int
    size: int
    whole: bool
    #: The number of its task; 0 where its node does not say it.
    task: int = 0

    @property
    def name(self) -> tuple[int, ...]:
        """What the node is to know it by: job, epoch, rank and, where it has said that, task."""
        return self[:3] if self.task == 0 else (*self[:3], self.task)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long results are kept; 0: without expiry. Sizes in MiB."""

    days: int
    job_mib: int
    until_fetched: bool
    person_mib: int
    node_mib: int
    notice_hours: int


def policy_of(queue: Queue) -> Policy:
    """That of a queue, where it has one, else the site's."""
    own = (queue.results_days, queue.results_job_mib, queue.results_until_fetched)
    return _policy(*own)


def _policy(days: int | None, job_mib: int | None, until_fetched: bool | None) -> Policy:
    return Policy(
        settings.MUSTER_KEEP_RESULTS_DAYS if days is None else days,
        settings.MUSTER_RESULTS_JOB_MIB if job_mib is None else job_mib,
        settings.MUSTER_RESULTS_UNTIL_FETCHED if until_fetched is None else until_fetched,
        settings.MUSTER_RESULTS_PERSON_MIB,
        settings.MUSTER_RESULTS_NODE_MIB,
        settings.MUSTER_RESULTS_NOTICE_HOURS,
    )


# ---------------------------------------------------------------- what nodes report


@transaction.atomic
def take_kept(*, node: Node, first: int, last: int, reported: Sequence[Reported]) -> list[tuple[int, ...]]:
    """Take over all kept folders of a node of the jobs from `first` to `last`; answers those to remove.

    Folders that the node does not report any more have left. Folders of tasks that never ran there, or whose job is
    gone, are to be removed; those of tasks that the database does not know, since it was restored from a backup or
    has let their jobs go, only after `UNKNOWN_DAYS` or as long as the site keeps results. The same report again
    changes nothing.
    """
    run("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, node.pk % 2**31])
    now = timezone.now()
    ours = _owners(node, reported)
    strange = [one for one in reported if one not in ours]
    reported = [one for one in reported if one in ours]
    known = {
        (kept.job_id, kept.epoch, kept.rank): kept
        for kept in KeptResult.objects.filter(node=node, left_at=None, job_id__gte=first, job_id__lte=last)
    }
    fresh = [one for one in reported if one[:3] not in known]
    notices = [_kept(one, node, ours[one], now) for one in fresh]
    _mark_left([kept for key, kept in known.items() if key not in {one[:3] for one in reported}], now)
    if fresh:
        notices += _over_limits(node, now)
        outbox.announce_many({outbox.job_topic(one.job) for one in fresh})
    write_events([notice for notice in notices if notice is not None], at=now)
    due = {key for key, kept in known.items() if kept.leaves_at is not None and kept.leaves_at <= now}
    return [one.name for one in reported if one[:3] in due] + _to_remove(strange, now)


def _owners(node: Node, reported: Sequence[Reported]) -> dict[Reported, list[Any]]:
    """Whose the folders of tasks that ran there are: a row of `_OWNERS` for each."""
    rows = run(_OWNERS, [*_columns(reported, "job", "epoch", "rank", "task"), node.pk])
    found = {(job, epoch, rank, task): rest for job, epoch, rank, task, *rest in rows}
    keys = {one: (*one[:3], one.task) for one in reported}
    return {one: found[key] for one, key in keys.items() if key in found}


#: For how many days the folders of tasks that the database does not know stay, where results stay without limit.
UNKNOWN_DAYS: Final = 30


def _to_remove(strange: Sequence[Reported], now: datetime) -> list[tuple[int, ...]]:
    """Of folders that are no results of this node: those of other nodes' tasks, and old ones of unknown tasks."""
    known = (
        {row[0] for row in run(_KNOWN_TASKS, [int_array(one.task for one in strange)])} if strange else set()
    )
    days = settings.MUSTER_KEEP_RESULTS_DAYS or UNKNOWN_DAYS
    kept = [
        one
        for one in strange
        if one.task and one.task not in known and now - assigned_at(one.task) < timedelta(days=days)
    ]
    if kept:
        log.warning("unknown_results_kept", folders=len(kept), jobs=sorted({one.job for one in kept})[:20])
    return [one.name for one in strange if one not in kept]


_KNOWN_TASKS: Final = "SELECT id FROM scheduler_task WHERE id = ANY(%s::bigint[])"


#: Class of the advisory locks on the kept results of a node.
_LOCK: Final = 0x4B52
#: Whose these tasks of the node are, what their queues say of results, and whether their jobs ask for artefacts.
_OWNERS: Final = """
SELECT v.job, v.epoch, v.rank, v.task, job.user_id, q.results_days, q.results_job_mib, q.results_until_fetched,
    request.artifacts <> '[]'
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS v(job, epoch, rank, task)
    JOIN scheduler_attempt a ON a.job_id = v.job AND a.epoch = v.epoch
    JOIN scheduler_task t ON t.attempt_id = a.id AND t.rank = v.rank AND t.node_id = %s
        AND v.task IN (0, t.id)
    JOIN scheduler_job job ON job.number = v.job JOIN scheduler_jobrequest request ON request.number = v.job
    JOIN scheduler_queue q ON q.id = job.queue_id
"""


def _columns(reported: Sequence[Reported], *names: str) -> list[str]:
    return [int_array(getattr(one, name) for one in reported) for name in names]


def _kept(one: Reported, node: Node, owner: Sequence[Any], now: datetime) -> Event | None:
    """Write down a folder that was not known; the event of one that leaves before its time."""
    user_id, *own, has_artifacts = owner
    policy = _policy(*own)
    leaves_at = now + timedelta(days=policy.days) if policy.days else None
    because = LeaveReason.AGE if policy.days else ""
    notice = None
    if policy.job_mib and one.size > policy.job_mib * MIB:
        soon = now + timedelta(hours=policy.notice_hours)
        if leaves_at is None or soon < leaves_at:
            leaves_at, because = soon, LeaveReason.JOB_SIZE
            notice = leaving(one.job, one.epoch, node.name, soon, because)
    KeptResult.objects.update_or_create(
        job_id=one.job, epoch=one.epoch, rank=one.rank,
        defaults={
            "node": node, "user_id": user_id, "files": one.files, "size_bytes": one.size,
            "counted_whole": one.whole, "kept_at": now, "leaves_at": leaves_at, "leaves_because": because,
            "left_at": None,
        },
    )  # fmt: skip
    if has_artifacts:
        ArtifactUpload.objects.get_or_create(
            job_id=one.job, epoch=one.epoch, rank=one.rank, defaults={"created_at": now, "next_try_at": now}
        )
    return notice


def leaving(job: int, epoch: int, node: str, at: datetime, because: str) -> Event:
    """The event that says beforehand that results leave."""
    text = f"the results on {node} are removed on {written(at)}: {LeaveReason(because).label}"
    return Event(job, epoch, "job.results_leaving", text)


def _mark_left(gone: Iterable[KeptResult], now: datetime) -> None:
    """Folders that a node does not have any more: their time was up, the next attempt has them, or nobody knows."""
    for kept in gone:
        if kept.leaves_at is None or kept.leaves_at > now:
            later = Job.objects.filter(pk=kept.job_id, epoch__gt=kept.epoch).exists()
            kept.leaves_because = LeaveReason.NEXT_ATTEMPT if later else LeaveReason.NOT_THERE
        kept.left_at = now
        kept.save(update_fields=["left_at", "leaves_because"])


# ---------------------------------------------------------------- limits of people and nodes


#: Each kept folder with the bytes of those as new or newer, of its person and of all, on this node.
_OVER: Final = """
WITH sized AS (
    SELECT id, user_id, size_bytes,
        sum(size_bytes) OVER (PARTITION BY user_id ORDER BY kept_at DESC, id DESC) AS of_person,
        sum(size_bytes) OVER (ORDER BY kept_at DESC, id DESC) AS of_node
    FROM scheduler_keptresult WHERE node_id = %(node)s AND left_at IS NULL
)
UPDATE scheduler_keptresult kept SET leaves_at = %(soon)s,
    leaves_because = CASE WHEN %(person)s > 0 AND sized.of_person > %(person)s THEN 'person_size' ELSE 'node_size' END
FROM sized WHERE sized.id = kept.id AND (kept.leaves_at IS NULL OR kept.leaves_at > %(soon)s)
    AND ((%(person)s > 0 AND sized.of_person > %(person)s) OR (%(node_size)s > 0 AND sized.of_node > %(node_size)s))
RETURNING kept.job_id, kept.epoch, kept.leaves_because
"""


def _over_limits(node: Node, now: datetime) -> list[Event | None]:
    """Let the oldest results beyond the limits of a person and of the node leave after the notice; their events."""
    soon = now + timedelta(hours=settings.MUSTER_RESULTS_NOTICE_HOURS)
    words: Mapping[str, Any] = {
        "node": node.pk,
        "soon": soon,
        "person": settings.MUSTER_RESULTS_PERSON_MIB * MIB,
        "node_size": settings.MUSTER_RESULTS_NODE_MIB * MIB,
    }
    moved = run(_OVER, words)
    outbox.announce_many({outbox.job_topic(job) for job, _, _ in moved})
    return [leaving(job, epoch, node.name, soon, because) for job, epoch, because in moved]


# ---------------------------------------------------------------- fetched


def mark_fetched(kept_id: int) -> None:
    """All of it was downloaded: where it is kept until then, it leaves after the notice."""
    with transaction.atomic():
        kept = (
            KeptResult.objects.select_for_update(of=("self",))
            .select_related("job__queue", "node")
            .filter(pk=kept_id, left_at=None)
            .first()
        )
        if kept is None:
            return
        kept.fetched_at = now = timezone.now()
        policy = policy_of(kept.job.queue)
        soon = now + timedelta(hours=policy.notice_hours)
        if policy.until_fetched and (kept.leaves_at is None or kept.leaves_at > soon):
            kept.leaves_at, kept.leaves_because = soon, LeaveReason.FETCHED
            event = leaving(kept.job_id, kept.epoch, kept.node.name, soon, LeaveReason.FETCHED)
            write_events([event], at=now)
        kept.save(update_fields=["fetched_at", "leaves_at", "leaves_because"])
