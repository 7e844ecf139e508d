"""Make the rows Muster cannot do without; safe to run at every start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from scheduler.services.cluster.defaults import ensure_defaults


class Command(BaseCommand):
    help = (
        "Creates the priority classes, the default profile and a first cluster with a queue, where missing."
    )
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = ensure_defaults()
        self.stdout.write(f"Ready: cluster {cluster.name}.")
