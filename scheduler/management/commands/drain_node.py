"""`manage.py drain_node`: let a node run empty, from the command line."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from infra import request_context
from infra.errors import MusterError
from scheduler.models import Node, Task
from scheduler.services.cluster.nodes import drain_node, uncordon_node


class Command(BaseCommand):
    help = (
        "Drains a node: no new jobs, running jobs continue to their end; --undo makes it schedulable again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="name of the node")
        parser.add_argument("--reason", default="", help="reason; shown to everybody who waits for the node")
        parser.add_argument(
            "--by", default="", help="the operator who does it (default: the first administrator)"
        )
        parser.add_argument("--undo", action="store_true", help="make the node schedulable again")
        parser.add_argument("--wait", action="store_true", help="return when the node is empty")

    def handle(self, *args: Any, **options: Any) -> None:
        node = self._node(options["node"])
        by = self._operator(options["by"])
        try:
            with request_context.acting(address="local"):
                if options["undo"]:
                    uncordon_node(node=node, by=by, reason=options["reason"])
                else:
                    drain_node(node=node, by=by, reason=options["reason"])
        except MusterError as error:
            raise CommandError(str(error)) from error
        if options["undo"]:
            self.stdout.write(f"{node.name} accepts jobs again.")
            return
        left = self._left(node)
        self.stdout.write(f"{node.name} accepts no new jobs; {left} tasks still run there.")
        while options["wait"] and left:
            time.sleep(1.0)
            left = self._left(node)
        if options["wait"]:
            self.stdout.write(f"{node.name} is empty.")

    def _node(self, name: str) -> Node:
        nodes = list(Node.objects.filter(name=name))
        if not nodes:
            known = ", ".join(Node.objects.order_by("name").values_list("name", flat=True)[:20]) or "none"
            raise CommandError(f"There is no node {name!r}. There is: {known}.")
        if len(nodes) > 1:
            raise CommandError(f"Several clusters have a node {name!r}; drain it in the admin.")
        return nodes[0]

    def _operator(self, name: str) -> User:
        if name:
            user = User.objects.filter(username=name).first()
            if user is None:
                raise CommandError(f"There is no user {name!r}.")
            return user
        user = next((user for user in User.objects.order_by("id") if user.is_site_admin), None)
        if user is None:
            raise CommandError("There is no administrator yet; name an operator with --by.")
        return user

    def _left(self, node: Node) -> int:
        return Task.objects.filter(node=node, is_live=True, released_at=None).count()
