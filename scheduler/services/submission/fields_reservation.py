"""Reads the reservation that a job names, and refuses one that could never hold the job."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from django.utils import timezone

from infra.times_in_text import written
from scheduler.models import Reservation, ReservationStatus
from scheduler.selectors import visible_reservations

#: Characters of a name or id.
MAX_RESERVATION: Final = 120


def read_reservation(inputs: Any, name: str) -> int | None:
    """The key of a reservation that the person may see and that lets in jobs of the project or of the person."""
    given = inputs.text(name, most=MAX_RESERVATION)
    if not given or inputs.project is None or inputs.queue is None:
        return None
    found = _called(inputs, given)
    if found is None:
        return None
    if found.cluster_id != inputs.queue.cluster_id:
        text = f"Reservation {found.name} is of cluster {found.cluster.slug}; choose a queue there."
        inputs.wrong(name, text, code="reservation-elsewhere")
    elif found.job_id is not None:
        inputs.wrong(
            name, f"{found.name} is kept for one job; leave this out.", code="reservation-not-usable"
        )
    elif not _is_for(found, inputs):
        inputs.wrong(
            name,
            f"Reservation {found.name} is not for project {inputs.project.slug} or for you; submit to the project "
            "that it is for, or leave this out.",
            code="reservation-not-usable",
        )
    elif found.status != ReservationStatus.APPROVED:
        text = f"Reservation {found.name} is {found.status}; wait until an operator has approved it."
        inputs.wrong(name, text, code="reservation-not-approved")
    else:
        return int(found.pk)
    return None


def _called(inputs: Any, given: str) -> Reservation | None:
    """The reservation of that id or name; of several of one name none, since a name may come again."""
    rows = visible_reservations(inputs.catalogue.user)
    try:
        rows = rows.filter(Q(uuid=uuid.UUID(given)) | Q(name=given))
    except ValueError:
        rows = rows.filter(name=given)
    found = list(rows.filter(cancelled_at__isnull=True, ends_at__gt=timezone.now()).order_by("starts_at")[:2])
    if len(found) > 1:
        ids = ", ".join(str(row.uuid) for row in found)
        text = f"Several reservations are called {given!r}: give the id, one of {ids}."
        inputs.wrong("reservation", text, code="ambiguous")
        return None
    if found:
        return found[0]
    over = rows.order_by("-ends_at").first()
    if over is not None:
        what = "was cancelled" if over.cancelled_at else f"ended at {written(over.ends_at)}"
        text = f"Reservation {over.name} {what}; name another, or leave this out."
        inputs.wrong("reservation", text, code="reservation-over")
    else:
        text = (
            f"There is no reservation {given[:60]!r} that you may use; GET /api/v1/reservations lists yours."
        )
        inputs.wrong("reservation", text, code="not-found")
    return None


def _is_for(found: Reservation, inputs: Any) -> bool:
    user_id = inputs.catalogue.user.pk
    return found.project_id == inputs.project.pk or found.users.filter(pk=user_id).exists()


def earliest_inside(found: Reservation, begin_at: datetime | None) -> datetime:
    """The first moment at which a job may start inside."""
    return max(filter(None, (found.starts_at, begin_at, timezone.now())))


def slots_inside(found: Reservation, *, cpu_millis: int, memory_mib: int, gpus: int) -> int | None:
    """How many tasks of this size the parts of nodes hold at once; None where it holds whole nodes."""
    parts = list(found.parts.all())
    if not parts:
        return None
    total = 0
    for part in parts:
        pairs = ((part.cpu_millis, cpu_millis), (part.memory_mib, memory_mib), (len(part.device_ids), gpus))
        total += min(have // need for have, need in pairs if need)
    return total
