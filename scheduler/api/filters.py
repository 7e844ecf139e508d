"""What job lists can be narrowed by; the same words in the API, on pages and in saved views."""

from __future__ import annotations

from typing import Any, Final

import django_filters
from django import forms
from django.db.models import Q, QuerySet
from rest_framework.request import Request

from accounts.models import Project, User
from infra.api.filters import FilterSet
from infra.api.rest import bad_choice
from infra.errors import FieldProblem, InvalidInput
from scheduler.core.lifecycle import FailureClass, JobState, PublicState
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.deadlines import in_deadline_state, job_states
from scheduler.models import Allocation, Job, Queue
from scheduler.models.job import JobQuerySet

_STATES = [(s.value, s.value) for s in PublicState]


FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def flag(value: str) -> bool:
    """The flag of a query, in any case; raises KeyError where the text is none of `FLAGS`."""
    return FLAGS[value.strip().lower()]


class _FlagField(forms.NullBooleanField):
    """Django's own field takes what it does not know as "no choice", so that the list is not narrowed."""

    widget = forms.TextInput

    def to_python(self, value: Any) -> bool | None:  # type: ignore[override]
        if value in (None, ""):
            return None
        try:
            return flag(str(value))
        except KeyError:
            raise forms.ValidationError(f"'{value}' is neither true nor false.", code="invalid") from None


class FlagFilter(django_filters.BooleanFilter):
    """`cordoned=true`; another word is refused."""

    field_class = _FlagField


class StatesFilter(django_filters.BaseInFilter, django_filters.ChoiceFilter):
    """`state__in=queued,running`."""


class JobFilter(FilterSet):
    state = django_filters.ChoiceFilter(choices=_STATES, method="by_state")
    state__in = StatesFilter(choices=_STATES, method="by_states")
    state_detail = django_filters.ChoiceFilter(
        choices=[(s.value, s.value) for s in JobState], method="by_detail"
    )
    queue = django_filters.CharFilter(method="by_queue")
    project = django_filters.CharFilter(method="by_project")
    user = django_filters.CharFilter(method="by_user", help_text='A username, or "me".')
    gpu_type = django_filters.CharFilter(method="by_gpu_type")
    name = django_filters.CharFilter(method="by_name", help_text="Part of the name, case-insensitive.")
    job_type = django_filters.CharFilter(lookup_expr="exact")
    submitted__gte = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    submitted__lte = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lte")
    reason = django_filters.ChoiceFilter(choices=[(c.value, c.value) for c in ReasonCode], method="by_reason")
    failure_class = django_filters.MultipleChoiceFilter(
        choices=[(one.value, one.value) for one in FailureClass],
        help_text="Why the last ended attempt did not succeed; may be repeated.",
    )
    deadline = django_filters.ChoiceFilter(
        choices=job_states(),
        method="by_deadline",
        help_text="Jobs with a deadline that stand to it like this.",
    )
    reason_category = django_filters.ChoiceFilter(
        choices=[(c.value, c.value) for c in ReasonCategory], method="by_category"
    )
    array_id = django_filters.NumberFilter(
        method="by_array", decimal_places=0, min_value=1, max_value=2**63 - 1,
        help_text="The number of an array: its elements.",
    )  # fmt: skip
    node = django_filters.CharFilter(method="by_node", help_text="Jobs with an allocation on this node now.")
    label = django_filters.CharFilter(method="by_label", help_text="key or key=value; may be repeated.")
    count = django_filters.ChoiceFilter(
        choices=[(word, word) for word in ("true", "false")],
        method="unchanged",
        help_text="Also return the total number.",
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def unchanged(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        """The view counts them."""
        return jobs

    def by_state(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.in_public_states([value])

    def by_states(self, jobs: JobQuerySet, name: str, values: list[str]) -> JobQuerySet:
        return jobs.in_public_states(values)

    def by_detail(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.in_states([value])

    # Names are looked up first: the database chooses another way for a person with few jobs than for one with
    # many, and cannot do so behind a join.

    def by_queue(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(queue__in=_keys(Queue.objects.filter(slug_or_id(value))))

    def by_project(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.filter(project__in=_keys(Project.objects.filter(slug_or_id(value))))

    def by_user(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        if value == "me":
            return jobs.of_people([self.request.user.pk])
        return jobs.of_people(_keys(User.objects.filter(username=value)))

    def by_gpu_type(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.exclude(gpu_model="").filter(gpu_model__iexact=value)

    def by_name(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.called(value)

    def by_reason(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.with_reason().filter(reason_code=value)

    def by_category(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return jobs.pending().filter(reason_category=value)

    def by_deadline(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        return in_deadline_state(jobs, value)

    def by_array(self, jobs: JobQuerySet, name: str, value: Any) -> JobQuerySet:
        return jobs.of_array(int(value))

    def by_node(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        held = Allocation.objects.held().filter(node__name=value)
        return jobs.filter(number__in=list(held.values_list("attempt__job_id", flat=True)))

    def by_label(self, jobs: JobQuerySet, name: str, value: str) -> JobQuerySet:
        what = Q()
        for wanted in self.data.getlist("label")[:16]:
            key, equals, text = wanted.partition("=")
            what &= Q(labels__contains={key: text}) if equals else Q(labels__has_key=key)
        # The second part is in the words of the index.
        return jobs.matching(what & ~Q(labels={}))


def asked_flag(request: Request, name: str) -> bool:
    """A flag of the query, false where the query does not have it; raises InvalidInput for another word."""
    given = request.query_params.get(name, "")
    try:
        return bool(given) and flag(given)
    except KeyError:
        raise bad_choice(name, ("true", "false")) from None


def slug_or_id(value: str) -> Q:
    wanted = Q(slug=value)
    if value.isascii() and value.isdecimal() and len(value) < 19:
        wanted |= Q(pk=int(value))
    return wanted


def _keys(rows: QuerySet[Any]) -> list[int]:
    return list(rows.order_by().values_list("pk", flat=True))


def filtered(
    filter_class: type[django_filters.FilterSet], request: Request, rows: QuerySet[Any]
) -> QuerySet[Any]:
    """The rows that the query asks for; bad values are refused, never ignored."""
    found = filter_class(request.query_params, queryset=rows, request=request)
    problems = [
        FieldProblem(name, " ".join(messages), "invalid") for name, messages in found.form.errors.items()
    ]
    if problems:
        raise InvalidInput(
            message=problems[0].message,
            status=400,
            problems=problems,
            way_out="Correct the query and send the request again.",
        )
    return found.qs
