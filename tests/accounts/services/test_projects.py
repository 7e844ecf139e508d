"""Projects and members: who changes them, what is refused, what is written down."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from accounts.models import AuditEvent, Membership, Project
from accounts.services import projects
from infra.errors import Conflict, InvalidInput, MusterError, NotAllowed, NotFound
from tests.support.at_once import at_once
from tests.support.factories import (
    AdminFactory,
    MembershipFactory,
    OrganizationFactory,
    UserFactory,
    the_cast,
)

pytestmark = pytest.mark.django_db


def actions() -> list[str]:
    return list(AuditEvent.objects.order_by("id").values_list("action", flat=True))


def test_an_admin_opens_a_project_with_its_lead() -> None:
    admin, alice, organization = AdminFactory(), UserFactory(), OrganizationFactory()

    project = projects.create_project(organization=organization, name="Protein Folding", by=admin, lead=alice)

    assert (project.slug, project.active) == ("protein-folding", True)
    assert Membership.objects.get().role == "lead"
    alice.refresh_from_db()
    assert alice.access_version == 1
    assert AuditEvent.objects.get().after == {
        "name": "Protein Folding",
        "slug": "protein-folding",
        "organization": {"id": organization.pk, "name": organization.name},
        "lead": {"id": alice.pk, "name": alice.username},
    }


@pytest.mark.parametrize(
    ("name", "slug", "field"),
    [
        ("", "", "name"),
        ("x" * 121, "", "name"),
        ("🦆", "", "slug"),
        ("Fine", "Not Fine", "slug"),
        ("42", "", "slug"),
    ],
)
def test_a_bad_name_is_refused(name: str, slug: str, field: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        projects.create_project(organization=OrganizationFactory(), name=name, slug=slug, by=AdminFactory())

    assert [p.field for p in wrong.value.problems] == [field]


def test_a_short_name_is_taken_once() -> None:
    cast = the_cast()

    with pytest.raises(InvalidInput, match="already a project vision"):
        projects.create_project(organization=cast.project.organization, name="Vision", by=cast.admin)

    assert actions() == []


def test_only_admins_open_and_close() -> None:
    cast = the_cast()

    for person in (cast.lead, cast.operator, cast.auditor):
        with pytest.raises(NotAllowed):
            projects.create_project(organization=cast.project.organization, name="Mine", by=person)
        with pytest.raises(NotAllowed):
            projects.close_project(project=cast.project, by=person)
    projects.close_project(project=cast.project, by=cast.admin, reason="funding ended")
    projects.close_project(project=cast.project, by=cast.admin)
    projects.reopen_project(project=cast.project, by=cast.admin)

    assert actions() == ["project.close", "project.reopen"]
    assert Project.objects.get(slug="vision").generation == 3


def test_a_lead_brings_in_changes_and_takes_out() -> None:
    cast = the_cast()

    membership = projects.add_member(project=cast.project, user=cast.stranger, role="viewer", by=cast.lead)
    projects.change_member(membership=membership, role="member", by=cast.lead)
    projects.remove_member(membership=membership, by=cast.lead, reason="moved on")

    assert not Membership.objects.filter(project=cast.project, user=cast.stranger).exists()
    cast.stranger.refresh_from_db()
    assert cast.stranger.access_version == 3
    assert [(e.action, e.before, e.after, e.project) for e in AuditEvent.objects.order_by("id")] == [
        ("member.add", None, {"user": "stranger", "role": "viewer", "expires_at": None}, cast.project),
        (
            "member.change",
            {"role": "viewer", "user": "stranger"},
            {"role": "member", "user": "stranger"},
            cast.project,
        ),
        ("member.remove", {"role": "member", "user": "stranger"}, None, cast.project),
    ]


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ("owner", NotAllowed),
        ("viewer", NotAllowed),
        ("operator", NotAllowed),
        ("auditor", NotAllowed),
        ("stranger", NotFound),
    ],
)
def test_nobody_else_manages_members(who: str, error: type[MusterError]) -> None:
    cast = the_cast()
    membership = Membership.objects.get(user=cast.viewer)
    by = cast.people()[who]

    with pytest.raises(error):
        projects.add_member(project=cast.project, user=UserFactory(), role="lead", by=by)
    with pytest.raises(error):
        projects.change_member(membership=membership, role="lead", by=by)
    if who != "viewer":
        with pytest.raises(error):
            projects.remove_member(membership=membership, by=by)
    assert actions() == []


def test_anybody_may_leave_but_the_only_lead_may_not() -> None:
    cast = the_cast()
    lead = Membership.objects.get(user=cast.lead)

    projects.remove_member(membership=Membership.objects.get(user=cast.viewer), by=cast.viewer)
    with pytest.raises(Conflict, match="only lead"):
        projects.remove_member(membership=lead, by=cast.lead)
    with pytest.raises(Conflict, match="only lead"):
        projects.change_member(membership=lead, role="member", by=cast.lead)
    with pytest.raises(Conflict, match="only lead"):
        projects.change_member(
            membership=lead, expires_at=timezone.now() + timedelta(days=1), keep_expiry=False, by=cast.lead
        )

    projects.change_member(membership=Membership.objects.get(user=cast.owner), role="lead", by=cast.lead)
    projects.remove_member(membership=lead, by=cast.lead)
    assert not Membership.objects.filter(pk=lead.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_two_leads_leaving_at_once_leave_one() -> None:
    cast = the_cast()
    Membership.objects.filter(user=cast.owner).update(role="lead")
    memberships = [Membership.objects.get(user=person) for person in (cast.lead, cast.owner)]

    left = at_once(
        *[partial(projects.remove_member, membership=one, by=one.user) for one in memberships],
        refusals=Conflict,
    )

    assert sum(isinstance(one, Conflict) for one in left) == 1
    assert Membership.objects.filter(project=cast.project, role="lead").count() == 1


def test_somebody_is_brought_in_once_but_again_after_their_time_is_over() -> None:
    cast = the_cast()

    with pytest.raises(Conflict, match="already member"):
        projects.add_member(project=cast.project, user=cast.owner, role="viewer", by=cast.lead)
    Membership.objects.filter(user=cast.owner).update(expires_at=timezone.now() - timedelta(days=1))
    membership = projects.add_member(project=cast.project, user=cast.owner, role="viewer", by=cast.lead)

    assert (membership.role, membership.expires_at) == ("viewer", None)


@pytest.mark.parametrize(
    ("role", "expires_in_days", "active", "field"),
    [("king", None, True, "role"), ("member", -1, True, "expires_at"), ("member", None, False, "user")],
)
def test_wrong_input_names_its_field(
    role: str, expires_in_days: int | None, active: bool, field: str
) -> None:
    cast = the_cast()
    expires_at = timezone.now() + timedelta(days=expires_in_days) if expires_in_days else None

    with pytest.raises(InvalidInput) as wrong:
        projects.add_member(
            project=cast.project,
            user=UserFactory(is_active=active),
            role=role,
            by=cast.lead,
            expires_at=expires_at,
        )

    assert [p.field for p in wrong.value.problems] == [field]


def test_leaving_clears_the_default_project() -> None:
    cast = the_cast()
    cast.owner.default_project = cast.project
    cast.owner.save()

    projects.remove_member(membership=Membership.objects.get(user=cast.owner), by=cast.owner)

    cast.owner.refresh_from_db()
    assert cast.owner.default_project is None


def test_a_lead_describes_the_project_and_only_an_admin_moves_it() -> None:
    cast = the_cast()
    elsewhere = OrganizationFactory()

    projects.edit_project(project=cast.project, changes={"description": "Sees."}, by=cast.lead)
    with pytest.raises(NotAllowed):
        projects.edit_project(project=cast.project, changes={"organization": elsewhere}, by=cast.lead)
    with pytest.raises(InvalidInput, match="slug"):
        projects.edit_project(project=cast.project, changes={"slug": "other"}, by=cast.admin)
    projects.edit_project(project=cast.project, changes={"organization": elsewhere}, by=cast.admin)

    assert [(e.action, list(e.after)) for e in AuditEvent.objects.order_by("id")] == [
        ("project.edit", ["description"]),
        ("project.edit", ["organization"]),
    ]


def test_a_membership_of_a_disabled_lead_does_not_count_as_a_lead() -> None:
    cast = the_cast()
    MembershipFactory(project=cast.project, user=UserFactory(is_active=False), role="lead")

    with pytest.raises(Conflict):
        projects.remove_member(membership=Membership.objects.get(user=cast.lead), by=cast.lead)


def test_a_membership_that_somebody_else_has_ended_meanwhile_is_not_there_any_more() -> None:
    admin, membership = AdminFactory(), MembershipFactory(role="member")
    projects.remove_member(membership=Membership.objects.get(pk=membership.pk), by=admin)

    with pytest.raises(NotFound, match="no longer a member"):
        projects.change_member(membership=membership, by=admin, role="viewer")
    projects.remove_member(membership=membership, by=admin)
    assert actions() == ["member.remove"]
