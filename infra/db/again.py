"""Operations of migrations that are not one transaction, and so may be run again where they were interrupted."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations


class AddIndexAnew(AddIndexConcurrently):
    """Builds an index concurrently. One of its name, whole or as an interrupted build left it, goes first."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop what is there, and build."""
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexIfThere(RemoveIndexConcurrently):
    """Drops an index concurrently, and is content where an interrupted run has dropped it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop it, if it is there."""
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.name}")


class RemoveConstraintIfThere(migrations.RemoveConstraint):
    """Drops a constraint, and is content where an interrupted run has dropped it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop it, if it is there."""
        table = schema_editor.quote_name(to_state.apps.get_model(app_label, self.model_name)._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {self.name}")
