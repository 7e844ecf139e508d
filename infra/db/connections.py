"""What a thread that does one piece of work after the other owes to its database connection.

That the connection lives is not its business: the backend looks before each use (config.database).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections


@contextmanager
def unit_of_work() -> Iterator[None]:
    """Leave nothing of this piece to the next: neither an open transaction nor a connection that failed."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@contextmanager
def longer_statements(seconds: float) -> Iterator[None]:
    """Let each statement of this block take up to `seconds`, where the limit of this process is shorter."""
    with connections[DEFAULT_DB_ALIAS].longer(seconds):  # type: ignore[attr-defined]
        yield
