"""Nodes and parts of nodes reserved: for a window, asked for by a project, or now for one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.filters import FilterSet
from infra.api.rest import NewestFirst, both_ways
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import REASON, ApiView, body_of, once, person, reason_of, text_of
from scheduler.api.filters import FlagFilter, filtered
from scheduler.api.serializers import moment
from scheduler.models import Reservation, ReservationStatus
from scheduler.selectors import visible_reservations
from scheduler.services.reservations import cost, decide
from scheduler.services.reservations import reserve as services
from scheduler.services.reservations.use import devices_by_part, gpu_time, state_of

STATES = ["requested", "declined", "planned", "active", "ended", "cancelled"]
MIB = 1024 * 1024


class ReservationPartSerializer(serializers.Serializer[Any]):
    node = serializers.CharField()
    cpu_cores = serializers.FloatField()
    memory_bytes = serializers.IntegerField()
    gpus = serializers.ListField(
        child=serializers.IntegerField(), help_text="The numbers of its GPUs on the node."
    )


class ReservationSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    cluster = serializers.CharField()
    state = serializers.ChoiceField(STATES)
    nodes = serializers.ListField(child=serializers.CharField(), help_text="Nodes that it holds whole.")
    parts = ReservationPartSerializer(many=True, help_text="Nodes of which it holds a part.")
    wanted = serializers.DictField(help_text="The amounts as they were asked for.")
    project = serializers.CharField(
        allow_null=True, help_text="null, and no users: maintenance; no job runs on the nodes."
    )
    users = serializers.ListField(child=serializers.CharField())
    magnetic = serializers.BooleanField(
        help_text="Jobs of the project and the users run inside without naming it."
    )
    job_id = serializers.UUIDField(allow_null=True, help_text="Held for this job alone.")
    job_number = serializers.IntegerField(allow_null=True)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField()
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    decided_by = serializers.CharField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    decision_reason = serializers.CharField()
    cancelled_at = serializers.DateTimeField(allow_null=True)

    def to_representation(self, row: Reservation) -> dict[str, Any]:
        parts = list(row.parts.all())
        devices = devices_by_part(row) if parts else {}
        return {
            "id": str(row.uuid),
            "name": row.name,
            "cluster": row.cluster.slug,
            "state": state_of(row),
            "nodes": [node.name for node in row.nodes.all()],
            "parts": [
                {
                    "node": part.node.name,
                    "cpu_cores": part.cpu_millis / 1000,
                    "memory_bytes": part.memory_mib * MIB,
                    "gpus": devices[part.node_id],
                }
                for part in parts
            ],
            "wanted": row.wanted,
            "project": row.project.slug if row.project else None,
            "users": sorted(user.username for user in row.users.all()),
            "magnetic": row.magnetic and not parts,
            "job_id": str(row.job.uuid) if row.job else None,
            "job_number": row.job_id,
            "starts_at": moment(row.starts_at),
            "ends_at": moment(row.ends_at),
            "reason": row.reason,
            "created_by": row.created_by.username if row.created_by else None,
            "created_at": moment(row.created_at),
            "decided_by": row.decided_by.username if row.decided_by else None,
            "decided_at": moment(row.decided_at),
            "decision_reason": row.decision_reason,
            "cancelled_at": moment(row.cancelled_at),
        }


class GpuTimeSerializer(serializers.Serializer[Any]):
    gpus = serializers.IntegerField()
    reserved_seconds = serializers.IntegerField(help_text="GPU-seconds from the start until now or the end.")
    used_seconds = serializers.IntegerField(help_text="By jobs inside.")
    unused_seconds = serializers.IntegerField(help_text="Nothing is charged for these.")


class ReservationDetailSerializer(ReservationSerializer):
    gpu_time = GpuTimeSerializer()

    def to_representation(self, row: Reservation) -> dict[str, Any]:
        found = gpu_time(row)
        return super().to_representation(row) | {
            "gpu_time": {
                "gpus": found.gpus,
                "reserved_seconds": found.reserved_seconds,
                "used_seconds": found.used_seconds,
                "unused_seconds": found.unused_seconds,
            }
        }


class ReservationTermsSerializer(serializers.Serializer[Any]):
    """What is reserved, for whom and when: whole nodes, or with amounts a part of each node."""

    name = serializers.CharField(max_length=120, required=False)
    nodes = serializers.ListField(child=serializers.CharField(), required=False, help_text="Names or ids.")
    node_count = serializers.IntegerField(
        min_value=1, required=False, help_text="The number of nodes, instead of names; Muster chooses."
    )
    partition = serializers.CharField(required=False, help_text="With node_count: nodes of this partition.")
    labels = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="With node_count."
    )
    gpu_type = serializers.CharField(required=False, help_text="The model of the GPUs, or its beginning.")
    cpus_per_node = serializers.JSONField(
        required=False, help_text="CPU cores of each node, as cpu_cores of a job."
    )
    memory_per_node = serializers.JSONField(
        required=False, help_text="Memory of each node, as memory of a job."
    )
    gpus_per_node = serializers.IntegerField(min_value=0, required=False)
    project = serializers.CharField(
        required=False, allow_null=True, help_text="Project whose jobs may run inside."
    )
    users = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="People whose jobs may run inside."
    )
    magnetic = serializers.BooleanField(
        required=False, help_text="Of whole nodes, left out: true. Parts of nodes are used by name only."
    )
    cluster = serializers.CharField(required=False)
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False)
    seconds = serializers.IntegerField(min_value=1, required=False)
    reason = serializers.CharField(max_length=200, required=False)


class ReservationRequestSerializer(ReservationTermsSerializer):
    """With `job_id`: hold now what that job needs. Otherwise: book for a window."""

    job_id = serializers.CharField(required=False, help_text="A pending job's id or number.")


class ReservationChangeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=120, required=False)
    reason = serializers.CharField(max_length=200, required=False)
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False)
    seconds = serializers.IntegerField(min_value=1, required=False)


class ReservationApprovalSerializer(serializers.Serializer[Any]):
    changes = ReservationTermsSerializer(required=False, help_text="Terms that are approved instead.")
    reason = serializers.CharField(max_length=200, required=False)


class ReservationReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=200)


class DelaySerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    name = serializers.CharField()
    start_without = serializers.DateTimeField(allow_null=True)
    start_with = serializers.DateTimeField(allow_null=True, help_text="null: not within the forecast.")


class ReservationCostSerializer(serializers.Serializer[Any]):
    delayed = serializers.IntegerField(help_text="Waiting jobs that start later.")
    jobs = DelaySerializer(many=True, help_text="Those with the longest delay.")
    nodes = serializers.ListField(child=serializers.CharField(), help_text="Whole nodes that would be held.")
    parts = serializers.ListField(
        child=serializers.CharField(), help_text="Nodes of which a part would be held."
    )


class ReservationFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    node = django_filters.CharFilter(method="by_node")
    status = django_filters.ChoiceFilter(choices=ReservationStatus.choices)
    current = FlagFilter(method="by_current", help_text="Neither cancelled, declined nor past.")

    class Meta:
        model = Reservation
        fields: list[str] = []

    def by_node(self, rows: QuerySet[Reservation], name: str, value: str) -> QuerySet[Reservation]:
        return rows.filter(Q(nodes__name=value) | Q(parts__node__name=value)).distinct()

    def by_current(self, rows: QuerySet[Reservation], name: str, value: bool) -> QuerySet[Reservation]:
        current = (
            Reservation.objects.filter(cancelled_at__isnull=True, ends_at__gt=timezone.now())
            .exclude(status=ReservationStatus.DECLINED)
            .values("pk")
        )
        return rows.filter(pk__in=current) if value else rows.exclude(pk__in=current)


def answer(request: Request, row: Reservation, code: int = status.HTTP_200_OK) -> Response:
    """The whole reservation, as the person sees it."""
    whole = visible_reservations(person(request)).get(pk=row.pk)
    return Response(ReservationDetailSerializer(whole).data, status=code)


class Reservations(ApiView):
    """`/reservations`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationSerializer
    filterset_class = ReservationFilter
    pagination_class = NewestFirst
    orderings = both_ways(starts_at="starts_at")
    counted = True
    required_scopes = {"GET": "nodes:read", "POST": "nodes:write"}
    location = "/api/v1/reservations/{id}"
    schema_tags = ["reservations"]

    @extend_schema(operation_id="reservations_list", responses=ReservationSerializer(many=True), filters=True)
    def get(self, request: Request) -> Response:
        """Maintenance, and the reservations of your projects."""
        page = self.paginate_queryset(
            filtered(ReservationFilter, request, visible_reservations(person(request)))
        )
        return self.get_paginated_response(ReservationSerializer(page, many=True).data)

    @extend_schema(
        operation_id="reservations_create",
        parameters=[KEY],
        request=ReservationRequestSerializer,
        responses={201: ReservationDetailSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Reserve nodes or parts of nodes; operators only."""
        row = services.reserve(payload=body_of(request), by=person(request))
        return answer(request, row, status.HTTP_201_CREATED)


class ReservationRequests(ApiView):
    """`/reservations/requests`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationDetailSerializer
    required_scopes = {"POST": "nodes:write"}
    location = "/api/v1/reservations/{id}"
    schema_tags = ["reservations"]

    @extend_schema(
        operation_id="reservations_request",
        parameters=[KEY],
        request=ReservationTermsSerializer,
        responses={201: ReservationDetailSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Ask for a reservation for a project that you lead; an operator decides."""
        row = decide.request_reservation(payload=body_of(request), by=person(request))
        return answer(request, row, status.HTTP_201_CREATED)


class ReservationDetail(ApiView):
    """`/reservations/{id}`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationDetailSerializer
    required_scopes = {"GET": "nodes:read", "PATCH": "nodes:write", "DELETE": "nodes:write"}
    schema_tags = ["reservations"]

    @extend_schema(operation_id="reservations_get", responses=ReservationDetailSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """One reservation, by its id or by the job it is held for."""
        return answer(request, services.reservation_by_ref(person(request), ref))

    @extend_schema(
        operation_id="reservations_change",
        request=ReservationChangeSerializer,
        responses=ReservationDetailSerializer,
    )
    def patch(self, request: Request, ref: str) -> Response:
        """Change its name, reason or window; operators, and the lead who asked until it is decided."""
        by = person(request)
        row = services.reservation_by_ref(by, ref)
        return answer(request, decide.change_reservation(reservation=row, changes=body_of(request), by=by))

    @extend_schema(
        operation_id="reservations_cancel", parameters=[REASON], responses={200: ReservationDetailSerializer}
    )
    def delete(self, request: Request, ref: str) -> Response:
        """Cancel a reservation or withdraw a request, by its id or the id of its job; jobs inside go on."""
        by = person(request)
        row = services.reservation_by_ref(by, ref)
        services.cancel_reservation(reservation=row, by=by, reason=reason_of(request))
        return answer(request, row)


class ReservationApproval(ApiView):
    """`/reservations/{id}/approve`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationDetailSerializer
    required_scopes = {"POST": "nodes:write"}
    schema_tags = ["reservations"]

    @extend_schema(
        operation_id="reservations_approve",
        request=ReservationApprovalSerializer,
        responses=ReservationDetailSerializer,
    )
    def post(self, request: Request, ref: str) -> Response:
        """Approve a request, as it is or with changes; its nodes and GPUs are chosen now. Operators only."""
        by, body = person(request), body_of(request, optional=True)
        row = services.reservation_by_ref(by, ref)
        decide.approve_reservation(
            reservation=row, by=by, changes=changes_of(body), reason=text_of(body.get("reason", ""))
        )
        return answer(request, row)


class ReservationDecline(ApiView):
    """`/reservations/{id}/decline`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationDetailSerializer
    required_scopes = {"POST": "nodes:write"}
    schema_tags = ["reservations"]

    @extend_schema(
        operation_id="reservations_decline",
        request=ReservationReasonSerializer,
        responses=ReservationDetailSerializer,
    )
    def post(self, request: Request, ref: str) -> Response:
        """Decline a request with a reason. Operators only."""
        by = person(request)
        row = services.reservation_by_ref(by, ref)
        decide.decline_reservation(reservation=row, by=by, reason=reason_of(request))
        return answer(request, row)


class ReservationCost(ApiView):
    """`/reservations/{id}/cost`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationCostSerializer
    required_scopes = {"GET": "nodes:write"}
    schema_tags = ["reservations"]

    @extend_schema(operation_id="reservations_cost", responses=ReservationCostSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """Which waiting jobs would start later if a request were approved as it is. Operators only."""
        by = person(request)
        found = cost.cost_of(reservation=services.reservation_by_ref(by, ref), by=by)
        return Response(
            {
                "delayed": found.delayed,
                "jobs": [
                    {
                        "number": job.number,
                        "name": job.name,
                        "start_without": moment(job.before_at),
                        "start_with": moment(job.after_at),
                    }
                    for job in found.jobs
                ],
                "nodes": [node.name for node in found.held.nodes],
                "parts": [part.node.name for part in found.held.parts],
            }
        )


def changes_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The terms that an approval changes."""
    changes = body.get("changes") or {}
    unknown = next((str(name)[:60] for name in body if name not in ("changes", "reason")), None)
    if unknown is not None:
        text = f"There is no field {unknown!r}; known are changes, reason."
        raise InvalidInput(text, problems=[FieldProblem(unknown, text, "unknown-field")])
    if not isinstance(changes, Mapping):
        text = "Must be an object of terms."
        raise InvalidInput(text, problems=[FieldProblem("changes", text, "not-an-object")])
    return dict(changes)
