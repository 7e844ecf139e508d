"""PostgreSQL, its limits of time, and the broker."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "DATABASE_URL",
        "str",
        "postgres://scheduler@127.0.0.1:5433/scheduler_dev",
        "PostgreSQL. Required in production; `manage.py` commands start a server of their own without it.",
        secret=True,
        form="address",
    ),
    Setting(
        "MUSTER_OWNER_DATABASE_URL",
        "str",
        "",
        "The same database as the role that owns the tables, for `manage.py migrate` only.",
        secret=True,
        form="address",
    ),
    Setting(
        "REDIS_URL",
        "str",
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey: broker, cache and notifications. Required in production.",
        secret=True,
        form="address",
    ),
    Setting(
        "MUSTER_DB_STATEMENT_SECONDS",
        "float",
        None,
        "Longest statement; 0: no limit. Default: 30 for web and "
        "beat, 60 for the planner, 300 for workers, none for commands.",
        "s",
    ),
    Setting(
        "MUSTER_DB_LOCK_SECONDS",
        "float",
        None,
        "Longest wait for a lock; 0: no limit. Default: 10 for web and "
        "beat, 20 for the planner, 60 for workers, none for commands.",
        "s",
    ),
    Setting(
        "MUSTER_DB_IDLE_SECONDS",
        "float",
        None,
        "Longest idle time inside a transaction; 0: no limit. Default: "
        "60 for web and beat, 120 for the planner, 300 for workers, none for commands.",
        "s",
    ),
    Setting(
        "MUSTER_DB_SILENCE_SECONDS",
        "float",
        None,
        "Time without an answer after which a server that accepts no "
        "new connection counts as down. Default: 1 for web, 2 for planner and beat, 5 for workers, 30 for "
        "commands.",
        "s",
    ),
    Setting("MUSTER_DB_CONNECT_SECONDS", "int", 3, "Timeout of a new connection.", "s", least=1),
    Setting(
        "MUSTER_DB_PREPARED",
        "bool",
        True,
        "Prepare frequent statements per connection. False behind a pooler "
        "that assigns connections per transaction.",
    ),
)
