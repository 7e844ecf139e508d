"""Old rows of the audit trail go, and the chain still proves itself."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from accounts.models import AuditChain, AuditCheckpoint, AuditEvent
from accounts.services import audit, audit_check, audit_prune
from tests.support.factories import ProjectFactory, UserFactory
from tests.support.roles import as_owner, as_owner_without

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def rows_of_today_are_old(db: None) -> None:
    """The owner's function keeps what is young; the tests write their rows now."""
    with as_owner(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION muster_audit_kept() RETURNS interval LANGUAGE sql IMMUTABLE"
            " AS $$ SELECT interval '-1 day' $$"
        )


def some_rows(count: int = 4) -> None:
    people, project = [UserFactory() for _ in range(2)], ProjectFactory()
    for n in range(count):
        audit.record(by=people[n % 2], action="project.edit", thing=project, after={"n": n})


def prune(keep: int = 0) -> int:
    ids = AuditEvent.objects.order_by("shard", "number").values_list("pk", flat=True)
    return audit_prune.prune_events(list(ids)[: len(ids) - keep])


def test_the_chain_verifies_after_its_rows_went_and_goes_on(tmp_path) -> None:
    some_rows()
    outside = audit_check.make_checkpoint(audit_check.verify())

    assert prune() == 4

    assert AuditEvent.objects.get().action == "audit.prune"
    assert audit_check.verify().ok
    some_rows(3)
    assert prune(keep=1) == 3
    some_rows(2)
    result = audit_check.verify(checkpoint=outside)
    assert (result.bad, result.rows) == (None, AuditEvent.objects.count())
    call_command("audit_verify", "--write-checkpoint", str(tmp_path / "checkpoint"))


def test_a_chain_that_does_not_check_keeps_every_row() -> None:
    some_rows()
    with as_owner_without("accounts.AuditEvent:audit_rows_never_change"):
        AuditEvent.objects.filter(pk=AuditEvent.objects.earliest("pk").pk).update(reason="forged")

    prune()

    assert AuditEvent.objects.filter(reason="forged").exists()
    assert not audit_check.verify().ok


@pytest.mark.parametrize("change", [{"hash": "f" * 64}, {"number": 1, "rows": 1}, {"signature": "0" * 64}])
def test_a_checkpoint_that_is_not_ours_is_found(change: dict) -> None:
    some_rows()
    prune()
    with as_owner_without("accounts.AuditCheckpoint:audit_checkpoints_never_change"):
        AuditCheckpoint.objects.filter(pk=AuditCheckpoint.objects.earliest("pk").pk).update(**change)

    assert "not one that Muster made" in str(audit_check.verify().bad)


def test_a_checkpoint_taken_out_and_rows_cut_after_one_are_found() -> None:
    some_rows(8)
    prune(keep=3)
    with as_owner_without("accounts.AuditEvent:audit_rows_go_by_checkpoint"):
        AuditEvent.objects.filter(pk=AuditEvent.objects.order_by("-number", "pk").last().pk).delete()
    assert "missing" in str(audit_check.verify().bad)

    with as_owner_without("accounts.AuditCheckpoint:audit_checkpoints_never_change"):
        AuditCheckpoint.objects.all().delete()
    assert not audit_check.verify().ok


def test_the_database_lets_no_row_go_without_a_checkpoint() -> None:
    some_rows()
    shard = AuditChain.objects.filter(length__gt=1).earliest("pk").pk

    for statement in (
        "DELETE FROM accounts_auditevent",
        f"DELETE FROM accounts_auditevent WHERE shard = {shard}",
    ):
        with (
            pytest.raises(DatabaseError, match="checkpoint"),
            transaction.atomic(),
            as_owner(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    AuditCheckpoint.objects.create(
        shard=shard, number=2, hash="0" * 64, rows=2, at=timezone.now(), signature=""
    )
    with (
        pytest.raises(DatabaseError, match="checkpoint"),
        transaction.atomic(),
        as_owner(),
        connection.cursor() as cursor,
    ):
        cursor.execute("DELETE FROM accounts_auditevent WHERE shard = %s", [shard])
    assert AuditEvent.objects.count() == 4


def test_only_what_is_older_than_the_setting_goes(settings) -> None:
    some_rows()
    now = timezone.now()
    assert audit_prune.rule().carry_out(now + timedelta(days=900)) == 0

    settings.MUSTER_KEEP_AUDIT_DAYS = 1
    assert audit_prune.rule().carry_out(now + timedelta(days=30)) == 0
    assert audit_prune.rule().carry_out(now + timedelta(days=40)) == 4
    assert audit_check.verify().ok


def long_ago(**which: object) -> None:
    """As if these rows had been written on another day: signed so, and in the chain."""
    with (
        as_owner_without("accounts.AuditEvent:audit_rows_never_change"),
        as_owner_without("accounts.AuditChain:audit_chain_only_grows"),
    ):
        for event in AuditEvent.objects.filter(**which).order_by("number"):
            event.at -= timedelta(days=50)
            event.save(force_update=True)
        for chain in AuditChain.objects.all():
            previous = audit.NO_HASH
            for event in AuditEvent.objects.filter(shard=chain.pk).order_by("number"):
                event.previous_hash = previous
                event.hash = previous = audit.row_hash(event, audit.signing_keys()[0])
                event.save(force_update=True)
            signature = audit.head_signature(chain.pk, chain.length, previous, audit.signing_keys()[0])
            AuditChain.objects.filter(pk=chain.pk).update(head=previous, signature=signature)


def test_a_broken_chain_with_many_rows_keeps_its_own_and_not_those_of_others(settings) -> None:
    settings.MUSTER_KEEP_AUDIT_DAYS = 40
    some_rows(12)
    edits = AuditEvent.objects.filter(action="project.edit")  # of the pruning either chain may tell
    first, second = sorted(set(edits.values_list("shard", flat=True)))
    long_ago()
    with as_owner_without("accounts.AuditEvent:audit_rows_never_change"):
        AuditEvent.objects.filter(shard=first, number=2).update(reason="forged")

    rule = audit_prune.rule(batch=2)
    gone = rule.carry_out(timezone.now())

    assert (gone, edits.filter(shard=first).count(), edits.filter(shard=second).count()) == (6, 6, 0)
    (said,) = rule.left
    assert said.startswith(f"chain {first}, number 2")
    assert "MUSTER_AUDIT_OLD_KEYS" in said


def test_a_row_that_looks_older_than_the_one_before_it_waits_for_that_one(settings) -> None:
    settings.MUSTER_KEEP_AUDIT_DAYS = 40
    person, project = UserFactory(), ProjectFactory()
    for n in range(4):
        audit.record(by=person, action="project.edit", thing=project, after={"n": n})
    for number in (1, 3):
        long_ago(number=number)

    rule = audit_prune.rule()
    gone = rule.carry_out(timezone.now())

    assert (gone, list(rule.left)) == (1, [])
    assert audit_check.verify().ok
