"""Lists `up` among the commands; manage.py hands it over before Django is loaded."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from config.up import options
from config.up.main import run


class Command(BaseCommand):
    help = options.DESCRIPTION
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        options.add_to(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        raise SystemExit(run(options.from_mapping(given)))
