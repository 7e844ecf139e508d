"""The first page: my jobs by state, what needs me, quota left, free GPUs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounts import permissions
from accounts.web.pages import page, reader
from quotas.services.alerts import unread_notices
from scheduler.job_lists import job_rows, node_names
from scheduler.models import Job
from scheduler.selectors import visible_jobs
from scheduler.web import reads

RECENT = 6
#: Shown on this page; the quota page has them all.
QUOTA_LINES = 6


@require_safe
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    mine = visible_jobs(user).filter(user=user)
    counts = reads.public_counts(Job.objects.filter(user=user))
    recent = list(job_rows(mine.order_by("-number"))[:RECENT])
    lines = reads.my_quota_lines(user)
    supply = reads.gpu_supply()
    context = {
        "counts": counts,
        "any_jobs": any(count.count for count in counts),
        "recent": recent,
        "nodes": node_names(recent),
        "attention": reads.attention(user),
        "notices": unread_notices(user),
        "quota_lines": sorted(lines, key=lambda line: -_fullness(line))[:QUOTA_LINES],
        "more_quota": max(0, len(lines) - QUOTA_LINES),
        "supply": supply,
        "in_a_project": bool(lines) or bool(permissions.roles_of(user)),
    }
    template = "scheduler/home_body.html" if "partial" in request.GET else "scheduler/home.html"
    return render(request, template, context)


@require_safe
@page
def troubles(request: HttpRequest) -> HttpResponse:
    """The banner that every page has, as things are now."""
    return render(request, "partials/troubles.html", {"fresh": True})


def _fullness(line) -> float:  # type: ignore[no-untyped-def]
    bound = line.hard or line.soft or line.nominal
    return line.used / bound if bound else 0.0
