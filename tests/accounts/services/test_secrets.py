"""Secrets are sealed with the current key, opened in their own row alone, and encrypted anew when keys change."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent, Secret
from accounts.services import secrets
from accounts.services.secrets import JobOwner, delete_secret, open_for, set_secret
from infra.errors import InvalidInput, NotAllowed, NotFound
from infra.storage.sealed import CannotOpen, seal, unseal
from tests.support.factories import ProjectFactory, UserFactory, the_cast

pytestmark = pytest.mark.django_db

VALUE = "hunter2-hunter2"
OLD, NEW = "11" * 32, "22" * 32


def opened(row: Secret) -> str:
    return unseal(bytes(row.sealed), row.about)


def test_a_value_is_sealed_and_the_audit_trail_has_its_name_alone() -> None:
    cast = the_cast()
    set_secret(owner=cast.project, name="wandb", value=VALUE, by=cast.lead)
    row = set_secret(owner=cast.project, name="wandb", value=VALUE + "2", by=cast.lead)

    assert (row.version, opened(Secret.objects.get())) == (2, VALUE + "2")
    assert VALUE.encode() not in bytes(Secret.objects.get().sealed)
    first, second = AuditEvent.objects.filter(action="secret.set").order_by("at", "number")
    assert (first.after, second.after) == (
        {"name": "wandb", "of": "project", "version": 1},
        {"name": "wandb", "of": "project", "version": 2},
    )
    assert VALUE not in str(list(AuditEvent.objects.values()))

    delete_secret(owner=cast.project, name="wandb", by=cast.lead)
    assert not Secret.objects.exists()
    assert AuditEvent.objects.get(action="secret.delete").before == {"name": "wandb", "of": "project"}


def test_a_sealed_value_opens_in_no_other_row() -> None:
    one, other = UserFactory(), UserFactory()
    row = set_secret(owner=one, name="token", value=VALUE, by=one)
    Secret.objects.create(
        user=other, name="token", sealed=row.sealed, created_at=timezone.now(), set_at=timezone.now()
    )

    found = open_for({1: (JobOwner(other.pk, ProjectFactory().pk), [("user", "token")])})[1]

    assert found.values == {}
    assert "its bytes were changed, or are of another row" in found.trouble
    assert found.is_fault


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], lambda b: b""]
)
def test_changed_bytes_do_not_open(change: Any) -> None:
    with pytest.raises(CannotOpen):
        unseal(change(seal(VALUE, "user:1:a")), "user:1:a")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("tiny-5x", "too-short"), ("   tiny-5x   \n", "too-short"), ("", "too-short"), ("x" * 32_769, "too-long"),
        ("é" * 16_385, "too-long"), ("nul\0nul-nul", "bad-text"), ("half \ud800 of a pair", "bad-text"),
        (None, "not-text"), (12345678, "not-text"), (["a" * 9], "not-text"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_kept_are_refused_and_not_repeated(value: Any, code: str) -> None:
    user = UserFactory()
    with pytest.raises(InvalidInput) as refused:
        set_secret(owner=user, name="token", value=value, by=user)

    assert [(problem.field, problem.code) for problem in refused.value.problems] == [("value", code)]
    assert not value or str(value).strip() not in str(refused.value) + str(refused.value.problems)
    assert not Secret.objects.exists()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "a b", "x" * 64, "ä", "a\n", None])
def test_names_are_plain(name: Any) -> None:
    user = UserFactory()
    with pytest.raises(InvalidInput) as refused:
        set_secret(owner=user, name=name, value=VALUE, by=user)

    assert [problem.code for problem in refused.value.problems] == ["bad-name"]


def test_one_owner_has_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "MOST_SECRETS", 2)
    user = UserFactory()
    for name in ("a", "b", "a"):
        set_secret(owner=user, name=name, value=VALUE, by=user)

    with pytest.raises(InvalidInput, match="There are already 2 secrets"):
        set_secret(owner=user, name="c", value=VALUE, by=user)


def test_the_database_refuses_a_secret_of_two_owners_or_of_none() -> None:
    cast = the_cast()
    common = {"name": "a", "sealed": b"x", "created_at": timezone.now(), "set_at": timezone.now()}
    for owners in ({}, {"user": cast.owner, "project": cast.project}):
        with pytest.raises(IntegrityError, match="secret_of_one"), transaction.atomic():
            Secret.objects.create(**common, **owners)
    with pytest.raises(IntegrityError, match="secret_name_plain"), transaction.atomic():
        Secret.objects.create(**{**common, "name": "../a"}, user=cast.owner)


def test_who_sets_and_lists_what() -> None:
    cast = the_cast()
    may_set, may_list = set(), set()
    for name, person in cast.people().items():
        try:
            set_secret(owner=cast.project, name="shared", value=VALUE, by=person)
            may_set.add(name)
        except (NotAllowed, NotFound):
            pass
        try:
            secrets.listed(cast.project, person)
            may_list.add(name)
        except (NotAllowed, NotFound):
            pass
    assert may_set == {"lead", "admin"}
    assert may_list == {"owner", "colleague", "lead", "admin"}

    for person in (cast.admin, cast.lead, cast.operator):
        with pytest.raises(NotAllowed):
            set_secret(owner=cast.owner, name="mine", value=VALUE, by=person)
        with pytest.raises(NotAllowed):
            delete_secret(owner=cast.owner, name="mine", by=person)
        with pytest.raises(NotAllowed):
            secrets.listed(cast.owner, person)


# ---------------------------------------------------------------- keys


def test_keys_are_rotated(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    user = UserFactory()
    settings.MUSTER_STORAGE_KEYS = []
    set_secret(owner=user, name="by-the-secret-key", value=VALUE, by=user)
    settings.MUSTER_STORAGE_KEYS = [OLD]
    set_secret(owner=user, name="by-the-old-key", value=VALUE, by=user)
    settings.MUSTER_STORAGE_KEYS = [NEW, OLD]
    set_secret(owner=user, name="by-the-new-key", value=VALUE, by=user)
    assert {opened(row) for row in Secret.objects.all()} == {VALUE}

    call_command("rotate_secrets")

    assert capsys.readouterr().out == "Encrypted 2 secrets anew; 1 had the current key already.\n"
    settings.MUSTER_STORAGE_KEYS, settings.SECRET_KEY = [NEW], "another secret key of the portal"
    settings.SECRET_KEY_FALLBACKS = []
    assert {opened(row) for row in Secret.objects.all()} == {VALUE}
    call_command("rotate_secrets")  # again: nothing to do
    assert capsys.readouterr().out == "Encrypted 0 secrets anew; 3 had the current key already.\n"
    assert AuditEvent.objects.filter(action="secret.reencrypt").count() == 1


def test_a_replaced_secret_key_is_rotated_too(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    user = UserFactory()
    set_secret(owner=user, name="token", value=VALUE, by=user)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the next secret key", [settings.SECRET_KEY]
    call_command("rotate_secrets")
    settings.SECRET_KEY_FALLBACKS = []

    assert capsys.readouterr().out.startswith("Encrypted 1 secrets anew")
    assert opened(Secret.objects.get()) == VALUE


def test_a_missing_key_is_named_and_the_others_are_rotated(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    user = UserFactory(username="ann")
    settings.MUSTER_STORAGE_KEYS = [OLD]
    set_secret(owner=user, name="lost", value=VALUE, by=user)
    settings.MUSTER_STORAGE_KEYS = []
    set_secret(owner=user, name="here", value=VALUE, by=user)
    settings.MUSTER_STORAGE_KEYS = [NEW]

    with pytest.raises(SystemExit) as ended:
        call_command("rotate_secrets")

    said = capsys.readouterr()
    assert ended.value.code == 1
    assert said.out.startswith("Encrypted 1 secrets anew; 0 ")
    assert said.err.startswith("Cannot be decrypted: ann/lost: it was encrypted with a key (")
    settings.MUSTER_STORAGE_KEYS = [NEW, OLD]
    assert {opened(row) for row in Secret.objects.all()} == {VALUE}


def test_rows_hold_no_value_in_any_form() -> None:
    user = UserFactory()
    set_secret(owner=user, name="token", value=VALUE, by=user)
    with connection.cursor() as cursor:
        cursor.execute("SELECT t::text FROM accounts_secret t")
        (text,) = cursor.fetchone()

    assert VALUE not in text
    assert VALUE.encode().hex() not in text
