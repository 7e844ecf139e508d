"""Nodes set aside: for a window, or now for one job."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.filters import FilterSet
from infra.api.rest import NewestFirst, both_ways
from scheduler.api.base import REASON, ApiView, body_of, once, person, reason_of
from scheduler.api.filters import FlagFilter, filtered
from scheduler.api.serializers import moment
from scheduler.models import Reservation
from scheduler.selectors import visible_reservations
from scheduler.services.cluster import reservations as services


class ReservationSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    cluster = serializers.CharField()
    state = serializers.ChoiceField(["planned", "active", "ended", "cancelled"])
    nodes = serializers.ListField(child=serializers.CharField())
    project = serializers.CharField(allow_null=True, help_text="null: maintenance; no job runs on the nodes.")
    job_id = serializers.UUIDField(allow_null=True, help_text="Held for this job alone.")
    job_number = serializers.IntegerField(allow_null=True)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField()
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    cancelled_at = serializers.DateTimeField(allow_null=True)

    def to_representation(self, row: Reservation) -> dict[str, Any]:
        return {
            "id": str(row.uuid),
            "name": row.name,
            "cluster": row.cluster.slug,
            "state": state_of(row),
            "nodes": [node.name for node in row.nodes.all()],
            "project": row.project.slug if row.project else None,
            "job_id": str(row.job.uuid) if row.job else None,
            "job_number": row.job_id,
            "starts_at": moment(row.starts_at),
            "ends_at": moment(row.ends_at),
            "reason": row.reason,
            "created_by": row.created_by.username if row.created_by else None,
            "created_at": moment(row.created_at),
            "cancelled_at": moment(row.cancelled_at),
        }


def state_of(row: Reservation) -> str:
    if row.cancelled_at is not None:
        return "cancelled"
    now = timezone.now()
    # A hold is over once its job has its nodes.
    if row.ends_at <= now or (row.job is not None and not row.job.is_pending):
        return "ended"
    return "planned" if row.starts_at > now else "active"


class ReservationRequestSerializer(serializers.Serializer[Any]):
    """With `job_id`: hold nodes now for that job. Otherwise: book `nodes` for a window."""

    job_id = serializers.CharField(required=False, help_text="A pending job's id or number.")
    name = serializers.CharField(max_length=120, required=False)
    nodes = serializers.ListField(child=serializers.CharField(), required=False, help_text="Names or ids.")
    project = serializers.CharField(
        required=False, allow_null=True, help_text="Project whose jobs may run on the nodes."
    )
    cluster = serializers.CharField(required=False)
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False)
    seconds = serializers.IntegerField(min_value=1, required=False)
    reason = serializers.CharField(max_length=200, required=False)


class ReservationFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    node = django_filters.CharFilter(field_name="nodes__name", distinct=True)
    current = FlagFilter(method="by_current", help_text="Neither cancelled nor past.")

    class Meta:
        model = Reservation
        fields: list[str] = []

    def by_current(self, rows: QuerySet[Reservation], name: str, value: bool) -> QuerySet[Reservation]:
        current = Reservation.objects.filter(cancelled_at__isnull=True, ends_at__gt=timezone.now()).values(
            "pk"
        )
        return rows.filter(pk__in=current) if value else rows.exclude(pk__in=current)


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
        responses={201: ReservationSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Reserve nodes; operators only."""
        row = services.reserve(payload=body_of(request), by=person(request))
        whole = visible_reservations(person(request)).get(pk=row.pk)
        return Response(ReservationSerializer(whole).data, status=status.HTTP_201_CREATED)


class ReservationDetail(ApiView):
    """`/reservations/{id}`"""

    queryset = Reservation.objects.none()
    serializer_class = ReservationSerializer
    required_scopes = {"GET": "nodes:read", "DELETE": "nodes:write"}
    schema_tags = ["reservations"]

    @extend_schema(operation_id="reservations_get", responses=ReservationSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """One reservation, by its id or by the job it is held for."""
        return Response(ReservationSerializer(services.reservation_by_ref(person(request), ref)).data)

    @extend_schema(
        operation_id="reservations_cancel", parameters=[REASON], responses={200: ReservationSerializer}
    )
    def delete(self, request: Request, ref: str) -> Response:
        """Cancel a reservation, by its id or the id of its job."""
        by = person(request)
        row = services.reservation_by_ref(by, ref)
        services.cancel_reservation(reservation=row, by=by, reason=reason_of(request))
        return Response(ReservationSerializer(visible_reservations(by).get(pk=row.pk)).data)
