"""How a manage.py command gets its servers: running ones, else its own for as long as the command lasts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from config.up.servers import roles
from config.up.servers.embedded import EmbeddedServers
from config.up.state import StateError, StateFolder

# These look at code, not at rows.
NEED_NO_SERVERS = frozenset(
    {
        *("", "help", "version", "--help", "-h", "--version", "up"),
        *("collectstatic", "findstatic", "compilemessages", "makemessages"),
        *("diffsettings", "startapp", "startproject", "spectacular"),
    }
)
# These change tables, or what their owner alone may; all others run with the rights of the application.
NEED_THE_OWNER = frozenset({"migrate", "prepare", "write_schema"})
WAIT_SECONDS = 90.0


@contextmanager
def servers_for(arguments: Sequence[str]) -> Iterator[None]:
    """Put DATABASE_URL and REDIS_URL into the environment for this command, and clean up after it."""
    if not _needs_servers(arguments) or (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
        yield
        return
    with ExitStack() as cleanup:
        try:
            _find_or_start(arguments[0], cleanup)
        except StateError as error:
            print(error, file=sys.stderr)
            sys.exit(1)
        yield


def _needs_servers(arguments: Sequence[str]) -> bool:
    command = arguments[0] if arguments else ""
    if command in NEED_NO_SERVERS or "--help" in arguments or "-h" in arguments:
        return False
    if command == "check":
        return "--database" in arguments
    return not os.environ.get("DJANGO_SETTINGS_MODULE", "").endswith(".production")


def _find_or_start(command: str, cleanup: ExitStack) -> None:
    state = StateFolder.find()
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        if state.take_lock():
            _start(state, command, cleanup)
            return
        # Visit first, then look: the process that published these servers sees the visit before it stops them.
        with ExitStack() as visit:
            visit.enter_context(state.visiting())
            found = state.published()
            if found and _alive(found.owner_pid):
                _use(found.database_url, found.redis_url)
                if command in NEED_THE_OWNER and os.environ.get("DATABASE_URL") == found.database_url:
                    _use_owner(roles.Passwords(state).url(roles.OWNER, like=found.database_url))
                cleanup.push(visit.pop_all())
                return
        if time.monotonic() > deadline:
            raise StateError(
                f"Another process holds {state.path / 'lock'} and has not said where its servers are. "
                "Wait for it, or stop it, and try again."
            )
        time.sleep(0.1)


def _start(state: StateFolder, command: str, cleanup: ExitStack) -> None:
    cleanup.callback(state.release_lock)
    # Stopping must happen on SIGTERM too, or the servers would be cut off in the middle.
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_on_sigterm)
    servers = EmbeddedServers(state)
    cleanup.callback(servers.stop)
    servers.start()
    _use(servers.database_url, servers.redis_url)
    if command in NEED_THE_OWNER:
        _use_owner(servers.owner_database_url)
    state.publish(servers.published(f"manage.py {command}"))
    cleanup.callback(_let_visitors_end, state)


def _let_visitors_end(state: StateFolder) -> None:
    if not state.wait_for_visitors(0):
        print("Another manage.py command still uses these servers; waiting for it.", file=sys.stderr)
        state.wait_for_visitors(3600)


def _use(database_url: str, redis_url: str) -> None:
    if database_url:
        os.environ.setdefault("DATABASE_URL", database_url)
    if redis_url:
        os.environ.setdefault("REDIS_URL", redis_url)


def _use_owner(url: str) -> None:
    if url:
        os.environ.setdefault(roles.OWNER_URL, url)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _exit_on_sigterm(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
