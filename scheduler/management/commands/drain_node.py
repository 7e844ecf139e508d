"""`manage.py drain_node`: let nodes run empty, with a deadline if there is one, from the command line."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from infra import request_context
from infra.errors import MusterError
from infra.times_in_text import written
from scheduler.models import Node, Task
from scheduler.services.cluster.nodes import uncordon_node
from scheduler.services.moves.drain_plan import DrainPlan
from scheduler.services.moves.drains import drain, read_drain


class Command(BaseCommand):
    help = (
        "Drains nodes: no new jobs; running jobs continue to their end, or with --deadline leave until then. "
        "--undo makes the nodes schedulable again."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", nargs="*", help="names of nodes")
        parser.add_argument("--rack", default="", help="the nodes of this rack")
        parser.add_argument("--zone", default="", help="the nodes of this zone")
        parser.add_argument(
            "--label", action="append", default=[], metavar="KEY=VALUE", help="nodes with this label"
        )
        parser.add_argument(
            "--cluster", default="", help="nodes of this cluster, where several have such nodes"
        )
        parser.add_argument("--reason", default="", help="reason; shown to everybody who waits for the nodes")
        parser.add_argument(
            "--deadline", default="",
            help="2h, or a date and time: until then jobs with checkpoints are moved, what runs then is requeued",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what it would mean for each job"
        )
        parser.add_argument(
            "--by", default="", help="the operator who does it (default: the first administrator)"
        )
        parser.add_argument("--undo", action="store_true", help="make the nodes schedulable again")
        parser.add_argument("--wait", action="store_true", help="return when the nodes are empty")

    def handle(self, *args: Any, **options: Any) -> None:
        by = operator_of(options["by"])
        try:
            with request_context.acting(address="local"):
                asked = read_drain(_payload(options))
                if options["undo"]:
                    for node in asked.nodes:
                        uncordon_node(node=node, by=by, reason=options["reason"])
                        self.stdout.write(f"{node.name} accepts jobs again.")
                    return
                plan = drain(asked, by=by)
        except MusterError as error:
            raise CommandError(str(error)) from error
        if options["dry_run"] or plan.deadline is not None:
            self._print(plan)
        if options["dry_run"]:
            return
        left = _left(asked.nodes)
        names = ", ".join(node.name for node in asked.nodes)
        accept = "accepts" if len(asked.nodes) == 1 else "accept"
        self.stdout.write(f"{names} {accept} no new jobs; {left} tasks still run there.")
        while options["wait"] and left:
            time.sleep(1.0)
            left = _left(asked.nodes)
        if options["wait"]:
            self.stdout.write(f"{names} {'is' if len(asked.nodes) == 1 else 'are'} empty.")

    def _print(self, plan: DrainPlan) -> None:
        if plan.deadline is not None:
            self.stdout.write(f"Deadline {written(plan.deadline)}")
        for one in plan.jobs:
            where = f" to {', '.join(one.nodes)}" if one.nodes else f" ({one.why})" if one.why else ""
            lost = f"; {one.cost.lost_seconds:,} s of work is repeated" if one.cost.lost_seconds else ""
            self.stdout.write(f"Job {one.job.number} of {one.job.user.username} {one.words}{where}{lost}.")


def _payload(options: dict[str, Any]) -> dict[str, Any]:
    labels = {}
    for text in options["label"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--label {text} has to be KEY=VALUE.")
        labels[key] = value
    return {
        "nodes": options["node"], "labels": labels, "rack": options["rack"], "zone": options["zone"],
        "cluster": options["cluster"], "deadline": options["deadline"], "reason": options["reason"],
        "dry_run": options["dry_run"],
    }  # fmt: skip


def operator_of(name: str) -> User:
    """Who does it: the named account, or the first administrator. Raises CommandError."""
    if name:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"There is no user {name!r}.")
        return user
    user = next((user for user in User.objects.order_by("id") if user.is_site_admin), None)
    if user is None:
        raise CommandError("There is no administrator yet; name an operator with --by.")
    return user


def _left(nodes: Sequence[Node]) -> int:
    return Task.objects.filter(node__in=nodes, is_live=True, released_at=None).count()
