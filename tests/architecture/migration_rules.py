"""Which operations of a migration the release before does not survive, while both run on one database.

An upgrade rolls: `migrate` first, with the old processes at work, then these are replaced. So a migration may only
add (expand); what no code uses any more goes one release later (contract). docs/guides/upgrade.md has the order.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

LIST: Final = Path(__file__).with_name("releases.toml")
APPS: Final = ("infra", "accounts", "quotas", "scheduler", "notifications")
_SQL: Final = re.compile(
    r"\bDROP\s+(?:TABLE|COLUMN|SCHEMA|TYPE)\b|\bRENAME\s+(?:COLUMN|TO)\b|\bSET\s+NOT\s+NULL\b|\bTRUNCATE\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Found:
    """One operation that the release before does not survive."""

    migration: str
    operation: str
    why: str

    @property
    def key(self) -> str:
        """As the list names it: `scheduler.0060_x RemoveField job.name`."""
        return f"{self.migration} {self.operation}"


def faults(migration: migrations.Migration, before: ProjectState) -> Iterator[Found]:
    """What of it breaks code that knows the tables as they were before; it knows none that the migration makes."""
    state, made = before.clone(), set[str]()
    name = f"{migration.app_label}.{migration.name}"
    for operation in migration.operations:
        if isinstance(operation, migrations.CreateModel):
            made.add(operation.name_lower)
        if getattr(operation, "model_name", "").lower() in made:
            operation.state_forwards(migration.app_label, state)
            continue
        for said, why in _faults(operation, migration.app_label, state):
            yield Found(name, said, why)
        operation.state_forwards(migration.app_label, state)


def _faults(operation: Operation, app: str, state: ProjectState) -> Iterator[tuple[str, str]]:
    kind = type(operation).__name__
    if isinstance(operation, migrations.SeparateDatabaseAndState):
        for inner in operation.database_operations:
            yield from _faults(inner, app, state)
    elif isinstance(operation, migrations.RunSQL):
        for match in _SQL.finditer(_text(operation.sql)):
            yield f"RunSQL {' '.join(match[0].upper().split())}", "takes away what the release before uses"
    elif isinstance(operation, (migrations.DeleteModel, migrations.AlterModelTable)):
        yield f"{kind} {operation.name.lower()}", "takes away a table that the release before uses"
    elif isinstance(operation, migrations.RenameModel):
        yield f"{kind} {operation.old_name.lower()}", "renames a table that the release before uses"
    elif isinstance(operation, migrations.RenameField):
        yield (
            f"{kind} {operation.model_name}.{operation.old_name}",
            "renames a column that the release before uses",
        )
    elif isinstance(operation, migrations.RemoveField):
        yield (
            f"{kind} {operation.model_name}.{operation.name}",
            "takes away a column that the release before uses",
        )
    elif isinstance(operation, migrations.AddField) and _is_required(operation.field):
        yield (
            f"{kind} {operation.model_name}.{operation.name}",
            "the release before inserts rows without it: give it a db_default, or null",
        )
    elif isinstance(operation, migrations.AlterField):
        yield from _altered(operation, app, state)


def _altered(operation: migrations.AlterField, app: str, state: ProjectState) -> Iterator[tuple[str, str]]:
    said = f"AlterField {operation.model_name}.{operation.name}"
    old = state.models[app, operation.model_name_lower].fields[operation.name]
    new = operation.field
    if old.null and not new.null:
        yield said, "the release before writes null into it"
    if old.get_internal_type() != new.get_internal_type():
        yield said, "changes the type of a column that the release before uses"
    elif old.max_length and new.max_length and new.max_length < old.max_length:
        yield said, "the release before writes longer values into it"


def _is_required(field: models.Field[Any, Any]) -> bool:
    has_column = not field.many_to_many
    return has_column and not field.null and field.db_default is models.NOT_PROVIDED


def _text(sql: Any) -> str:
    if isinstance(sql, str):
        return sql
    return " ".join(part if isinstance(part, str) else str(part[0]) for part in sql)


@dataclass(frozen=True, slots=True)
class Releases:
    """The last migration of each app in the release before, and operations that may be there all the same, and why."""

    last: dict[str, str]
    allowed: dict[str, str]


def releases(path: Path = LIST) -> Releases:
    """The list; raises ValueError for an entry without a reason."""
    read = tomllib.loads(path.read_text())
    for key, why in read["allowed"].items():
        if not str(why).strip():
            raise ValueError(f"{key} has no reason")
    return Releases(read["last"], read["allowed"])


def found_since(last: dict[str, str]) -> list[Found]:
    """All faults in migrations after these, whatever the order in which apps are migrated."""
    loader = MigrationLoader(None)
    known = {app: _upto(loader, app, name) for app, name in last.items()}
    return [
        fault
        for (app, name), migration in sorted(loader.disk_migrations.items())
        if app in APPS and name not in known.get(app, frozenset())
        for fault in faults(migration, loader.project_state((app, name), at_end=False))
    ]


def _upto(loader: MigrationLoader, app: str, name: str) -> frozenset[str]:
    """The names of this migration and of those of its app before it."""
    if not name:
        return frozenset()
    return frozenset(one for label, one in loader.graph.forwards_plan((app, name)) if label == app)
