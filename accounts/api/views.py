"""People, projects, tokens and the audit trail over HTTP."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from accounts import permissions, selectors
from accounts.api.etags import IF_MATCH, etag, expected
from accounts.api.filters import AuditFilter
from accounts.api.once import KEY, once
from accounts.api.person import person
from accounts.api.serializers import (
    AuditCheckSerializer,
    AuditEventSerializer,
    IssuedTokenSerializer,
    MemberChangesSerializer,
    MemberSerializer,
    MeSerializer,
    NewMemberSerializer,
    NewProjectSerializer,
    NewTokenSerializer,
    ProjectChangesSerializer,
    ProjectSerializer,
    ReasonSerializer,
    TokenSerializer,
)
from accounts.models import ApiToken, AuditCheck, AuditEvent, Membership, Project
from accounts.services import projects as services
from accounts.services.tokens import issue_token, revoke_token
from infra.api.rest import both_ways
from infra.api.views import ApiView, KnownQuery
from infra.errors import InvalidInput, NotFound


class MeView(ApiView):
    """Whose credentials these are, their roles, and what the token in use may do."""

    required_scopes = {"GET": "projects:read"}
    schema_tags = ["me"]

    @extend_schema(responses=MeSerializer, operation_id="me")
    def get(self, request: Request) -> Response:
        known = {
            "roles": selectors.roles_by_slug(person(request)),
            "token": request.auth if isinstance(request.auth, ApiToken) else None,
        }
        return Response(MeSerializer(person(request), context=known).data)


REF = OpenApiParameter("ref", str, OpenApiParameter.PATH, description="The project's slug, id or exact name.")
WHO = OpenApiParameter("username", str, OpenApiParameter.PATH)


@extend_schema_view(list=extend_schema(summary="The projects you can see"))
class ProjectViewSet(KnownQuery, mixins.ListModelMixin, GenericViewSet[Project]):
    """Projects and their members. A project that you may not see does not exist for you."""

    serializer_class = ProjectSerializer
    queryset = Project.objects.none()
    lookup_url_kwarg = "ref"
    lookup_value_regex = "[^/]+"
    page_ordering = ("name", "pk")
    orderings = both_ways(name="name", created_at="created_at")
    counted = True
    location = {  # by action
        "create": "/api/v1/projects/{slug}",
        "add_member": "/api/v1/projects/{ref}/members/{user}",
    }
    schema_tags = ["projects"]
    required_scopes = {
        "GET": "projects:read",
        "POST": "projects:write",
        "PATCH": "projects:write",
        "DELETE": "projects:write",
    }

    def get_queryset(self) -> QuerySet[Project]:
        return selectors.visible_projects(person(self.request))

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "roles": self._roles}

    @property
    def _roles(self) -> dict[int, str]:
        if not self.request or not self.request.user.is_authenticated:
            return {}  # the schema is being drawn
        return permissions.roles_of(self.request.user)

    @extend_schema(
        parameters=[KEY],
        request=NewProjectSerializer,
        responses={201: ProjectSerializer},
        summary="Open a project",
    )
    @once
    def create(self, request: Request) -> Response:
        permissions.require(request.user, "administer")
        data = _valid(NewProjectSerializer, request)
        project = services.create_project(**data, by=person(request))
        return Response(self.get_serializer(project).data, status=status.HTTP_201_CREATED)

    @extend_schema(parameters=[REF], responses=ProjectSerializer, summary="One project, with its ETag")
    def retrieve(self, request: Request, ref: str) -> Response:
        return self._answer(self._project())

    @extend_schema(
        parameters=[REF, IF_MATCH],
        request=ProjectChangesSerializer,
        responses=ProjectSerializer,
        summary="Change name or description",
    )
    def partial_update(self, request: Request, ref: str) -> Response:
        project = self._project()
        permissions.require(request.user, "manage", project)
        data = _valid(ProjectChangesSerializer, request)
        reason = data.pop("reason")
        services.edit_project(
            project=project, changes=data, by=person(request), reason=reason,
            expected_generation=expected(request, "project", project.pk, "project"),
        )  # fmt: skip
        return self._answer(project)

    def _answer(self, project: Project) -> Response:
        headers = {"ETag": etag("project", project.pk, project.generation)}
        return Response(self.get_serializer(project).data, headers=headers)

    @extend_schema(
        parameters=[REF, KEY],
        request=ReasonSerializer,
        responses=ProjectSerializer,
        summary="Close the project to new jobs",
    )
    @action(detail=True, methods=["post"])
    @once
    def close(self, request: Request, ref: str) -> Response:
        project = services.close_project(
            project=self._project(), by=person(request), reason=_valid(ReasonSerializer, request)["reason"]
        )
        return Response(self.get_serializer(project).data)

    @extend_schema(
        parameters=[REF, KEY],
        request=ReasonSerializer,
        responses=ProjectSerializer,
        summary="Reopen the project",
    )
    @action(detail=True, methods=["post"])
    @once
    def reopen(self, request: Request, ref: str) -> Response:
        project = services.reopen_project(
            project=self._project(), by=person(request), reason=_valid(ReasonSerializer, request)["reason"]
        )
        return Response(self.get_serializer(project).data)

    @extend_schema(parameters=[REF], responses=MemberSerializer(many=True), summary="Members of the project")
    @action(detail=True, methods=["get"], pagination_class=None, filter_backends=[])
    def members(self, request: Request, ref: str) -> Response:
        members = self._project().memberships.select_related("user").order_by("user__username")
        return Response({"results": MemberSerializer(members, many=True).data})

    @extend_schema(
        parameters=[REF, KEY],
        request=NewMemberSerializer,
        responses={201: MemberSerializer},
        summary="Add a member",
    )
    @members.mapping.post
    @once
    def add_member(self, request: Request, ref: str) -> Response:
        project = self._project()
        # Asked before the names in the body are looked up: nobody else learns them.
        permissions.require(request.user, "manage", project)
        membership = services.add_member(
            project=project, by=person(request), **_valid(NewMemberSerializer, request)
        )
        return Response(MemberSerializer(membership).data, status=status.HTTP_201_CREATED)

    @extend_schema(
        parameters=[REF, WHO],
        request=MemberChangesSerializer,
        responses=MemberSerializer,
        summary="Change the role of a member",
    )
    @action(detail=True, methods=["patch"], url_path=r"members/(?P<username>[^/]+)")
    def member(self, request: Request, ref: str, username: str) -> Response:
        membership = self._membership(username)
        permissions.require(request.user, "manage", membership.project)
        data = _valid(MemberChangesSerializer, request)
        membership = services.change_member(
            membership=membership,
            by=person(request),
            role=data.get("role"),
            expires_at=data.get("expires_at"),
            keep_expiry="expires_at" not in data,
            reason=data["reason"],
        )
        return Response(MemberSerializer(membership).data)

    @extend_schema(parameters=[REF, WHO], request=None, responses={204: None}, summary="Remove a member")
    @member.mapping.delete
    def remove_member(self, request: Request, ref: str, username: str) -> Response:
        services.remove_member(membership=self._membership(username), by=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _project(self) -> Project:
        return selectors.project_by_ref(person(self.request), self.kwargs["ref"])

    def _membership(self, username: str) -> Membership:
        project = self._project()
        members = project.memberships.select_related("user", "project")
        membership = members.filter(user__username=username.replace("\x00", "")).first()
        if membership is None:
            raise NotFound(f"{username[:80]} does not belong to {project}.")
        return membership


@extend_schema_view(
    list=extend_schema(summary="Your tokens"),
    retrieve=extend_schema(summary="One token, without its secret"),
)
class TokenViewSet(KnownQuery, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[ApiToken]):
    """API tokens. A token can create only tokens with its own scopes and its own project."""

    serializer_class = TokenSerializer
    queryset = ApiToken.objects.none()
    lookup_value_regex = "[0-9]{1,18}"
    orderings = both_ways(created_at="created_at")
    counted = True
    location = "/api/v1/tokens/{id}"
    schema_tags = ["tokens"]
    required_scopes = {"GET": "tokens:write", "POST": "tokens:write", "DELETE": "tokens:write"}

    def get_queryset(self) -> QuerySet[ApiToken]:
        return selectors.visible_tokens(person(self.request))

    @extend_schema(
        request=NewTokenSerializer,
        responses={201: IssuedTokenSerializer},
        summary="Create a token; the token is shown once",
    )
    def create(self, request: Request) -> Response:
        if "Idempotency-Key" in request.headers:
            raise InvalidInput(
                "Creating a token cannot be repeated: the secret is shown once and stored nowhere.",
                code="idempotency-key-bad",
                status=400,
                way_out="Leave the Idempotency-Key out; if no answer came, revoke the new token and create another.",
            )
        data = _valid(NewTokenSerializer, request)
        if data["project"] is not None:
            data["project"] = selectors.project_by_ref(person(request), data["project"])
        token, plain = issue_token(user=person(request), by=person(request), **data)
        answer = IssuedTokenSerializer(token, context={"plain": plain}).data
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(
        request=None, responses={204: None}, summary="Revoke a token immediately; this cannot be undone"
    )
    def destroy(self, request: Request, pk: str) -> Response:
        revoke_token(token=self.get_object(), by=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema_view(
    list=extend_schema(summary="Audit events, newest first"),
    retrieve=extend_schema(summary="One audit event"),
)
class AuditViewSet(KnownQuery, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[AuditEvent]):
    """Who did what, when, from where, and why. For auditors and admins."""

    serializer_class = AuditEventSerializer
    queryset = AuditEvent.objects.none()
    filterset_class = AuditFilter
    lookup_value_regex = "[0-9]{1,18}"
    orderings = both_ways(at="pk")
    schema_tags = ["audit"]
    required_scopes = {"GET": "audit:read"}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        permissions.require(request.user, "audit")

    def get_queryset(self) -> QuerySet[AuditEvent]:
        return selectors.visible_audit_events(person(self.request))

    @extend_schema(
        responses=AuditCheckSerializer, summary="Whether the audit chains were intact when last verified"
    )
    @action(detail=False, methods=["get"], pagination_class=None, filter_backends=[])
    def check(self, request: Request) -> Response:
        check = AuditCheck.objects.first()
        if check is None:
            raise NotFound(
                "The audit chains have not been verified yet: verification runs every hour, first one hour after "
                "the first start.",
                way_out="Run `manage.py audit_verify` to verify now; the result is shown here immediately.",
            )
        return Response(AuditCheckSerializer(check).data)


def _valid(serializer_class: type, request: Request) -> dict[str, Any]:
    serializer = serializer_class(data=request.data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)
