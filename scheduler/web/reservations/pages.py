"""Reservations: those in sight, the form to ask for one, and one with what runs inside and what it costs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import permissions
from accounts.models import Project, ProjectRole, User
from accounts.selectors import visible_projects
from accounts.web.pages import page, reader
from infra.errors import Conflict, InvalidInput, MusterError
from infra.plain_text import reason_of
from scheduler.job_lists import job_rows
from scheduler.models import Reservation, ReservationStatus
from scheduler.selectors import listed_jobs, visible_partitions, visible_reservations
from scheduler.services.reservations.cost import Cost, cost_of
from scheduler.services.reservations.decide import (
    approve_reservation,
    decline_reservation,
    request_reservation,
)
from scheduler.services.reservations.reserve import (
    cancel_reservation,
    may_cancel,
    reservation_by_ref,
    reserve,
)
from scheduler.services.reservations.use import devices_by_part, gpu_time, state_of

SHOWN: Final = 100
#: What the form sends on; the first of them are what is reserved.
_FIELDS: Final = (
    "nodes", "node_count", "partition", "gpu_type", "cpus_per_node", "memory_per_node", "gpus_per_node", "name",
    "project", "starts_at", "hours", "reason",
)  # fmt: skip
TONES: Final = {
    "requested": "pending", "planned": "starting", "active": "running", "ended": "completed",
    "declined": "failed", "cancelled": "cancelled",
}  # fmt: skip


class Shown:
    """A reservation with its state and the sign of it."""

    def __init__(self, row: Reservation) -> None:
        self.row, self.state = row, state_of(row)
        self.tone = TONES[self.state]
        self.parts = list(row.parts.all())
        self.people = [user.username for user in row.users.all()]

    @property
    def holds(self) -> str:
        """`n1, n2` or `4 GPUs on 2 nodes`."""
        names = [node.name for node in self.row.nodes.all()]
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            return ", ".join(names[:4]) + more
        if not self.parts:
            return ""
        gpus = sum(len(part.device_ids) for part in self.parts)
        what = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "a part"
        where = self.parts[0].node.name if len(self.parts) == 1 else f"{len(self.parts)} nodes"
        return f"{what} on {where}"


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    """Requests first, then what is coming or in force, then the last that are over."""
    user = reader(request)
    rows = visible_reservations(user).filter(job=None)
    now = timezone.now()
    live = rows.filter(cancelled_at=None, ends_at__gt=now)
    context = {
        "requests": [Shown(row) for row in live.filter(status=ReservationStatus.REQUESTED)[:SHOWN]],
        "current": [Shown(row) for row in live.filter(status=ReservationStatus.APPROVED)[:SHOWN]],
        "over": [Shown(row) for row in rows.exclude(
            pk__in=live.exclude(status=ReservationStatus.DECLINED).values("pk")
        ).order_by("-starts_at")[:20]],
        "may_operate": permissions.may(user, "operate"),
        "may_ask": bool(_may_ask_for(user)),
        "live_url": f"{reverse('reservations')}?partial=1",
    }  # fmt: skip
    template = (
        "scheduler/reservations_body.html" if "partial" in request.GET else "scheduler/reservations.html"
    )
    return render(request, template, context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def ask(request: HttpRequest) -> HttpResponse:
    """The form: a lead asks, an operator reserves at once."""
    user = reader(request)
    operates, projects = permissions.may(user, "operate"), _may_ask_for(user)
    if not operates and not projects:
        permissions.require(user, "operate")
    given = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    context: dict[str, Any] = {"problems": {}}
    if request.method == "POST":
        try:
            row = (reserve if operates else request_reservation)(payload=_payload(given), by=user)
        except (InvalidInput, Conflict) as error:
            context |= {
                "error": error,
                "problems": {p.field.partition("/")[0]: p.message for p in error.problems},
            }
        else:
            said = "The reservation is made." if operates else "The request is sent; an operator decides."
            messages.success(request, said)
            return redirect("reservation", row.uuid)
    refused: MusterError | None = context.get("error")
    context |= {
        "given": given, "operates": operates, "projects": projects,
        "partitions": visible_partitions(user).order_by("name").values_list("name", flat=True)[:SHOWN],
    }  # fmt: skip
    return render(
        request, "scheduler/reservation_ask.html", context, status=refused.status if refused else 200
    )


@require_safe
@page
def show(request: HttpRequest, ref: str) -> HttpResponse:
    return _page(request, reservation_by_ref(reader(request), str(ref)))


@require_POST
@page
def act(request: HttpRequest, ref: str, verb: str) -> HttpResponse:
    """Approve, decline or cancel."""
    user = reader(request)
    row = reservation_by_ref(user, str(ref))
    reason = reason_of(request.POST.get("reason", ""), most=200)
    try:
        if verb == "approve":
            approve_reservation(reservation=row, by=user, changes={}, reason=reason)
            messages.success(request, f"Reservation {row.name} is approved.")
        elif verb == "decline":
            decline_reservation(reservation=row, by=user, reason=reason)
            messages.success(request, f"The request for {row.name} is declined.")
        elif verb == "cancel":
            cancel_reservation(reservation=row, by=user, reason=reason)
            messages.success(request, f"Reservation {row.name} is cancelled; jobs inside continue.")
        else:
            raise Http404
    except (InvalidInput, Conflict) as error:
        return _page(request, reservation_by_ref(user, str(ref)), error)
    return redirect("reservation", row.uuid)


def _page(request: HttpRequest, row: Reservation, error: MusterError | None = None) -> HttpResponse:
    user, shown = reader(request), Shown(row)
    operates = permissions.may(user, "operate")
    cost: Cost | None = None
    trouble = ""
    if operates and shown.state == "requested":
        try:
            cost = cost_of(reservation=row, by=user)
        except (InvalidInput, Conflict) as found:
            trouble = str(found)
    devices = devices_by_part(row) if shown.parts else {}
    inside = listed_jobs(user).filter(reservation_id=row.pk).order_by("-number")[:SHOWN]
    context = {
        "shown": shown, "row": row, "error": error, "cost": cost, "trouble": trouble,
        "may_decide": operates and shown.state == "requested",
        "may_cancel": shown.state in ("requested", "planned", "active") and may_cancel(row, user),
        "time": gpu_time(row),
        "parts": [(part, devices[part.node_id]) for part in shown.parts],
        "jobs": list(job_rows(inside)),
        "wanted": sorted(row.wanted.items()),
    }  # fmt: skip
    return render(request, "scheduler/reservation.html", context, status=error.status if error else 200)


def _may_ask_for(user: User) -> list[Project]:
    """The open projects that a person leads; all for operators."""
    projects = visible_projects(user).filter(active=True).order_by("name", "id")
    if not permissions.may(user, "operate"):
        leads = {pk for pk, role in permissions.roles_of(user).items() if role == ProjectRole.LEAD}
        projects = projects.filter(pk__in=leads)
    return list(projects[:SHOWN])


def _payload(given: dict[str, str]) -> dict[str, Any]:
    """What was typed, as the API takes it."""
    payload: dict[str, Any] = {name: value for name, value in given.items() if value and name != "hours"}
    if given["nodes"]:
        payload["nodes"] = given["nodes"].replace(",", " ").split()
    if given["hours"]:
        try:
            payload["seconds"] = int(float(given["hours"]) * 3600)
        except (ValueError, OverflowError):
            payload["seconds"] = given["hours"]
    if given["starts_at"]:
        payload["starts_at"] = _moment(given["starts_at"])
    for name in ("node_count", "gpus_per_node"):
        if given[name].isdecimal() and len(given[name]) < 9:
            payload[name] = int(given[name])
    return payload


def _moment(text: str) -> str:
    """A moment of the form, which is in the time zone of the person; as it is where it cannot be read."""
    try:
        return timezone.make_aware(datetime.fromisoformat(text)).isoformat()
    except ValueError:
        return text
