"""Checkpoints outside the database: what writes them, what they find, and what they are not misled by."""

from __future__ import annotations

import json
import socket
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from accounts import tasks
from accounts.models import AuditChain, AuditCheck, AuditEvent
from accounts.services import audit, audit_check, audit_checkpoints
from tests.support.factories import ProjectFactory, UserFactory
from tests.support.roles import as_owner_without

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(tmp_path: Path, settings: Any) -> Path:
    settings.MUSTER_AUDIT_CHECKPOINT_FILE = str(tmp_path / "kept" / "checkpoints")
    return tmp_path / "kept" / "checkpoints"


@pytest.fixture
def shard(kept: Path) -> int:
    alice, project = UserFactory(), ProjectFactory()
    for number in range(1, 5):
        audit.record(by=alice, action=f"test.{number}", thing=project)
    return alice.pk % audit.SHARDS


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def put_back(shard: int, rows: int, head: tuple[str, str]) -> None:
    """What a backup of the database has: rows, head and signature that fit each other."""
    with as_owner_without(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM accounts_auditevent WHERE shard = %s AND number > %s", [shard, rows])
        cursor.execute(
            "UPDATE accounts_auditchain SET length = %s, head = %s, signature = %s WHERE shard = %s",
            [rows, *head, shard],
        )


def more(shard: int) -> None:
    event = AuditEvent.objects.filter(shard=shard).first()
    assert event is not None
    audit.record(by=event.actor, action="test.more", thing=audit.Thing("x"))


def test_an_older_trail_that_is_put_back_is_found_by_each_check(shard: int) -> None:
    head = AuditChain.objects.values_list("head", "signature").get(pk=shard)
    more(shard)
    tasks.checkpoint_audit()
    put_back(shard, 4, head)
    assert audit_check.verify().ok  # in itself it is whole

    tasks.checkpoint_audit()
    latest = AuditCheck.objects.first()
    assert latest is not None
    assert "replaced by an older one" in latest.problem

    tasks.verify_audit()
    assert not AuditCheck.objects.earliest("-id").ok
    errors = StringIO()
    with pytest.raises(SystemExit):
        call_command("audit_verify", stderr=errors)
    assert f"chain {shard}, number 5" in errors.getvalue()


def test_a_chain_that_went_on_after_it_was_put_back_is_found(shard: int) -> None:
    head = AuditChain.objects.values_list("head", "signature").get(pk=shard)
    more(shard)
    tasks.checkpoint_audit()
    put_back(shard, 4, head)
    for _ in range(3):
        more(shard)

    check = audit_check.look_at_heads()

    assert check is not None
    assert "differs from the row at" in check.problem


def test_a_good_look_writes_a_line_when_something_is_new_and_no_result(shard: int, kept: Path) -> None:
    for _ in range(3):
        tasks.checkpoint_audit()
    more(shard)
    tasks.checkpoint_audit()

    assert [line["heads"][str(shard)][0] for line in lines(kept)] == [4, 5]
    assert not AuditCheck.objects.exists()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_short_is_passed_over(shard: int, kept: Path) -> None:
    tasks.verify_audit()
    with kept.open("a") as file:
        file.write('{"at": "2026-')
    more(shard)
    tasks.verify_audit()

    assert all(AuditCheck.objects.values_list("ok", flat=True))
    assert json.loads(kept.read_text().splitlines()[-1])["heads"][str(shard)][0] == 5
    assert audit_checkpoints.last() == kept.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    "line", ['{"at": "2026-01-01T00:00:00+00:00", "heads": {}, "signature": "x"}', "nonsense", "[]"]
)
def test_a_line_that_is_not_ours_is_found(shard: int, kept: Path, line: str) -> None:
    tasks.verify_audit()
    with kept.open("a") as file:
        file.write(line + "\n")

    tasks.verify_audit()

    latest = AuditCheck.objects.first()
    assert latest is not None
    assert "not one that Muster signed" in latest.problem


def test_a_file_that_cannot_be_used_is_a_check_that_fails(shard: int, kept: Path) -> None:
    kept.mkdir(parents=True)  # a folder of that name: nobody, root neither, reads or writes it as a file

    tasks.verify_audit()

    latest = AuditCheck.objects.first()
    assert latest is not None
    assert (latest.ok, "cannot be used" in latest.problem) == (False, True)


def test_of_two_that_write_at_once_the_later_one_is_the_last_line(shard: int, kept: Path) -> None:
    older = audit_check.make_checkpoint(audit_check.verify())
    more(shard)
    newer = audit_check.make_checkpoint(audit_check.verify())

    assert audit_checkpoints.keep(newer)
    assert not audit_checkpoints.keep(older)

    assert audit_checkpoints.last() == newer


def test_a_head_that_nobody_signed_is_found_though_all_rows_fit(shard: int) -> None:
    three = AuditEvent.objects.get(shard=shard, number=3)
    put_back(shard, 3, (three.hash, AuditChain.objects.get(pk=shard).signature))

    bad = audit_check.verify().bad

    assert bad is not None
    assert (bad.shard, bad.number) == (shard, 3)
    assert "set back" in bad.problem


@pytest.mark.parametrize("kind", ["local", "udp"])
def test_a_system_log_gets_each_checkpoint(shard: int, tmp_path: Path, settings: Any, kind: str) -> None:
    family = socket.AF_UNIX if kind == "local" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log") if kind == "local" else ("127.0.0.1", 0))
        server.settimeout(30)
        name = server.getsockname()
        settings.MUSTER_AUDIT_SYSLOG = name if kind == "local" else f"127.0.0.1:{name[1]}"
        tasks.checkpoint_audit()
        said = server.recv(65_536).decode()

    assert said.startswith("<37>muster-audit: {")
    assert audit_check.verify(checkpoint=said[said.index("{") :]).ok


def test_a_system_log_that_is_away_does_not_keep_the_file_from_being_written(
    shard: int, kept: Path, settings: Any
) -> None:
    settings.MUSTER_AUDIT_SYSLOG = str(kept.parent / "nobody")

    tasks.verify_audit()

    assert AuditCheck.objects.earliest("-id").ok
    assert len(lines(kept)) == 1
