"""The rules of fair share over HTTP: read, preview, change and reset, with a reason and an ETag."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.serializers import StrictSerializer
from infra.api.fields import ChoiceField
from infra.api.views import ApiView
from infra.errors import InvalidInput
from quotas.core.decay import MODES
from quotas.models import FairShareRules
from quotas.selectors.fair_share_source import settings_rules, share_rules
from quotas.selectors.share_preview import RulesPreview, preview_rules
from quotas.services.share_rules import (
    LEAST_SECONDS,
    MOST_HALF_LIFE_SECONDS,
    MOST_WEIGHT,
    MOST_WINDOW_SECONDS,
    reset_share_rules,
    rules_with,
    set_share_rules,
    values_of,
)

_WEIGHT: Final[dict[str, Any]] = {"min_value": 0, "max_value": MOST_WEIGHT, "required": False}


class RulesChangesSerializer(StrictSerializer):
    """What is left out stays as it is."""

    mode = ChoiceField(
        choices=MODES,
        required=False,
        help_text="exponential: use counts half after each half-life; window: all use in the window counts equally; "
        "none: all use ever counts equally.",
    )
    half_life_seconds = serializers.IntegerField(
        min_value=LEAST_SECONDS, max_value=MOST_HALF_LIFE_SECONDS, required=False
    )
    window_seconds = serializers.IntegerField(
        min_value=LEAST_SECONDS, max_value=MOST_WINDOW_SECONDS, required=False,
        help_text="Use before the window does not count; the window moves in steps of six hours.",
    )  # fmt: skip
    gpu_weight = serializers.FloatField(**_WEIGHT, help_text="What an hour of one GPU counts.")
    cpu_weight = serializers.FloatField(**_WEIGHT, help_text="What an hour of one CPU core counts.")
    memory_weight = serializers.FloatField(**_WEIGHT, help_text="What an hour of one GiB of memory counts.")
    dominant = serializers.BooleanField(
        required=False, help_text="True: the dominant resource counts, not the sum of resources."
    )


class RulesPatchSerializer(RulesChangesSerializer):
    reason = serializers.CharField(max_length=1000, help_text="Reason; recorded in the audit trail.")


class RulesResetSerializer(StrictSerializer):
    reason = serializers.CharField(max_length=1000, help_text="Reason; recorded in the audit trail.")


class RuleValuesSerializer(serializers.Serializer[Any]):
    """One set of rules."""

    mode = serializers.ChoiceField(choices=MODES)
    half_life_seconds = serializers.IntegerField()
    window_seconds = serializers.IntegerField()
    gpu_weight = serializers.FloatField()
    cpu_weight = serializers.FloatField()
    memory_weight = serializers.FloatField()
    dominant = serializers.BooleanField()


class ShareRulesSerializer(RuleValuesSerializer):
    """The rules in force, where they come from, and what the settings say."""

    source = serializers.ChoiceField(  # type: ignore[assignment]  # the field of that name, not the argument
        choices=["database", "settings"],
        help_text="database: set at run time, and the settings MUSTER_FAIRSHARE_* are not read; settings: those.",
    )
    settings = RuleValuesSerializer(help_text="What DELETE puts in force again.")
    changed_at = serializers.DateTimeField(allow_null=True)
    changed_by = serializers.CharField(allow_null=True)
    reason = serializers.CharField()


class ProjectChangeSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    used_hours_now = serializers.FloatField(help_text="Decayed, and weighted by resource.")
    used_hours_then = serializers.FloatField()
    factor_now = serializers.FloatField(help_text="1: first.")
    factor_then = serializers.FloatField()


class JobChangeSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    project = serializers.CharField()
    person = serializers.CharField()
    place_now = serializers.IntegerField()
    place_then = serializers.IntegerField()


class RulesPreviewSerializer(serializers.Serializer[RulesPreview]):
    """At most 50 projects and 50 jobs; places are among all that wait, by fair share alone."""

    projects = ProjectChangeSerializer(many=True)
    jobs = JobChangeSerializer(many=True)
    waiting = serializers.IntegerField(help_text="Number of jobs that wait.")
    moved = serializers.IntegerField(help_text="Number of these that would have another place.")


IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER,
    description="ETag of an earlier read; 412 if the rules have changed.",
)  # fmt: skip


class ShareRulesView(ApiView):
    """How past use counts, on this site."""

    required_scopes = {"GET": "quota:read", "PATCH": "quota:write", "DELETE": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(
        operation_id="share_rules_retrieve",
        responses=ShareRulesSerializer,
        summary="Half-life, window and weights of fair share, with their ETag",
    )
    def get(self, request: Request) -> Response:
        return _answer()

    @extend_schema(
        operation_id="share_rules_change",
        parameters=[IF_MATCH],
        request=RulesPatchSerializer,
        responses=ShareRulesSerializer,
        summary="Change half-life, window or weights of fair share, with a reason (operators)",
    )
    def patch(self, request: Request) -> Response:
        permissions.require(request.user, "operate")
        asked = RulesPatchSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        changes = dict(asked.validated_data)
        reason = changes.pop("reason")
        set_share_rules(changes=changes, by=request.user, reason=reason, seen_version=_seen(request))  # type: ignore[arg-type]
        return _answer()

    @extend_schema(
        operation_id="share_rules_reset",
        parameters=[
            IF_MATCH,
            OpenApiParameter("reason", str, description="Required, here or in a JSON body."),
        ],
        request=RulesResetSerializer,
        responses={200: ShareRulesSerializer},
        summary="Put the rules of the settings in force again, with a reason (operators)",
    )
    def delete(self, request: Request) -> Response:
        permissions.require(request.user, "operate")
        asked = RulesResetSerializer(data=request.data or request.query_params.dict())
        asked.is_valid(raise_exception=True)
        reset_share_rules(
            by=request.user,  # type: ignore[arg-type]
            reason=asked.validated_data["reason"],
            seen_version=_seen(request),
        )
        return _answer()


class ShareRulesPreviewView(ApiView):
    """What other rules would change."""

    required_scopes = {"POST": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(
        operation_id="share_rules_preview",
        request=RulesChangesSerializer,
        responses=RulesPreviewSerializer,
        summary="Preview other rules of fair share: factors of projects, order of waiting jobs (operators)",
    )
    def post(self, request: Request) -> Response:
        permissions.require(request.user, "operate")
        asked = RulesChangesSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        found = preview_rules(*rules_with(asked.validated_data))
        return Response(RulesPreviewSerializer(found).data)


def _answer() -> Response:
    newest = FairShareRules.objects.select_related("changed_by").order_by("-pk").first()
    body = {
        **values_of(*share_rules()),
        "source": "settings" if newest is None or newest.from_settings else "database",
        "settings": values_of(*settings_rules()),
        "changed_at": newest and newest.changed_at,
        "changed_by": newest and newest.changed_by and newest.changed_by.username,
        "reason": newest.reason if newest else "",
    }
    version = newest.pk if newest else 0
    return Response(ShareRulesSerializer(body).data, headers={"ETag": f'"share-rules-{version}"'})


def _seen(request: Request) -> int | None:
    """The version in If-Match; None without the header or with `*`."""
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    number = given.removeprefix('"share-rules-').removesuffix('"')
    if (
        not given.startswith('"share-rules-')
        or not number.isascii()
        or not number.isdecimal()
        or len(number) > 15
    ):
        raise InvalidInput(
            "If-Match is not an ETag of the rules of fair share.",
            code="bad-if-match",
            way_out="Send back the ETag of your last GET as it is.",
            status=400,
        )
    return int(number)
