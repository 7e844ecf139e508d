"""The admin pages of people, projects and the trail: who gets in, and that every save is a service call."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from accounts.models import (
    ApiToken,
    AuditChain,
    AuditCheck,
    AuditEvent,
    Membership,
    Organization,
    Project,
    User,
)
from accounts.services import audit, audit_check
from tests.support.factories import Cast, OrganizationFactory, a_token, the_cast

pytestmark = pytest.mark.django_db

MODELS = (User, ApiToken, Organization, Project, Membership, AuditEvent, AuditChain, AuditCheck)
TRAIL = (AuditEvent, AuditChain, AuditCheck)


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def enter(person: User | None) -> Client:
    client = Client()
    if person is not None:
        client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


def url(model: type, page: str, *args: object) -> str:
    return reverse(f"admin:accounts_{model._meta.model_name}_{page}", args=args)


#: What a browser sends of the tables below a row, which are only to look at.
TABLES = {
    f"{name}-{count}_FORMS": "0" for name in ("memberships", "api_tokens") for count in ("TOTAL", "INITIAL")
}

# ---------------------------------------------------------------- who gets in


def test_the_door_is_the_portals_own(cast: Cast) -> None:
    response = enter(None).get("/admin/", follow=False)
    assert response["Location"].startswith("/admin/login/")

    response = enter(None).get(response["Location"])
    assert (response.status_code, response["Location"]) == (302, "/signin/?next=/admin/")


def test_whoever_has_no_business_here_is_told_so_and_not_sent_round(cast: Cast) -> None:
    assert enter(cast.owner).get("/admin/login/?next=/admin/").status_code == 403
    assert enter(cast.operator).get("/admin/login/?next=/admin/")["Location"] == "/admin/"
    assert enter(cast.operator).get("/admin/login/?next=//evil.example/")["Location"] == "/admin/"


def test_leaving_is_audited(cast: Cast) -> None:
    client = enter(cast.operator)

    assert client.get("/admin/logout/").status_code == 405
    client.post("/admin/logout/")

    assert not Session.objects.exists()
    assert AuditEvent.objects.get().action == "session.sign_out"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_list_and_row_opens_for_those_it_is_for(cast: Cast, model: type) -> None:
    a_token(cast.owner, "jobs:read")
    audit_check.verify_and_keep()
    row = model._default_manager.first()
    assert row is not None

    for page in (url(model, "changelist"), url(model, "change", row.pk)):
        assert enter(cast.admin).get(page).status_code == 200, page
        assert enter(cast.operator).get(page).status_code == (403 if model in TRAIL else 200), page
        assert enter(cast.owner).get(page).status_code == 302
    assert enter(cast.admin).get(url(model, "changelist") + "?q=x").status_code == 200


@pytest.mark.parametrize("model", [User, Organization, Project, Membership], ids=lambda model: model.__name__)
def test_operators_look_and_do_not_touch(cast: Cast, model: type) -> None:
    row = model._default_manager.first()

    assert enter(cast.operator).get(url(model, "add")).status_code == 403
    assert enter(cast.operator).post(url(model, "change", row.pk), {}).status_code == 403
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("model", [*TRAIL, ApiToken], ids=lambda model: model.__name__)
def test_nobody_adds_changes_or_deletes_facts(cast: Cast, model: type) -> None:
    a_token(cast.owner, "jobs:read")
    audit_check.verify_and_keep()
    row = model._default_manager.first()
    client = enter(cast.admin)

    assert client.get(url(model, "add")).status_code == 403
    assert client.post(url(model, "change", row.pk), {"reason": "x"}).status_code == 403
    assert client.post(url(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_groups_are_no_second_way_to_rights() -> None:
    from django.contrib.auth.models import Group

    assert not admin.site.is_registered(Group)


# ---------------------------------------------------------------- people


def person_form(person: User, **changes: object) -> dict[str, object]:
    form = {
        "username": person.username,
        "first_name": person.first_name,
        "last_name": person.last_name,
        "email": person.email,
        "site_role": person.site_role,
        "is_active": "on" if person.is_active else "",
        "priority_ceiling": person.priority_ceiling,
        "reason": "",
    } | changes
    return {name: value for name, value in form.items() if value != ""} | TABLES


def test_an_admin_gives_a_role_shuts_an_account_and_says_why(cast: Cast) -> None:
    plain = a_token(cast.owner, "jobs:read")
    form = person_form(cast.owner, site_role="operator", priority_ceiling=90, is_active="", reason="on leave")

    response = enter(cast.admin).post(url(User, "change", cast.owner.pk), form)

    assert response.status_code == 302, response.content
    owner = User.objects.get(pk=cast.owner.pk)
    assert (owner.site_role, owner.is_staff, owner.is_active, owner.priority_ceiling) == (
        "operator",
        True,
        False,
        90,
    )
    rows = AuditEvent.objects.filter(object_type="user", object_id=str(owner.pk)).order_by("id")
    assert [(event.action, event.reason) for event in rows] == [
        ("user.edit", "on leave"),
        ("user.set_site_role", "on leave"),
        ("user.disable", "on leave"),
    ]
    assert ApiToken.objects.get(prefix=plain.split("_")[2]).revoked_at is not None


def test_what_a_service_refuses_is_said_and_nothing_is_saved(cast: Cast) -> None:
    form = person_form(cast.admin, is_active="", first_name="Eve")

    response = enter(cast.admin).post(url(User, "change", cast.admin.pk), form, follow=True)

    assert "You cannot disable your own account." in response.content.decode()
    saved = User.objects.get(pk=cast.admin.pk)
    assert (saved.is_active, saved.first_name) == (True, "")
    assert not AuditEvent.objects.exists()


def test_superuser_is_not_a_box_to_tick(cast: Cast) -> None:
    form = person_form(cast.owner) | {"is_superuser": "on", "is_staff": "on"}

    enter(cast.admin).post(url(User, "change", cast.owner.pk), form)

    owner = User.objects.get(pk=cast.owner.pk)
    assert (owner.is_superuser, owner.is_staff) == (False, False)


def test_an_account_is_made_with_an_audit_row_and_without_its_password_in_it(cast: Cast) -> None:
    password = "a-long-enough-secret-7"
    form = {"username": "dora", "password1": password, "password2": password, "usable_password": "true"}

    response = enter(cast.admin).post(url(User, "add"), form)

    dora = User.objects.get(username="dora")
    assert response.status_code == 302
    assert dora.check_password(password)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id) == ("user.create", str(dora.pk))
    assert password not in str(AuditEvent.objects.values().get())


def test_a_new_password_is_audited_and_ends_sessions(cast: Cast) -> None:
    theirs = enter(cast.owner)
    password = "a-long-enough-secret-7"
    page = reverse("admin:auth_user_password_change", args=[cast.owner.pk])
    form = {"password1": password, "password2": password, "usable_password": "true", "set-password": "1"}

    response = enter(cast.admin).post(page, form)

    assert response.status_code == 302, response.content
    assert User.objects.get(pk=cast.owner.pk).check_password(password)
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.object_label) == ("user.password", cast.admin, "owner")
    assert theirs.get("/api/v1/me").status_code == 401
    assert enter(cast.operator).post(page, form).status_code == 403


@pytest.mark.parametrize(
    ("action", "recorded"), [("disable", "user.disable"), ("end_their_sessions", "user.end_sessions")]
)
def test_actions_on_people_are_for_admins(cast: Cast, action: str, recorded: str) -> None:
    enter(cast.owner)
    chosen = {"action": action, "_selected_action": [cast.owner.pk]}

    enter(cast.operator).post(url(User, "changelist"), chosen)
    assert not AuditEvent.objects.exists()

    enter(cast.admin).post(url(User, "changelist"), chosen)
    assert AuditEvent.objects.get().action == recorded
    owners = [s for s in Session.objects.all() if s.get_decoded()["_auth_user_id"] == str(cast.owner.pk)]
    assert owners == []


def test_tokens_are_revoked_by_an_action(cast: Cast) -> None:
    a_token(cast.owner, "jobs:read")
    token = ApiToken.objects.get()

    page = enter(cast.admin).get(url(ApiToken, "change", token.pk)).content.decode()
    enter(cast.admin).post(url(ApiToken, "changelist"), {"action": "revoke", "_selected_action": [token.pk]})

    token.refresh_from_db()
    assert token.digest not in page
    assert token.revoked_at is not None
    assert AuditEvent.objects.latest("id").action == "token.revoke"


# ---------------------------------------------------------------- projects


def test_organizations_are_made_moved_and_never_hung_below_themselves(cast: Cast) -> None:
    client = enter(cast.admin)
    client.post(url(Organization, "add"), {"name": "Physics", "slug": "physics"})
    physics = Organization.objects.get(slug="physics")
    child = OrganizationFactory(parent=physics)

    client.post(url(Organization, "change", physics.pk), {"name": "Physics and Astronomy", "parent": ""})
    refused = client.post(
        url(Organization, "change", physics.pk), {"name": "Physics", "parent": child.pk}, follow=True
    )

    physics.refresh_from_db()
    assert (physics.name, physics.parent) == ("Physics and Astronomy", None)
    assert "cannot be its own parent" in refused.content.decode()
    assert [e.action for e in AuditEvent.objects.order_by("id")] == [
        "organization.create",
        "organization.edit",
    ]


def test_a_project_is_opened_described_and_closed(cast: Cast) -> None:
    client = enter(cast.admin)
    organization = cast.project.organization.pk
    client.post(
        url(Project, "add"),
        {"organization": organization, "name": "Dark Matter", "slug": "dark", "description": ""},
    )
    project = Project.objects.get(slug="dark")

    response = client.post(
        url(Project, "change", project.pk),
        {"organization": organization, "name": "Dark Energy", "description": "Lots.", "reason": "new grant"}
        | TABLES,
    )

    assert response.status_code == 302, response.content
    project.refresh_from_db()
    assert (project.name, project.description, project.active) == ("Dark Energy", "Lots.", False)
    assert [(e.action, e.reason) for e in AuditEvent.objects.order_by("id")] == [
        ("project.create", ""),
        ("project.edit", "new grant"),
        ("project.close", "new grant"),
    ]


def test_memberships_are_added_changed_and_removed_by_service(cast: Cast) -> None:
    client = enter(cast.admin)
    client.post(
        url(Membership, "add"),
        {"project": cast.project.pk, "user": cast.stranger.pk, "role": "viewer", "reason": "x"},
    )
    membership = Membership.objects.get(project=cast.project, user=cast.stranger)
    client.post(url(Membership, "change", membership.pk), {"role": "member", "reason": "y"})
    client.post(url(Membership, "delete", membership.pk), {"post": "yes"})

    actions = list(AuditEvent.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["member.add", "member.change", "member.remove"]
    cast.stranger.refresh_from_db()
    assert cast.stranger.access_version == 3


def test_the_only_lead_is_not_deleted_here_either(cast: Cast) -> None:
    lead = Membership.objects.get(user=cast.lead)
    client = enter(cast.admin)

    one = client.post(url(Membership, "delete", lead.pk), {"post": "yes"}, follow=True)
    many = client.post(
        url(Membership, "changelist"),
        {"action": "delete_selected", "_selected_action": [lead.pk], "post": "yes"},
        follow=True,
    )

    assert Membership.objects.filter(pk=lead.pk).exists()
    assert "only lead" in one.content.decode()
    assert "only lead" in many.content.decode()


# ---------------------------------------------------------------- the trail


def test_the_trail_shows_before_and_after_escaped(cast: Cast) -> None:
    event = audit.record(
        by=cast.owner,
        action="project.edit",
        thing=cast.project,
        before={"name": "Vision", "n": None},
        after={"name": "<script>alert(1)</script>", "n": 3},
    )

    page = enter(cast.admin).get(url(AuditEvent, "change", event.pk)).content.decode()

    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert event.hash in page


FILTERS = [
    "outcome__exact=done",
    "actor_name=owner",
    "action=project.edit",
    "object_type=project",
    "at__gte=2026-01-01T00:00:00Z",
]


@pytest.mark.parametrize("query", FILTERS)
def test_the_trail_is_filtered(cast: Cast, query: str) -> None:
    audit.record(by=cast.owner, action="project.edit", thing=cast.project)

    page = enter(cast.admin).get(f"{url(AuditEvent, 'changelist')}?{query}")

    assert page.status_code == 200
    assert "project.edit" in page.content.decode()


@pytest.mark.parametrize("count", [2, 6])
def test_the_trail_takes_the_same_queries_however_long_it_is(
    cast: Cast, count: int, django_assert_num_queries
) -> None:
    for _ in range(count):
        audit.record(by=cast.owner, action="project.edit", thing=cast.project)
    client = enter(cast.admin)
    client.get(url(AuditEvent, "changelist"))

    with django_assert_num_queries(5):  # session, person, two for Django's own permissions, rows
        client.get(url(AuditEvent, "changelist"))
