"""Tokens: made once, kept as a digest, narrowed, used, ended."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.utils import timezone

from accounts.models import ApiToken, AuditEvent
from accounts.scopes import SCOPES, covers, implied
from accounts.services.tokens import TokenRefused, authenticate_token, issue_token, revoke_token
from infra import request_context
from infra.errors import InvalidInput, NotAllowed, NotFound
from tests.support.factories import AdminFactory, ProjectFactory, UserFactory, a_token, the_cast

pytestmark = pytest.mark.django_db


def test_a_token_signs_in_its_person_and_is_stored_nowhere() -> None:
    alice = UserFactory()

    token, plain = issue_token(user=alice, by=alice, name="laptop", scopes=["jobs:read"])

    assert re.fullmatch(r"muster_pat_[a-z0-9]{10}_[A-Za-z0-9]{40}", plain)
    assert authenticate_token(plain).user == alice
    secret = plain.rsplit("_", 1)[1]
    stored = ApiToken.objects.values().get(), AuditEvent.objects.values().get()
    assert secret not in str(stored)
    assert (token.expires_at - timezone.now()).days == 89


def test_making_one_is_audited_with_what_it_may() -> None:
    alice = UserFactory(username="alice")

    token, _ = issue_token(user=alice, by=alice, name="laptop", scopes=["jobs:write"], days=7)

    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.object_id) == ("token.issue", alice, str(token.pk))
    assert event.after["scopes"] == ["jobs:write"]


NO_TOKENS = [
    "",
    "nonsense",
    "muster_pat_",
    "muster_pat_aaaaaaaaaa_x",
    "muster_pat_aaaaaaaaaa_" + "x" * 40,
    "muster_pat_" + "x" * 100_000,
    "\x00",
    "🦆",
]


@pytest.mark.parametrize("plain", NO_TOKENS)
def test_what_is_no_token_of_ours_is_not_known(plain: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        authenticate_token(plain)

    assert (refused.value.code, refused.value.status) == ("token-unknown", 401)


def test_the_right_prefix_with_a_wrong_secret_is_told_nothing() -> None:
    alice = UserFactory()
    plain = a_token(alice, "jobs:read")
    ApiToken.objects.update(revoked_at=timezone.now())

    with pytest.raises(TokenRefused) as refused:
        authenticate_token(plain[:-1] + ("a" if plain[-1] != "a" else "b"))

    assert refused.value.code == "token-unknown"


def test_an_expired_one_says_when() -> None:
    plain = a_token(UserFactory(), "jobs:read", days=1)

    with time_machine.travel(timezone.now() + timedelta(days=1, seconds=1)):
        with pytest.raises(TokenRefused, match="expired at") as refused:
            authenticate_token(plain)

    assert refused.value.code == "token-expired"


def test_a_revoked_one_ends_at_once_and_is_audited_once() -> None:
    alice = UserFactory()
    plain = a_token(alice, "jobs:read")
    token = authenticate_token(plain)

    revoke_token(token=token, by=alice, reason="lost laptop")
    revoke_token(token=ApiToken.objects.get(), by=alice)

    with pytest.raises(TokenRefused) as refused:
        authenticate_token(plain)
    assert refused.value.code == "token-revoked"
    assert list(AuditEvent.objects.filter(action="token.revoke").values_list("reason", flat=True)) == [
        "lost laptop"
    ]


def test_the_token_of_a_disabled_account_is_refused() -> None:
    alice = UserFactory()
    plain = a_token(alice, "jobs:read")
    alice.is_active = False
    alice.save()

    with pytest.raises(TokenRefused) as refused:
        authenticate_token(plain)

    assert refused.value.code == "account-disabled"


def test_use_is_written_down_once_a_minute(django_assert_num_queries) -> None:
    plain = a_token(UserFactory(), "jobs:read")

    with django_assert_num_queries(2):
        authenticate_token(plain, "10.1.2.3")
    with django_assert_num_queries(1):
        authenticate_token(plain, "10.1.2.4")

    token = ApiToken.objects.get()
    assert token.last_used_address == "10.1.2.3"
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        authenticate_token(plain, "not an address")
    token.refresh_from_db()
    assert token.last_used_address is None


def test_every_problem_is_named_at_once() -> None:
    alice = UserFactory()

    with pytest.raises(InvalidInput) as wrong:
        issue_token(user=alice, by=alice, name=" ", scopes=["jobs:raed", "fly"], days=366)

    assert [(p.field, p.message.split(".")[0]) for p in wrong.value.problems] == [
        ("name", "Give the token a name of 1 to 120 characters that describes its use"),
        ("scopes", "'jobs:raed' is not a scope"),
        ("scopes", "'fly' is not a scope"),
        ("days", "A token expires after 1 to 365 days"),
    ]
    assert "Did you mean jobs:read?" in wrong.value.problems[1].message
    assert not ApiToken.objects.exists()


def test_a_token_without_scopes_is_refused() -> None:
    alice = UserFactory()

    with pytest.raises(InvalidInput, match="at least one scope"):
        issue_token(user=alice, by=alice, name="empty", scopes=[])


def test_only_oneself_and_admins_make_and_revoke() -> None:
    alice, bob, admin = UserFactory(), UserFactory(), AdminFactory()

    with pytest.raises(NotFound):
        issue_token(user=alice, by=bob, name="theft", scopes=["jobs:read"])
    token, _ = issue_token(user=alice, by=admin, name="service", scopes=["jobs:read"])
    with pytest.raises(NotFound):
        revoke_token(token=token, by=bob)
    revoke_token(token=token, by=admin)

    assert AuditEvent.objects.filter(actor=admin).count() == 2


def test_one_cannot_be_held_to_a_project_that_its_person_does_not_see() -> None:
    alice = UserFactory()

    with pytest.raises(NotFound):
        issue_token(user=alice, by=alice, name="x", scopes=["jobs:read"], project=ProjectFactory())


def test_a_token_gives_away_no_more_than_it_has() -> None:
    cast = the_cast()
    own = {"token_user_id": cast.owner.pk, "token_scopes": frozenset({"tokens:write", "jobs:write"})}

    with request_context.acting(**own):
        issue_token(user=cast.owner, by=cast.owner, name="narrower", scopes=["jobs:read"])
        with pytest.raises(NotAllowed, match="quota:read"):
            issue_token(user=cast.owner, by=cast.owner, name="wider", scopes=["quota:read"])
        with pytest.raises(NotAllowed):
            issue_token(user=cast.owner, by=cast.owner, name="everything", scopes=["admin"])

    with request_context.acting(**own, token_project_id=cast.project.pk):
        issue_token(user=cast.owner, by=cast.owner, name="same", scopes=["jobs:read"], project=cast.project)
        with pytest.raises(NotAllowed, match="limited to one project"):
            issue_token(user=cast.owner, by=cast.owner, name="free", scopes=["jobs:read"])


def test_writing_includes_reading_and_admin_includes_all() -> None:
    assert implied(["jobs:write"]) == {"jobs:write", "jobs:read"}
    assert implied(["tokens:write"]) == {"tokens:write"}
    assert implied(["admin"]) == set(SCOPES)
    assert not covers(["jobs:read"], "jobs:write")


def test_the_command_prints_the_token_alone_on_its_last_line() -> None:
    alice = UserFactory(username="alice")
    output = StringIO()

    call_command("token", "alice", scopes="jobs:write, jobs:read", days=3, name="ci", stdout=output)

    last = output.getvalue().rstrip("\n").split("\n")[-1]
    token = authenticate_token(last)
    assert (token.user, token.name, token.scopes) == (alice, "ci", ["jobs:write", "jobs:read"])
    assert AuditEvent.objects.get().address == "local"


@pytest.mark.parametrize(
    ("user", "options", "words"),
    [
        ("nobody", {"scopes": "jobs:read"}, "There is no user 'nobody'. Some there are: alice"),
        ("alice", {"scopes": "fly"}, "'fly' is not a scope"),
        ("alice", {"scopes": ","}, "at least one scope"),
        ("alice", {"scopes": "jobs:read", "days": 0}, "1 to 365 days"),
        ("alice", {"scopes": "jobs:read", "project": "nowhere"}, "no project 'nowhere'"),
    ],
)
def test_the_command_says_what_is_wrong(user: str, options: dict, words: str) -> None:
    UserFactory(username="alice")

    with pytest.raises(CommandError, match=re.escape(words)):
        call_command("token", user, **options, stdout=StringIO())

    assert not ApiToken.objects.exists()
