"""For as long as a migration takes: the default connection as the owner of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import environ
from django.conf import settings
from django.db import connection, transaction

from config.database import rights

_SWAPPED = ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


@contextmanager
def as_owner() -> Iterator[None]:
    """Connect as MUSTER_OWNER_DATABASE_URL says; where it says nothing, as before.

    The application's pool and its limits on statements stay behind: an index may take an hour.
    """
    if not settings.MUSTER_OWNER_DATABASE_URL:
        yield
        return
    mine = {name: connection.settings_dict[name] for name in _SWAPPED}
    _leave()
    connection.settings_dict.update(_of_the_owner(mine["NAME"]))
    try:
        yield
    finally:
        _leave()
        connection.settings_dict.update(mine)


def give_rights() -> None:
    """Once migrated, as the owner: what the role of DATABASE_URL may do with each table."""
    if settings.MUSTER_OWNER_DATABASE_URL:
        with transaction.atomic():
            rights.apply(connection, environ.Env.db_url_config(settings.DATABASE_URL)["USER"])


def _leave() -> None:
    connection.close()
    if "pool" in connection.settings_dict["OPTIONS"]:
        connection.close_pool()  # type: ignore[attr-defined]


def _of_the_owner(database: str) -> dict[str, object]:
    config = environ.Env.db_url_config(settings.MUSTER_OWNER_DATABASE_URL)
    given = environ.Env.db_url_config(settings.DATABASE_URL)["NAME"]
    options = {"application_name": "muster-migrate", "connect_timeout": 10, **config.get("OPTIONS", {})}
    return {
        # A test database of another name is meant for both.
        **{name: config.get(name, "") for name in ("USER", "PASSWORD", "HOST", "PORT")},
        "NAME": config["NAME"] if database == given else database,
        "OPTIONS": options,
    }
