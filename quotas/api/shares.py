"""Shares over HTTP: the tree as one may see it, a look at another memory, and edits with a reason."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.serializers import StrictSerializer
from accounts.models.project import SHARE_RANGE
from infra.api.fields import ChoiceField
from infra.api.views import ApiView
from infra.errors import InvalidInput
from quotas.core.decay import MODES, Decay
from quotas.selectors.fair_share_report import ShareLine, Standing, standing
from quotas.selectors.fair_share_source import share_rules
from quotas.services.shares import EDITABLE, Subject, set_share, share_subject


class PreviewSerializer(serializers.Serializer[Any]):
    """Another memory to look at; what is left out stays as the site has it."""

    mode = ChoiceField(choices=MODES, required=False)
    half_life_hours = serializers.FloatField(min_value=0.1, max_value=10_000, required=False)
    window_days = serializers.FloatField(min_value=0.1, max_value=366, required=False)

    def decay(self) -> Decay | None:
        data = self.validated_data
        if not data:
            return None
        rules, _ = share_rules()
        half, window = data.get("half_life_hours"), data.get("window_days")
        return Decay(
            mode=data.get("mode", rules.mode),
            half_life_seconds=rules.half_life_seconds if half is None else int(half * 3600),
            window_seconds=rules.window_seconds if window is None else int(window * 86_400),
        )


class ShareLineSerializer(serializers.Serializer[ShareLine]):
    """One row of the tree, depth first: `depth` is the level below the root."""

    kind = serializers.ChoiceField(choices=["organization", "project", "person"])
    id = serializers.IntegerField(allow_null=True, help_text="Null if you may not see which.")
    name = serializers.CharField()
    depth = serializers.IntegerField()
    weight = serializers.IntegerField()
    share = serializers.FloatField(
        help_text="Weight divided by the sum of the siblings' weights: the target ratio."
    )
    ratio = serializers.FloatField(help_text="Usage divided by the sum of the siblings' usage.")
    entitled = serializers.FloatField(help_text="Shares multiplied down from the top: of the whole site.")
    used_gpu_hours = serializers.FloatField(help_text="Decayed, and weighted by resource.")
    times = serializers.FloatField(allow_null=True, help_text="ratio / share.")
    factor = serializers.FloatField(allow_null=True, help_text="1: first; null: no position.")
    place = serializers.IntegerField(allow_null=True)
    of = serializers.IntegerField()
    site_percent = serializers.FloatField(help_text="Percentage of the site's capacity in that time.")
    soft_percent = serializers.IntegerField(allow_null=True)
    hard_percent = serializers.IntegerField(allow_null=True)
    over = serializers.ChoiceField(choices=["", "soft", "hard"])
    mine = serializers.BooleanField()
    edit = serializers.CharField(
        help_text="Path of the edit page below /shares/; empty if you may not edit the share."
    )
    sentence = serializers.CharField()


class StandingSerializer(serializers.Serializer[Standing]):
    """The fair-share tree at one moment."""

    at = serializers.DateTimeField()
    mode = serializers.ChoiceField(choices=MODES, source="decay.mode")
    half_life_seconds = serializers.IntegerField(source="decay.half_life_seconds")
    window_seconds = serializers.IntegerField(source="decay.window_seconds")
    dominant = serializers.BooleanField(
        help_text="True: the dominant resource counts, not the sum of resources."
    )
    preview = serializers.BooleanField(help_text="True: preview with another half-life; nothing is changed.")
    is_tree = serializers.BooleanField(
        help_text="True: the tree orders jobs; false: projects are compared side by side."
    )
    words = serializers.CharField()
    left_out = serializers.IntegerField(help_text="Number of rows that are not listed.")
    lines = ShareLineSerializer(many=True)


class ShareChangesSerializer(StrictSerializer):
    share_weight = serializers.IntegerField(
        min_value=SHARE_RANGE[0], max_value=SHARE_RANGE[1], required=False
    )
    share_soft_percent = serializers.IntegerField(min_value=1, max_value=100, allow_null=True, required=False)
    share_hard_percent = serializers.IntegerField(min_value=1, max_value=100, allow_null=True, required=False)
    reason = serializers.CharField(max_length=1000, help_text="Reason; recorded in the audit trail.")


class ShareSerializer(serializers.Serializer[Any]):
    """The editable fields of one share; the share of a person has a weight only."""

    kind = serializers.ChoiceField(choices=["organization", "project", "member", "user"])
    id = serializers.IntegerField()
    share_weight = serializers.IntegerField()
    share_soft_percent = serializers.IntegerField(allow_null=True, required=False)
    share_hard_percent = serializers.IntegerField(allow_null=True, required=False)


class SharesView(ApiView):
    """The tree of shares."""

    required_scopes = {"GET": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(
        operation_id="shares_tree",
        parameters=[PreviewSerializer],
        responses=StandingSerializer,
        summary="Shares, usage and factors that you may see, now or with another half-life",
    )
    def get(self, request: Request) -> Response:
        asked = PreviewSerializer(data=request.query_params)
        asked.is_valid(raise_exception=True)
        found = standing(request.user, decay=asked.decay())  # type: ignore[arg-type]
        return Response(StandingSerializer(found).data)


KIND = OpenApiParameter(
    "kind", str, OpenApiParameter.PATH, enum=["organization", "project", "member", "user"],
    description="Members by the id of their membership; a user is a person where people take turns (fair queueing).",
)  # fmt: skip
NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="Its id.")
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="ETag of an earlier read; 412 if the object has changed.",
)


class ShareView(ApiView):
    """One share, for those who may edit it."""

    required_scopes = {"GET": "quota:read", "PATCH": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(
        operation_id="shares_retrieve",
        parameters=[KIND, NUMBER],
        responses=ShareSerializer,
        summary="One share, with its ETag",
    )
    def get(self, request: Request, kind: str, number: int) -> Response:
        return _answer(kind, share_subject(request.user, kind, number))  # type: ignore[arg-type]

    @extend_schema(
        parameters=[KIND, NUMBER, IF_MATCH],
        request=ShareChangesSerializer,
        responses=ShareSerializer,
        summary="Change a weight or the limits of a share, with a reason",
    )
    def patch(self, request: Request, kind: str, number: int) -> Response:
        subject = share_subject(request.user, kind, number)  # type: ignore[arg-type]
        serializer = ShareChangesSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        changes = dict(serializer.validated_data)
        reason = changes.pop("reason")
        row = set_share(
            subject=subject,
            changes=changes,
            by=request.user,  # type: ignore[arg-type]
            reason=reason,
            seen=_seen(request, kind, subject),
        )
        return _answer(kind, row)


def _answer(kind: str, subject: Subject) -> Response:
    values = {name: getattr(subject, name) for name in EDITABLE[type(subject)]}
    body = {"kind": kind, "id": subject.pk, **values}
    return Response(body, headers={"ETag": _etag(kind, subject, values.values())})


def _etag(kind: str, subject: Subject, values: Any) -> str:
    return f'"share-{kind}-{subject.pk}-{"-".join(str(value or 0) for value in values)}"'


def _seen(request: Request, kind: str, subject: Subject) -> dict[str, int | None] | None:
    """The values in If-Match; None without the header or with `*`."""
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    names = EDITABLE[type(subject)]
    start = f'"share-{kind}-{subject.pk}-'
    parts = given.removeprefix(start).removesuffix('"').split("-")
    whole = given.startswith(start) and len(parts) == len(names)
    if not whole or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise InvalidInput(
            "If-Match is not an ETag of this share.",
            code="bad-if-match",
            way_out="Send back the ETag of your last GET as it is.",
            status=400,
        )
    return {name: int(part) or None for name, part in zip(names, parts, strict=True)}
