"""Use of a reservation: the jobs inside, and how much of its GPU time they used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.db import connection
from django.utils import timezone

from scheduler.models import Device, Reservation

#: Thousandths of GPUs times seconds of tasks that ran inside, between its start and now.
_USED: Final = """
SELECT coalesce(sum(task.gpu_millis * greatest(0, extract(epoch FROM
        least(coalesce(task.released_at, %(now)s), %(until)s) - greatest(task.held_at, %(since)s)))), 0)
FROM scheduler_allocation task JOIN scheduler_attempt attempt ON attempt.id = task.attempt_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_job job ON job.number = attempt.job_id
WHERE task.node_id = ANY(%(nodes)s::bigint[]) AND task.held_at < %(until)s
    AND coalesce(task.released_at, %(now)s) > %(since)s
    AND (request.reservation_id = %(id)s
        OR %(magnetic)s AND (job.project_id = %(project)s OR job.user_id = ANY(%(users)s::bigint[])))
"""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU-seconds of a reservation from its start until now or its end; nothing is charged for what is unused."""

    gpus: int
    reserved_seconds: int
    used_seconds: int

    @property
    def unused_seconds(self) -> int:
        return max(self.reserved_seconds - self.used_seconds, 0)


def gpu_time(row: Reservation) -> GpuTime:
    """What it has reserved and what jobs inside have used of that so far."""
    parts, nodes = list(row.parts.all()), [node.pk for node in row.nodes.all()]
    shares = Device.objects.filter(node__in=nodes, gone=False).values_list("share_millis", flat=True)
    gpus = sum(shares) // 1000 + sum(len(part.device_ids) for part in parts)
    now = timezone.now()
    until = min(now, row.ends_at, row.cancelled_at or row.ends_at)
    seconds = max(int((until - row.starts_at).total_seconds()), 0)
    if not seconds or not (nodes or parts):
        return GpuTime(gpus, 0, 0)
    with connection.cursor() as cursor:
        cursor.execute(_USED, {
            "now": now, "until": until, "since": row.starts_at, "id": row.pk, "magnetic": row.magnetic,
            "project": row.project_id, "users": [user.pk for user in row.users.all()],
            "nodes": nodes + [part.node_id for part in parts],
        })  # fmt: skip
        (used,) = cursor.fetchone() or (0,)
    return GpuTime(gpus, gpus * seconds, min(int(used) // 1000, gpus * seconds))


def state_of(row: Reservation) -> str:
    """requested, declined, planned, active, ended or cancelled."""
    if row.cancelled_at is not None:
        return "cancelled"
    now = timezone.now()
    if row.status != "approved":
        return str(row.status)
    # A hold is over once its job has its nodes.
    if row.ends_at <= now or (row.job is not None and not row.job.is_pending):
        return "ended"
    return "planned" if row.starts_at > now else "active"


def devices_by_part(row: Reservation) -> dict[int, list[int]]:
    """Of each node of which it holds a part, the indices of the devices that it holds."""
    parts: list[Any] = list(row.parts.all())
    index = dict(
        Device.objects.filter(pk__in=[device for part in parts for device in part.device_ids]).values_list(
            "pk", "index"
        )
    )
    return {
        part.node_id: sorted(index[device] for device in part.device_ids if device in index) for part in parts
    }
