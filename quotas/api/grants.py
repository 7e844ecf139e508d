"""Requests for more quota over HTTP: asked by leads, decided by operators, seen by the project."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.once import KEY, once
from accounts.api.person import person
from accounts.api.serializers import StrictSerializer
from accounts.selectors import project_by_ref
from infra.api.fields import ChoiceField
from infra.api.rest import NewestFirst, bad_choice
from infra.api.views import ApiView
from infra.errors import FieldProblem, InvalidInput, NotFound
from quotas.core.resources import MAX_AMOUNT
from quotas.models import Grant, GrantState, QuotaResource
from quotas.selectors.limits import budget_of_project, grant_by_id, visible_grants
from quotas.services import grants as services
from quotas.services.impact import Impact, impact_of

VERBS = ("approve", "second", "decline", "withdraw")


class GrantSerializer(serializers.ModelSerializer[Grant]):
    """A request and its decision; amounts in the units of its resource."""

    project: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", read_only=True
    )
    asked_by: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="username", read_only=True
    )
    decided_by: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="username", read_only=True, allow_null=True
    )
    seconded_by: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="username", read_only=True, allow_null=True
    )
    renews = serializers.IntegerField(source="renews_id", allow_null=True, read_only=True)

    class Meta:
        model = Grant
        fields = [
            "id", "project", "resource", "gpu_model", "budget", "amount", "granted", "reason", "evidence", "starts_at",
            "ends_at", "renews", "state", "asked_by", "asked_at", "decided_by", "decided_at", "decision", "seconded_by",
            "seconded_at", "begun_at", "ended_at", "generation",
        ]  # fmt: skip
        read_only_fields = fields


class NewGrantSerializer(StrictSerializer):
    project = serializers.CharField(max_length=120)
    resource = ChoiceField(
        choices=[(r.value, r.label) for r in QuotaResource.counted()], required=False,
        help_text="Resource of a limit; required unless `budget` is given.",
    )  # fmt: skip
    budget = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=2**63 - 1,
        help_text="Budget of the project, instead of a limit; amounts in the unit of the budget.",
    )  # fmt: skip
    gpu_model = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")
    amount = serializers.IntegerField(
        min_value=1, max_value=MAX_AMOUNT, help_text="Added to the present limit."
    )
    reason = serializers.CharField(max_length=services.MOST_REASON)
    starts_at = serializers.DateTimeField(required=False, allow_null=True)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    renews = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=2**63 - 1,
        help_text="The grant that this request renews.",
    )  # fmt: skip


class DecisionSerializer(StrictSerializer):
    """Fields of approve, second, decline and withdraw."""

    reason = serializers.CharField(max_length=services.MOST_REASON, required=False, allow_blank=True)
    granted = serializers.IntegerField(
        min_value=1,
        max_value=MAX_AMOUNT,
        required=False,
        help_text="With approve: the approved amount; absent: the requested amount.",
    )
    starts_at = serializers.DateTimeField(required=False, allow_null=True)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    generation = serializers.IntegerField(
        required=False, min_value=1, help_text="412 if the request has changed since."
    )


class ImpactSerializer(serializers.Serializer[Impact]):
    """The impact of a limit, now."""

    resource = serializers.CharField()
    gpu_model = serializers.CharField()
    bound_before = serializers.IntegerField(allow_null=True)
    bound_after = serializers.IntegerField(allow_null=True)
    used = serializers.IntegerField()
    running_jobs = serializers.IntegerField(source="demand.running_jobs")
    pending_jobs = serializers.IntegerField(source="demand.pending_jobs")
    waiting_for_quota = serializers.IntegerField(source="demand.waiting_for_quota")
    sum_before = serializers.IntegerField()
    sum_after = serializers.IntegerField()
    capacity = serializers.IntegerField(allow_null=True)
    usable = serializers.IntegerField(allow_null=True)
    over_headroom = serializers.BooleanField()
    over_by_cut = serializers.IntegerField()
    sentences = serializers.ListField(child=serializers.CharField())


class GrantsView(ApiView):
    required_scopes = {"GET": "quota:read", "POST": "quota:write"}
    pagination_class = NewestFirst
    counted = True
    location = "/api/v1/quotas/requests/{id}"
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[
            OpenApiParameter("project", str, description="A project's slug or id."),
            OpenApiParameter("state", str, enum=GrantState.values),
        ],
        responses=GrantSerializer(many=True),
        summary="Quota requests, newest first",
    )
    def get(self, request: Request) -> Response:
        if request.query_params.get("state", "") not in ("", *GrantState.values):
            raise bad_choice("state", GrantState.values)
        rows = visible_grants(person(request))
        if request.query_params.get("project"):
            rows = rows.filter(project=project_by_ref(person(request), request.query_params["project"]))
        if request.query_params.get("state"):
            rows = rows.filter(state=request.query_params["state"])
        pages = NewestFirst()
        page = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(GrantSerializer(page, many=True).data)

    @extend_schema(
        parameters=[KEY],
        request=NewGrantSerializer,
        responses={201: GrantSerializer},
        summary="Request quota; leads of the project only",
    )
    @once
    def post(self, request: Request) -> Response:
        serializer = NewGrantSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data: dict[str, Any] = dict(serializer.validated_data)
        project = project_by_ref(person(request), data.pop("project"))
        renews, number = data.pop("renews", None), data.pop("budget", None)
        if number is not None:
            budget = budget_of_project(project, number)
            data |= {"budget": budget, "resource": data.get("resource", budget.resource)}
        elif "resource" not in data:
            message = "Give a resource, or a budget of the project."
            raise InvalidInput(message, problems=[FieldProblem("resource", message, "required")])
        grant = services.ask_for_quota(
            project=project,
            by=person(request),
            renews=None if renews is None else grant_by_id(person(request), renews),
            **data,
        )
        return Response(GrantSerializer(grant).data, status=status.HTTP_201_CREATED)


class GrantView(ApiView):
    required_scopes = {"GET": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(responses=GrantSerializer, summary="One request")
    def get(self, request: Request, grant_id: int) -> Response:
        return Response(GrantSerializer(grant_by_id(person(request), grant_id)).data)


class GrantVerbView(ApiView):
    """approve, second and decline are for operators, withdraw for leads of the project."""

    required_scopes = {"POST": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[OpenApiParameter("verb", str, OpenApiParameter.PATH, enum=VERBS), KEY],
        request=DecisionSerializer,
        responses=GrantSerializer,
        operation_id="quotas_request_decide",
        summary="Approve, decline or withdraw a request",
    )
    @once
    def post(self, request: Request, grant_id: int, verb: str) -> Response:
        grant = grant_by_id(person(request), grant_id)
        serializer = DecisionSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = dict(serializer.validated_data)
        seen = data.pop("generation", None)
        common: dict[str, Any] = {"grant": grant, "by": request.user, "reason": data.pop("reason", "")}
        if verb == "withdraw":
            _only(data, ())
            done = services.withdraw_grant(**common, expected_generation=seen)
        elif verb == "approve":
            done = services.approve_grant(**common, **data, expected_generation=seen)
        elif verb == "second":
            _only(data, ())
            done = services.second_grant(**common, expected_generation=seen)
        elif verb == "decline":
            _only(data, ())
            done = services.decline_grant(**common, expected_generation=seen)
        else:
            raise NotFound(f"There is no verb {verb[:20]!r}.", way_out=f"Must be one of {', '.join(VERBS)}.")
        return Response(GrantSerializer(done).data)


def _only(data: dict[str, Any], known: tuple[str, ...]) -> None:
    """What a verb has no use for is refused: it would be taken for done."""
    problems = [
        FieldProblem(name, "Only with approve.", "unknown-field") for name in data if name not in known
    ]
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)


class ImpactView(ApiView):
    required_scopes = {"GET": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[
            OpenApiParameter("project_id", str, OpenApiParameter.PATH),
            OpenApiParameter("resource", str, required=True, enum=[r.value for r in QuotaResource.counted()]),
            OpenApiParameter("gpu_model", str),
            OpenApiParameter("hard", int, required=True),
        ],
        responses=ImpactSerializer,
        summary="Impact of another limit; operators only",
    )
    def get(self, request: Request, project_id: str) -> Response:
        project = project_by_ref(person(request), project_id)
        permissions.require(request.user, "edit_quota", project)
        query = ImpactQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        data = query.validated_data
        found = impact_of(
            project=project,
            resource=data["resource"],
            gpu_model=data["gpu_model"],
            bound_after=data["hard"],
        )
        return Response(ImpactSerializer(found).data)


class ImpactQuerySerializer(serializers.Serializer[Any]):
    resource = ChoiceField(choices=[(r.value, r.label) for r in QuotaResource.counted()])
    gpu_model = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")
    hard = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT)
