"""Requests for reservations: a lead asks, an operator approves, changes or declines; every step is in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from scheduler.models import Reservation, ReservationStatus
from scheduler.services.reservations.choose import choose
from scheduler.services.reservations.reserve import announce, hold, said
from scheduler.services.reservations.terms import FIELDS, Terms, read_terms, read_window
from scheduler.services.submission.fields import Inputs

#: What of an approved reservation may change; what it holds is chosen once.
CHANGEABLE: Final = ("name", "reason", "starts_at", "ends_at", "seconds")


def request_reservation(*, payload: Mapping[str, Any], by: User) -> Reservation:
    """Ask for a reservation for a project that the person leads; nothing is held until an operator approves it."""
    terms = read_terms(payload, by=by, refusal="The reservation cannot be requested")
    if terms.project is None:
        text = "Required: the project that the reservation is for."
        raise InvalidInput(text, problems=[FieldProblem("project", text, "required")])
    permissions.require(by, "manage", terms.project)
    if not terms.reason:
        text = "Required: what the reservation is for; an operator decides by it."
        raise InvalidInput(text, problems=[FieldProblem("reason", text, "required")])
    with transaction.atomic():
        row = Reservation(
            cluster=terms.wanted.cluster, name=terms.name, project=terms.project, starts_at=terms.starts_at,
            ends_at=terms.ends_at, reason=terms.reason, created_by=by, magnetic=terms.magnetic,
            wanted=dict(terms.stored), status=ReservationStatus.REQUESTED,
        )  # fmt: skip
        row.save(force_insert=True)
        row.users.set(terms.users)
        _record("reservation.request", row, by, {"wanted": row.wanted, "starts_at": row.starts_at,
                                                 "ends_at": row.ends_at}, row.reason)  # fmt: skip
        return row


def approve_reservation(
    *, reservation: Reservation, by: User, changes: Mapping[str, Any], reason: str = ""
) -> Reservation:
    """Approve a request, with `changes` of its terms; its nodes and devices are chosen now.

    Raises Conflict when it was decided before, or when what is asked for is not free of other reservations.
    """
    permissions.require(by, "operate")
    terms = terms_of(reservation, changes, by)
    with transaction.atomic():
        row = _undecided(reservation)
        held = choose(terms.wanted, terms.starts_at, terms.ends_at, by, but=row.pk)
        _fill(row, terms)
        row.status, row.decided_by, row.decided_at = ReservationStatus.APPROVED, by, timezone.now()
        row.decision_reason = reason
        row.save()
        row.users.set(terms.users)
        hold(row, held)
        announce(row)
        _record("reservation.approve", row, by, said(row, held, terms.users), reason)
        return row


def decline_reservation(*, reservation: Reservation, by: User, reason: str) -> Reservation:
    """Decline a request; the reason is shown to those who asked."""
    permissions.require(by, "operate")
    if not reason:
        text = "Required: the project reads why its request is declined."
        raise InvalidInput(text, problems=[FieldProblem("reason", text, "required")])
    with transaction.atomic():
        row = _undecided(reservation)
        row.status, row.decided_by, row.decided_at = ReservationStatus.DECLINED, by, timezone.now()
        row.decision_reason = reason
        row.save()
        _record("reservation.decline", row, by, {"status": row.status}, reason)
        return row


def change_reservation(*, reservation: Reservation, changes: Mapping[str, Any], by: User) -> Reservation:
    """Change the name, the reason or the window; operators, and the lead who asked until it is decided.

    Jobs that run inside go on to their time limits, also past an end that is moved forward.
    """
    if reservation.status == ReservationStatus.REQUESTED and reservation.project is not None:
        if not permissions.may(by, "operate"):
            permissions.require(by, "manage", reservation.project)
    else:
        permissions.require(by, "operate")
    inputs = Inputs(changes)
    inputs.refuse_unknown(CHANGEABLE)
    if not changes:
        inputs.wrong("", "Nothing to change: the body names no field.", code="required")
    inputs.finish("The reservation cannot be changed")
    with transaction.atomic():
        row = _locked(reservation)
        _refuse_over(row)
        inputs = Inputs(_with_window(row, changes))
        starts_at, ends_at = read_window(inputs)
        name = inputs.text("name", most=120, default=row.name) or row.name
        reason = inputs.text("reason", most=200) if "reason" in changes else row.reason
        inputs.finish("The reservation cannot be changed")
        assert ends_at is not None
        before = {"name": row.name, "starts_at": row.starts_at, "ends_at": row.ends_at, "reason": row.reason}
        after = {"name": name, "starts_at": starts_at, "ends_at": ends_at, "reason": reason}
        row.name, row.starts_at, row.ends_at, row.reason = name, starts_at, ends_at, reason
        try:
            with transaction.atomic():
                row.save()
        except IntegrityError as clash:
            raise Conflict(
                message="Another reservation holds some of the same nodes or devices in that window.",
                code="already-reserved",
                way_out="Choose another window, or cancel the other reservation first.",
            ) from clash
        announce(row)
        audit.record(
            by=by, action="reservation.change", thing=row, before=before, after=after, project=row.project
        )
        return row


def _with_window(row: Reservation, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, and of the window what they leave as it is; a start that is past stays."""
    window: dict[str, Any] = {"starts_at": row.starts_at.isoformat()}
    if "ends_at" not in changes and "seconds" not in changes:
        window["ends_at"] = row.ends_at.isoformat()
    return window | {name: value for name, value in changes.items() if value is not None}


def terms_of(row: Reservation, changes: Mapping[str, Any], by: User) -> Terms:
    """The terms of a request with what the operator changes of them."""
    inputs = Inputs(changes)
    inputs.refuse_unknown([name for name in FIELDS if name != "project"])
    inputs.finish("The request cannot be approved so")
    asked: dict[str, Any] = dict(row.wanted)
    if "nodes" in changes or "node_count" in changes:
        asked = {name: value for name, value in asked.items() if name not in ("nodes", "node_count")}
    if "nodes" in changes:
        asked = {name: value for name, value in asked.items() if name not in ("partition", "labels")}
    asked |= {
        "name": row.name, "reason": row.reason, "project": row.project.slug if row.project else None,
        "users": [user.username for user in row.users.all()], **_with_window(row, changes),
    }  # fmt: skip
    return read_terms(asked | dict(changes), by=by, refusal="The request cannot be approved so")


def _fill(row: Reservation, terms: Terms) -> None:
    row.name, row.starts_at, row.ends_at, row.reason = (
        terms.name,
        terms.starts_at,
        terms.ends_at,
        terms.reason,
    )
    row.magnetic, row.wanted, row.cluster = terms.magnetic, dict(terms.stored), terms.wanted.cluster


def _locked(row: Reservation) -> Reservation:
    return Reservation.objects.select_for_update(of=("self",)).get(pk=row.pk)


def _undecided(reservation: Reservation) -> Reservation:
    row = _locked(reservation)
    if row.cancelled_at is not None or row.status != ReservationStatus.REQUESTED:
        what = "was withdrawn" if row.cancelled_at is not None else f"is {row.status}"
        raise Conflict(
            message=f"The request for {row.name} {what}.", code="already-decided",
            way_out="Read the reservation; ask for a new one if you need something else.",
        )  # fmt: skip
    return row


def _refuse_over(row: Reservation) -> None:
    over = (
        row.status == ReservationStatus.DECLINED
        or row.cancelled_at is not None
        or row.ends_at <= timezone.now()
    )
    if over:
        raise Conflict(
            message=f"Reservation {row.name} is over, cancelled or declined, and does not change any more.",
            way_out="Make a new one.",
        )


def _record(action: str, row: Reservation, by: User, after: Mapping[str, Any], reason: str) -> None:
    audit.record(by=by, action=action, thing=row, after=dict(after), reason=reason, project=row.project)
