"""The application's role: what it has is what is listed, what is listed is needed, and nothing more."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, models, transaction
from django_celery_beat.models import PeriodicTask

from accounts.models import Membership, Secret, SignInCount
from config.database import rights as database_rights
from config.database.rights import ADD, READ, RETIRED, TABLES
from config.up.servers import roles
from notifications.models import Endpoint
from quotas.models import BudgetPeriod, ProviderState, Quota
from scheduler.models import (
    FolderUpload,
    Job,
    Partition,
    PriorityClass,
    Queue,
    SchedulerProfile,
    ShadowRun,
    UnknownTask,
)
from tests.support.roles import as_owner

ROOT = Path(__file__).resolve().parents[3]
#: What product code deletes object by object: Django then deletes, or unties, what hangs on it.
DELETED = (
    *(Membership, Secret, Session, SignInCount, PeriodicTask),
    *(BudgetPeriod, ProviderState, Quota),
    *(FolderUpload, Job, Partition, PriorityClass, Queue, SchedulerProfile, ShadowRun, UnknownTask),
    Endpoint,
)


#: pghistory's view of all histories at once, which no table stands behind.
A_QUERY = "pghistory_events"


@cache
def models_by_table() -> dict[str, type[models.Model]]:
    found = apps.get_models(include_auto_created=True)
    return {model._meta.db_table: model for model in found if model._meta.db_table != A_QUERY}


def test_every_table_is_listed_once_and_no_other() -> None:
    """A new model fails here until somebody has said what the application does with its rows."""
    views = {"scheduler_reservation_held"}
    assert all(TABLES[view] == READ for view in views)
    assert set(TABLES) == {*models_by_table(), *RETIRED, *views, "django_migrations"}
    assert not RETIRED.keys() & models_by_table().keys()


def test_what_is_a_record_is_only_added_to() -> None:
    histories = {name for name, model in models_by_table().items() if hasattr(model, "pgh_label")}

    assert len(histories) > 10
    for table in histories | {"accounts_auditevent", "accounts_auditcheckpoint", "quotas_ledgerentry"}:
        assert TABLES[table] == ADD, table


def test_what_hangs_on_a_row_that_goes_can_go_or_be_untied() -> None:
    seen: set[type[models.Model]] = set()
    todo: list[type[models.Model]] = list(DELETED)
    while todo:
        model = todo.pop()
        if model in seen:
            continue
        seen.add(model)
        assert "DELETE" in TABLES[model._meta.db_table], model
        for relation in model._meta.related_objects:
            if relation.on_delete is models.CASCADE:
                todo.append(relation.related_model)
            elif relation.on_delete is models.SET_NULL:
                assert "UPDATE" in TABLES[relation.related_model._meta.db_table], relation
        todo += [field.remote_field.through for field in model._meta.many_to_many]
        todo += model._meta.parents
    assert len(seen) > len(DELETED)


def test_no_table_can_be_deleted_from_that_no_code_deletes_from() -> None:
    """Deleted object by object, with what hangs on it; by a statement; or as the other side of a set of ties."""
    source = "\n".join(
        file.read_text()
        for app in ("infra", "accounts", "quotas", "scheduler", "notifications")
        for file in (ROOT / app).rglob("*.py")
        if "migrations" not in file.parts
    )
    by_statement = set(re.findall(r"DELETE FROM (\w+)|delete_from\(\"(\w+)\"", source))
    found = {name for pair in by_statement for name in pair if name} | {"accounts_auditcheck"}
    found.add("scheduler_unfinishedjob")  # triggers on jobs do
    todo = list(DELETED)
    while todo:
        model = todo.pop()
        if model._meta.db_table not in found:
            found.add(model._meta.db_table)
        todo += [
            relation.related_model
            for relation in model._meta.related_objects
            if relation.on_delete is models.CASCADE and relation.related_model._meta.db_table not in found
        ]
        todo += [parent for parent in model._meta.parents if parent._meta.db_table not in found]
    found |= {name for name, model in models_by_table().items() if model._meta.auto_created}

    granted = {table for table, rights in TABLES.items() if "DELETE" in rights}

    assert granted - found == set()


@pytest.mark.django_db
def test_tests_run_with_the_rights_of_the_application() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
        assert cursor.fetchone() == (roles.APPLICATION, False)


@pytest.mark.django_db
def test_the_database_has_given_what_is_listed_and_nothing_else() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, array_agg(privilege_type::text) FROM pg_class, aclexplode(relacl)"
            " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'm', 'p')"
            " AND grantee IN (%s::regrole, 0) GROUP BY relname",
            [roles.APPLICATION],
        )
        assert {name: frozenset(given) for name, given in cursor.fetchall()} == TABLES
        cursor.execute(
            "SELECT count(*) FILTER (WHERE pg_get_userbyid(relowner) <> %s), count(*) FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S', 'i')",
            [roles.OWNER],
        )
        others, everything = cursor.fetchone()
    assert (others, everything > 200) == (0, True)


@pytest.mark.django_db
def test_giving_the_rights_again_changes_nothing() -> None:
    def given() -> list[tuple[str, str]]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname, privilege_type FROM pg_class, aclexplode(relacl) WHERE grantee = %s::regrole"
                " ORDER BY 1, 2",
                [roles.APPLICATION],
            )
            return cursor.fetchall()

    before = given()
    with as_owner(), transaction.atomic():
        database_rights.apply(connection, roles.APPLICATION)

    assert given() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    [
        "SET session_replication_role = replica",
        "SET LOCAL session_replication_role = replica",
        "ALTER TABLE accounts_auditevent DISABLE TRIGGER ALL",
        "DROP TRIGGER pgtrigger_audit_rows_never_change_f62a4 ON accounts_auditevent",
        "DROP TABLE scheduler_job CASCADE",
        "TRUNCATE scheduler_job CASCADE",
        "CREATE TABLE mine (id int)",
        "CREATE TEMPORARY TABLE accounts_auditcheckpoint (id int)",
        "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA mine",
        "CREATE EXTENSION file_fdw",
        "CREATE ROLE mine",
        f"GRANT {roles.OWNER} TO {roles.APPLICATION}",
        f"ALTER ROLE {roles.APPLICATION} SUPERUSER",
        "INSERT INTO django_migrations (app, name, applied) VALUES ('x', 'y', now())",
        "COPY accounts_user TO PROGRAM 'cat'",
        "SELECT pg_read_file('PG_VERSION')",
        "CREATE OR REPLACE FUNCTION muster_audit_kept() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$",
    ],
)
def test_the_application_cannot(statement: str) -> None:
    with pytest.raises(DatabaseError, match=r"denied|must be owner|permission|[Oo]nly roles"):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


@pytest.mark.django_db
def test_migrations_without_the_owner_are_refused_with_the_way_out() -> None:
    with pytest.raises(CommandError, match="MUSTER_OWNER_DATABASE_URL"):
        call_command("migrate", "quotas", "0009", verbosity=0)
