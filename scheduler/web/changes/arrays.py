"""An array: how far its elements are, and what may be done to all of them."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.errors import FieldProblem, InvalidInput
from infra.plain_text import reason_of
from scheduler import labels
from scheduler.core.lifecycle import PublicState
from scheduler.job_lists import job_rows
from scheduler.models import Job
from scheduler.selectors import job_by_ref, listed_jobs
from scheduler.services.changes.arrays import (
    ArrayOverview,
    act_on_array,
    array_by_number,
    overview,
    throttle_array,
)

#: Elements that the page lists, by rising index; the list of jobs has the others.
MOST_ELEMENTS: Final = 50
DONE: Final = {"cancel": "cancelled or being stopped", "hold": "held", "release": "released"}


@require_safe
@page
def show(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    first = array_by_number(user, number)
    array = overview(first)
    asked = request.GET.get("state", "")
    state = asked if asked in list(PublicState) else ""
    rows = listed_jobs(user).of_array(number)
    if state:
        rows = rows.in_public_states([state])
    context = {
        "array": array,
        "first": first,
        "state": state,
        "counts": [(one, labels.PUBLIC_STATES[one], array.by_state[one]) for one in PublicState],
        "percent": int(array.progress * 100),
        "elements": list(job_rows(rows.order_by("number"))[:MOST_ELEMENTS]),
        "most": MOST_ELEMENTS,
        "verbs": _verbs(first, array, user),
        "live_url": f"{reverse('array', args=[number])}?partial=1" + (f"&state={state}" if state else ""),
    }
    template = "scheduler/array_body.html" if "partial" in request.GET else "scheduler/array.html"
    return render(request, template, context)


def _verbs(first: Job, array: ArrayOverview, user: User) -> frozenset[str]:
    """What the person may do to it that the states of its elements allow."""
    possible = set()
    if array.over < array.jobs:
        possible |= {"cancel", "edit"}
    if array.by_state[PublicState.QUEUED] > array.held:
        possible.add("hold")
    if array.held > (0 if user.is_operator else array.held_by_admin):
        possible.add("release")
    return permissions.allowed_verbs(user, first, possible)


@require_POST
@page
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    user = reader(request)
    first = array_by_number(user, number)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    if verb == "throttle":
        text = request.POST.get("max_running", "").strip()
        if text and not (text.isascii() and text.isdecimal() and len(text) < 9):
            wrong = "Running at once must be a whole number, or empty for any number."
            raise InvalidInput(wrong, problems=[FieldProblem("max_running", wrong, "not-a-number")])
        throttle_array(first, most=int(text) if text else None, by=user, reason=reason)
        messages.success(request, f"Array {number}: at most {text or 'any number of'} elements run at once.")
    elif verb in DONE:
        done = len(act_on_array(verb, first, by=user, reason=reason).done)
        messages.success(
            request, f"{done:,} {'job of' if done == 1 else 'jobs of'} array {number} {DONE[verb]}."
        )
    else:
        raise Http404
    return redirect("array", number=number)


@require_safe
@page
def element(request: HttpRequest, number: int, index: int) -> HttpResponse:
    """The page of an element that was named as 123_3."""
    return redirect("job", number=job_by_ref(reader(request), f"{number}_{index}").number)
