"""Makes an API token for a person from the command line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import Project, User
from accounts.scopes import SCOPES
from accounts.services.tokens import DEFAULT_DAYS, MAX_DAYS, issue_token
from infra import request_context
from infra.errors import MusterError


class Command(BaseCommand):
    help = (
        "Makes an API token; the last line is the token alone, so that a script can take it with `tail -n 1`."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", metavar="USER", help="the person's user name")
        parser.add_argument(
            "--scopes",
            required=True,
            help=f"separated by commas: {', '.join(SCOPES)}; x:write includes x:read",
        )
        parser.add_argument(
            "--days", type=int, default=DEFAULT_DAYS, help=f"days until the token expires, at most {MAX_DAYS}"
        )
        parser.add_argument("--name", default="command line", help="token name")
        parser.add_argument("--project", help="limit the token to this project")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            names = ", ".join(User.objects.order_by("username").values_list("username", flat=True)[:10])
            raise CommandError(
                f"There is no user {options['user']!r}. Some there are: {names or 'none yet'}."
            )
        project = None
        if options["project"]:
            project = Project.objects.filter(slug=options["project"]).first()
            if project is None:
                raise CommandError(f"There is no project {options['project']!r}.")
        scopes = [scope.strip() for scope in options["scopes"].split(",") if scope.strip()]
        try:
            with request_context.acting(address="local"):
                token, plain = issue_token(
                    user=user,
                    by=user,
                    name=options["name"],
                    scopes=scopes,
                    days=options["days"],
                    project=project,
                )
        except MusterError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{token.name}: {', '.join(token.scopes)} for {user.username} until {token.expires_at:%Y-%m-%d}."
        )
        self.stdout.write("The token is shown once:")
        self.stdout.write(plain)
