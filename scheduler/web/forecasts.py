"""How often starts fell within the predicted range."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounts.web.pages import page, reader
from scheduler.models import ForecastOutcome
from scheduler.selectors import visible_jobs, visible_queues
from scheduler.services.planning.forecasts import accuracies, record

MOST_RECENT: Final = 20


@require_safe
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    found = record(fresh=True)
    parts = []
    if found.starts:
        for words, count, tone in (
            ("Started within the range", found.inside, "completed"),
            ("Started earlier", found.earlier, "running"),
            ("Started later", found.later, "pending"),
        ):
            parts.append((words, count, round(100 * count / found.starts), tone))
    mine = visible_jobs(user).filter(user=user).values("number")
    recent = ForecastOutcome.objects.filter(job_number__in=mine).order_by("-started_at")[:MOST_RECENT]
    clusters = {queue.cluster_id for queue in visible_queues(user)}
    return render(
        request,
        "scheduler/forecasts.html",
        {"record": found, "parts": parts, "recent": list(recent), "accuracies": accuracies(clusters)},
    )
