"""Django's migrate, as the owner of the tables; then the application's role gets its rights."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate

from config.owner import as_owner, give_rights


class Command(migrate.Command):
    help = (
        f"{migrate.Command.help} Runs as MUSTER_OWNER_DATABASE_URL, and gives DATABASE_URL's role its rights."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        with as_owner():
            super().handle(*args, **options)
            give_rights()
