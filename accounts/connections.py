"""Database connections of threads that serve one request after the other and keep theirs from one to the next."""

from __future__ import annotations

import select

from django.db import DEFAULT_DB_ALIAS, Error, connections


def drop_a_dead_connection() -> None:
    """A server that has gone has said so by now: there is something to read where nothing was asked.

    This is all the checking there is before the connection is used: asking costs a statement.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    inner = connection.connection
    if inner is None or connection.in_atomic_block:
        return
    try:
        poll = select.poll()
        poll.register(inner.fileno(), select.POLLIN)
        fine = not poll.poll(0)
    except (Error, OSError, ValueError):
        fine = False
    if fine:
        connection.health_check_done = True
    else:
        connection.close()


def keep_connection() -> None:
    """The thread's next request goes on with this one, for to fetch one and give it back costs as much as a
    statement; unless something has failed that may be its fault."""
    connection = connections[DEFAULT_DB_ALIAS]
    connection.close_at = None
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
