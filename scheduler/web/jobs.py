"""The list of jobs: filters in the address, a page at a time, many cancelled at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts.models import Project, User
from accounts.services import audit
from accounts.web.pages import back, page, reader
from infra.errors import MusterError
from scheduler.core.lifecycle import PublicState
from scheduler.core.reason_codes import ReasonCategory
from scheduler.deadlines import DeadlineState, in_deadline_state
from scheduler.job_lists import job_rows, node_names
from scheduler.labels import DEADLINES
from scheduler.models import Queue
from scheduler.models.job import JobQuerySet
from scheduler.selectors import listed_jobs, visible_queues
from scheduler.services.jobs.verbs import cancel_job, hold_job, release_job
from scheduler.services.submission.fields_dependencies import ElementRef, job_ref
from scheduler.web import reads

PAGE_SIZE: Final = 50
MOST_AT_ONCE: Final = 200
SCOPES: Final = {"mine": "mine", "project": "my projects", "all": "all users"}
VERBS: Final = {"cancel": cancel_job, "hold": hold_job, "release": release_job}
DONE: Final = {"cancel": "cancelled", "hold": "held", "release": "released"}


@dataclass(frozen=True, slots=True)
class Filters:
    """What the address asks for; unknown values are dropped: a mistyped link shows more, not an error."""

    scope: str
    state: str
    queue: str
    project: str
    category: str
    deadline: str
    text: str

    @classmethod
    def of(cls, request: HttpRequest, user: User) -> Filters:
        given = {name: str(value).replace("\x00", "").strip() for name, value in request.GET.items()}
        scope = given.get("scope", "mine")
        state, category = given.get("state", ""), given.get("category", "")
        deadline = given.get("deadline", "")
        allowed = SCOPES if user.is_operator or user.is_auditor else ("mine", "project")
        return cls(
            scope=scope if scope in allowed else "mine",
            state=state if state in list(PublicState) else "",
            queue=given.get("queue", "")[:80],
            project=given.get("project", "")[:80],
            category=category if category in list(ReasonCategory) else "",
            deadline=deadline if deadline in list(DeadlineState) else "",
            text=given.get("q", "")[:200],
        )

    def apply(self, jobs: JobQuerySet, user: User) -> JobQuerySet:
        """Everything but the state, which the strip counts over."""
        if self.scope == "mine":
            jobs = jobs.of_people([user.pk])
        # Names are looked up first: behind a join the database cannot tell whether many jobs are meant or few.
        if self.queue:
            jobs = jobs.filter(queue__in=list(Queue.objects.filter(slug=self.queue)))
        if self.project:
            jobs = jobs.filter(project__in=list(Project.objects.filter(slug=self.project)))
        if self.category:
            jobs = jobs.pending().filter(reason_category=self.category)
        if self.deadline:
            jobs = in_deadline_state(jobs, self.deadline)
        if self.text:
            jobs = jobs.called(self.text, *self._others())
        return jobs

    def _others(self) -> list[Q]:
        """What the text may mean beside a part of a name."""
        match = []
        if people := list(User.objects.filter(username=self.text).values_list("pk", flat=True)):
            match.append(Q(user__in=people))
        if self.text.isascii() and self.text.isdecimal() and len(self.text) < 19:
            match.append(Q(number=int(self.text)))
        elif isinstance(element := job_ref(self.text), ElementRef):
            match.append(Q(array_number=element.array, array_index=element.element))
        return match

    @property
    def set(self) -> list[tuple[str, str]]:
        """Names and values of the filters in force, for "these 3 filters"."""
        values = (("state", self.state), ("queue", self.queue), ("project", self.project),
                  ("category", self.category), ("deadline", self.deadline), ("q", self.text))  # fmt: skip
        return [(name, value) for name, value in values if value]

    def query(self, **extra: Any) -> str:
        pairs = [("scope", self.scope)] if self.scope != "mine" else []
        return urlencode([*pairs, *self.set, *((name, value) for name, value in extra.items() if value)])


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    filters = Filters.of(request, user)
    jobs = filters.apply(listed_jobs(user), user)
    counts = reads.public_counts(jobs)
    if filters.state:
        jobs = jobs.in_public_states([filters.state])
    before = request.GET.get("before", "")
    if before.isascii() and before.isdecimal() and len(before) < 19:
        jobs = jobs.filter(number__lt=int(before))
    else:
        before = ""
    rows = list(job_rows(jobs.order_by("-number"))[: PAGE_SIZE + 1])
    shown = rows[:PAGE_SIZE]
    context = {
        "filters": filters,
        "filters_query": filters.query(),
        "live_url": f"{reverse('jobs')}?{filters.query(before=before, partial=1)}",
        "counts": counts,
        "all_count": reads.count_words(reads.sum_of(counts)),
        "estimated": reads.sum_of(counts).estimated,
        "jobs": shown,
        "nodes": node_names(shown),
        "older": filters.query(before=shown[-1].number) if len(rows) > PAGE_SIZE else "",
        "newest": filters.query() if before else None,
        "before": before,
    }
    if "partial" in request.GET:
        return render(request, "scheduler/jobs_body.html", context)
    context |= {
        "scopes": [(k, v) for k, v in SCOPES.items() if k != "all" or user.is_operator or user.is_auditor],
        "queues": list(visible_queues(user).order_by("name")),
        "projects": reads.filter_choices(user)["projects"],
        "categories": list(ReasonCategory),
        "deadlines": [(state.value, DEADLINES[state].word) for state in DeadlineState],
    }
    return render(request, "scheduler/jobs.html", context)


@require_POST
@page
def bulk(request: HttpRequest) -> HttpResponse:
    """One verb on the chosen jobs, each on its own: what could not be done is named, the rest is done."""
    user = reader(request)
    verb = request.POST.get("verb", "")
    numbers = {int(n) for n in request.POST.getlist("job")[:MOST_AT_ONCE] if n.isdecimal() and len(n) < 19}
    if verb not in VERBS or not numbers:
        messages.error(request, "Select at least one job first.")
        return back(request, "jobs")
    done, refused = 0, []
    for job in reads.jobs_of(user, numbers=numbers):
        try:
            VERBS[verb](job=job, by=user)
            done += 1
        except MusterError as error:
            audit.record_refusal(error, by=user)
            refused.append(f"{job.number}: {error.message}")
    if done:
        messages.success(request, f"{done} {'job was' if done == 1 else 'jobs were'} {DONE[verb]}.")
    if refused:
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        messages.error(request, "Failed for " + "; ".join(refused[:3]) + more)
    return back(request, "jobs")
