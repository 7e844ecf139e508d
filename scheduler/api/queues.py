"""Queues and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.selectors import project_by_ref
from infra.api.fields import ChoiceField
from infra.api.rest import NewestFirst, both_ways
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import ApiView, body_of, person
from scheduler.api.serializers import moment
from scheduler.core.lifecycle import ACTIVE, PENDING, PUBLIC, JobState, PublicState
from scheduler.deadline_report import MOST_DAYS, Quantiles, deadline_report
from scheduler.job_lists import Count, queue_totals, state_counts
from scheduler.models import Queue
from scheduler.models.queue import ISOLATION_CHOICES
from scheduler.selectors import (
    QueueLoad,
    listed_jobs,
    preemption_counts,
    queue_by_ref,
    queue_loads,
    queue_overview,
    visible_queues,
)
from scheduler.services.cluster import queues as services
from scheduler.services.planning.profiles import OrderInForce, orders_in_force


class QueueSerializer(serializers.Serializer[Any]):
    """A queue and its counters."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    slug = serializers.CharField()
    cluster = serializers.CharField()
    project = serializers.CharField(allow_null=True)
    project_id = serializers.IntegerField(allow_null=True)
    partitions = serializers.ListField(child=serializers.CharField())
    is_default = serializers.BooleanField()
    priority = serializers.IntegerField()
    policy = serializers.CharField(
        help_text="The order in force now, by a rule of the profile where one applies."
    )
    policy_rule = serializers.CharField(
        help_text='The rule of the profile that is in force; "": none, or the profile has no rules.'
    )
    policy_since = serializers.DateTimeField(
        allow_null=True,
        help_text="Since when that rule, or none, is in force; null: the profile has no rules.",
    )
    placement = serializers.CharField(help_text="The placement strategy in force now.")
    paused = serializers.BooleanField()
    paused_reason = serializers.CharField()
    paused_by = serializers.CharField()
    paused_at = serializers.DateTimeField(allow_null=True)
    max_concurrent_jobs = serializers.IntegerField(allow_null=True)
    max_pending_jobs = serializers.IntegerField(allow_null=True)
    default_wall_seconds = serializers.IntegerField(allow_null=True)
    max_wall_seconds = serializers.IntegerField(allow_null=True)
    default_wait_seconds = serializers.IntegerField(
        allow_null=True, help_text="wait_limit of jobs that name none; null: unlimited."
    )
    default_assembly_seconds = serializers.IntegerField(
        allow_null=True, help_text="assembly_timeout of jobs of several tasks that name none; null: off."
    )
    preference_wait_seconds = serializers.IntegerField(
        allow_null=True,
        help_text="How long jobs without relax wait for a place that they prefer; null: not at all.",
    )
    results_days = serializers.IntegerField(
        allow_null=True, help_text="null: the site's setting; 0: unlimited."
    )
    results_job_mib = serializers.IntegerField(allow_null=True)
    results_until_fetched = serializers.BooleanField(allow_null=True)
    scratch_mib = serializers.IntegerField(
        allow_null=True,
        help_text="Disk for a task whose job requests no storage; null: the site's setting; 0: unlimited.",
    )
    isolation = serializers.ChoiceField(
        choices=ISOLATION_CHOICES,
        help_text='Jobs run only on nodes that isolate at least this much; "": any node.',
    )
    required_isolation = serializers.ChoiceField(
        choices=ISOLATION_CHOICES, help_text="The same, including what the profile of the queue requires."
    )
    running_jobs = serializers.IntegerField()
    pending_jobs = serializers.IntegerField()
    total_jobs = serializers.IntegerField()
    total_is_estimate = serializers.BooleanField(help_text="True: the number is an estimate.")
    generation = serializers.IntegerField()

    def to_representation(self, queue: Queue) -> dict[str, Any]:
        load: QueueLoad = self.context["loads"].get(queue.pk, QueueLoad())
        total: Count = self.context["totals"][queue.pk]
        order: OrderInForce = self.context["orders"][queue.pk]
        return {
            "id": queue.pk,
            "name": queue.name,
            "slug": queue.slug,
            "cluster": queue.cluster.slug,
            "project": queue.project.slug if queue.project else None,
            "project_id": queue.project_id,
            "partitions": [partition.name for partition in queue.partitions.all()],
            "is_default": queue.is_default,
            "priority": queue.priority,
            "policy": order.policy.value,
            "policy_rule": order.rule,
            "policy_since": moment(order.since),
            "placement": order.placement,
            "paused": queue.paused,
            "paused_reason": queue.paused_reason,
            "paused_by": queue.paused_by,
            "paused_at": moment(queue.paused_at),
            "max_concurrent_jobs": queue.max_concurrent_jobs,
            "max_pending_jobs": queue.max_pending_jobs,
            "default_wall_seconds": queue.default_wall_seconds,
            "max_wall_seconds": queue.max_wall_seconds,
            "default_wait_seconds": queue.default_wait_seconds,
            "default_assembly_seconds": queue.default_assembly_seconds,
            "preference_wait_seconds": queue.preference_wait_seconds,
            "results_days": queue.results_days,
            "results_job_mib": queue.results_job_mib,
            "results_until_fetched": queue.results_until_fetched,
            "scratch_mib": queue.scratch_mib,
            "isolation": queue.isolation,
            "required_isolation": queue.required_isolation.value,
            "running_jobs": load.running,
            "pending_jobs": load.pending,
            "total_jobs": total.jobs,
            "total_is_estimate": total.estimated,
            "generation": queue.generation,
        }


class QueueChangeSerializer(serializers.Serializer[Any]):
    paused = serializers.BooleanField(required=False)
    reason = serializers.CharField(max_length=200, required=False)
    generation = serializers.IntegerField(required=False, help_text="Refuse if the queue has changed since.")
    priority = serializers.IntegerField(min_value=0, max_value=100, required=False)
    max_concurrent_jobs = serializers.IntegerField(min_value=0, required=False, allow_null=True)
    max_pending_jobs = serializers.IntegerField(min_value=0, required=False, allow_null=True)
    default_wall_seconds = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    max_wall_seconds = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    default_wait_seconds = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    default_assembly_seconds = serializers.IntegerField(
        min_value=1, max_value=86_400, required=False, allow_null=True
    )
    preference_wait_seconds = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    results_days = serializers.IntegerField(min_value=0, required=False, allow_null=True)
    results_job_mib = serializers.IntegerField(min_value=0, required=False, allow_null=True)
    results_until_fetched = serializers.BooleanField(required=False, allow_null=True)
    scratch_mib = serializers.IntegerField(min_value=0, required=False, allow_null=True)
    isolation = ChoiceField(choices=ISOLATION_CHOICES, required=False)


def _counted(queues: Sequence[Queue]) -> dict[str, Any]:
    """What the serializer of these queues says of their jobs and their order."""
    keys = [queue.pk for queue in queues]
    return {"loads": queue_loads(keys), "totals": queue_totals(keys), "orders": orders_in_force(queues)}


class Queues(ApiView):
    """`/queues`"""

    queryset = Queue.objects.none()
    serializer_class = QueueSerializer
    pagination_class = NewestFirst
    page_ordering = ("pk",)
    orderings = both_ways(name="name", priority="priority")
    counted = True
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["queues"]

    @extend_schema(
        operation_id="queues_list",
        parameters=[
            OpenApiParameter("project_id", str, description="Queues that this project may use: id or slug.")
        ],
        responses=QueueSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Queues that you may see, with the jobs in them."""
        rows = visible_queues(person(request)).prefetch_related("partitions")
        wanted = request.query_params.get("project_id")
        if wanted:
            project = project_by_ref(person(request), wanted)
            rows = rows.filter(project__isnull=True) | rows.filter(project=project)
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response(QueueSerializer(page, many=True, context=_counted(page)).data)


class QueueDetail(ApiView):
    """`/queues/{id}`"""

    queryset = Queue.objects.none()
    serializer_class = QueueSerializer
    required_scopes = {"GET": "jobs:read", "PATCH": "nodes:write"}
    schema_tags = ["queues"]

    def answer(self, queue: Queue) -> Response:
        return Response(QueueSerializer(queue, context=_counted([queue])).data)

    @extend_schema(operation_id="queues_get", responses=QueueSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """One queue, by slug or id."""
        return self.answer(queue_by_ref(person(request), ref))

    @extend_schema(operation_id="queues_edit", request=QueueChangeSerializer, responses=QueueSerializer)
    def patch(self, request: Request, ref: str) -> Response:
        """Pause or resume a queue, or change its limits; operators only."""
        queue, by, body = queue_by_ref(person(request), ref), person(request), dict(body_of(request))
        paused, reason = body.pop("paused", None), body.pop("reason", "")
        generation = body.pop("generation", None)
        self._check(paused, reason, generation)
        with transaction.atomic():  # all of it or nothing
            if body or generation is not None:
                queue = services.edit_queue(
                    queue=queue, changes=body, by=by, reason=reason, expected_generation=generation
                )
            if paused is True:
                services.pause_queue(queue=queue, by=by, reason=reason)
            elif paused is False:
                services.resume_queue(queue=queue, by=by, reason=reason)
        return self.answer(queue_by_ref(by, str(queue.pk)))

    def _check(self, paused: Any, reason: Any, generation: Any) -> None:
        problems = []
        if paused is not None and not isinstance(paused, bool):
            problems.append(FieldProblem("paused", "Must be true or false.", "not-a-flag"))
        if not isinstance(reason, str) or len(reason) > 200:
            problems.append(FieldProblem("reason", "Must be text of at most 200 characters.", "bad-text"))
        if generation is not None and (not isinstance(generation, int) or isinstance(generation, bool)):
            problems.append(FieldProblem("generation", "Must be a whole number.", "not-a-number"))
        if problems:
            raise InvalidInput(message=problems[0].message, problems=problems)


class SecondsSerializer(serializers.Serializer[Any]):
    median = serializers.IntegerField()
    high = serializers.IntegerField(help_text="90th percentile")
    highest = serializers.IntegerField(help_text="maximum of late_by, 99th percentile of waits")


class DeadlineReportSerializer(serializers.Serializer[Any]):
    """How a queue kept the deadlines of its jobs. Times in seconds."""

    queue = serializers.CharField()
    days = serializers.IntegerField()
    jobs = serializers.IntegerField(help_text="Jobs with a deadline in these days.")
    met = serializers.IntegerField(help_text="Completed before their deadline.")
    missed = serializers.IntegerField(help_text="late and failed together.")
    late = serializers.IntegerField(help_text="Not over at their deadline.")
    failed = serializers.IntegerField(help_text="Failed before their deadline.")
    cancelled = serializers.IntegerField(help_text="Cancelled before their deadline.")
    met_percent = serializers.IntegerField(allow_null=True, help_text="Of met and missed.")
    ahead = serializers.IntegerField(help_text="Pending or running, with a deadline ahead.")
    late_by = SecondsSerializer(allow_null=True)
    waits = SecondsSerializer(allow_null=True, help_text="From submission to the first start.")


class QueueDeadlines(ApiView):
    """`/queues/{id}/deadlines`"""

    queryset = Queue.objects.none()
    serializer_class = DeadlineReportSerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["queues"]

    @extend_schema(
        operation_id="queues_deadlines",
        parameters=[
            OpenApiParameter("days", int, description=f"The last days, 1 to {MOST_DAYS}; 7 if left out.")
        ],
        responses=DeadlineReportSerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """Deadlines of the last days: met, missed, by how much, and how long jobs waited."""
        queue = queue_by_ref(person(request), ref)
        asked = request.query_params.get("days", "7")
        if not (asked.isascii() and asked.isdecimal() and len(asked) < 4 and 1 <= int(asked) <= MOST_DAYS):
            problem = FieldProblem("days", f"Must be a whole number from 1 to {MOST_DAYS}.", "out-of-range")
            raise InvalidInput(message=problem.message, status=400, problems=[problem])
        found = deadline_report(queue.pk, days=int(asked))
        names = ("days", "jobs", "met", "missed", "late", "failed", "cancelled", "met_percent", "ahead")
        return Response(
            {
                "queue": queue.slug,
                **{name: getattr(found, name) for name in names},
                "late_by": _seconds(found.late_by),
                "waits": _seconds(found.waits),
            }
        )


def _seconds(found: Quantiles | None) -> dict[str, int] | None:
    if found is None:
        return None
    return {"median": found.half, "high": found.most, "highest": found.longest}


class QueueSummaryItemSerializer(serializers.Serializer[Any]):
    queue = serializers.CharField()
    paused = serializers.BooleanField()
    running_jobs = serializers.IntegerField()
    pending_jobs = serializers.IntegerField()
    pending_gpus = serializers.IntegerField()
    reasons = serializers.DictField(child=serializers.IntegerField())
    preemption_count = serializers.IntegerField(help_text="Its jobs that were interrupted in the last day.")


class QueueSummarySerializer(serializers.Serializer[Any]):
    states = serializers.DictField(child=serializers.IntegerField())
    estimated_states = serializers.ListField(
        child=serializers.CharField(), help_text="States with too many jobs to count them each time."
    )
    pending_jobs = serializers.IntegerField()
    running_jobs = serializers.IntegerField()
    preemption_count = serializers.IntegerField(help_text="Jobs that were interrupted in the last day.")
    queues = QueueSummaryItemSerializer(many=True)


class QueueSummary(ApiView):
    """`/queue`"""

    serializer_class = QueueSummarySerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["queues"]

    @extend_schema(operation_id="queue_status", responses=QueueSummarySerializer)
    def get(self, request: Request) -> Response:
        """Pending and running jobs over all queues that you may see."""
        by = person(request)
        counts = dict.fromkeys((state.value for state in PublicState), 0)
        inner = state_counts(listed_jobs(by))
        for state, count in inner.items():
            counts[PUBLIC[JobState(state)].value] += count.jobs
        overview = queue_overview(by)
        interrupted = preemption_counts([item.queue.pk for item in overview])
        queues = [
            {
                "queue": item.queue.slug,
                "paused": item.queue.paused,
                "running_jobs": item.load.running,
                "pending_jobs": item.load.pending,
                "pending_gpus": item.load.pending_gpus,
                "reasons": dict(item.reasons),
                "preemption_count": interrupted.get(item.queue.pk, 0),
            }
            for item in overview
        ]
        return Response(
            {
                "states": counts,
                "estimated_states": sorted(
                    {PUBLIC[JobState(state)].value for state, count in inner.items() if count.estimated}
                ),
                "pending_jobs": sum(count.jobs for state, count in inner.items() if state in PENDING),
                "running_jobs": sum(count.jobs for state, count in inner.items() if state in ACTIVE),
                "preemption_count": sum(interrupted.values()),
                "queues": queues,
            }
        )
