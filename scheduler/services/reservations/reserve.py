"""Reservations that operators make: for a window in advance, or held now for one job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, NotFound
from scheduler import outbox
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import with_job
from scheduler.core.whatif.room_now import RoomNow, room_now
from scheduler.models import Job, Node, Reservation, ReservationPart
from scheduler.selectors import job_by_ref, visible_reservations
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.hypothetical import hypothetical_of_row
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.services.reservations.choose import Held, choose, in_force, locked
from scheduler.services.reservations.terms import named_nodes, read_terms
from scheduler.services.submission.fields import Inputs, read_integer, read_seconds
from scheduler.state.load.snapshots import load_snapshot

HOLD_SECONDS: Final = 3600
MAX_HOLD_SECONDS: Final = 86_400

_HOLD_FIELDS: Final = ("job_id", "nodes", "seconds", "reason")


def reserve(*, payload: Mapping[str, Any], by: User) -> Reservation:
    """Hold what the job that `job_id` names needs, or book nodes or parts of nodes for a window."""
    permissions.require(by, "operate")
    if payload.get("job_id") is not None:
        return _hold(payload, by)
    terms = read_terms(payload, by=by)
    with transaction.atomic():
        held = choose(terms.wanted, terms.starts_at, terms.ends_at, by)
        row = Reservation(
            cluster=terms.wanted.cluster, name=terms.name, project=terms.project, starts_at=terms.starts_at,
            ends_at=terms.ends_at, reason=terms.reason, created_by=by, magnetic=terms.magnetic,
            wanted=dict(terms.stored),
        )  # fmt: skip
        return save(row, held, by, users=terms.users)


def _hold(payload: Mapping[str, Any], by: User) -> Reservation:
    """Take nodes that have room for the whole job now, or refuse: half a hold is of no use.

    The room is looked for before the transaction begins: a large cluster takes time to read.
    """
    inputs = Inputs(payload)
    inputs.refuse_unknown(_HOLD_FIELDS)
    seconds = inputs.read("seconds", read_seconds, default=HOLD_SECONDS)
    if seconds > MAX_HOLD_SECONDS:
        inputs.wrong("seconds", f"Must be at most {MAX_HOLD_SECONDS}, a day.", code="out-of-range")
    reason = inputs.text("reason", most=200)
    given = payload.get("job_id")
    job = job_by_ref(by, given) if isinstance(given, (str, int)) and not isinstance(given, bool) else None
    if job is None:
        inputs.wrong("job_id", "Must be a job's id or number.", code="not-a-job")
    asked = named_nodes(inputs, needed=False)
    inputs.finish("The hold cannot be made")
    assert job is not None  # otherwise there was a problem
    if not job.is_pending:
        raise Conflict(
            message=f"Job {job.said_number} is {job.public_state} and needs no hold.",
            way_out="Only a pending job can have nodes held for it.",
        )
    room = _room_for(job, asked)
    starts_at = timezone.now()
    ends_at = starts_at + timedelta(seconds=seconds)
    row = Reservation(
        cluster=job.queue.cluster, name=f"hold for job {job.number}", project=job.project, job=job,
        starts_at=starts_at, ends_at=ends_at, reason=reason, created_by=by,
    )  # fmt: skip
    with transaction.atomic():
        nodes = {node.pk: node for node in locked(room.node_ids)}
        # A task that is bound to one NUMA domain needs its node whole: a part says nothing of domains.
        if job.numa == "one":
            held = Held(list(nodes.values()), [])
        else:
            held = Held([], [
                ReservationPart(node=nodes[node_id], cpu_millis=cpu, memory_mib=memory, device_ids=list(devices))
                for node_id, cpu, memory, devices in room.parts
            ])  # fmt: skip
        try:
            with transaction.atomic():
                return save(row, held, by)
        except IntegrityError as clash:
            raise Conflict(
                message=f"What job {job.said_number} needs was reserved by another request.",
                code="already-reserved",
                way_out="Try again: other nodes may have room.",
            ) from clash


def _room_for(job: Job, asked: list[Node]) -> RoomNow:
    """Where the planner would start the job now, if it were the only one in line."""
    loaded = load_snapshot(
        cluster_id=job.queue.cluster_id,
        project_ids=[job.project_id],
        named_projects=[job.project_id] if job.affinity.get("jobs") else (),
    )
    snapshot, job_id = _with(loaded.snapshot, job)
    now = timezone.now()
    taken = set(in_force(now, now + timedelta(seconds=1)).values_list("nodes", flat=True))
    wanted = {node.pk for node in asked} or set(snapshot.nodes.id.tolist())
    room = leaving_out_failing(
        loaded,
        lambda left: room_now(
            snapshot,
            policy_for_backend(left.policy, left.backend),
            job_id,
            tasks=job.tasks,
            node_ids=wanted - taken,
            plugins=installed_plugins(),
        ),
    )
    if not room.node_ids:
        raise Conflict(
            message=f"Job {job.said_number} requests {job.tasks} tasks; {room.tasks} fit now.",
            code="not-enough-free",
            way_out="Wait, cancel something, or book a window in advance with starts_at and ends_at.",
        )
    return room


def _with(snapshot: Snapshot, job: Job) -> tuple[Snapshot, int]:
    """The snapshot with the job in line, and its number there; one that is held is in line as if it were not."""
    if job.number in snapshot.pending.id:
        return snapshot, job.number
    return with_job(snapshot, hypothetical_of_row(job))


@transaction.atomic
def cancel_reservation(*, reservation: Reservation, by: User, reason: str = "") -> Reservation:
    """End a reservation, or withdraw a request; cancelling twice changes nothing. Jobs inside go on."""
    require_cancel(reservation, by)
    row = Reservation.objects.select_for_update(of=("self",)).get(pk=reservation.pk)
    if row.cancelled_at is not None:
        return row
    row.cancelled_at = timezone.now()
    row.save(update_fields=["cancelled_at"])
    announce(row)
    audit.record(
        by=by, action="reservation.cancel", thing=row, before={"cancelled_at": None},
        after={"cancelled_at": row.cancelled_at}, reason=reason, project=row.project,
    )  # fmt: skip
    return row


def may_cancel(reservation: Reservation, by: User) -> bool:
    """Operators, and the leads of the project that it is for; holds are of operators alone."""
    if permissions.may(by, "operate"):
        return True
    project = reservation.project
    return reservation.job_id is None and project is not None and permissions.may(by, "manage", project)


def require_cancel(reservation: Reservation, by: User) -> None:
    if not may_cancel(reservation, by):
        permissions.require(by, "operate")


def reservation_by_ref(user: User, ref: str) -> Reservation:
    """A reservation by its id, or the hold of the job that this id or number names."""
    text = str(ref).strip()
    rows = visible_reservations(user)
    number = read_integer(text)
    found = None
    if number is not None and 0 < number < 2**63:
        found = rows.filter(job_id=number).order_by("cancelled_at", "-pk").first()
    else:
        try:
            wanted = uuid.UUID(text)
        except ValueError:
            wanted = None
        if wanted is not None:
            found = rows.filter(uuid=wanted).first()
            found = found or rows.filter(job__uuid=wanted).order_by("-cancelled_at", "-pk").first()
    if found is None:
        raise NotFound(
            message=f"There is no reservation {text[:60]!r}, or you may not see it.",
            way_out="GET /api/v1/reservations lists them.",
        )
    return found


def save(row: Reservation, held: Held, by: User, *, users: Sequence[User] = ()) -> Reservation:
    """Write a reservation with what it holds."""
    row.save(force_insert=True)
    row.users.set(users)
    hold(row, held)
    announce(row)
    audit.record(
        by=by, action="reservation.create", thing=row, after=said(row, held, users), reason=row.reason,
        project=row.project,
    )  # fmt: skip
    return row


def hold(row: Reservation, held: Held) -> None:
    """Write what a reservation holds instead of what it held."""
    row.nodes.set(held.nodes)
    row.parts.all().delete()
    for part in held.parts:
        part.reservation = row
    ReservationPart.objects.bulk_create(held.parts)


def said(row: Reservation, held: Held, users: Sequence[User]) -> dict[str, Any]:
    """A reservation as the audit trail keeps it."""
    found = {
        "nodes": [node.name for node in held.nodes],
        "starts_at": row.starts_at,
        "ends_at": row.ends_at,
        "project": row.project,
        "job": row.job_id,
    }
    if held.parts:
        found["parts"] = [
            f"{part.node}: {part.cpu_millis} mCPU, {part.memory_mib} MiB, {len(part.device_ids)} GPUs"
            for part in held.parts
        ]
    if users:
        found["users"] = [user.username for user in users]
    return found


def announce(reservation: Reservation) -> None:
    """Wake the planner and the pages about machines."""
    outbox.announce(outbox.CLUSTER_TOPIC)
    outbox.wake_planner(reservation.cluster_id, trigger="reservation")
