"""Shadow runs over HTTP: a draft is planned on recorded cycles, compared, stopped or published."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db.models import F
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.once import KEY
from infra.api.rest import NewestFirst
from infra.errors import FieldProblem, InvalidInput, NotFound
from scheduler.api.base import ApiView, once, person
from scheduler.api.policies.profiles import (
    ContentSerializer,
    FieldChangeSerializer,
    asked_of,
    changes_of,
    number_of,
    refuse_unknown,
)
from scheduler.api.serializers import moment
from scheduler.configuration.profiles import drafted, require_reader
from scheduler.configuration.publish import publish_run
from scheduler.models import Cluster, ProfileVersion, Queue, ShadowCycle, ShadowJob, ShadowRun, ShadowState
from scheduler.selectors import queue_by_ref
from scheduler.services.shadows.runs import profile_of, start_run, stop_run

#: Rows of a kind that the answer about one run names.
SHOWN: Final = 100


class ShadowRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    cluster = serializers.CharField()
    queue = serializers.CharField(
        allow_null=True, help_text="Whose own profile is drafted; null: the cluster's."
    )
    profile = serializers.CharField()
    profile_version = serializers.IntegerField(help_text="The version that the draft was made from.")
    state = serializers.ChoiceField(choices=ShadowState.choices)
    cause = serializers.CharField(help_text="Why it ended.")
    every = serializers.IntegerField(help_text="One of this number of recorded cycles is planned.")
    until = serializers.DateTimeField()
    made_at = serializers.DateTimeField()
    made_by = serializers.CharField()
    reason = serializers.CharField()
    ended_at = serializers.DateTimeField(allow_null=True)
    cycles = serializers.IntegerField(help_text="Recorded cycles that were planned by the draft.")
    skipped = serializers.IntegerField(
        help_text="Recorded cycles that were passed over: too many, or pruned."
    )
    starts = serializers.IntegerField(help_text="Starts planned in those cycles by the profile in force.")
    shadow_starts = serializers.IntegerField(help_text="Starts planned in those cycles by the draft.")
    plan_us = serializers.IntegerField(help_text="Planning time of those cycles, together.")
    shadow_us = serializers.IntegerField()

    def to_representation(self, row: ShadowRun) -> dict[str, Any]:
        plain = ("state", "cause", "every", "made_by", "reason", "skipped", "starts", "shadow_starts", "plan_us",
                 "shadow_us", "profile_version")  # fmt: skip
        return {
            "id": row.pk,
            "cluster": row.cluster.slug,
            "queue": row.queue.slug if row.queue else None,
            "profile": row.profile.name,
            "until": moment(row.until),
            "made_at": moment(row.made_at),
            "ended_at": moment(row.ended_at),
            "cycles": row.compared,
            **{name: getattr(row, name) for name in plain},
        }


class ShadowCycleSerializer(serializers.ModelSerializer[ShadowCycle]):
    class Meta:
        model = ShadowCycle
        fields = (
            "cycle", "at", "starts", "shadow_starts", "only_real", "only_shadow", "elsewhere", "waiting",
            "shadow_waiting", "waited_seconds", "shadow_waited_seconds", "stops", "shadow_stops", "plan_us",
            "shadow_us",
        )  # fmt: skip


class ShadowJobSerializer(serializers.Serializer[Any]):
    job = serializers.IntegerField()
    started_at = serializers.DateTimeField(
        allow_null=True, help_text="null: it has not started, as far as is known."
    )
    shadow_at = serializers.DateTimeField(
        allow_null=True,
        help_text="The cycle at which the draft would have started it; null: it started before.",
    )
    earlier_seconds = serializers.IntegerField(allow_null=True, help_text="By how much the draft is earlier.")

    def to_representation(self, row: ShadowJob) -> dict[str, Any]:
        both = row.started_at is not None and row.shadow_at is not None
        return {
            "job": row.job,
            "started_at": moment(row.started_at),
            "shadow_at": moment(row.shadow_at),
            "earlier_seconds": int((row.started_at - row.shadow_at).total_seconds()) if both else None,  # type: ignore[operator]
        }


class ShadowReportSerializer(ShadowRunSerializer):
    content = ContentSerializer(help_text="The draft.")
    changes = FieldChangeSerializer(
        many=True, help_text="What differs from the version that it was made from."
    )
    earlier_jobs = serializers.IntegerField(help_text="Jobs that the draft would have started earlier.")
    later_jobs = serializers.IntegerField(
        help_text="Jobs that started, and that the draft would have left waiting."
    )
    jobs_left_out = serializers.IntegerField(help_text="Jobs that differ and found no room in the list.")
    newest_cycles = ShadowCycleSerializer(many=True, help_text=f"The newest {SHOWN}.")
    earlier = ShadowJobSerializer(many=True, help_text=f"At most {SHOWN}.")
    later = ShadowJobSerializer(many=True, help_text=f"At most {SHOWN}.")


class NewShadowRunSerializer(serializers.Serializer[Any]):
    cluster = serializers.CharField(help_text="Slug of the cluster.")
    queue = serializers.CharField(
        required=False, help_text="A queue with a profile of its own; else the cluster's."
    )
    draft = serializers.DictField(
        help_text="Fields of the profile that differ, as PATCH /profiles/{name} takes them."
    )
    minutes = serializers.IntegerField(
        min_value=1, max_value=20160, required=False, help_text="60 if left out."
    )
    every = serializers.IntegerField(
        min_value=1,
        max_value=1000,
        required=False,
        help_text="Plan one of this number of recorded cycles; 1.",
    )
    reason = serializers.CharField(max_length=200)


class StopShadowRunSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=200)


class PublishShadowRunSerializer(StopShadowRunSerializer):
    force = serializers.BooleanField(
        required=False, help_text="Also where the profile has changed since the draft was made."
    )


def run_by_number(request: Request, number: int) -> ShadowRun:
    """One run, for operators and auditors."""
    require_reader(person(request))
    found = ShadowRun.objects.select_related("cluster", "queue", "profile").filter(pk=number).first()
    if found is None:
        raise NotFound(f"There is no shadow run {number}.", way_out="GET /api/v1/shadow-runs lists them.")
    return found


def report(run: ShadowRun) -> dict[str, Any]:
    """A run with what it found."""
    base = ProfileVersion.objects.filter(profile_id=run.profile_id, number=run.profile_version).first()
    earlier = ShadowJob.objects.filter(run=run, shadow_at__isnull=False)
    later = ShadowJob.objects.filter(run=run, shadow_at=None)
    longest_first = (F("started_at") - F("shadow_at")).desc(nulls_last=True)
    return {
        **ShadowRunSerializer(run).data,
        "content": run.content,
        "changes": changes_of(base.content if base else {}, run.content),
        "earlier_jobs": earlier.count(),
        "later_jobs": later.count(),
        "jobs_left_out": run.jobs_left_out,
        "newest_cycles": ShadowCycleSerializer(run.cycles.order_by("-cycle")[:SHOWN], many=True).data,
        "earlier": ShadowJobSerializer(earlier.order_by(longest_first, "job")[:SHOWN], many=True).data,
        "later": ShadowJobSerializer(later.order_by("job")[:SHOWN], many=True).data,
    }


class ShadowRuns(ApiView):
    """`/shadow-runs`"""

    queryset = ShadowRun.objects.none()
    serializer_class = ShadowRunSerializer
    pagination_class = NewestFirst
    required_scopes = {"GET": "nodes:read", "POST": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(operation_id="shadow_runs_list", responses=ShadowRunSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Shadow runs, newest first; operators and auditors."""
        require_reader(person(request))
        page = self.paginate_queryset(ShadowRun.objects.select_related("cluster", "queue", "profile")) or []
        return self.get_paginated_response(ShadowRunSerializer(page, many=True).data)

    @extend_schema(
        operation_id="shadow_runs_start",
        parameters=[KEY],
        request=NewShadowRunSerializer,
        responses={201: ShadowReportSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Plan a draft on what the cluster records from now on; operators only. It starts no job."""
        by = person(request)
        permissions.require(by, "operate")
        asked, reason = asked_of(request)
        cluster, queue = _target(request, asked.pop("cluster", None), asked.pop("queue", None))
        draft = asked.pop("draft", None)
        minutes = number_of(asked.pop("minutes", 60), "minutes")
        every = number_of(asked.pop("every", 1), "every")
        if asked:
            refuse_unknown(asked, "cluster, queue, draft, minutes, every, reason")
        if not isinstance(draft, dict):
            message = 'Give the fields that differ, such as {"policy": "sjf"}.'
            raise InvalidInput(f"draft: {message}", problems=[FieldProblem("draft", message, "required")])
        content = drafted(profile_of(cluster, queue), draft)
        run = start_run(
            cluster=cluster, queue=queue, content=content, until=timezone.now() + timedelta(minutes=minutes),
            every=every, by=by, reason=reason,
        )  # fmt: skip
        return Response(report(run), status=status.HTTP_201_CREATED)


def _target(request: Request, cluster: Any, queue: Any) -> tuple[Cluster, Queue | None]:
    found = Cluster.objects.select_related("profile").filter(slug=str(cluster)[:80]).first()
    if found is None:
        message = f"There is no cluster {str(cluster)[:60]!r}."
        raise InvalidInput(message, problems=[FieldProblem("cluster", message, "not-found")])
    if queue is None:
        return found, None
    return found, queue_by_ref(person(request), str(queue)[:80])


class ShadowRunDetail(ApiView):
    """`/shadow-runs/{id}`"""

    serializer_class = ShadowReportSerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["profiles"]

    @extend_schema(operation_id="shadow_runs_get", responses=ShadowReportSerializer)
    def get(self, request: Request, number: int) -> Response:
        """One shadow run: the draft, the sums, the newest cycles, and jobs that would have started earlier or later."""
        return Response(report(run_by_number(request, number)))


class StopShadowRun(ApiView):
    """`/shadow-runs/{id}/stop`"""

    serializer_class = ShadowReportSerializer
    required_scopes = {"POST": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(
        operation_id="shadow_runs_stop", request=StopShadowRunSerializer, responses=ShadowReportSerializer
    )
    def post(self, request: Request, number: int) -> Response:
        """End a shadow run before its time; what it compared stays; operators only."""
        run = run_by_number(request, number)
        asked, reason = asked_of(request)
        if asked:
            refuse_unknown(asked, "reason")
        stop_run(run=run, by=person(request), reason=reason)
        return Response(report(run_by_number(request, number)))


class PublishShadowRun(ApiView):
    """`/shadow-runs/{id}/publish`"""

    serializer_class = ShadowReportSerializer
    required_scopes = {"POST": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(
        operation_id="shadow_runs_publish",
        parameters=[KEY],
        request=PublishShadowRunSerializer,
        responses=ShadowReportSerializer,
    )
    @once
    def post(self, request: Request, number: int) -> Response:
        """Put the draft in force, as a new version of its profile; site admins only."""
        run = run_by_number(request, number)
        asked, reason = asked_of(request)
        force = asked.pop("force", False)
        if asked:
            refuse_unknown(asked, "reason, force")
        if not isinstance(force, bool):
            problem = FieldProblem("force", "Must be true or false.", "not-a-flag")
            raise InvalidInput(f"force: {problem.message}", problems=[problem])
        publish_run(run=run, by=person(request), reason=reason, force=force)
        return Response(report(run_by_number(request, number)))
