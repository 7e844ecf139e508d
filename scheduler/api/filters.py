"""What job lists can be narrowed by; the same words in the API, on pages and in saved views."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import Q, QuerySet
from rest_framework.request import Request

from accounts.errors import FieldProblem, InvalidInput
from scheduler.core.lifecycle import PENDING, JobState, PublicState
from scheduler.core.reasons import ReasonCategory, ReasonCode
from scheduler.models import Job
from scheduler.models.job import JobQuerySet

_STATES = [(s.value, s.value) for s in PublicState]


class StatesFilter(django_filters.BaseInFilter, django_filters.ChoiceFilter):
    """`state__in=queued,running`."""


class JobFilter(django_filters.FilterSet):
    state = django_filters.ChoiceFilter(choices=_STATES, method="by_state")
    state__in = StatesFilter(choices=_STATES, method="by_states")
    state_detail = django_filters.ChoiceFilter(
        field_name="state", choices=[(s.value, s.value) for s in JobState]
    )
    queue = django_filters.CharFilter(method="by_queue")
    project = django_filters.CharFilter(method="by_project")
    user = django_filters.CharFilter(method="by_user", help_text='A username, or "me".')
    gpu_type = django_filters.CharFilter(field_name="gpu_model", lookup_expr="iexact")
    name = django_filters.CharFilter(lookup_expr="icontains")
    job_type = django_filters.CharFilter(lookup_expr="exact")
    submitted__gte = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    submitted__lte = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lte")
    reason = django_filters.ChoiceFilter(
        field_name="reason_code", choices=[(c.value, c.value) for c in ReasonCode]
    )
    reason_category = django_filters.ChoiceFilter(
        choices=[(c.value, c.value) for c in ReasonCategory], method="by_category"
    )
    array_id = django_filters.UUIDFilter()
    node = django_filters.CharFilter(method="by_node", help_text="Jobs that hold something there now.")
    label = django_filters.CharFilter(method="by_label", help_text="key or key=value; may be repeated.")

    class Meta:
        model = Job
        fields: list[str] = []

    def by_state(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.in_public_states([value])

    def by_states(self, jobs: JobQuerySet, name: str, values: list[str]) -> JobQuerySet:
        return jobs.in_public_states(values)

    def by_queue(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(slug_or_id("queue", value))

    def by_project(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(slug_or_id("project", value))

    def by_user(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(user=self.request.user) if value == "me" else jobs.filter(user__username=value)

    def by_category(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(reason_category=value, state__in=PENDING)

    def by_node(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(
            attempts__allocations__node__name=value, attempts__allocations__released_at__isnull=True
        ).distinct()

    def by_label(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        for wanted in self.data.getlist("label")[:16]:
            key, equals, text = wanted.partition("=")
            jobs = jobs.filter(labels__contains={key: text}) if equals else jobs.filter(labels__has_key=key)
        return jobs


def slug_or_id(relation: str, value: str) -> Q:
    wanted = Q(**{f"{relation}__slug": value})
    if value.isascii() and value.isdecimal() and len(value) < 19:
        wanted |= Q(**{f"{relation}_id": int(value)})
    return wanted


def filtered(
    filter_class: type[django_filters.FilterSet], request: Request, rows: QuerySet[Any]
) -> QuerySet[Any]:
    """The rows that the query asks for; unknown parameters and bad values are refused, never ignored."""
    found = filter_class(request.query_params, queryset=rows, request=request)
    known = set(found.filters) | {"limit", "cursor", "format"}
    problems = [
        FieldProblem(name[:60], f"There is no filter {name[:60]!r}; known are {', '.join(sorted(known))}.",
                     "unknown-filter")
        for name in request.query_params
        if name not in known
    ]  # fmt: skip
    problems += [
        FieldProblem(name, " ".join(messages), "invalid") for name, messages in found.form.errors.items()
    ]
    if problems:
        raise InvalidInput(
            message=problems[0].message,
            status=400,
            problems=problems,
            way_out="Correct the query and ask again.",
        )
    return found.qs
