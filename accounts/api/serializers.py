"""What the API takes and gives of people, projects, tokens and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.models import (
    ApiToken,
    AuditCheck,
    AuditEvent,
    Membership,
    Organization,
    Project,
    ProjectRole,
    User,
)
from accounts.scopes import SCOPES
from accounts.services.tokens import DEFAULT_DAYS, MAX_DAYS
from infra.api.fields import ChoiceField


class StrictSerializer(serializers.Serializer[Any]):
    """Unknown fields are refused: a misspelt field would otherwise be silently ignored."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            writable = {name for name, field in self.fields.items() if not field.read_only}
            unknown = [str(name) for name in data if name not in writable]
            if unknown:
                # A hint for each of a few: looking for one that was meant takes long.
                raise serializers.ValidationError({name: [_unknown(name, writable)] for name in unknown[:20]})
        return super().to_internal_value(data)


def _unknown(name: str, known: set[str]) -> serializers.ErrorDetail:
    close = get_close_matches(name, sorted(known), n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Known fields are {', '.join(sorted(known))}."
    return serializers.ErrorDetail(f"There is no such field. {hint}", code="unknown-field")


# ---------------------------------------------------------------- people


class MeSerializer(serializers.ModelSerializer[User]):
    """The owner and the permissions of these credentials."""

    default_project: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", read_only=True, allow_null=True
    )
    roles = serializers.SerializerMethodField()
    scopes = serializers.SerializerMethodField()
    token = serializers.SerializerMethodField()

    class Meta:
        model = User
        fields = [
            "id", "username", "first_name", "last_name", "email", "site_role", "default_project",
            "priority_ceiling", "time_zone", "roles", "scopes", "token",
        ]  # fmt: skip
        read_only_fields = fields

    def get_roles(self, user: User) -> dict[str, str]:
        """Project -> role."""
        roles: dict[str, str] = self.context["roles"]
        return roles

    def get_scopes(self, user: User) -> list[str] | None:
        """What the token in use may do; null with a session."""
        token = self.context["token"]
        return list(token.scopes) if token else None

    def get_token(self, user: User) -> str | None:
        token = self.context["token"]
        return token.prefix if token else None


# ---------------------------------------------------------------- projects


class OrganizationSerializer(serializers.ModelSerializer[Organization]):
    class Meta:
        model = Organization
        fields = ["id", "slug", "name"]
        read_only_fields = fields


class ProjectSerializer(serializers.ModelSerializer[Project]):
    organization = OrganizationSerializer(read_only=True)
    role = serializers.SerializerMethodField()

    class Meta:
        model = Project
        fields = [
            "id",
            "slug",
            "name",
            "description",
            "organization",
            "active",
            "role",
            "created_at",
            "generation",
        ]
        read_only_fields = fields

    @extend_schema_field(serializers.ChoiceField(choices=ProjectRole.choices, allow_null=True))
    def get_role(self, project: Project) -> str | None:
        """The caller's role in it; null when they have none and see it by their site role."""
        role: str | None = self.context["roles"].get(project.pk)
        return role


class NewProjectSerializer(StrictSerializer):
    organization = serializers.SlugRelatedField(slug_field="slug", queryset=Organization.objects.all())
    name = serializers.CharField(max_length=120)
    slug = serializers.CharField(max_length=80, required=False, default="")
    description = serializers.CharField(max_length=5000, required=False, default="", allow_blank=True)
    lead = serializers.SlugRelatedField(
        slug_field="username", queryset=User.objects.filter(is_active=True), required=False, default=None
    )


class ProjectChangesSerializer(StrictSerializer):
    name = serializers.CharField(max_length=120, required=False)
    description = serializers.CharField(max_length=5000, required=False, allow_blank=True)
    reason = serializers.CharField(max_length=1000, required=False, default="", allow_blank=True)


class ReasonSerializer(StrictSerializer):
    reason = serializers.CharField(max_length=1000, required=False, default="", allow_blank=True)


class MemberSerializer(serializers.ModelSerializer[Membership]):
    user: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="username", read_only=True
    )
    name = serializers.CharField(source="user.get_full_name", read_only=True)
    ended = serializers.SerializerMethodField()

    class Meta:
        model = Membership
        fields = ["user", "name", "role", "created_at", "expires_at", "ended"]
        read_only_fields = fields

    def get_ended(self, membership: Membership) -> bool:
        return membership.expires_at is not None and membership.expires_at <= timezone.now()


class NewMemberSerializer(StrictSerializer):
    user = serializers.SlugRelatedField(slug_field="username", queryset=User.objects.all())
    role = ChoiceField(choices=ProjectRole.choices, default=ProjectRole.MEMBER)
    expires_at = serializers.DateTimeField(required=False, default=None, allow_null=True)
    reason = serializers.CharField(max_length=1000, required=False, default="", allow_blank=True)


class MemberChangesSerializer(StrictSerializer):
    role = ChoiceField(choices=ProjectRole.choices, required=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=1000, required=False, default="", allow_blank=True)


# ---------------------------------------------------------------- tokens


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token without its secret, which is not stored."""

    user: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="username", read_only=True
    )
    project: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", read_only=True, allow_null=True
    )

    class Meta:
        model = ApiToken
        fields = [
            "id", "name", "prefix", "user", "scopes", "project", "created_at", "expires_at", "last_used_at",
            "last_used_address", "revoked_at",
        ]  # fmt: skip
        read_only_fields = fields


class IssuedTokenSerializer(TokenSerializer):
    """A created token: the only response that contains `token`."""

    token = serializers.SerializerMethodField()

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]
        read_only_fields = fields

    def get_token(self, token: ApiToken) -> str:
        return str(self.context["plain"])


class NewTokenSerializer(StrictSerializer):
    name = serializers.CharField(max_length=120)
    scopes = serializers.ListField(
        child=serializers.CharField(max_length=32), allow_empty=False, max_length=len(SCOPES),
        help_text=f"Of {', '.join(SCOPES)}; x:write includes x:read, admin includes all.",
    )  # fmt: skip
    days = serializers.IntegerField(min_value=1, max_value=MAX_DAYS, default=DEFAULT_DAYS)
    project = serializers.CharField(
        max_length=120,
        required=False,
        default=None,
        allow_null=True,
        help_text="Limits the token to this project.",
    )


# ---------------------------------------------------------------- the audit trail


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    actor = serializers.CharField(source="actor_name", read_only=True)
    object = serializers.SerializerMethodField()
    project: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", read_only=True, allow_null=True
    )

    class Meta:
        model = AuditEvent
        fields = [
            "id", "at", "actor", "on_behalf_of", "token_prefix", "address", "request_id", "action", "outcome",
            "object", "project", "before", "after", "reason", "shard", "number", "hash", "previous_hash",
        ]  # fmt: skip
        read_only_fields = fields

    def get_object(self, event: AuditEvent) -> dict[str, str]:
        return {"type": event.object_type, "id": event.object_id, "label": event.object_label}


class AuditCheckSerializer(serializers.ModelSerializer[AuditCheck]):
    class Meta:
        model = AuditCheck
        fields = ["checked_at", "ok", "rows", "problem"]
        read_only_fields = fields
