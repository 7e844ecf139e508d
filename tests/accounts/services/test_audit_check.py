"""Verification finds what somebody with the database in their hands has done to the trail."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pgtrigger
import pytest
from django.core.management import call_command
from django.db import connection

from accounts import metrics
from accounts.models import AuditChain, AuditCheck, AuditEvent
from accounts.services import audit, audit_check
from accounts.tasks import verify_audit
from tests.support.factories import ProjectFactory, UserFactory
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

Damage = Callable[[int], None]


@pytest.fixture
def chain() -> int:
    """The shard of a chain of five rows; another one has one row."""
    alice, bob, project = UserFactory(), UserFactory(), ProjectFactory()
    audit.record(by=bob, action="test.other", thing=project)
    for number in range(1, 6):
        audit.record(
            by=alice, action=f"test.{number}", thing=project, after={"n": number}, reason=f"reason {number}"
        )
    return alice.pk % audit.SHARDS


def tamper(sql: str, *parameters: object) -> None:
    """As the owner of the database would: with the triggers off."""
    with as_owner(), connection.cursor() as cursor, pgtrigger.ignore():
        for table in ("accounts_auditevent", "accounts_auditchain"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(sql, parameters)
        for table in ("accounts_auditevent", "accounts_auditchain"):
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def test_an_untouched_trail_verifies(chain: int) -> None:
    result = audit_check.verify()

    assert (result.ok, result.rows, result.chains) == (True, 6, 2)


def test_an_empty_trail_verifies() -> None:
    result = audit_check.verify()

    assert (result.ok, result.rows, result.chains) == (True, 0, 0)


def swap(shard: int) -> None:
    tamper(
        "UPDATE accounts_auditevent a SET reason = b.reason, after = b.after, action = b.action"
        " FROM accounts_auditevent b WHERE a.shard = %s AND b.shard = %s"
        " AND a.number IN (2, 4) AND b.number = 6 - a.number",
        shard,
        shard,
    )


def renumber(shard: int) -> None:
    tamper("UPDATE accounts_auditevent SET number = 100 WHERE shard = %s AND number = 2", shard)
    tamper("UPDATE accounts_auditevent SET number = 2 WHERE shard = %s AND number = 3", shard)
    tamper("UPDATE accounts_auditevent SET number = 3 WHERE shard = %s AND number = 100", shard)


def insert_beyond_the_head(shard: int) -> None:
    event = AuditEvent.objects.get(shard=shard, number=5)
    event.pk, event.number, event.previous_hash = None, 6, event.hash
    event.hash = audit.row_hash(event, b"a guess")
    event.save(force_insert=True)


def cut_tail_and_head(shard: int) -> None:
    """The head put back to where the cut is: only what the head's hash was can give it away."""
    tamper("DELETE FROM accounts_auditevent WHERE shard = %s AND number > 3", shard)
    tamper("UPDATE accounts_auditchain SET length = 3 WHERE shard = %s", shard)


def edit(change: str, number: int) -> Damage:
    return lambda shard: tamper(
        f"UPDATE accounts_auditevent SET {change} WHERE shard = %s AND number = %s", shard, number
    )


def delete(which: str) -> Damage:
    return lambda shard: tamper(f"DELETE FROM accounts_auditevent WHERE shard = %s AND {which}", shard)


def delete_head(shard: int) -> None:
    tamper("DELETE FROM accounts_auditchain WHERE shard = %s", shard)


DAMAGES: dict[str, tuple[Damage, int, str]] = {
    "reason edited": (edit("reason = 'x'", 3), 3, "written"),
    "after edited": (edit("after = '{}'", 1), 1, "written"),
    "time edited": (edit("at = at + interval '1 day'", 5), 5, "written"),
    "actor removed": (edit("actor_id = NULL", 2), 2, "written"),
    "middle deleted": (delete("number = 3"), 3, "missing"),
    "first deleted": (delete("number = 1"), 1, "missing"),
    "tail cut": (delete("number >= 4"), 4, "tail was cut"),
    "all deleted": (delete("true"), 1, "missing"),
    "head deleted": (delete_head, 1, "beyond the head"),
    "tail and head cut": (cut_tail_and_head, 3, "head"),
    "contents swapped": (swap, 2, "written"),
    "places swapped": (renumber, 2, "does not follow"),
    "row inserted": (insert_beyond_the_head, 6, "beyond the head"),
}


@pytest.mark.parametrize(("damage", "number", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found_at_its_first_row(chain: int, damage: Damage, number: int, words: str) -> None:
    damage(chain)

    bad = audit_check.verify().bad
    assert bad is not None
    assert (bad.shard, bad.number) == (chain, number)
    assert words in bad.problem

    errors = StringIO()
    with pytest.raises(SystemExit) as exit_:
        call_command("audit_verify", stderr=errors)
    assert exit_.value.code == 1
    assert f"chain {chain}, number {number}" in errors.getvalue()


def test_a_row_that_was_forged_without_the_key_is_found(chain: int) -> None:
    event = AuditEvent.objects.get(shard=chain, number=5)
    event.reason = "forged"
    forged = audit.row_hash(event, b"the attacker has the database, not the key")
    tamper("UPDATE accounts_auditevent SET reason = 'forged', hash = %s WHERE id = %s", forged, event.pk)
    tamper("UPDATE accounts_auditchain SET head = %s WHERE shard = %s", forged, chain)

    bad = audit_check.verify().bad

    assert bad is not None
    assert bad.event_id == event.pk


def test_the_command_says_how_many_rows_it_saw(chain: int) -> None:
    output = StringIO()

    call_command("audit_verify", stdout=output)

    assert output.getvalue() == "The audit trail is intact: 6 rows in 2 chains.\n"


def test_a_checkpoint_shows_that_an_older_trail_was_put_back(chain: int, tmp_path: Path) -> None:
    old = list(AuditChain.objects.values_list("shard", "length", "head", "signature"))
    audit.record(by=None, action="test.later", thing=audit.Thing("x"))
    call_command("audit_verify", write_checkpoint=tmp_path / "kept.json", stdout=StringIO())
    call_command("audit_verify", checkpoint=tmp_path / "kept.json", stdout=StringIO())

    # Yesterday's backup: rows and heads fit each other.
    tamper("DELETE FROM accounts_auditevent WHERE action = 'test.later'")
    tamper("DELETE FROM accounts_auditchain WHERE NOT shard = ANY(%s)", [shard for shard, *_ in old])
    for shard, *head in old:
        tamper(
            "UPDATE accounts_auditchain SET (length, head, signature) = (%s, %s, %s) WHERE shard = %s",
            *head,
            shard,
        )

    assert audit_check.verify().ok
    errors = StringIO()
    with pytest.raises(SystemExit):
        call_command("audit_verify", checkpoint=tmp_path / "kept.json", stderr=errors)
    assert "replaced by an older one" in errors.getvalue()


def test_a_checkpoint_that_was_edited_is_not_believed(chain: int) -> None:
    checkpoint = audit_check.make_checkpoint(audit_check.verify()).replace('[5, "', '[4, "')

    bad = audit_check.verify(checkpoint=checkpoint).bad

    assert bad is not None
    assert "not one that Muster signed" in bad.problem


def test_rows_of_an_old_key_verify_while_the_old_key_is_named(chain: int, settings) -> None:
    settings.MUSTER_AUDIT_KEY = "a new key"
    assert not audit_check.verify().ok

    settings.MUSTER_AUDIT_OLD_KEYS = [settings.SECRET_KEY]
    audit.record(by=None, action="test.new_key", thing=audit.Thing("x"))
    assert audit_check.verify().ok


def test_the_hourly_check_is_kept_for_the_badge_and_the_metric(chain: int) -> None:
    verify_audit()
    assert AuditCheck.objects.get().ok
    assert _gauge() == 1.0

    tamper("DELETE FROM accounts_auditevent WHERE shard = %s AND number = 3", chain)
    verify_audit()

    latest = AuditCheck.objects.first()
    assert latest is not None
    assert not latest.ok
    assert f"chain {chain}, number 3" in latest.problem
    assert _gauge() == 0.0


def _gauge() -> float:
    families = {family.name: family.samples[0].value for family in metrics.collect()}
    return families["muster_audit_chain_ok"]
