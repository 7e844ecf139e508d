"""What `manage.py up` needs from the database before it serves, in one process to start sooner."""

from __future__ import annotations

import io
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from config.database.owner import as_owner, give_rights
from config.up.state import write_private


class Command(BaseCommand):
    help = "Migrates, makes the rows that must exist, loads demo data, and keeps a join token for agents."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo", action="store_true", help="load demo data where it is missing")
        parser.add_argument("--join-token-file", type=Path, help="keep a valid join token in this file")

    def handle(self, *args: Any, **options: Any) -> None:
        self._migrate()
        call_command("setup", stdout=io.StringIO())
        self._recount()
        # Once: what somebody deleted from the demo must not come back at the next start.
        if options["demo"] and not get_user_model().objects.filter(is_demo=True).exists():
            said = io.StringIO()
            call_command("seed_demo", stdout=said)
            self.stdout.write(said.getvalue().strip())
        if file := options["join_token_file"]:
            self._join_token(file)

    def _migrate(self) -> None:
        with as_owner():  # for all of it: data of an earlier version gives the application no right yet
            executor = MigrationExecutor(connection)
            plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
            if not plan:
                give_rights()
                return
            self.stdout.write(f"applying {len(plan)} migrations")
            self.stdout.flush()
            call_command("migrate", interactive=False, verbosity=0)

    def _recount(self) -> None:
        """A new half-life, or use from before it was kept, counts from the start on and not an hour later."""
        from quotas.services.shares import recount_shares

        if wrong := recount_shares():
            self.stdout.write(f"fair share: {wrong} slices of usage corrected")

    def _join_token(self, file: Path) -> None:
        """Keep the token of the last start while it still opens this database; else have a new one made."""
        from scheduler.models import JoinToken

        if file.exists():
            prefix = file.read_text().strip().removeprefix("muster_join_").split("_")[0]
            if JoinToken.objects.filter(
                prefix=prefix, revoked_at=None, expires_at__gt=timezone.now() + timedelta(days=1)
            ).exists():
                return
        said = io.StringIO()
        call_command("join_token", stdout=said)
        write_private(file, said.getvalue().strip().splitlines()[-1] + "\n")
