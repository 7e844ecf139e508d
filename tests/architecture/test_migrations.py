"""Migrations only add while the release before still runs; what takes away waits for the next release (T31)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.state import ProjectState

from config.database.rights import RETIRED
from tests.architecture import migration_rules
from tests.architecture.migration_rules import Found, faults, found_since, releases


def test_no_migration_since_the_last_release_takes_away_what_that_release_uses() -> None:
    known = releases()

    found = [one for one in found_since(known.last) if one.key not in known.allowed]

    assert not found, "\n".join(
        f'{one.key}: {one.why}. Do it one release later, or list it in {migration_rules.LIST.name}: "{one.key}" = "why"'
        for one in found
    )


def test_no_entry_of_the_list_is_left_over() -> None:
    known = releases()

    assert known.allowed.keys() <= {one.key for one in found_since(known.last)}


def test_the_rules_are_not_blind_to_migrations_of_the_past() -> None:
    """Before the first release nobody ran an older one, and migrations took things away."""
    kinds = {one.operation.split()[0] for one in found_since({})}

    assert kinds >= {"RemoveField", "AddField", "RunSQL"}


def test_every_release_names_all_apps_and_an_entry_needs_a_reason(tmp_path: Path) -> None:
    assert set(releases().last) == set(migration_rules.APPS)
    file = tmp_path / "releases.toml"
    file.write_text('[last]\n[allowed]\n"scheduler.0099_x RemoveField job.name" = " "\n')

    with pytest.raises(ValueError, match="no reason"):
        releases(file)


def table(**fields: Any) -> ProjectState:
    state = ProjectState()
    create = migrations.CreateModel("Thing", [("id", models.BigAutoField(primary_key=True)), *fields.items()])
    create.state_forwards("scheduler", state)
    return state


def faults_of(*operations: Any, **fields: Any) -> list[str]:
    migration = migrations.Migration("0099_x", "scheduler")
    migration.operations = list(operations)
    return [one.operation for one in faults(migration, table(**fields))]


TEXT = models.CharField(max_length=20)


@pytest.mark.parametrize(
    "operation",
    [
        migrations.RemoveField("thing", "name"),
        migrations.RenameField("thing", "name", "title"),
        migrations.DeleteModel("Thing"),
        migrations.RenameModel("Thing", "Object"),
        migrations.AddField("thing", "more", models.IntegerField(default=0)),
        migrations.AlterField("thing", "name", models.CharField(max_length=10)),
        migrations.AlterField("thing", "name", models.IntegerField()),
        migrations.AlterField("thing", "maybe", models.IntegerField(default=0)),
        migrations.AlterField("thing", "maybe", models.IntegerField(db_default=0)),
        migrations.RunSQL("ALTER TABLE scheduler_thing drop  column name"),
        migrations.RunSQL(["ALTER TABLE scheduler_thing ALTER name SET NOT NULL"]),
        migrations.SeparateDatabaseAndState(database_operations=[migrations.DeleteModel("Thing")]),
    ],
    ids=lambda one: f"{type(one).__name__} {one.describe()[:40]}",
)
def test_what_takes_away_is_found(operation: Any) -> None:
    assert len(faults_of(operation, name=TEXT, maybe=models.IntegerField(null=True))) == 1


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("thing", "more", models.IntegerField(null=True)),
        migrations.AddField("thing", "more", models.IntegerField(db_default=0)),
        migrations.AddField("thing", "many", models.ManyToManyField("scheduler.Thing")),
        migrations.AlterField("thing", "name", models.CharField(max_length=40)),
        migrations.AlterField("thing", "name", models.CharField(max_length=20, null=True)),
        migrations.RunSQL("CREATE TABLE more (id int)"),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("Thing")]),
        migrations.CreateModel("Other", [("id", models.BigAutoField(primary_key=True)), ("name", TEXT)]),
    ],
    ids=lambda one: f"{type(one).__name__} {one.describe()[:40]}",
)
def test_what_only_adds_is_not(operation: Any) -> None:
    assert faults_of(operation, name=TEXT, maybe=models.IntegerField(null=True)) == []


def test_what_is_added_to_a_table_of_the_same_migration_is_no_fault() -> None:
    create = migrations.CreateModel("Other", [("id", models.BigAutoField(primary_key=True))])
    needed = models.IntegerField()

    assert faults_of(create, migrations.AddField("other", "more", needed)) == []
    assert faults_of(create, migrations.AddField("thing", "more", needed)) == ["AddField thing.more"]


def test_a_fault_is_named_as_the_list_names_it() -> None:
    assert (
        Found("scheduler.0060_x", "RemoveField job.name", "why").key
        == "scheduler.0060_x RemoveField job.name"
    )


@pytest.mark.django_db
def test_a_table_that_no_code_uses_any_more_is_still_there_for_the_release_before() -> None:
    from django.db import connection

    assert set(connection.introspection.table_names()) >= RETIRED.keys()
