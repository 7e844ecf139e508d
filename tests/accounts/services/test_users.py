"""Changes of accounts take effect at once and are written down."""

from __future__ import annotations

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from accounts.models import AuditEvent, User
from accounts.services.tokens import TokenRefused, authenticate_token
from accounts.services.users import disable_user, edit_user, enable_user, end_sessions, set_site_role
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from tests.support.factories import AdminFactory, OperatorFactory, UserFactory, a_token

pytestmark = pytest.mark.django_db


def signed_in(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


def test_disabling_ends_sessions_and_tokens_and_raises_the_access_version() -> None:
    admin, alice, bob = AdminFactory(), UserFactory(), UserFactory()
    for person in (alice, alice, bob):
        signed_in(person)
    plain = a_token(alice, "jobs:read")

    disable_user(user=alice, by=admin, reason="left the lab")

    assert [s.get_decoded()["_auth_user_id"] for s in Session.objects.all()] == [str(bob.pk)]
    with pytest.raises(TokenRefused):
        authenticate_token(plain)
    alice.refresh_from_db()
    assert (alice.is_active, alice.access_version) == (False, 1)
    event = AuditEvent.objects.get(action="user.disable")
    assert (event.reason, event.after) == (
        "left the lab",
        {"is_active": False, "sessions_ended": 2, "tokens_revoked": 1},
    )


def test_enabling_again_does_not_bring_tokens_back() -> None:
    admin, alice = AdminFactory(), UserFactory()
    plain = a_token(alice, "jobs:read")
    disable_user(user=alice, by=admin)

    enable_user(user=alice, by=admin)

    with pytest.raises(TokenRefused):
        authenticate_token(plain)
    assert User.objects.get(pk=alice.pk).access_version == 2


def test_doing_it_twice_writes_one_row() -> None:
    admin, alice = AdminFactory(), UserFactory()

    disable_user(user=alice, by=admin)
    disable_user(user=alice, by=admin)
    enable_user(user=alice, by=admin)
    enable_user(user=alice, by=admin)

    assert list(AuditEvent.objects.order_by("id").values_list("action", flat=True)) == [
        "user.disable",
        "user.enable",
    ]


def test_site_roles_open_and_close_the_django_admin() -> None:
    admin, alice = AdminFactory(), UserFactory()

    set_site_role(user=alice, role="operator", by=admin)
    assert (alice.is_operator, alice.is_staff) == (True, True)
    set_site_role(user=alice, role="auditor", by=admin)
    assert (alice.is_auditor, alice.is_operator, alice.is_staff) == (True, False, False)

    events = AuditEvent.objects.filter(action="user.set_site_role").order_by("id")
    assert [(e.before, e.after) for e in events] == [
        ({"site_role": "none"}, {"site_role": "operator"}),
        ({"site_role": "operator"}, {"site_role": "auditor"}),
    ]
    assert alice.access_version == 2


def test_only_admins_do_this() -> None:
    operator, alice = OperatorFactory(), UserFactory()

    for refused in (
        lambda: set_site_role(user=operator, role="admin", by=operator),
        lambda: disable_user(user=operator, by=operator),
        lambda: edit_user(user=operator, by=operator, changes={"priority_ceiling": 100}),
    ):
        with pytest.raises(NotAllowed):
            refused()
    with pytest.raises(NotFound):
        end_sessions(user=alice, by=operator)
    assert not AuditEvent.objects.exists()


def test_an_admin_cannot_lock_themselves_out() -> None:
    admin = AdminFactory()

    with pytest.raises(Conflict):
        disable_user(user=admin, by=admin)
    with pytest.raises(Conflict):
        set_site_role(user=admin, role="none", by=admin)


def test_an_unknown_role_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="none, auditor, operator, admin"):
        set_site_role(user=UserFactory(), role="king", by=AdminFactory())


def test_people_end_their_own_sessions() -> None:
    alice = UserFactory()
    signed_in(alice)

    assert end_sessions(user=alice, by=alice) == 1

    assert not Session.objects.exists()


def test_people_change_what_describes_them_and_the_row_shows_only_that() -> None:
    alice = UserFactory(first_name="Alice")

    edit_user(user=alice, by=alice, changes={"first_name": "Alicia", "last_name": ""})

    event = AuditEvent.objects.get()
    assert (event.before, event.after) == ({"first_name": "Alice"}, {"first_name": "Alicia"})


def test_a_password_or_a_role_is_no_description() -> None:
    alice = UserFactory()

    with pytest.raises(InvalidInput) as wrong:
        edit_user(user=alice, by=alice, changes={"is_superuser": True, "password": "x"})

    assert [p.field for p in wrong.value.problems] == ["is_superuser", "password"]
