"""Scheduler profiles: read, changed one by one, their versions, what differs between two, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api import etags
from accounts.api.etags import IF_MATCH
from accounts.api.once import KEY
from infra.api.rest import NewestFirst
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import REASON, ApiView, body_of, once, person, reason_of, text_of
from scheduler.api.serializers import moment
from scheduler.configuration import profiles as services
from scheduler.models import ProfileVersion, SchedulerProfile, VersionOrigin
from scheduler.services.cluster.settings import refuse_stale, remove_settings
from scheduler.state.records.profile_versions import content_of, differences


class ContentSerializer(serializers.Serializer[Any]):
    """What a profile says; the guide of policies explains each field."""

    policy = serializers.CharField()
    tie_breakers = serializers.ListField(child=serializers.CharField())
    strict_order = serializers.BooleanField()
    placement = serializers.CharField()
    backfill = serializers.CharField()
    options = serializers.DictField()
    score_weights = serializers.DictField(child=serializers.IntegerField())
    plugins = serializers.ListField(child=serializers.CharField())
    preemption_enabled = serializers.BooleanField()
    preemption = serializers.DictField()
    rules = serializers.ListField(child=serializers.DictField())
    rule_hold_seconds = serializers.IntegerField()
    rule_time_zone = serializers.CharField()


class ProfileSerializer(ContentSerializer):
    id = serializers.IntegerField()
    name = serializers.CharField()
    version = serializers.IntegerField(help_text="Incremented by each change; also in the ETag.")
    updated_at = serializers.DateTimeField()

    def to_representation(self, row: SchedulerProfile) -> dict[str, Any]:
        return {
            "id": row.pk,
            "name": row.name,
            "version": row.version,
            "updated_at": moment(row.updated_at),
            **content_of(row),
        }


class ProfileChangeSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(
        max_length=200, help_text="Recorded with the version and in the audit trail."
    )
    name = serializers.CharField(max_length=80, required=False)
    policy = serializers.CharField(required=False)
    tie_breakers = serializers.ListField(child=serializers.CharField(), required=False)
    strict_order = serializers.BooleanField(required=False)
    placement = serializers.CharField(required=False)
    backfill = serializers.CharField(required=False)
    options = serializers.DictField(required=False)
    score_weights = serializers.DictField(child=serializers.IntegerField(), required=False)
    plugins = serializers.ListField(child=serializers.CharField(), required=False)
    preemption_enabled = serializers.BooleanField(required=False)
    preemption = serializers.DictField(required=False)
    rules = serializers.ListField(child=serializers.DictField(), required=False)
    rule_hold_seconds = serializers.IntegerField(required=False)
    rule_time_zone = serializers.CharField(required=False)


class NewProfileSerializer(ProfileChangeSerializer):
    name = serializers.CharField(max_length=80)


class VersionSerializer(serializers.Serializer[Any]):
    profile = serializers.CharField(help_text="Name of the profile at the time.")
    version = serializers.IntegerField()
    origin = serializers.ChoiceField(choices=VersionOrigin.choices)
    origin_number = serializers.IntegerField(
        allow_null=True, help_text="The version that was restored, or the shadow run that was published."
    )
    made_at = serializers.DateTimeField()
    made_by = serializers.CharField(help_text='Username; "": Muster itself.')
    reason = serializers.CharField()
    content = ContentSerializer()

    def to_representation(self, row: ProfileVersion) -> dict[str, Any]:
        return {
            "profile": row.profile_name,
            "version": row.number,
            "origin": row.origin,
            "origin_number": row.origin_number,
            "made_at": moment(row.made_at),
            "made_by": row.made_by,
            "reason": row.reason,
            "content": row.content,
        }


class FieldChangeSerializer(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField()
    after = serializers.JSONField()


class VersionDiffSerializer(serializers.Serializer[Any]):
    profile = serializers.CharField()
    before = serializers.IntegerField(help_text="The version with the values `before`.")
    after = serializers.IntegerField()
    changes = FieldChangeSerializer(many=True, help_text="Fields that differ.")


class RollbackSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(
        min_value=1, help_text="The version whose content is put in force again."
    )
    reason = serializers.CharField(max_length=200)


def changes_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between two contents, as the API lists it."""
    return [
        {"field": name, "before": old, "after": new}
        for name, (old, new) in differences(before, after).items()
    ]


def asked_of(request: Request) -> tuple[dict[str, Any], str]:
    """The fields of a body, and its reason, which is required."""
    body = dict(body_of(request))
    return body, needed_reason(body.pop("reason", None))


def needed_reason(given: Any) -> str:
    problem = None
    reason = "" if given is None else text_of(given)
    if not reason:
        problem = FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required")
    if problem is not None:
        raise InvalidInput(problem.message, problems=[problem])
    return reason


def refuse_unknown(asked: Mapping[str, Any], known: str) -> None:
    """Raise InvalidInput for the first of these fields, which nothing reads."""
    unknown = str(next(iter(asked)))[:60]
    problem = FieldProblem(unknown, f"There is no such field; known are {known}.", "unknown-field")
    raise InvalidInput(problem.message, problems=[problem])


def number_of(given: Any, name: str) -> int:
    """A whole number from 1 of a body or a query; raises InvalidInput that names the field."""
    text = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text) > 0):
        problem = FieldProblem(name, "Must be a whole number from 1.", "not-a-number")
        raise InvalidInput(f"{name}: {problem.message}", problems=[problem])
    return int(text)


def _answer(row: SchedulerProfile, status_code: int = status.HTTP_200_OK) -> Response:
    return Response(
        ProfileSerializer(row).data,
        status=status_code,
        headers={"ETag": etags.etag("profile", row.pk, row.version)},
    )


def _expected(request: Request, row: SchedulerProfile) -> int | None:
    return etags.expected(request, "profile", row.pk, "profile")


class Profiles(ApiView):
    """`/profiles`"""

    queryset = SchedulerProfile.objects.none()
    serializer_class = ProfileSerializer
    pagination_class = NewestFirst
    page_ordering = ("pk",)
    required_scopes = {"GET": "nodes:read", "POST": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(operation_id="profiles_list", responses=ProfileSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Scheduler profiles; operators and auditors."""
        services.require_reader(person(request))
        page = self.paginate_queryset(SchedulerProfile.objects.all()) or []
        return self.get_paginated_response(ProfileSerializer(page, many=True).data)

    @extend_schema(
        operation_id="profiles_create",
        parameters=[KEY],
        request=NewProfileSerializer,
        responses={201: ProfileSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Create a profile; site admins only. Fields that are left out have the defaults of the form."""
        given, reason = asked_of(request)
        row = services.create_profile(given=given, by=person(request), reason=reason)
        return _answer(row, status.HTTP_201_CREATED)


class ProfileDetail(ApiView):
    """`/profiles/{name}`"""

    queryset = SchedulerProfile.objects.none()
    serializer_class = ProfileSerializer
    required_scopes = {"GET": "nodes:read", "PATCH": "admin", "DELETE": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(operation_id="profiles_get", responses=ProfileSerializer)
    def get(self, request: Request, name: str) -> Response:
        """One profile, by name or id; operators and auditors."""
        return _answer(services.profile_by_ref(person(request), name))

    @extend_schema(
        operation_id="profiles_edit",
        parameters=[IF_MATCH],
        request=ProfileChangeSerializer,
        responses=ProfileSerializer,
    )
    def patch(self, request: Request, name: str) -> Response:
        """Change fields of a profile, as a new version; site admins only."""
        row = services.profile_by_ref(person(request), name)
        changes, reason = asked_of(request)
        row = services.change_profile(
            profile=row, changes=changes, by=person(request), reason=reason, expected=_expected(request, row)
        )
        return _answer(SchedulerProfile.objects.get(pk=row.pk))

    @extend_schema(operation_id="profiles_delete", parameters=[REASON, IF_MATCH], responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete a profile that no cluster and no queue uses; site admins only. Its versions stay."""
        row = services.profile_by_ref(person(request), name)
        refuse_stale(row, _expected(request, row))
        remove_settings(thing=row, by=person(request), reason=reason_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ProfileVersions(ApiView):
    """`/profiles/{name}/versions`"""

    queryset = ProfileVersion.objects.none()
    serializer_class = VersionSerializer
    pagination_class = NewestFirst
    page_ordering = ("-number",)
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["profiles"]

    @extend_schema(operation_id="profiles_versions", responses=VersionSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Every version of a profile, newest first: who made it, when and why, and what the profile said."""
        row = services.profile_by_ref(person(request), name)
        page = self.paginate_queryset(ProfileVersion.objects.filter(profile_id=row.pk)) or []
        return self.get_paginated_response(VersionSerializer(page, many=True).data)


_BEFORE: Final = OpenApiParameter("before", int, required=True, description="A version.")
_AFTER: Final = OpenApiParameter("after", int, description="Another version; the newest if left out.")


class ProfileVersionDiff(ApiView):
    """`/profiles/{name}/versions/diff`"""

    serializer_class = VersionDiffSerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["profiles"]

    @extend_schema(
        operation_id="profiles_versions_diff", parameters=[_BEFORE, _AFTER], responses=VersionDiffSerializer
    )
    def get(self, request: Request, name: str) -> Response:
        """The fields in which two versions differ."""
        row = services.profile_by_ref(person(request), name)
        before = services.version_of(row, number_of(request.query_params.get("before", ""), "before"))
        wanted = request.query_params.get("after")
        after = services.version_of(row, number_of(wanted, "after") if wanted else row.version)
        return Response(
            {
                "profile": row.name,
                "before": before.number,
                "after": after.number,
                "changes": changes_of(before.content, after.content),
            }
        )


class RollbackProfile(ApiView):
    """`/profiles/{name}/rollback`"""

    serializer_class = ProfileSerializer
    required_scopes = {"POST": "admin"}
    schema_tags = ["profiles"]

    @extend_schema(
        operation_id="profiles_rollback",
        parameters=[KEY, IF_MATCH],
        request=RollbackSerializer,
        responses=ProfileSerializer,
    )
    @once
    def post(self, request: Request, name: str) -> Response:
        """Put an earlier version in force again, as a new version; site admins only."""
        row = services.profile_by_ref(person(request), name)
        asked, reason = asked_of(request)
        number = number_of(asked.pop("version", None), "version")
        if asked:
            refuse_unknown(asked, "version, reason")
        row = services.rollback_profile(
            profile=row, number=number, by=person(request), reason=reason, expected=_expected(request, row)
        )
        return _answer(SchedulerProfile.objects.get(pk=row.pk))
