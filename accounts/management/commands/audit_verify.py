"""Verifies the audit trail; the exit code is the contract."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.services import audit_check


class Command(BaseCommand):
    help = (
        "Verifies every audit chain and compares it with the last checkpoint outside the database. Exits 0 when all "
        "rows are as written, else 1 and names the first bad one. The audit page and /audit/check show the result."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--checkpoint", type=Path, help="also compare with a checkpoint kept from earlier"
        )
        parser.add_argument(
            "--write-checkpoint",
            type=Path,
            metavar="FILE",
            help="write a signed checkpoint; store the file elsewhere",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        checkpoint = None
        if options["checkpoint"]:
            try:
                checkpoint = options["checkpoint"].read_text()
            except OSError as error:
                raise CommandError(f"The checkpoint cannot be read: {error}") from error
        try:
            _, result = audit_check.verify_and_keep(checkpoint=checkpoint)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"{options['checkpoint']} is not a checkpoint: {error}") from error
        if result.bad is not None:
            self.stderr.write(f"The audit trail is broken{result.bad.at}: {result.bad.problem}")
            sys.exit(1)
        self.stdout.write(f"The audit trail is intact: {result.rows} rows in {result.chains} chains.")
        if options["write_checkpoint"]:
            options["write_checkpoint"].write_text(audit_check.make_checkpoint(result) + "\n")
            self.stdout.write(f"Wrote a checkpoint to {options['write_checkpoint']}.")
