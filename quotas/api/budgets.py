"""Budgets over HTTP: those one lives under, as they are now; operators make, change and end them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.etags import IF_MATCH, etag, expected
from accounts.api.once import KEY, once
from accounts.api.person import person
from accounts.api.serializers import StrictSerializer
from accounts.models import Organization
from accounts.selectors import project_by_ref, visible_projects
from infra.api.fields import ChoiceField
from infra.api.views import ApiView
from infra.errors import FieldProblem, InvalidInput, NotFound
from infra.plain_text import reason_of
from quotas.core.periods import Period
from quotas.core.resources import MAX_AMOUNT
from quotas.models import Budget, BudgetResource, OnSpent
from quotas.selectors.budgets import budgets_of_projects
from quotas.selectors.usage import budget_state, budget_states
from quotas.services.budgets import change_budget, end_budget, make_budget


class BudgetSerializer(serializers.Serializer[Any]):
    """A budget in its present period, or in its first or last one; amounts in the unit of its resource."""

    id = serializers.IntegerField(source="budget.id")
    name = serializers.CharField(source="budget.name")
    project = serializers.CharField(source="budget.project.slug", allow_null=True, default=None)
    organization = serializers.CharField(source="budget.organization.slug", allow_null=True, default=None)
    resource = serializers.CharField(source="budget.resource")
    period = serializers.CharField(source="budget.period")
    on_spent = serializers.CharField(source="budget.on_spent")
    period_starts_at = serializers.DateTimeField(source="period.starts_at")
    period_ends_at = serializers.DateTimeField(source="period.ends_at")
    amount = serializers.IntegerField(source="period.amount")
    held = serializers.IntegerField(source="period.held", help_text="Reserved for running jobs.")
    charged = serializers.IntegerField(source="period.charged")
    left = serializers.IntegerField()
    percent = serializers.FloatField(help_text="Held and charged, of the amount.")
    spent = serializers.BooleanField()
    per_day = serializers.IntegerField(source="forecast.per_day", help_text="At the rate of the last days.")
    runs_out_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Expected end of the budget at that rate; null: not before the period ends.",
    )
    generation = serializers.IntegerField(
        source="budget.generation", help_text="Incremented by each edit; also in the ETag."
    )


class NewBudgetSerializer(StrictSerializer):
    project = serializers.CharField(max_length=80, required=False)
    organization = serializers.SlugField(max_length=80, required=False)
    name = serializers.CharField(max_length=80)
    resource = ChoiceField(choices=BudgetResource.choices)
    amount = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT)
    period = ChoiceField(choices=[(p.value, p.value) for p in Period])
    on_spent = ChoiceField(choices=OnSpent.choices, required=False)
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=1000)


class BudgetChangesSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80, required=False)
    amount = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT, required=False)
    on_spent = ChoiceField(choices=OnSpent.choices, required=False)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=1000)
    generation = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="The generation that you read, instead of If-Match; 412 if changed since.",
    )


class BudgetConflictSerializer(serializers.Serializer[Any]):
    """A problem with the current values."""

    code = serializers.CharField()
    detail = serializers.CharField()
    generation = serializers.IntegerField()
    current = serializers.DictField()


STALE = OpenApiResponse(BudgetConflictSerializer, "Changed since you read it.")


class BudgetsView(ApiView):
    required_scopes = {"GET": "quota:read", "POST": "quota:write"}
    location = "/api/v1/quotas/budgets/{id}"
    schema_tags = ["quota"]

    @extend_schema(responses=BudgetSerializer(many=True), summary="Budgets that apply to your projects")
    def get(self, request: Request) -> Response:
        everything = permissions.sees_everything(person(request))
        states = budget_states(None if everything else visible_projects(person(request)))
        return Response({"results": BudgetSerializer(states, many=True).data})

    @extend_schema(
        parameters=[KEY],
        request=NewBudgetSerializer,
        responses={201: BudgetSerializer},
        summary="Create a budget; operators only",
    )
    @once
    def post(self, request: Request) -> Response:
        serializer = NewBudgetSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = dict(serializer.validated_data)
        project, organization = data.pop("project", None), data.pop("organization", None)
        if (project is None) == (organization is None):
            message = "Name either a project or an organization."
            raise InvalidInput(message, problems=[FieldProblem("project", message, "required")])
        subject: Any
        if project is not None:
            subject = project_by_ref(person(request), project)
        else:
            permissions.require(request.user, "operate")
            subject = Organization.objects.filter(slug=organization).first()
            if subject is None:
                message = f"There is no organization {organization!r}."
                raise InvalidInput(message, problems=[FieldProblem("organization", message, "unknown")])
        budget = make_budget(subject=subject, by=person(request), **data)
        return _answer(budget, status=201)


class BudgetView(ApiView):
    required_scopes = {"GET": "quota:read", "PATCH": "quota:write", "DELETE": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(responses=BudgetSerializer, summary="One budget")
    def get(self, request: Request, budget_id: int) -> Response:
        return _answer(_visible(request, budget_id))

    @extend_schema(
        parameters=[IF_MATCH],
        request=BudgetChangesSerializer,
        responses={200: BudgetSerializer, 412: STALE},
        summary="Change a budget; operators only",
    )
    def patch(self, request: Request, budget_id: int) -> Response:
        budget = _visible(request, budget_id)
        serializer = BudgetChangesSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        changes = dict(serializer.validated_data)
        reason, seen = changes.pop("reason"), changes.pop("generation", None)
        changed = change_budget(
            budget=budget, changes=changes, by=person(request), reason=reason,
            expected_generation=_seen(request, budget, seen),
        )  # fmt: skip
        return _answer(changed)

    @extend_schema(
        parameters=[
            IF_MATCH,
            OpenApiParameter("reason", str, description="Reason; recorded in the audit trail."),
        ],
        request=None,
        responses={200: BudgetSerializer, 412: STALE},
        summary="End a budget at midnight; operators only",
    )
    def delete(self, request: Request, budget_id: int) -> Response:
        budget = _visible(request, budget_id)
        reason = reason_of(request.query_params.get("reason") or "ended over the API", most=1000)
        ended = end_budget(
            budget=budget, by=person(request), reason=reason, expected_generation=_seen(request, budget, None)
        )
        return _answer(ended)


def _visible(request: Request, budget_id: int) -> Budget:
    budget = Budget.objects.select_related("project", "organization").filter(pk=budget_id).first()
    if budget is not None and not permissions.sees_everything(person(request)):
        mine = visible_projects(person(request)).order_by().values_list("pk", flat=True)
        if budget.pk not in {pk for found in budgets_of_projects(mine).values() for pk in found}:
            budget = None
    if budget is None:
        raise NotFound("There is no such budget, or it applies to none of your projects.")
    return budget


def _answer(budget: Budget, *, status: int = 200) -> Response:
    body = BudgetSerializer(budget_state(budget)).data
    return Response(body, status=status, headers={"ETag": etag("budget", budget.pk, budget.generation)})


def _seen(request: Request, budget: Budget, given: int | None) -> int | None:
    """The generation in If-Match, else in the body."""
    return expected(request, "budget", budget.pk, "budget", given=given)
