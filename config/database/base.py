"""The backend itself: a connection is looked at before it is used, and nobody waits for a server without end.

Every thread of every process comes through here, because Django's `connection` is all that they have: requests,
agents' calls, live pages, tasks, beat, commands. Nothing has to be called around the work, so nothing can forget.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from functools import cache
from typing import Any, ClassVar, TypeVar

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base as postgresql
from django.db.utils import DatabaseError, InterfaceError, OperationalError
from django.utils.asyncio import async_unsafe
from psycopg.pq import Format

from config.database.limits import Limits
from config.database.pulse import LOOK_SECONDS, TICK_SECONDS, Pulse, Silent, watched

T = TypeVar("T")

#: Longer than the server's own limit of a statement: by then it should have said so.
GRACE_SECONDS = 5.0


class Connection(psycopg.Connection[Any]):
    """A psycopg connection that ends when its server has fallen silent; see `Pulse`."""

    pulse: Pulse | None = None
    limits: Limits | None = None

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = TICK_SECONDS, timeout: float | None = None
    ) -> T:
        if self.pulse is None or self.limits is None:
            return super().wait(gen, interval, timeout)
        return super().wait(watched(gen, self._tick), TICK_SECONDS, timeout)

    def _tick(self, ticks: int) -> None:
        assert self.pulse is not None
        assert self.limits is not None
        waited = ticks * TICK_SECONDS
        if self.limits.silence and waited >= self.limits.silence:
            if self.pulse.silent:
                self._give_up(
                    f"PostgreSQL has said nothing for {waited:.0f} s; what was asked may have been done."
                )
            if not ticks % 10:
                self.pulse.suspect()
        if self.statement_seconds and waited > self.statement_seconds + GRACE_SECONDS:
            self._give_up(f"PostgreSQL did not end a statement at its limit of {self.statement_seconds:g} s.")

    @property
    def statement_seconds(self) -> float:
        return (
            self._statement_seconds
            if self._statement_seconds is not None
            else (self.limits.statement if self.limits else 0.0)
        )

    _statement_seconds: float | None = None

    def _give_up(self, why: str) -> None:
        self.pgconn.finish()  # without a word: it would not be read
        raise Silent(why)


class DatabaseWrapper(postgresql.DatabaseWrapper):
    """Django's, with `MUSTER_LIMITS` of the settings beside its options."""

    _pulses: ClassVar[dict[str, Pulse]] = {}
    _pulses_lock = threading.Lock()

    @property
    def limits(self) -> Limits:
        return self.settings_dict["MUSTER_LIMITS"]

    @property
    def pulse(self) -> Pulse:
        """The one of all threads that use this alias."""
        with self._pulses_lock:
            found = self._pulses.get(self.alias)
            if found is None:
                found = self._pulses[self.alias] = Pulse(self._look)
            return found

    @async_unsafe
    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        if "isolation_level" in self.settings_dict["OPTIONS"] or "pool" in self.settings_dict["OPTIONS"]:
            raise ImproperlyConfigured("DATABASES: `isolation_level` and `pool` are not for this backend.")
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if self.limits.silence:
            self.pulse.require()
        try:
            made = Connection.connect(**conn_params)
        except psycopg.errors.ConnectionTimeout:
            self.pulse.suspect()
            raise
        made.pulse, made.limits = self.pulse, self.limits
        made.adapters.register_loader("timestamptz", _times_in(self.timezone))
        return made

    @async_unsafe
    def ensure_connection(self) -> None:
        """Outside a transaction: replace a connection whose server has hung up, which is free to ask.

        It has said so by now: there is something to read where nothing was asked.
        """
        between = self.connection is not None and self.autocommit and not self.in_atomic_block
        if between and self._is_of_no_use():
            self.close()
        super().ensure_connection()

    def close_if_unusable_or_obsolete(self) -> None:
        """Django's would ask a dead connection for its mode, and fail before or after a request for it."""
        if self.connection is None or self.in_atomic_block:
            return
        try:
            if not self._is_of_no_use():
                super().close_if_unusable_or_obsolete()
                return
        except (OperationalError, InterfaceError):
            pass
        self.close()

    def _is_of_no_use(self) -> bool:
        if self.limits.silence and self.pulse.silent:
            return True
        try:
            poll = select.poll()
            poll.register(self.connection.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        except (psycopg.Error, OSError, ValueError):
            return True

    def _look(self) -> None:
        """A connection of its own, and one answer: a pooler between would take the first by itself."""
        params = {**self.get_connection_params(), "connect_timeout": LOOK_SECONDS}
        params = {name: value for name, value in params.items() if name not in ("context", "cursor_factory")}

        def tick(ticks: int) -> None:
            if ticks * TICK_SECONDS > LOOK_SECONDS:
                raise Silent("no answer to a look")

        with _Look.connect(**params, autocommit=True) as connection:
            connection.tick = tick
            connection.execute("SELECT 1")

    @contextmanager
    def longer(self, seconds: float) -> Iterator[None]:
        """Let statements of this block take so long, where a process of this kind has a shorter limit."""
        if not 0 < self.limits.statement < seconds or not self.settings_dict["MUSTER_SERVER_LIMITS"]:
            yield
            return
        self._set_statement_seconds(seconds)
        try:
            yield
        finally:
            if self.connection is not None and not self.connection.closed:
                try:
                    self._set_statement_seconds(self.limits.statement)
                except DatabaseError:
                    self.close()  # the next one begins with the usual limit

    def _set_statement_seconds(self, seconds: float) -> None:
        with self.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, false)", [f"{round(seconds * 1000)}"])
        self.connection._statement_seconds = seconds


@cache
def _times_in(zone: tzinfo | None) -> Any:
    """Reads times as the driver itself does, in C, in the zone of the session, which Django sets to `zone`.

    Django's reader, written in Python, takes twenty times as long: eleven microseconds for each time of each row.
    """
    plain: Any = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, Format.TEXT)

    class Times:
        timezone, format = zone, Format.TEXT  # what Django and psycopg ask a reader for

        def __new__(cls, oid: int, context: Any = None) -> Any:
            return plain(oid, context)

    return Times


class _Look(psycopg.Connection[Any]):
    tick: Any = None

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = TICK_SECONDS, timeout: float | None = None
    ) -> T:
        return super().wait(watched(gen, self.tick) if self.tick else gen, TICK_SECONDS, timeout)
