"""Statements that the server plans once: what they answer, what they belong to, and that they are counted."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from accounts.models import Organization
from infra.db.prepared import ask, ask_together, keep_plans

pytestmark = pytest.mark.django_db

INSERT = "INSERT INTO accounts_organization (name, slug, created_at, share_weight) VALUES (%s, %s, now(), 1)"


def prepared_statements() -> int:
    return int(ask("SELECT count(*) FROM pg_prepared_statements")[0][0])


def test_a_statement_is_planned_once_for_its_values() -> None:
    assert ask("SELECT 1 + %s::int", [1]) == [(2,)]
    before = prepared_statements()

    assert [ask("SELECT 1 + %s::int", [n]) for n in (2, 3)] == [[(3,)], [(4,)]]

    assert prepared_statements() == before


@override_settings(MUSTER_DB_PREPARED=False)
def test_a_pooler_that_does_not_know_of_them_is_not_given_any() -> None:
    before = prepared_statements()

    assert ask_together(("SELECT 2", []), ("SELECT %s::text", ["a"])) == [[(2,)], [("a",)]]

    assert prepared_statements() == before


def test_several_go_in_one_round_trip_and_are_counted_as_one() -> None:
    with CaptureQueriesContext(connection) as captured:
        found = ask_together(("SELECT 1", []), ("UPDATE accounts_user SET email = email WHERE false", []))

    assert found == [[(1,)], []]
    assert len(captured) == 1
    assert "UPDATE accounts_user" in captured[0]["sql"]


@pytest.mark.django_db(transaction=True)
def test_they_belong_to_the_transaction_that_they_begin() -> None:
    def fail() -> Any:
        with transaction.atomic():
            ask_together((INSERT, ["One", "one"]), ("SELECT 1", []))
            raise KeyError("after it was written")

    with pytest.raises(KeyError):
        fail()
    assert not Organization.objects.filter(slug="one").exists()

    with transaction.atomic():
        ask(INSERT, ["Two", "two"])
    with pytest.raises(IntegrityError), transaction.atomic():
        ask_together((INSERT, ["Three", "three"]), (INSERT, ["Two", "two"]))
    assert list(Organization.objects.values_list("slug", flat=True)) == ["two"]


CACHED = (
    "SELECT custom_plans, generic_plans FROM pg_prepared_statements"
    " WHERE statement LIKE '%%= ANY(%%bigint%%' AND statement NOT LIKE '%%custom_plans%%'"
)


@pytest.mark.django_db(transaction=True)
def test_a_thread_that_asks_for_it_has_plans_made_for_any_values() -> None:
    """PostgreSQL by itself would plan a statement with an array anew each time."""
    connection.close()
    try:
        for _ in range(2):
            keep_plans()
        for number in range(3):
            ask("SELECT id FROM accounts_user WHERE id = ANY(%s::bigint[])", [[number]])
        assert ask(CACHED) == [(0, 3)]
    finally:
        connection.close()


def test_no_plan_outlives_what_it_was_made_for_by_long() -> None:
    """A plan from when a table was small reads the whole of it where 100,000 rows have come since."""
    ask("SET LOCAL plan_cache_mode = force_generic_plan")
    ask("PREPARE look AS SELECT name FROM accounts_organization WHERE id = $1")

    def reads(*, whole: bool) -> bool:
        """Whether the table is read whole, where a new plan would do so, or would not."""
        for switch in ("indexscan", "bitmapscan"):
            ask(f"SET LOCAL enable_{switch} = {'off' if whole else 'on'}")
        ask(f"SET LOCAL enable_seqscan = {'on' if whole else 'off'}")
        return str(ask("EXPLAIN EXECUTE look(1)")[0][0]).startswith("Seq Scan")

    try:
        first, kept = reads(whole=True), reads(whole=False)
        connection.connection.plans_until = 0.0
        assert (first, kept, reads(whole=False)) == (True, True, False)
    finally:
        ask("DEALLOCATE look")
