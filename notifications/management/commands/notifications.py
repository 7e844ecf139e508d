"""Prints somebody's notifications, or marks them as read."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from infra import request_context
from infra.times_in_text import written
from notifications.selectors import own_notifications
from notifications.services.links import title_of
from notifications.services.preferences import mark_all_read


class Command(BaseCommand):
    help = "Prints the notifications of a person, newest first; * stands before what is unread."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", metavar="USER", help="the person's user name")
        parser.add_argument("--unread", action="store_true", help="only those that are unread")
        parser.add_argument("--limit", type=int, default=20, help="at most this number")
        parser.add_argument("--read", action="store_true", help="mark all as read afterwards")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']!r}.")
        rows = own_notifications(user).order_by("-id")
        if options["unread"]:
            rows = rows.filter(read_at=None)
        found = list(rows[: max(1, options["limit"])])
        for row in found:
            mark = " " if row.read_at else "*"
            self.stdout.write(f"{mark} {written(row.last_at)}  {title_of(row)}. {row.text}")
        if not found:
            self.stdout.write("No notifications.")
        if options["read"]:
            with request_context.acting(address="local"):
                count = mark_all_read(by=user)
            self.stdout.write(f"{count} marked as read.")
