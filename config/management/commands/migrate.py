"""Django's migrate, as the owner of the tables; then the application's role gets its rights.

An empty database gets its tables from one file, see `config.database.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import ProgrammingError, connection
from psycopg.errors import InsufficientPrivilege

from config.database import schema
from config.database.owner import as_owner, give_rights

#: With one of these options somebody asks for certain migrations, or for a look at them.
_CERTAIN = ("app_label", "migration_name", "fake", "fake_initial", "plan", "check_unapplied", "prune", "each")


class Command(migrate.Command):
    help = (
        f"{migrate.Command.help} Runs as MUSTER_OWNER_DATABASE_URL, and gives DATABASE_URL's role its rights."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--each",
            action="store_true",
            help="run each migration where the database is empty too, instead of loading config/database/schema.sql",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with as_owner():
                self._load(options)
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

    def _load(self, options: Mapping[str, Any]) -> None:
        if options["database"] != connection.alias or any(options.get(name) for name in _CERTAIN):
            return
        if (loaded := schema.load_into_empty(connection)) and options["verbosity"]:
            self.stdout.write(f"Loaded config/database/schema.sql in place of {loaded} migrations.")
