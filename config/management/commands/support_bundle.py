"""`manage.py support_bundle`: writes the archive that somebody who helps needs to see."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.system.bundle import make_bundle


class Command(BaseCommand):
    help = "Writes versions, settings, health, alarms, planning, nodes and tails of logs into one archive, no secret."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--folder", type=Path, default=Path(), help="where to write it; default: the current folder"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name, body = make_bundle(by=None)
        file: Path = options["folder"] / name
        try:
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise CommandError(
                f"{file} cannot be written: {error.strerror}. Name another --folder."
            ) from None
        with os.fdopen(fd, "wb") as stream:
            stream.write(body)
        self.stdout.write(
            f"{file}: {len(body):,} bytes. Read it before you send it: it has names of nodes and people."
        )
