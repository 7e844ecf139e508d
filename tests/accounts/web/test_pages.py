"""Sign-in, settings, tokens, members and the audit trail, as a browser meets them."""

from __future__ import annotations

import re

import pytest
from django.test import Client, override_settings
from django.urls import reverse

from accounts.models import ApiToken, AuditCheck, AuditEvent, Membership
from accounts.services.tokens import authenticate_token
from tests.support.factories import PASSWORD, Cast, UserFactory, the_cast


@pytest.fixture
def cast(db: None) -> Cast:
    return the_cast()


# ---------------------------------------------------------------- sign-in


def test_a_name_and_its_password_lead_to_the_page_asked_for(client, cast) -> None:
    response = client.post(
        reverse("signin"), {"username": "owner", "password": PASSWORD, "next": reverse("tokens")}
    )

    assert (response.status_code, response.headers["Location"]) == (302, reverse("tokens"))
    assert client.get(reverse("tokens")).status_code == 200


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_sign_in_never_leads_to_another_site(client, cast, target) -> None:
    response = client.post(reverse("signin"), {"username": "owner", "password": PASSWORD, "next": target})

    assert response.headers["Location"] == reverse("home")


@pytest.mark.parametrize("name", ["owner", "nobody", "own\x00er"])
def test_a_wrong_password_and_an_unknown_name_read_alike(client, cast, name) -> None:
    response = client.post(reverse("signin"), {"username": name, "password": "wrong"})

    assert response.status_code in (401, 403, 422)
    alerts = re.findall(r'role="alert">(?:<svg.*?</svg>)?([^<]*)', response.content.decode())
    assert len(alerts) == 1
    assert name not in alerts[0]


def test_demo_accounts_are_listed_only_where_they_work(client, cast) -> None:
    UserFactory(username="alice", is_demo=True)

    here = client.get(reverse("signin")).content.decode()
    elsewhere = client.get(reverse("signin"), REMOTE_ADDR="10.0.0.7").content.decode()
    with override_settings(DEMO_LOGINS_ALLOWED=False):
        production = client.get(reverse("signin")).content.decode()

    assert "alice-demo" in here
    assert "alice-demo" not in elsewhere
    assert "alice-demo" not in production


def test_signing_out_takes_a_post(as_user, cast) -> None:
    client = as_user(cast.owner)

    assert client.get(reverse("signout")).status_code == 405
    assert client.get(reverse("home")).status_code == 200
    client.post(reverse("signout"))
    assert client.get(reverse("home")).status_code == 302


# ---------------------------------------------------------------- settings


def test_settings_are_kept_and_audited(as_user, cast) -> None:
    as_user(cast.owner).post(
        reverse("settings"),
        {"theme": "dark", "time_zone": "Europe/Berlin", "default_project": cast.project.pk},
    )

    cast.owner.refresh_from_db()
    kept = (cast.owner.theme, cast.owner.time_zone, cast.owner.default_project_id)
    assert kept == ("dark", "Europe/Berlin", cast.project.pk)
    event = AuditEvent.objects.get(action="user.preferences")
    assert event.after["theme"] == "dark"


def test_a_time_zone_that_is_none_is_named_at_its_field(as_user, cast) -> None:
    response = as_user(cast.owner).post(
        reverse("settings"), {"theme": "dark", "time_zone": "Middle/Earth", "default_project": ""}
    )

    cast.owner.refresh_from_db()
    assert response.status_code == 422
    assert "Not a time zone" in response.content.decode()
    assert cast.owner.theme == "system"


def test_nobody_chooses_a_project_that_is_not_theirs(as_user, cast) -> None:
    response = as_user(cast.stranger).post(
        reverse("settings"), {"theme": "light", "time_zone": "UTC", "default_project": cast.project.pk}
    )

    cast.stranger.refresh_from_db()
    assert response.status_code == 422
    assert cast.stranger.default_project_id is None


def test_the_theme_is_on_the_page_before_any_script_runs(as_user, cast) -> None:
    client = as_user(cast.owner)
    client.post(reverse("theme"), {"theme": "dark"})

    assert '<html lang="en" data-theme="dark"' in client.get(reverse("settings")).content.decode()


def test_a_password_changes_with_the_old_one_and_the_audit_row_does_not_hold_it(as_user, cast) -> None:
    client = as_user(cast.owner)
    new = "a new and longer passphrase"

    client.post(reverse("password"), {"old_password": PASSWORD, "new_password1": new, "new_password2": new})

    cast.owner.refresh_from_db()
    assert cast.owner.check_password(new)
    assert client.get(reverse("settings")).status_code == 200  # this session goes on
    event = AuditEvent.objects.get(action="user.password")
    assert new not in str([event.before, event.after, event.reason])


def test_the_password_of_a_demo_account_stays(as_user, cast) -> None:
    demo = UserFactory(username="demo", is_demo=True)
    new = "a new and longer passphrase"

    response = as_user(demo).post(
        reverse("password"), {"old_password": PASSWORD, "new_password1": new, "new_password2": new}
    )

    demo.refresh_from_db()
    assert response.status_code == 422
    assert demo.check_password(PASSWORD)


# ---------------------------------------------------------------- tokens


def test_a_token_is_shown_once_and_works(as_user, cast) -> None:
    client = as_user(cast.owner)

    made = client.post(
        reverse("tokens"), {"name": "nightly", "scopes": ["jobs:read"], "days": "30", "project": ""}
    )
    again = client.get(reverse("tokens")).content.decode()

    plain = re.search(r'id="plain-token">([^<]+)<', made.content.decode())[1]
    assert authenticate_token(plain).user == cast.owner
    assert f"Bearer {plain}" in made.content.decode()
    assert plain not in again
    assert "no-store" in made.headers["Cache-Control"]


def test_a_token_without_scopes_is_sent_back_with_what_was_typed(as_user, cast) -> None:
    response = as_user(cast.owner).post(reverse("tokens"), {"name": "kept name", "days": "30"})

    assert response.status_code == 422
    assert 'value="kept name"' in response.content.decode()
    assert not ApiToken.objects.exists()


def test_a_revoked_token_is_refused_and_only_its_person_revokes_it(as_user, cast) -> None:
    as_user(cast.owner).post(reverse("tokens"), {"name": "t", "scopes": ["jobs:read"], "days": "30"})
    token = ApiToken.objects.get()

    stranger = as_user(cast.stranger).post(reverse("token-revoke", args=[token.pk]))
    token.refresh_from_db()
    assert (stranger.status_code, token.revoked_at) == (404, None)

    as_user(cast.owner).post(reverse("token-revoke", args=[token.pk]))
    token.refresh_from_db()
    assert token.revoked_at is not None


# ---------------------------------------------------------------- members


def test_a_lead_adds_changes_and_removes_members(as_user, cast) -> None:
    client = as_user(cast.lead)
    client.post(reverse("member-add", args=["vision"]), {"username": "stranger", "role": "viewer"})
    member = Membership.objects.get(user=cast.stranger, project=cast.project)
    assert member.role == "viewer"

    client.post(reverse("member-change", args=["vision", member.pk]), {"role": "member"})
    member.refresh_from_db()
    assert member.role == "member"

    client.post(reverse("member-change", args=["vision", member.pk]), {"remove": "1"})
    assert not Membership.objects.filter(pk=member.pk).exists()


@pytest.mark.parametrize(("person", "status"), [("owner", 403), ("viewer", 403), ("stranger", 404)])
def test_others_do_not(as_user, cast, person, status) -> None:
    response = as_user(getattr(cast, person)).post(
        reverse("member-add", args=["vision"]), {"username": "stranger", "role": "lead"}
    )

    assert response.status_code == status
    assert not Membership.objects.filter(user=cast.stranger, project=cast.project).exists()


def test_the_last_lead_stays(as_user, cast) -> None:
    member = Membership.objects.get(user=cast.lead, project=cast.project)

    response = as_user(cast.lead).post(
        reverse("member-change", args=["vision", member.pk]), {"remove": "1"}, follow=True
    )

    assert Membership.objects.filter(pk=member.pk).exists()
    assert "lead" in response.content.decode()


def test_a_member_that_is_not_in_the_project_of_the_address_is_not_found(as_user, cast) -> None:
    elsewhere = Membership.objects.get(user=cast.stranger)

    response = as_user(cast.lead).post(
        reverse("member-change", args=["vision", elsewhere.pk]), {"remove": "1"}
    )

    assert response.status_code == 404
    assert Membership.objects.filter(pk=elsewhere.pk).exists()


# ---------------------------------------------------------------- audit


def test_the_trail_shows_what_changed_and_filters(as_user, cast) -> None:
    as_user(cast.owner).post(
        reverse("settings"), {"theme": "dark", "time_zone": "UTC", "default_project": ""}
    )
    client = as_user(cast.auditor)

    page = client.get(reverse("audit"), {"action": "user.preferences"}).content.decode()
    nobody = client.get(reverse("audit"), {"actor": "nobody"}).content.decode()

    assert re.search(r"<dt>theme</dt><dd><del>system</del> <ins>dark</ins>", page)
    assert "No events match" in nobody


def test_the_badge_says_what_the_last_verification_found(as_user, cast) -> None:
    client = as_user(cast.auditor)
    assert "not verified yet" in client.get(reverse("audit")).content.decode()

    AuditCheck.objects.create(ok=True, rows=3)
    assert "chain intact" in client.get(reverse("audit")).content.decode()

    AuditCheck.objects.create(ok=False, rows=3, problem="row 2 of chain 5 was altered")
    assert "row 2 of chain 5 was altered" in client.get(reverse("audit")).content.decode()


@pytest.mark.parametrize(
    "query", ["since=yesterday", "until=2026-02-31", "before=x", "object=%00", "outcome=odd"]
)
def test_a_filter_that_means_nothing_is_left_out(as_user, cast, query) -> None:
    assert as_user(cast.auditor).get(f"{reverse('audit')}?{query}").status_code == 200


# ---------------------------------------------------------------- refusals


def test_a_form_without_its_safety_token_gets_a_page_that_says_what_to_do(cast) -> None:
    client = Client(enforce_csrf_checks=True)

    response = client.post(reverse("signin"), {"username": "owner", "password": PASSWORD})

    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()


def test_a_page_that_is_not_there_says_the_way_out(client, db) -> None:
    response = client.get("/no/such/page/")

    assert response.status_code == 404
    assert "Page not found" in response.content.decode()


def test_the_page_of_a_broken_server_needs_no_server(cast) -> None:
    from django.template.loader import render_to_string

    assert "Internal error" in render_to_string("500.html")


@pytest.mark.django_db(transaction=True)
def test_what_the_database_cannot_hold_is_refused_in_words(client, transactional_db) -> None:
    cast = the_cast()
    client.force_login(cast.lead, backend="accounts.backends.PasswordBackend")

    asked = client.get(reverse("usage"), {"user": "a\0b"})
    posted = client.post(reverse("grant-ask"), {"project": "vision", "gpu_model": "a\0", "amount": "1"})

    assert asked.status_code == 422
    assert "user: Contains a NUL character" in asked.content.decode()
    assert posted.status_code in (302, 422)
