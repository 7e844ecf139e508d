"""Data that jobs wait for: declared ready, withdrawn, listed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.rest import NewestFirst, both_ways
from infra.errors import NotFound
from scheduler.api.base import REASON, ApiView, body_of, once, person, reason_of
from scheduler.api.serializers import moment
from scheduler.models import Dataset
from scheduler.selectors import visible_datasets
from scheduler.services.jobs import datasets as services


class DatasetSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    project = serializers.CharField()
    name = serializers.CharField()
    path = serializers.CharField()
    ready = serializers.BooleanField()
    ready_at = serializers.DateTimeField(allow_null=True)
    declared_by = serializers.CharField(allow_null=True)

    def to_representation(self, row: Dataset) -> dict[str, Any]:
        return {
            "id": row.pk,
            "project": row.project.slug,
            "name": row.name,
            "path": row.path,
            "ready": row.ready_at is not None,
            "ready_at": moment(row.ready_at),
            "declared_by": row.declared_by.username if row.declared_by else None,
        }


class DatasetRequestSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200)
    project = serializers.CharField(required=False, help_text="Name, slug or id.")
    path = serializers.CharField(
        max_length=1024, required=False, help_text="Path, for information only; Muster does not read it."
    )


class Datasets(ApiView):
    """`/datasets`"""

    queryset = Dataset.objects.none()
    serializer_class = DatasetSerializer
    pagination_class = NewestFirst
    orderings = both_ways(name="name")
    counted = True
    required_scopes = {"GET": "jobs:read", "POST": "jobs:write"}
    schema_tags = ["datasets"]

    @extend_schema(operation_id="datasets_list", responses=DatasetSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Declared datasets of your projects."""
        page = self.paginate_queryset(visible_datasets(person(request)))
        return self.get_paginated_response(DatasetSerializer(page, many=True).data)

    @extend_schema(
        operation_id="datasets_declare",
        parameters=[KEY],
        request=DatasetRequestSerializer,
        responses={200: DatasetSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Declare data as ready: jobs that depend on these data can start."""
        row = services.declare_dataset(payload=body_of(request), by=person(request))
        return Response(DatasetSerializer(row).data, status=status.HTTP_200_OK)


class DatasetDetail(ApiView):
    """`/datasets/{id}`"""

    queryset = Dataset.objects.none()
    serializer_class = DatasetSerializer
    required_scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}
    schema_tags = ["datasets"]

    def find(self, request: Request, number: int) -> Dataset:
        row = visible_datasets(person(request)).filter(pk=number).first()
        if row is None:
            raise NotFound(f"There is no dataset {number} that you may see.")
        return row

    @extend_schema(operation_id="datasets_get", responses=DatasetSerializer)
    def get(self, request: Request, number: int) -> Response:
        """One dataset."""
        return Response(DatasetSerializer(self.find(request, number)).data)

    @extend_schema(operation_id="datasets_withdraw", parameters=[REASON], responses={200: DatasetSerializer})
    def delete(self, request: Request, number: int) -> Response:
        """Withdraw data; jobs whose dependency was already satisfied are not affected."""
        row = self.find(request, number)
        row = services.withdraw_dataset(dataset=row, by=person(request), reason=reason_of(request))
        return Response(DatasetSerializer(row).data)
