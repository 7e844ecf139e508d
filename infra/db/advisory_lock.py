"""One at a time, of all processes: a lock of the database that goes when its holder goes, however it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection

Holder = psycopg.Connection[Any]


@contextmanager
def try_lock(number: int) -> Iterator[bool]:
    """Whether nobody else does what this number stands for, and nobody can begin to while this is open."""
    holder = hold_lock(number)
    try:
        yield holder is not None
    finally:
        if holder is not None:
            holder.close()


def hold_lock(number: int) -> Holder | None:
    """The lock, for as long as the connection that is answered stays open; None while somebody else has it.

    It belongs to a transaction that does nothing else, on a connection of its own: a pooler that hands out
    connections by the transaction would pass on a session with its locks, and the next owner would keep them.
    """
    holder = connection.get_new_connection(connection_parameters())
    taken = False
    try:
        holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        row = holder.execute("SELECT pg_try_advisory_xact_lock(%s)", [number]).fetchone()
        taken = bool(row and row[0])
    finally:
        if not taken:
            holder.close()
    return holder if taken else None


def connection_parameters() -> dict[str, Any]:
    """Django's own, TLS and all, but what it does to cursors and values."""
    return {
        name: value
        for name, value in connection.get_connection_params().items()
        if name not in ("context", "cursor_factory")
    }
