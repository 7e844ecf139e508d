"""The queues: what waits and runs in each, why, and pausing one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db.models import Min
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.web.pages import page, reader
from infra.plain_text import reason_of
from scheduler.deadline_report import deadline_report, missed_numbers
from scheduler.job_lists import job_rows
from scheduler.models import Job, Queue
from scheduler.models.queue import SchedulingPolicy
from scheduler.selectors import QueueOverview, listed_jobs, queue_by_ref, queue_overview
from scheduler.services.cluster.queues import pause_queue, resume_queue
from scheduler.services.planning.profiles import OrderInForce, orders_in_force


@dataclass(frozen=True, slots=True)
class Row:
    """One queue with its longest wait."""

    overview: QueueOverview
    order: OrderInForce
    oldest_at: datetime | None

    @property
    def queue(self) -> Queue:
        return self.overview.queue

    @property
    def load(self) -> Any:
        return self.overview.load

    @property
    def reasons(self) -> tuple[tuple[str, int], ...]:
        return self.overview.reasons[:3]


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    overviews = queue_overview(user)
    oldest = dict(
        Job.objects.pending()
        .filter(queue__in=[overview.queue.pk for overview in overviews])
        .order_by()
        .values_list("queue_id")
        .annotate(at=Min("created_at"))
    )
    orders = orders_in_force(overview.queue for overview in overviews)
    context = {
        "rows": [
            Row(overview, orders[overview.queue.pk], oldest.get(overview.queue.pk)) for overview in overviews
        ],
        "queues_in_order": any(
            (queue.cluster.profile.policy if queue.cluster.profile else settings.SCHEDULING_POLICY)
            == SchedulingPolicy.PRIORITY
            for queue in (overview.queue for overview in overviews)
        ),
        "may_operate": permissions.may(user, "operate"),
        "live_url": f"{reverse('queues')}?partial=1",
    }
    template = "scheduler/queues_body.html" if "partial" in request.GET else "scheduler/queues.html"
    return render(request, template, context)


#: Days that the page offers.
DAYS = (1, 7, 30, 90)


@require_safe
@page
def deadlines(request: HttpRequest, queue_id: int) -> HttpResponse:
    """How the queue kept the deadlines of its jobs."""
    user = reader(request)
    queue = queue_by_ref(user, queue_id)
    days = next((day for day in DAYS if str(day) == request.GET.get("days")), 7)
    found = deadline_report(queue.pk, days=days)
    seen = listed_jobs(user).filter(number__in=missed_numbers(queue.pk, found.since))
    context = {
        "queue": queue,
        "found": found,
        "all_days": DAYS,
        "jobs": list(job_rows(seen.order_by("-number"))),
        "parts": [
            (words, count, round(100 * count / found.jobs), tone)
            for words, count, tone in (
                ("Met", found.met, "completed"),
                ("Not over at the deadline", found.late, "failed"),
                ("Failed before the deadline", found.failed, "failed"),
                ("Cancelled before the deadline", found.cancelled, "cancelled"),
            )
            if found.jobs
        ],
    }
    return render(request, "scheduler/queue_deadlines.html", context)


@require_POST
@page
def act(request: HttpRequest, queue_id: int, verb: str) -> HttpResponse:
    if verb not in ("pause", "resume"):
        raise Http404
    user = reader(request)
    queue = queue_by_ref(user, queue_id)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    if verb == "pause":
        pause_queue(queue=queue, by=user, reason=reason)
        messages.success(request, f"Queue {queue.name} is paused: no job starts; running jobs continue.")
    else:
        resume_queue(queue=queue, by=user, reason=reason)
        messages.success(request, f"Queue {queue.name} is resumed.")
    return redirect("queues")
