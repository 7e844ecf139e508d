"""Runs all migrations on an empty database and writes what they made into config/database/schema.sql."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from config.database import schema
from config.database.owner import as_owner
from config.up.servers.postgres import binaries
from config.up.state import StateFolder


class Command(BaseCommand):
    help = "Writes config/database/schema.sql: the tables as the migrations make them in an empty database."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        with as_owner():
            if connection.introspection.table_names():
                raise CommandError(
                    f"The database {connection.settings_dict['NAME']} has tables. `make schema` uses an empty one."
                )
            call_command("migrate", each=True, verbosity=0)
            schema.FILE.write_text(schema.written(dump(connection.settings_dict), connection))
        self.stdout.write(f"Wrote {schema.FILE}.")


def dump(database: Mapping[str, Any]) -> str:
    """What pg_dump says of the tables, functions and triggers of a database, without their owners and rights."""
    command = [
        str(binaries(StateFolder.find()) / "pg_dump"),
        "--schema-only",
        "--no-owner",
        "--no-privileges",
    ]
    where = {
        "PGHOST": "HOST",
        "PGPORT": "PORT",
        "PGUSER": "USER",
        "PGPASSWORD": "PASSWORD",
        "PGDATABASE": "NAME",
    }
    environment = {**os.environ, **{name: str(database[key]) for name, key in where.items()}}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"pg_dump ends with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
