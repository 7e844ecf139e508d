"""Django's migrate, as the owner of the tables; then the application's role gets its rights."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import ProgrammingError, connection
from psycopg.errors import InsufficientPrivilege

from config.database.owner import as_owner, give_rights


class Command(migrate.Command):
    help = (
        f"{migrate.Command.help} Runs as MUSTER_OWNER_DATABASE_URL, and gives DATABASE_URL's role its rights."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with as_owner():
                super().handle(*args, **options)
                give_rights()
        except ProgrammingError as error:
            if not isinstance(error.__cause__, InsufficientPrivilege):
                raise
            role = connection.settings_dict["USER"]
            raise CommandError(
                f"PostgreSQL refuses a change of tables to the role {role}: {error}. Name the role that owns them in "
                "MUSTER_OWNER_DATABASE_URL, for this command alone."
            ) from error
