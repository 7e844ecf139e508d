"""Reservations: nodes set aside for a window in advance, or held now for one job."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import project_by_ref
from accounts.services import audit
from infra.errors import Conflict, NotFound
from infra.times_in_text import written
from scheduler import outbox
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import with_job
from scheduler.core.whatif.room_now import room_now
from scheduler.models import Cluster, Job, Node, Reservation
from scheduler.selectors import job_by_ref, visible_reservations
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.hypothetical import hypothetical_of_row
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.services.submission.fields import Inputs, read_integer, read_moment, read_seconds
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE
from scheduler.state.load.snapshots import load_snapshot

MAX_NODES: Final = 5000
#: A window longer than this is a change of partitions, not a booking.
MAX_WINDOW_SECONDS: Final = 366 * 86_400
HOLD_SECONDS: Final = 3600
MAX_HOLD_SECONDS: Final = 86_400

_WINDOW_FIELDS: Final = ("name", "nodes", "project", "starts_at", "ends_at", "seconds", "reason", "cluster")
_HOLD_FIELDS: Final = ("job_id", "nodes", "seconds", "reason")


def reserve(*, payload: Mapping[str, Any], by: User) -> Reservation:
    """Hold nodes for the job that `job_id` names, or book those of `nodes` for a window."""
    permissions.require(by, "operate")
    if payload.get("job_id") is not None:
        return _hold(payload, by)
    return _book(payload, by)


def _book(payload: Mapping[str, Any], by: User) -> Reservation:
    inputs = Inputs(payload)
    inputs.refuse_unknown(_WINDOW_FIELDS, called_elsewhere=CALLED_ELSEWHERE)
    now = timezone.now()
    starts_at: datetime = inputs.read("starts_at", read_moment, default=now)
    seconds = inputs.read("seconds", read_seconds)
    ends_at = inputs.read("ends_at", read_moment) or (
        starts_at + timedelta(seconds=seconds) if seconds else None
    )
    if ends_at is None and not inputs.problems:
        inputs.wrong("ends_at", "Required, or seconds: how long the nodes are reserved.", code="required")
    elif ends_at is not None and ends_at <= max(starts_at, now):
        inputs.wrong("ends_at", "Must be after the start, and in the future.", code="inconsistent")
    elif ends_at is not None and (ends_at - starts_at).total_seconds() > MAX_WINDOW_SECONDS:
        inputs.wrong("ends_at", "Is more than a year after the start.", code="out-of-range")
    name = inputs.text("name", most=120) or "reservation"
    reason = inputs.text("reason", most=200)
    project = _project(inputs, by)
    nodes = _nodes(inputs)
    inputs.finish("The reservation cannot be made")
    assert ends_at is not None  # otherwise there was a problem
    cluster = nodes[0].cluster
    with transaction.atomic():
        nodes = _locked([node.pk for node in nodes])
        _refuse_overlap(nodes, starts_at, ends_at, by)
        return _save(
            Reservation(
                cluster=cluster,
                name=name,
                project=project,
                starts_at=starts_at,
                ends_at=ends_at,
                reason=reason,
                created_by=by,
            ),
            nodes,
            by,
        )


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
    asked = _nodes(inputs, needed=False)
    inputs.finish("The hold cannot be made")
    assert job is not None  # otherwise there was a problem
    if not job.is_pending:
        raise Conflict(
            message=f"Job {job.said_number} is {job.public_state} and needs no hold.",
            way_out="Only a pending job can have nodes held for it.",
        )
    node_ids = _nodes_with_room(job, asked)
    starts_at = timezone.now()
    ends_at = starts_at + timedelta(seconds=seconds)
    with transaction.atomic():
        nodes = _locked(node_ids)
        _refuse_overlap(nodes, starts_at, ends_at, by)
        return _save(
            Reservation(
                cluster=job.queue.cluster,
                name=f"hold for job {job.number}",
                project=job.project,
                job=job,
                starts_at=starts_at,
                ends_at=ends_at,
                reason=reason,
                created_by=by,
            ),
            nodes,
            by,
        )


def _nodes_with_room(job: Job, asked: list[Node]) -> tuple[int, ...]:
    """The nodes on which the planner would start the job now, if it were the only one in line."""
    loaded = load_snapshot(
        cluster_id=job.queue.cluster_id,
        project_ids=[job.project_id],
        named_projects=[job.project_id] if job.affinity.get("jobs") else (),
    )
    snapshot, job_id = _with(loaded.snapshot, job)
    now = timezone.now()
    taken = set(_in_force(now, now + timedelta(seconds=1)).values_list("nodes", flat=True))
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
    return room.node_ids


def _with(snapshot: Snapshot, job: Job) -> tuple[Snapshot, int]:
    """The snapshot with the job in line, and its number there; one that is held is in line as if it were not."""
    if job.number in snapshot.pending.id:
        return snapshot, job.number
    return with_job(snapshot, hypothetical_of_row(job))


def _locked(node_ids: Collection[int]) -> list[Node]:
    """These nodes, locked: two bookings of one node come one after the other."""
    return list(Node.objects.filter(pk__in=node_ids).order_by("pk").select_for_update(no_key=True))


@transaction.atomic
def cancel_reservation(*, reservation: Reservation, by: User, reason: str = "") -> Reservation:
    """End a reservation; cancelling twice changes nothing."""
    permissions.require(by, "operate")
    row = Reservation.objects.select_for_update(of=("self",)).get(pk=reservation.pk)
    if row.cancelled_at is not None:
        return row
    row.cancelled_at = timezone.now()
    row.save(update_fields=["cancelled_at"])
    _announce(row)
    audit.record(
        by=by, action="reservation.cancel", thing=row, before={"cancelled_at": None},
        after={"cancelled_at": row.cancelled_at}, reason=reason, project=row.project,
    )  # fmt: skip
    return row


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


def _project(inputs: Inputs, by: User) -> Project | None:
    value = inputs.given("project")
    if value is None:
        return None
    try:
        return project_by_ref(by, str(value)[:120])
    except NotFound:
        inputs.wrong("project", f"There is no project {str(value)[:60]!r}.", code="not-found")
        return None


def _nodes(inputs: Inputs, *, needed: bool = True) -> list[Node]:
    """The nodes that the names or ids of a payload mean."""
    wanted = [
        str(item)[:120] for item in inputs.listing("nodes", most=MAX_NODES) if isinstance(item, (str, int))
    ]
    if not wanted:
        if needed and not inputs.problems:
            inputs.wrong("nodes", "Required: a list of node names or ids.", code="required")
        return []
    cluster = _cluster(inputs)
    ids = [int(text) for text in wanted if text.isascii() and text.isdecimal() and len(text) < 19]
    rows = Node.objects.filter(name__in=wanted) | Node.objects.filter(pk__in=ids)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    nodes = list(rows.select_related("cluster").order_by("pk"))
    known = {node.name for node in nodes} | {str(node.pk) for node in nodes}
    for number, text in enumerate(wanted):
        if text not in known:
            inputs.wrong(f"nodes/{number}", f"There is no node {text[:60]!r}.", code="not-found")
    if len({node.cluster_id for node in nodes}) > 1:
        inputs.wrong(
            "nodes", "Belong to several clusters; make one reservation for each.", code="inconsistent"
        )
    return nodes


def _cluster(inputs: Inputs) -> Cluster | None:
    value = inputs.given("cluster")
    if value is None:
        return None
    cluster = Cluster.objects.filter(slug=str(value)[:80]).first() if "\x00" not in str(value) else None
    if cluster is None:
        inputs.wrong("cluster", f"There is no cluster {str(value)[:60]!r}.", code="not-found")
    return cluster


def _in_force(starts_at: datetime, ends_at: datetime) -> Any:
    return Reservation.objects.filter(cancelled_at__isnull=True, starts_at__lt=ends_at, ends_at__gt=starts_at)


def _refuse_overlap(nodes: list[Node], starts_at: datetime, ends_at: datetime, by: User) -> None:
    other = _in_force(starts_at, ends_at).filter(nodes__in=nodes).first()
    if other is not None:
        shared = other.nodes.filter(pk__in=[node.pk for node in nodes]).first()
        name = f" ({other.name})" if visible_reservations(by).filter(pk=other.pk).exists() else ""
        raise Conflict(
            message=f"Node {shared} is reserved from {written(other.starts_at)} to "
            f"{written(other.ends_at)}{name}.",
            code="already-reserved",
            way_out="Choose other nodes or another window, or cancel that reservation first.",
        )


def _save(reservation: Reservation, nodes: list[Node], by: User) -> Reservation:
    reservation.save(force_insert=True)
    reservation.nodes.set(nodes)
    _announce(reservation)
    audit.record(
        by=by,
        action="reservation.create",
        thing=reservation,
        after={
            "nodes": [node.name for node in nodes],
            "starts_at": reservation.starts_at,
            "ends_at": reservation.ends_at,
            "project": reservation.project,
            "job": reservation.job_id,
        },
        reason=reservation.reason,
        project=reservation.project,
    )
    return reservation


def _announce(reservation: Reservation) -> None:
    outbox.announce(outbox.CLUSTER_TOPIC)
    outbox.wake_planner(reservation.cluster_id, trigger="reservation")
