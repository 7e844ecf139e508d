"""`manage.py join_token`: a token that lets machines join a cluster."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler.models import Cluster
from scheduler.services.cluster.nodes import issue_join_token


class Command(BaseCommand):
    help = "Creates a join token for node agents and prints it alone on the last line; the token is not shown again."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--cluster", default="", help="name of the cluster (default: the first)")
        parser.add_argument("--days", type=int, default=365, help="validity in days (default: 365)")

    def handle(self, *args: Any, **options: Any) -> None:
        clusters = Cluster.objects.order_by("id")
        if options["cluster"]:
            clusters = clusters.filter(slug=options["cluster"])
        cluster = clusters.first()
        if cluster is None:
            known = ", ".join(Cluster.objects.values_list("slug", flat=True)) or "none; run `manage.py setup`"
            raise CommandError(f"There is no cluster {options['cluster']!r}. There is: {known}.")
        if not 1 <= options["days"] <= 3650:
            raise CommandError("--days has to be from 1 to 3650.")
        token, plain = issue_join_token(cluster=cluster, by=None, days=options["days"])
        self.stdout.write(f"Join token for cluster {cluster.slug} until {token.expires_at:%Y-%m-%d}:")
        self.stdout.write(plain)
