"""Whose rows one may know of."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from accounts import selectors
from accounts.models import Membership
from accounts.services import tokens
from infra import request_context
from infra.errors import NotFound
from tests.support.factories import MembershipFactory, ProjectFactory, UserFactory, the_cast

pytestmark = pytest.mark.django_db


def test_members_see_their_projects_and_site_roles_see_all() -> None:
    cast = the_cast()

    seen = {
        name: sorted(selectors.visible_projects(person).values_list("slug", flat=True))
        for name, person in cast.people().items()
    }

    assert seen == {
        "owner": ["vision"],
        "colleague": ["vision"],
        "lead": ["vision"],
        "viewer": ["vision"],
        "stranger": ["elsewhere"],
        "operator": ["elsewhere", "vision"],
        "auditor": ["elsewhere", "vision"],
        "admin": ["elsewhere", "vision"],
    }


def test_only_members_and_leads_of_open_projects_submit() -> None:
    cast = the_cast()

    assert {n for n, p in cast.people().items() if cast.project in selectors.submit_projects(p)} == {
        "owner",
        "colleague",
        "lead",
    }

    cast.project.active = False
    cast.project.save()

    assert not selectors.submit_projects(cast.owner).exists()


def test_an_ended_membership_shows_nothing() -> None:
    cast = the_cast()
    Membership.objects.filter(user=cast.owner).update(expires_at=timezone.now() - timedelta(minutes=1))

    assert not selectors.visible_projects(cast.owner).exists()
    assert list(selectors.visible_users(cast.owner)) == [cast.owner]


def test_a_disabled_account_sees_nothing() -> None:
    cast = the_cast()
    for person in (cast.owner, cast.operator):
        person.is_active = False

        assert not selectors.visible_projects(person).exists()


def test_people_see_the_people_of_their_projects() -> None:
    cast = the_cast()

    seen = set(selectors.visible_users(cast.viewer).values_list("username", flat=True))

    assert seen == {"owner", "colleague", "lead", "viewer"}
    assert cast.stranger in selectors.visible_users(cast.operator)


@pytest.mark.parametrize("ref", ["vision", "Vision", "{id}"])
def test_a_project_is_found_by_slug_name_or_id(ref: str) -> None:
    cast = the_cast()

    assert selectors.project_by_ref(cast.owner, ref.format(id=cast.project.pk)) == cast.project


@pytest.mark.parametrize("ref", ["elsewhere", "nothing", "", "\x00", "9" * 40, "٣", "🦆"])
def test_what_is_not_there_and_what_is_hidden_look_alike(ref: str) -> None:
    cast = the_cast()

    with pytest.raises(NotFound, match="or you may not see it"):
        selectors.project_by_ref(cast.owner, ref)


def test_the_default_project_is_the_chosen_one_else_the_only_one() -> None:
    person = UserFactory()
    assert selectors.default_project(person) is None

    first = MembershipFactory(user=person).project
    assert selectors.default_project(person) == first

    second = ProjectFactory(member=person)
    assert selectors.default_project(person) is None

    person.default_project = second
    assert selectors.default_project(person) == second


def test_a_token_of_an_admin_that_is_held_to_a_project_sees_no_tokens_of_others() -> None:
    cast = the_cast()
    for person in (cast.admin, cast.stranger):
        tokens.issue_token(user=person, by=person, name="mine", scopes=["jobs:read"])

    assert selectors.visible_tokens(cast.admin).count() == 2
    with request_context.acting(token_user_id=cast.admin.pk, token_project_id=cast.project.pk):
        assert [token.user for token in selectors.visible_tokens(cast.admin)] == [cast.admin]


def test_a_token_held_to_a_project_narrows_every_list() -> None:
    cast = the_cast()
    MembershipFactory(user=cast.owner, project=ProjectFactory(slug="other"))

    with request_context.acting(token_user_id=cast.owner.pk, token_project_id=cast.project.pk):
        assert list(selectors.visible_projects(cast.owner)) == [cast.project]
        assert list(selectors.submit_projects(cast.owner)) == [cast.project]
        assert selectors.roles_by_slug(cast.owner) == {"vision": "member"}

    with request_context.acting(token_user_id=cast.auditor.pk, token_project_id=cast.project.pk):
        assert list(selectors.visible_projects(cast.auditor)) == [cast.project]
        assert not selectors.visible_audit_events(cast.auditor).exists()


def test_the_statement_for_every_submission_says_the_same_as_the_selector() -> None:
    cast = the_cast()
    other = ProjectFactory()
    MembershipFactory(user=cast.owner, project=other, role="lead")
    MembershipFactory(user=cast.viewer, project=other, role="member")
    closed = ProjectFactory(active=False)
    MembershipFactory(user=cast.owner, project=closed, role="lead")
    MembershipFactory(
        user=cast.owner,
        project=ProjectFactory(),
        role="lead",
        expires_at=timezone.now() - timedelta(seconds=1),
    )
    gone = UserFactory(is_active=False)
    MembershipFactory(user=gone, project=other, role="lead")

    people = [*cast.people().values(), gone]
    for held_to in (None, other.pk):
        for acting in people:
            with request_context.acting(token_user_id=acting.pk, token_project_id=held_to):
                sql, values = selectors.submit_projects_statement(people, "p.id, p.slug")
                with connection.cursor() as cursor:
                    cursor.execute(sql, values)
                    found = cursor.fetchall()
                assert found == [
                    (place, *row)
                    for place, person in enumerate(people, 1)
                    for row in selectors.submit_projects(person).values_list("id", "slug")
                ]
