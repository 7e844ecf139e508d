"""The audit trail: what a row holds, that it is there or nothing is, and that no one can touch it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts import permissions
from accounts.models import AuditChain, AuditEvent, AuditOutcome
from accounts.services import audit, audit_check
from infra import request_context
from infra.errors import MusterError, NotAllowed
from tests.support.at_once import at_once
from tests.support.factories import JobFactory, ProjectFactory, UserFactory, the_cast

pytestmark = pytest.mark.django_db


def test_a_row_says_who_what_where_and_why() -> None:
    alice = UserFactory(username="alice")
    job = JobFactory(name="train")

    with request_context.acting(
        request_id="r-1", address="10.0.0.9", token_prefix="abc", on_behalf_of="bob", token_user_id=alice.pk
    ):
        audit.record(
            by=alice,
            action="job.cancel",
            thing=job,
            before={"state": "queued"},
            after={"state": "cancelled"},
            reason="a typo",
        )

    event = AuditEvent.objects.get()
    expected = {
        "actor": alice,
        "actor_name": "alice",
        "on_behalf_of": "bob",
        "token_prefix": "abc",
        "address": "10.0.0.9",
        "request_id": "r-1",
        "action": "job.cancel",
        "outcome": AuditOutcome.DONE,
        "object_type": "job",
        "object_id": str(job.pk),
        "object_label": str(job),
        "project": job.project,
        "before": {"state": "queued"},
        "after": {"state": "cancelled"},
        "reason": "a typo",
        "number": 1,
        "previous_hash": "0" * 64,
    }
    assert {name: getattr(event, name) for name in expected} == expected
    assert event.shard == alice.pk % audit.SHARDS


def test_each_row_follows_the_one_before_and_times_rise() -> None:
    alice = UserFactory()
    project = ProjectFactory()

    rows = [audit.record(by=alice, action=f"test.{n}", thing=project) for n in range(3)]

    assert [row.number for row in rows] == [1, 2, 3]
    assert [row.previous_hash for row in rows] == ["0" * 64, rows[0].hash, rows[1].hash]
    assert rows[0].at < rows[1].at < rows[2].at
    chain = AuditChain.objects.get(shard=alice.pk % audit.SHARDS)
    assert (chain.length, chain.head) == (3, rows[2].hash)


def test_a_row_takes_two_statements(django_assert_num_queries) -> None:
    alice, project = UserFactory(), ProjectFactory()
    audit.record(by=alice, action="test.first", thing=project)

    with transaction.atomic(), django_assert_num_queries(2):
        audit.record(by=alice, action="test.second", thing=project)


def test_a_batch_is_one_row() -> None:
    alice = UserFactory()

    audit.record(
        by=alice,
        action="job.submit_many",
        thing=audit.Thing("job", "7-206", "200 jobs"),
        after={"count": 200},
    )

    event = AuditEvent.objects.get()
    assert (event.object_type, event.object_id, event.object_label) == ("job", "7-206", "200 jobs")


def test_a_change_that_is_rolled_back_leaves_no_row() -> None:
    alice, project = UserFactory(), ProjectFactory()

    with transaction.atomic():
        audit.record(by=alice, action="project.close", thing=project)
        transaction.set_rollback(True)

    assert not AuditEvent.objects.exists()
    assert not AuditChain.objects.filter(length__gt=0).exists()


def test_a_refusal_becomes_a_row_and_other_errors_do_not() -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner)
    with pytest.raises(NotAllowed) as refused:
        permissions.require(cast.colleague, "cancel", job)

    audit.record_refusal(refused.value, by=cast.colleague)
    audit.record_refusal(MusterError("the job has ended"), by=cast.colleague)

    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.object_id, event.actor) == (
        "job.cancel",
        AuditOutcome.DENIED,
        str(job.pk),
        cast.colleague,
    )
    assert "lead" in event.reason


def test_nobody_in_particular_can_be_denied() -> None:
    from django.contrib.auth.models import AnonymousUser

    error = NotAllowed("no", refused=("operate", None))

    audit.record_refusal(error, by=AnonymousUser())

    event = AuditEvent.objects.get()
    assert (event.actor, event.actor_name, event.action, event.object_type) == (
        None,
        "",
        "site.operate",
        "site",
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda: AuditEvent.objects.update(reason="nothing to see here"),
        lambda: AuditEvent.objects.all().delete(),
        lambda: AuditEvent.objects.all()._raw_delete("default"),
        lambda: _run("TRUNCATE accounts_auditevent"),
        lambda: AuditChain.objects.update(length=0),
        lambda: AuditChain.objects.update(head="f" * 64),
        lambda: AuditChain.objects.all()._raw_delete("default"),
    ],
    ids=["update", "delete", "raw delete", "truncate", "shorten chain", "change head", "delete chain"],
)
def test_the_database_refuses_to_alter_the_trail(change) -> None:
    audit.record(by=UserFactory(), action="test.done", thing=ProjectFactory(), reason="as it was")

    with pytest.raises(DatabaseError), transaction.atomic():
        change()

    assert AuditEvent.objects.get().reason == "as it was"
    assert audit_check.verify().ok


def test_only_what_differs_is_kept() -> None:
    assert audit.changed({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None}) == ({"b": 2}, {"b": 3})
    assert audit.changed({"a": 1}, {"a": 1, "c": 4}) == ({"c": None}, {"c": 4})


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.decimals()
    | st.datetimes() | st.uuids() | st.sampled_from(AuditOutcome),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(before=st.dictionaries(st.text(max_size=8), anything, max_size=3), reason=st.text(max_size=40))
@pytest.mark.django_db(transaction=False)
def test_whatever_is_written_reads_back_with_the_same_hash(before: dict, reason: str) -> None:
    with transaction.atomic():
        event = audit.record(
            by=None, action="test.anything", thing=audit.Thing("x"), before=before, reason=reason
        )

        assert audit.row_hash(AuditEvent.objects.get(pk=event.pk), audit.signing_keys()[0]) == event.hash
        transaction.set_rollback(True)


def test_values_are_kept_as_people_would_write_them() -> None:
    project = ProjectFactory(name="Vision")
    moment = timezone.now()

    assert audit.plain(
        {
            "project": project,
            "at": moment,
            "price": Decimal("1.50"),
            "ids": {3, 1},
            "uuid": UUID(int=1),
            "huge": 1e300,
            "after": timedelta(seconds=5),
            "nul": "a\x00b",
        }
    ) == {
        "project": {"id": project.pk, "name": "Vision"},
        "at": moment.isoformat(),
        "price": "1.50",
        "ids": [1, 3],
        "uuid": "00000000-0000-0000-0000-000000000001",
        "huge": "1e+300",
        "after": "0:00:05",
        "nul": "a\N{SYMBOL FOR NULL}b",
    }


@pytest.mark.django_db(transaction=True)
def test_many_writers_of_one_chain_leave_no_gap() -> None:
    alice, project = UserFactory(), ProjectFactory()

    def write() -> None:
        for _ in range(5):
            with transaction.atomic():
                audit.record(by=alice, action="test.race", thing=project)

    at_once(*[write] * 8)

    numbers = list(AuditEvent.objects.order_by("number").values_list("number", flat=True))
    assert numbers == list(range(1, 41))
    result = audit_check.verify()
    assert (result.ok, result.rows) == (True, 40)


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
