"""Rights are asked before the first byte of a stream, and again when an answer is given a second time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone

from accounts import permissions
from accounts.models import ApiToken, Membership, ProjectRole, SiteRole, User
from accounts.selectors import visible_projects
from accounts.web.middleware import ContextMiddleware
from infra import request_context
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.efficiency import Asked, all_job_uses, last_days
from scheduler.models import Job
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    JobFactory,
    MembershipFactory,
    ProjectFactory,
    bearer,
)

pytestmark = pytest.mark.django_db

JOB = {"command": "true", "name": "once", "project": "vision"}


@pytest.fixture
def portal() -> Portal:
    return a_portal()


@pytest.fixture
def other(portal: Portal) -> Any:
    """The owner's second project, with a job that has ended."""
    project = ProjectFactory(slug="other", name="Other")
    MembershipFactory(project=project, user=portal.cast.owner, role=ProjectRole.MEMBER)
    job = JobFactory(
        name="secret of other",
        project=project,
        user=portal.cast.owner,
        state=JobState.COMPLETED,
        epoch=1,
        completed_at=timezone.now(),
    )
    ago, now = timezone.now() - timedelta(minutes=5), timezone.now()
    attempt = AttemptFactory(job=job, state=AttemptState.SUCCEEDED, scheduled_at=ago, ended_at=now)
    AllocationFactory(attempt=attempt, node=portal.n1, held_at=ago, released_at=now)
    return project


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("export", ["csv", "json"])
@pytest.mark.parametrize("path", ["/api/v1/jobs/efficiency", "/api/v1/quotas/ledger"])
def test_a_held_token_exports_its_project_and_no_other(
    portal: Portal, other: Any, client: Client, path: str, export: str
) -> None:
    held = bearer(portal.cast.owner, "admin", project=portal.cast.project)
    whole = bearer(portal.cast.owner, "admin")

    response = client.get(path, {"export": export}, headers=held)

    assert b"other" not in b"".join(response.streaming_content)
    if path.endswith("efficiency"):
        response = client.get(path, {"export": export}, headers=whole)
        assert b"secret of other" in b"".join(response.streaming_content)


def test_what_a_stream_shows_is_settled_while_the_request_is_known(portal: Portal, other: Any) -> None:
    asked = Asked(portal.cast.owner, *last_days(1, timezone.now()))
    with request_context.acting(token_user_id=portal.cast.owner.pk, token_project_id=portal.cast.project.pk):
        rows = all_job_uses(asked)

    assert list(rows) == []


def a_stream_that_asks_late(user: User) -> StreamingHttpResponse:
    def pieces() -> Iterator[str]:
        yield "first\n"
        yield ",".join(visible_projects(user).values_list("slug", flat=True))

    return StreamingHttpResponse(pieces())


def test_a_stream_that_asks_for_rights_breaks_and_shows_nothing(portal: Portal, other: Any) -> None:
    response = ContextMiddleware(lambda _: a_stream_that_asks_late(portal.cast.operator))(
        RequestFactory().get("/")
    )

    pieces = iter(response.streaming_content)
    assert next(pieces) == b"first\n"
    with pytest.raises(request_context.RequestIsOver):
        next(pieces)
    assert (
        request_context.current() == request_context.RequestContext()
    )  # and those who read it are as before


def test_an_asynchronous_stream_breaks_as_well(portal: Portal) -> None:
    user = portal.cast.owner

    async def pieces() -> Any:
        yield "first\n"
        yield str(permissions.token_project_id(user))

    async def read() -> list[bytes]:
        response = ContextMiddleware(lambda _: StreamingHttpResponse(pieces()))(RequestFactory().get("/"))
        return [piece async for piece in response.streaming_content]

    with pytest.raises(request_context.RequestIsOver):
        async_to_sync(read)()


def test_a_person_signed_in_by_a_held_token_is_held_where_no_request_is_known(
    portal: Portal, other: Any
) -> None:
    """As in a thread of a pool: the limits go with the person."""
    token = ApiToken(user=portal.cast.owner, project=portal.cast.project, prefix="p", scopes=["admin"])
    with request_context.acting():
        request_context.use_token(token)
    person = token.user

    assert request_context.current() == request_context.RequestContext()
    assert [project.slug for project in visible_projects(person)] == ["vision"]
    assert not permissions.may(person, "view", other)
    assert list(permissions.roles_of(person)) == [portal.cast.project.pk]


# ---------------------------------------------------------------- answers given a second time


def send(client: Client, headers: dict[str, str], key: str = "once-1") -> HttpResponse:
    return client.post(
        "/api/v1/jobs",
        json.dumps(JOB),
        content_type="application/json",
        headers=headers | {"Idempotency-Key": key},
    )


def refused_again(client: Client, headers: dict[str, str]) -> str:
    """The code of a repeated request that is refused, with nothing of the first answer in it."""
    answer = send(client, headers)
    assert answer.status_code in (401, 403, 404), answer.content
    assert b"once" not in answer.content
    assert Job.objects.filter(name="once").count() == 1
    return str(answer.json()["code"])


def test_the_same_caller_gets_the_answer_again(portal: Portal, client: Client) -> None:
    headers = bearer(portal.cast.owner, "jobs:write")
    first, second = send(client, headers), send(client, headers)

    assert (first.status_code, second.status_code, second["Idempotent-Replayed"]) == (201, 201, "true")
    assert first.json() == second.json()


def test_once_the_role_is_gone_the_answer_is_not_given_again(portal: Portal, client: Client) -> None:
    headers = bearer(portal.cast.owner, "jobs:write")
    send(client, headers)
    Membership.objects.filter(user=portal.cast.owner).delete()

    assert refused_again(client, headers) == "rights-changed"


@pytest.mark.parametrize("role", [ProjectRole.VIEWER])
def test_nor_to_a_smaller_role(portal: Portal, client: Client, role: str) -> None:
    headers = bearer(portal.cast.owner, "jobs:write")
    send(client, headers)
    Membership.objects.filter(user=portal.cast.owner).update(role=role)

    assert refused_again(client, headers) == "rights-changed"


def test_nor_once_the_membership_has_ended_by_time(portal: Portal, client: Client) -> None:
    headers = bearer(portal.cast.owner, "jobs:write")
    send(client, headers)
    Membership.objects.filter(user=portal.cast.owner).update(expires_at=timezone.now())

    assert refused_again(client, headers) == "rights-changed"


def test_nor_to_a_token_held_to_another_project(portal: Portal, client: Client, other: Any) -> None:
    send(client, bearer(portal.cast.owner, "jobs:write"))

    assert refused_again(client, bearer(portal.cast.owner, "jobs:write", project=other)) == "rights-changed"


def test_nor_to_a_token_with_fewer_scopes(portal: Portal, client: Client) -> None:
    send(client, bearer(portal.cast.owner, "jobs:write", "quota:read"))

    assert refused_again(client, bearer(portal.cast.owner, "jobs:write")) == "rights-changed"
    assert refused_again(client, bearer(portal.cast.owner, "jobs:read")) == "scope-missing"


def test_nor_to_a_token_that_was_revoked(portal: Portal, client: Client) -> None:
    headers = bearer(portal.cast.owner, "jobs:write")
    send(client, headers)
    ApiToken.objects.update(revoked_at=timezone.now())

    assert refused_again(client, headers) == "token-revoked"


def test_nor_once_a_site_role_is_gone(portal: Portal, client: Client) -> None:
    MembershipFactory(project=portal.cast.project, user=portal.cast.operator, role=ProjectRole.MEMBER)
    headers = bearer(portal.cast.operator, "jobs:write")
    send(client, headers)
    User.objects.filter(pk=portal.cast.operator.pk).update(site_role=SiteRole.NONE)

    assert refused_again(client, headers) == "rights-changed"


def test_more_rights_than_before_do_no_harm(portal: Portal, client: Client) -> None:
    send(client, bearer(portal.cast.owner, "jobs:write", project=portal.cast.project))
    MembershipFactory(project=ProjectFactory(), user=portal.cast.owner, role=ProjectRole.LEAD)

    answer = send(client, bearer(portal.cast.owner, "admin"))
    assert (answer.status_code, answer["Idempotent-Replayed"]) == (201, "true")
