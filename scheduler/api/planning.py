"""The planner from outside: what it is, and a push."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.selectors import project_by_ref
from accounts.services import audit
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import ApiView, body_of, person
from scheduler.api.serializers import moment
from scheduler.models import Cluster, Job
from scheduler.selectors import visible_jobs, visible_queues
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.forecasts import accuracies
from scheduler.services.planning.profiles import orders_in_force


class RuleInForceSerializer(serializers.Serializer[Any]):
    rule = serializers.CharField(help_text='"": none; the settings of the profile are in force.')
    since = serializers.DateTimeField()
    policy = serializers.CharField()
    placement = serializers.CharField()


class AccuracySerializer(serializers.Serializer[Any]):
    """How good the predictions of a cluster were over the last days; null = nothing has been judged yet."""

    cluster = serializers.CharField()
    days = serializers.IntegerField()
    starts = serializers.IntegerField(help_text="Starts of jobs that had a predicted range.")
    inside_percent = serializers.IntegerField(allow_null=True, help_text="Of them, within the first range.")
    width_seconds = serializers.IntegerField(allow_null=True, help_text="Median width of the first ranges.")
    waited_seconds = serializers.IntegerField(
        allow_null=True, help_text="Median wait from the prediction on."
    )
    runs = serializers.IntegerField(help_text="Runs without a time limit predicted from earlier runs.")
    longer_percent = serializers.IntegerField(allow_null=True, help_text="Of them, longer than predicted.")
    shorter_percent = serializers.IntegerField(allow_null=True, help_text="Of them, not longer.")
    median_ratio = serializers.FloatField(allow_null=True, help_text="Predicted by real run time.")


class SchedulerInfoSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    quota_provider = serializers.CharField()
    active_queues = serializers.IntegerField()
    pending_jobs = serializers.IntegerField()
    policies = serializers.DictField(child=serializers.CharField(), help_text="Policy of each queue, now.")
    rules = serializers.DictField(
        child=RuleInForceSerializer(),
        help_text="Of each queue whose profile has rules: which of them is in force.",
    )
    accuracy = AccuracySerializer(many=True, help_text="Of predictions, by cluster.")


class SchedulerInfo(ApiView):
    """`/jobs/scheduler/info`"""

    serializer_class = SchedulerInfoSerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["scheduler"]

    @extend_schema(operation_id="scheduler_info", responses=SchedulerInfoSerializer)
    def get(self, request: Request) -> Response:
        """Policy, quota provider, active queues and pending jobs that you may see."""
        queues = list(visible_queues(person(request)))
        orders = orders_in_force(queues)
        first = next((queue for queue in queues if queue.is_default), queues[0] if queues else None)
        return Response(
            {
                "policy": orders[first.pk].policy.value if first else settings.SCHEDULING_POLICY,
                "quota_provider": settings.QUOTA_PROVIDER,
                "active_queues": sum(1 for queue in queues if not queue.paused and not queue.cluster.paused),
                "pending_jobs": visible_jobs(person(request)).pending().count(),
                "policies": {queue.slug: orders[queue.pk].policy.value for queue in queues},
                "rules": {
                    queue.slug: {
                        "rule": order.rule,
                        "since": moment(order.since),
                        "policy": order.policy.value,
                        "placement": order.placement,
                    }
                    for queue in queues
                    if (order := orders[queue.pk]).since is not None
                },
                "accuracy": AccuracySerializer(
                    accuracies({queue.cluster_id for queue in queues}), many=True
                ).data,
            }
        )


class TriggerRequestSerializer(serializers.Serializer[Any]):
    project_id = serializers.JSONField(
        required=False, help_text="Count only this project's jobs: id or slug."
    )


class TriggerAnswerSerializer(serializers.Serializer[Any]):
    scheduled_count = serializers.IntegerField()
    remaining_pending = serializers.IntegerField()
    planned = serializers.BooleanField(help_text="False: another planner held the lease all the time.")


class SchedulerTrigger(ApiView):
    """`/jobs/scheduler/trigger`"""

    serializer_class = TriggerAnswerSerializer
    required_scopes = {"POST": "jobs:write"}
    schema_tags = ["scheduler"]

    @extend_schema(
        operation_id="scheduler_trigger", request=TriggerRequestSerializer, responses=TriggerAnswerSerializer
    )
    def post(self, request: Request) -> Response:
        """Plan every cluster now; with a project, for its leads, only that project's jobs are counted."""
        by, body = person(request), body_of(request, optional=True)
        if unknown := [name for name in body if name != "project_id"]:
            message = "There is no such field; known is project_id."
            raise InvalidInput(message=message, problems=[FieldProblem(str(unknown[0])[:60], message)])
        project = None
        if (given := body.get("project_id")) is not None:
            project = project_by_ref(by, str(given)[:120])
        # A whole cluster is planned either way: a lead's push helps everybody in turn, and harms nobody.
        if project is not None and not permissions.may(by, "operate"):
            permissions.require(by, "manage", project)
        else:
            permissions.require(by, "operate")
        started: list[int] = []
        planned = True
        for cluster_id in Cluster.objects.order_by("pk").values_list("pk", flat=True):
            result = run_cycle(cluster_id=cluster_id, trigger="api")
            planned = planned and result.planned
            started += result.started_jobs
        jobs = Job.objects.filter(project=project) if project is not None else Job.objects.all()
        scheduled = jobs.filter(number__in=started).count()
        remaining = jobs.pending().count()
        audit.record(
            by=by, action="scheduler.trigger", thing=audit.Thing("scheduler", label="all clusters"),
            after={"scheduled": scheduled, "remaining": remaining}, project=project,
        )  # fmt: skip
        return Response({"scheduled_count": scheduled, "remaining_pending": remaining, "planned": planned})
