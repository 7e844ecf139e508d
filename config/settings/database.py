"""The connection of a process to PostgreSQL: where it goes, under which name, and how long anything may take."""

from __future__ import annotations

from typing import Any

import environ

from config.database.limits import Limits, limits_of, network_options, server_options
from config.settings.declared import read


def database_of_this_process(url: str) -> dict[str, Any]:
    """The entry of DATABASES for the database at this URL, by what the environment says of this process."""
    # Every thread has a connection of its own and keeps it: the backend looks at it before each use, and threads
    # that touch the database are few and named (docs/decisions/0025).
    database: dict[str, Any] = environ.Env.db_url_config(url) | {
        "ENGINE": "config.database",
        "ATOMIC_REQUESTS": False,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
    }
    process = read("MUSTER_PROCESS")
    defaults = limits_of(process)
    # What a statement, a wait for a lock and a transaction in which nothing happens may take; 0 is no limit.
    limits = Limits(
        statement=read("MUSTER_DB_STATEMENT_SECONDS", defaults.statement),
        lock=read("MUSTER_DB_LOCK_SECONDS", defaults.lock),
        idle=read("MUSTER_DB_IDLE_SECONDS", defaults.idle),
        silence=read("MUSTER_DB_SILENCE_SECONDS", defaults.silence),
    )
    options = {
        **network_options(),
        "connect_timeout": read("MUSTER_DB_CONNECT_SECONDS"),
        **database.get("OPTIONS", {}),
        "application_name": process,
    }
    prepared = read("MUSTER_DB_PREPARED")
    if prepared and (kept := server_options(limits, options.get("options", ""))):
        options["options"] = kept
    return database | {
        "MUSTER_LIMITS": limits,
        "OPTIONS": options,
        "DISABLE_SERVER_SIDE_CURSORS": not prepared,
        # A pooler passes no limits on with a connection: there the database's role has to carry them.
        "MUSTER_SERVER_LIMITS": prepared,
    }
