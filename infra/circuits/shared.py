"""Circuits whose state is a row that all processes share; the clock is the database's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from django.db import DatabaseError, InterfaceError, connection

from infra.models import Circuit, System

log = structlog.get_logger(__name__)

#: Failures in a row that open a circuit, and for how long, where its system has no setting for them.
FAILURES: Final = 3
PAUSE_SECONDS: Final = 30.0
MAX_TEXT: Final = 500

_LOOK: Final = (
    "SELECT open_until, open_until > coalesce(%s, clock_timestamp()) FROM infra_circuit WHERE name = %s"
)
#: By compare-and-set: of those who find the pause over, one tries and the others wait for another one.
_TRY: Final = """
UPDATE infra_circuit SET open_until = coalesce(%s, clock_timestamp()) + make_interval(secs => %s)
WHERE name = %s AND open_until = %s
"""
_FAILED: Final = """
INSERT INTO infra_circuit AS c (name, system, label, failures, failed_at, text, opened_at, open_until)
SELECT %(name)s, %(system)s, %(label)s, 1, v.now, %(text)s,
    CASE WHEN %(at_once)s THEN v.now END, CASE WHEN %(at_once)s THEN v.now + make_interval(secs => %(pause)s) END
FROM (SELECT clock_timestamp() AS now) v
ON CONFLICT (name) DO UPDATE SET failures = c.failures + 1, failed_at = excluded.failed_at, text = excluded.text,
    label = excluded.label,
    opened_at = CASE WHEN %(at_once)s OR c.failures + 1 >= %(failures)s
        THEN coalesce(c.opened_at, excluded.failed_at) ELSE c.opened_at END,
    open_until = CASE WHEN %(at_once)s OR c.failures + 1 >= %(failures)s
        THEN excluded.failed_at + make_interval(secs => %(pause)s) ELSE c.open_until END
RETURNING failures, opened_at = failed_at
"""


@dataclass(frozen=True, slots=True)
class Look:
    """Until when the system is to be left alone (None: call it), and whether it failed lately."""

    open_until: datetime | None = None
    troubled: bool = False


@dataclass(frozen=True, slots=True)
class SharedCircuit:
    """The circuit of one system, or of one endpoint (`key`) of a kind of system.

    `failures` in a row open it for `pause_seconds`. Call `look` before a call and `answered` or `failed` after it,
    outside any transaction.
    """

    system: System
    key: str = ""
    label: str = ""
    failures: int = FAILURES
    pause_seconds: float = PAUSE_SECONDS

    @property
    def name(self) -> str:
        return f"{self.system.value}:{self.key}" if self.key else self.system.value

    def look(self, *, now: datetime | None = None) -> Look:
        """Whether to call now (None: by the clock of the database); after the pause one caller tries for all.

        Where the database does not answer nothing is known, and the system is called.
        """
        try:
            with connection.cursor() as cursor:
                cursor.execute(_LOOK, [now, self.name])
                row = cursor.fetchone()
                if row is None or row[0] is None:
                    return Look(troubled=row is not None)
                until, waits = row
                if waits:
                    return Look(until, troubled=True)
                cursor.execute(_TRY, [now, self.pause_seconds, self.name, until])
                if cursor.rowcount:
                    return Look(troubled=True)
                cursor.execute(_LOOK, [now, self.name])
                row = cursor.fetchone()
                return Look(row[0] if row and row[1] else None, troubled=True)
        except (DatabaseError, InterfaceError) as error:
            log.warning("circuit_unknown", circuit=self.name, error=str(error))
            return Look()

    def answered(self) -> None:
        """It answered, be it with a refusal: the count starts anew."""
        with connection.cursor() as cursor:
            cursor.execute(
                "DELETE FROM infra_circuit WHERE name = %s RETURNING opened_at IS NOT NULL", [self.name]
            )
            row = cursor.fetchone()
        if row is not None and row[0]:
            log.info("circuit_closed", circuit=self.name)

    def failed(self, text: str, *, retry_after_seconds: float = 0.0) -> None:
        """It did not answer. With `retry_after_seconds` it asked to be left alone, and is at once."""
        words: dict[str, Any] = {
            "name": self.name, "system": self.system.value, "label": self.label[:200],
            "text": text.replace("\0", "")[:MAX_TEXT], "at_once": retry_after_seconds > 0 or self.failures <= 1,
            "pause": max(self.pause_seconds, retry_after_seconds), "failures": self.failures,
        }  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute(_FAILED, words)
            failures, opened = cursor.fetchone()
        if opened:
            log.error("circuit_opened", circuit=self.name, failures=failures, text=words["text"])


def open_circuits(*systems: System) -> Sequence[Circuit]:
    """Circuits that are open or half-open, of these systems (none named: of all), the longest open first."""
    rows = Circuit.objects.filter(open_until__isnull=False).order_by("opened_at", "name")
    return list(rows.filter(system__in=systems) if systems else rows)
