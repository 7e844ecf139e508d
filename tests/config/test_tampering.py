"""Who has a role of the database: what it refuses them, and what the checks find; the docs have it as a table.

Each case is tried three times by connections of their own, which commit: as the application's role with every trigger
left aside that a setting can leave aside, as the owner of the tables, and as the owner with all triggers turned off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings

from accounts.models import AuditChain, AuditCheckpoint, AuditEvent, User
from accounts.services import audit, audit_check, audit_prune
from config import checks
from config.up.servers import roles
from quotas.core.ledger import Kind
from quotas.models import LedgerEntry
from scheduler.services.accounting.usage_audit import check_usage
from tests.scheduler.state.ledger.test_ledger import ended, started
from tests.scheduler.state.small import SmallWorld
from tests.support.embedded import PASSWORD, started_here
from tests.support.factories import ProjectFactory, UserFactory

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not started_here, reason="DATABASE_URL names a server with one role"),
]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "tampering.md"
GUARDED = (
    "accounts_auditevent",
    "accounts_auditchain",
    "accounts_auditcheckpoint",
    "quotas_ledgerentry",
)
ACTORS = ("application", "owner", "owner, triggers off")


@dataclass
class Trail:
    """A chain of six rows; a backup of it was taken after four, and a checkpoint outside after six."""

    shard: int
    #: The head of the chain as it was after four rows: length, hash, signature.
    backup: tuple[int, str, str]
    #: The charge of a job that ran for 600 s, and when the usage check looks at it.
    charge: int
    later: datetime


Tamper = Callable[[psycopg.Cursor[Any], Trail], object]


def change(statement: str) -> Tamper:
    return lambda cursor, trail: cursor.execute(statement.format(shard=trail.shard, line=trail.charge))


def cut(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cursor.execute("DELETE FROM accounts_auditevent WHERE shard = %s AND number > 4", [trail.shard])


def cut_and_set_back(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cut(cursor, trail)
    cursor.execute(
        "UPDATE accounts_auditchain SET length = 4, head = e.hash FROM accounts_auditevent e"
        " WHERE e.shard = %s AND e.number = 4 AND accounts_auditchain.shard = e.shard",
        [trail.shard],
    )


def put_the_backup_back(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cut(cursor, trail)
    cursor.execute(
        "UPDATE accounts_auditchain SET length = %s, head = %s, signature = %s WHERE shard = %s",
        [*trail.backup, trail.shard],
    )


def set_the_head_back(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cursor.execute(
        "UPDATE accounts_auditchain SET length = %s, head = %s, signature = %s WHERE shard = %s",
        [*trail.backup, trail.shard],
    )


def remove_all(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cursor.execute("DELETE FROM accounts_auditevent")
    cursor.execute("DELETE FROM accounts_auditchain")


def forge(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    """A seventh row, as like ours as the sixth; the head goes along."""
    cursor.execute(
        "INSERT INTO accounts_auditevent (shard, number, at, actor_id, actor_name, on_behalf_of, token_prefix, address,"
        " request_id, action, outcome, object_type, object_id, object_label, project_id, before, after, reason,"
        " previous_hash, hash) SELECT shard, 7, at, actor_id, actor_name, on_behalf_of, token_prefix, address,"
        " request_id, 'forged', outcome, object_type, object_id, object_label, project_id, before, after, reason,"
        " hash, repeat('f', 64) FROM accounts_auditevent WHERE shard = %s AND number = 6",
        [trail.shard],
    )
    cursor.execute(
        "UPDATE accounts_auditchain SET length = 7, head = repeat('f', 64) WHERE shard = %s", [trail.shard]
    )


def swap(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    for before, after in ((2, 100), (3, 2), (100, 3)):
        cursor.execute(
            "UPDATE accounts_auditevent SET number = %s WHERE shard = %s AND number = %s",
            [after, trail.shard, before],
        )


def prune_by_a_forged_checkpoint(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cursor.execute(
        "INSERT INTO accounts_auditcheckpoint (shard, number, hash, rows, at, previous, signature)"
        " SELECT shard, 2, hash, 2, now(), '', repeat('f', 64) FROM accounts_auditevent"
        " WHERE shard = %s AND number = 2",
        [trail.shard],
    )
    cursor.execute("SELECT muster_prune_audit(%s, 2)", [trail.shard])


def roll_up_without_sums(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    cursor.execute("SELECT muster_roll_up_ledger(ARRAY[%s]::bigint[], 1)", [trail.charge])


def take_away(cursor: psycopg.Cursor[Any], trail: Trail) -> None:
    """The owner's name for it is put back after the test; the application tries the real thing."""
    if cursor.connection.info.user == roles.APPLICATION:
        cursor.execute("DROP TABLE accounts_auditevent CASCADE")
    cursor.execute("ALTER TABLE accounts_auditevent RENAME TO taken_away")


TURNED_OFF = "turn its triggers off"
TAKEN_AWAY = "DROP or rename its table"
GRANTED = "GRANT oneself UPDATE on the trail"
CLAIMED = "say that a check went well"
CASES: dict[str, Tamper] = {
    "edit a row of the audit trail": change(
        "UPDATE accounts_auditevent SET reason = 'other' WHERE shard = {shard} AND number = 3"
    ),
    "delete a row": change("DELETE FROM accounts_auditevent WHERE shard = {shard} AND number = 3"),
    "cut the tail": cut,
    "cut the tail and set the head back": cut_and_set_back,
    "set the head back to an old copy of it": set_the_head_back,
    "put an old backup of the chain back": put_the_backup_back,
    "remove the whole trail": remove_all,
    "swap two rows": swap,
    "insert a forged row": forge,
    "edit the checkpoint of pruned rows": change("UPDATE accounts_auditcheckpoint SET rows = rows + 1"),
    "prune behind a forged checkpoint": prune_by_a_forged_checkpoint,
    "TRUNCATE the audit trail": change("TRUNCATE accounts_auditevent"),
    TAKEN_AWAY: take_away,
    TURNED_OFF: change("ALTER TABLE accounts_auditevent DISABLE TRIGGER USER"),
    "SET session_replication_role": change("SET session_replication_role = replica"),
    GRANTED: change(f"GRANT UPDATE ON accounts_auditevent TO {roles.APPLICATION}"),
    "edit a line of the ledger": change(
        "UPDATE quotas_ledgerentry SET charged_seconds = 6 WHERE id = {line}"
    ),
    "delete a line of the ledger": change("DELETE FROM quotas_ledgerentry WHERE id = {line}"),
    "roll a line up without its sum": roll_up_without_sums,
    CLAIMED: change(
        "INSERT INTO accounts_auditcheck (checked_at, ok, rows, problem) VALUES (now(), true, 6, '')"
    ),
}


def documented() -> dict[tuple[str, str], str]:
    """(case, actor) -> what the docs say."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
    return {
        (case, actor): said
        for case, *cells in rows
        if cells != list(ACTORS) and case != "---"
        for actor, said in zip(ACTORS, cells, strict=True)
    }


@contextmanager
def as_real(role: str) -> Iterator[psycopg.Cursor[Any]]:
    """Signed in with the role's own password, as a thief of that password would be."""
    where = django_settings.DATABASES["default"]
    with (
        psycopg.connect(
            host=where["HOST"],
            port=where["PORT"],
            user=role,
            password=PASSWORD,
            dbname=where["NAME"],
            autocommit=True,
        ) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor


def kept_for(days: int) -> None:
    with as_real(roles.OWNER) as owner:
        owner.execute(
            "CREATE OR REPLACE FUNCTION muster_audit_kept() RETURNS interval LANGUAGE sql IMMUTABLE"
            f" AS $$ SELECT interval '{days} days' $$"
        )


def people() -> tuple[User, User]:
    """Two whose chains are not that of what nobody does."""
    found: dict[int, User] = {}
    while len(found) < 2:
        one = UserFactory()
        if one.pk % audit.SHARDS:
            found[one.pk % audit.SHARDS] = one
    alice, bob = found.values()
    return alice, bob


@pytest.fixture
def trail(tmp_path: Path, settings: Any) -> Iterator[Trail]:
    settings.MUSTER_AUDIT_CHECKPOINT_FILE = str(tmp_path / "checkpoints")
    project = ProjectFactory()
    alice, bob = people()
    for _ in range(2):
        audit.record(by=bob, action="test.old", thing=project)
    kept_for(-1)
    assert audit_prune.prune_events([AuditEvent.objects.earliest("number").pk]) == 1
    kept_for(35)
    assert AuditCheckpoint.objects.exists()
    shard = alice.pk % audit.SHARDS
    for number in range(1, 7):
        audit.record(by=alice, action=f"test.{number}", thing=project, reason=f"reason {number}")
        if number == 4:
            backup = AuditChain.objects.values_list("length", "head", "signature").get(pk=shard)
    world = SmallWorld()
    world.node("n1", cpu_millis=16_000, gpus=2)
    job, attempt = started(world)
    at = ended(attempt, after=600)
    charge = LedgerEntry.objects.get(job_number=job.number, kind=Kind.CHARGE)
    check, _ = audit_check.verify_and_keep()
    assert check.ok, check.problem
    yield Trail(shard, backup, charge.pk, at + timedelta(hours=3))
    with as_real(roles.OWNER) as owner:
        owner.execute("ALTER TABLE IF EXISTS taken_away RENAME TO accounts_auditevent")
        for table in GUARDED:
            owner.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        owner.execute(f"REVOKE UPDATE ON accounts_auditevent FROM {roles.APPLICATION}")


def outcome(case: str, actor: str, trail: Trail) -> str:
    """Refused, and by what; or found, and in which words."""
    with as_real(roles.APPLICATION if actor == "application" else roles.OWNER) as cursor:
        if actor == "application":
            cursor.execute(
                "SELECT set_config('pgtrigger.ignore', array_agg(tgname)::text, false) FROM pg_trigger"
            )
        if actor == "owner, triggers off":
            for table in GUARDED:
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        try:
            with cursor.connection.transaction():
                CASES[case](cursor, trail)
        except psycopg.errors.InsufficientPrivilege:
            return "refused: no right"
        except psycopg.errors.RaiseException as error:
            return f"refused: {plain(error.diag.message_primary or '')}"
        if case == GRANTED and actor == "application":
            # PostgreSQL only warns that nothing was granted.
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                cursor.execute("UPDATE accounts_auditevent SET reason = ''")
            return "refused: no right"
        if actor == "owner, triggers off" and case not in (TURNED_OFF, TAKEN_AWAY):
            for table in GUARDED:
                cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    return found(trail) if case != CLAIMED else "shown until the next check"


def found(trail: Trail) -> str:
    check, result = audit_check.verify_and_keep()
    if result.bad is not None:
        assert not check.ok
        return f"found by `audit_verify`: {plain(result.bad.problem)}"
    if check_usage(now=trail.later):
        return "found and put right by the usage check"
    warned = [message.msg for message in checks.check_role()]
    return f"found by `check --deploy`: {plain(warned[0])}" if warned else "not found"


def plain(words: str) -> str:
    """Without what differs from run to run."""
    words = re.sub(r" \(compared with .*\)", "", words).removeprefix("pgtrigger: ")
    return re.sub(r"at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "at the last checkpoint", words)


@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("case", CASES)
def test_t32_what_is_tampered_with_is_refused_or_found(
    case: str, actor: str, trail: Trail, record_property: Callable[[str, object], None]
) -> None:
    came = outcome(case, actor, trail)

    record_property("tampering", (case, actor, came))
    assert came == documented().get((case, actor))


def test_the_docs_have_every_case_and_no_other() -> None:
    assert set(documented()) == {(case, actor) for case in CASES for actor in ACTORS}
