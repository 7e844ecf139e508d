"""How long a process of each kind waits for PostgreSQL: to connect, for a statement, for a lock, for any word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Limits:
    """All in seconds; 0 is no limit."""

    #: One statement, from its start to its last row.
    statement: float
    #: Of that, waiting for a row or a table that somebody else has locked.
    lock: float
    #: A transaction in which nothing is asked.
    idle: float
    #: Without any word from a server that does not take a new connection either.
    silence: float


#: By what MUSTER_PROCESS begins with; the longest name that fits counts.
BY_PROCESS: Final = {
    "muster-web": Limits(statement=30, lock=10, idle=60, silence=1),
    "muster-beat": Limits(statement=30, lock=10, idle=60, silence=2),
    "muster-worker-scheduling": Limits(statement=60, lock=20, idle=120, silence=2),
    "muster-worker": Limits(statement=300, lock=60, idle=300, silence=5),
    # Migrations, imports, and whatever else a person starts and looks at.
    "muster": Limits(statement=0, lock=0, idle=0, silence=30),
}
#: Exports and scrapes of a web process, which read more than a page does.
LONG_STATEMENT_SECONDS: Final = 300.0


def limits_of(process: str) -> Limits:
    """The defaults of a process with this name."""
    fitting = [name for name in BY_PROCESS if process.startswith(name)]
    return BY_PROCESS[max(fitting, key=len) if fitting else "muster"]


def server_options(limits: Limits, given: str = "") -> str:
    """The `options` of a connection, which the server keeps to; those that were given win."""
    wanted = {
        "statement_timeout": limits.statement,
        "lock_timeout": limits.lock,
        "idle_in_transaction_session_timeout": limits.idle,
    }
    ours = [f"-c {name}={round(seconds * 1000)}" for name, seconds in wanted.items() if seconds > 0]
    return " ".join([*ours, given]).strip()


def network_options() -> dict[str, Any]:
    """What libpq asks of the network: a peer that has gone is found within half a minute, also in silence."""
    return {
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
