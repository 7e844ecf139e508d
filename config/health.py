"""Says whether this process lives (/livez) and whether it can serve (/readyz): two different questions."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache

from infra.machine.disk_space import shortages
from infra.times_in_text import written

if TYPE_CHECKING:
    from infra.models import Circuit

log = logging.getLogger(__name__)


class LivenessMiddleware:
    """Answers /livez without touching database, Redis, session or user.

    A probe that fails while the database is away would have every web process killed, and the restart
    storm would outlast the outage.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info == "/livez":
            return HttpResponse("ok\n", content_type="text/plain")
        return self.get_response(request)


@dataclass(frozen=True, slots=True)
class Check:
    """One named thing that was looked at; a check that is not needed only degrades the answer."""

    name: str
    ok: bool
    needed: bool
    text: str
    milliseconds: float


def _verbose(request: HttpRequest, checks: list[Check], status: str, code: int) -> HttpResponse:
    """Each check with its time, as text or, where JSON is accepted, as JSON."""
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"status": status, "checks": [asdict(check) for check in checks]}, status=code)
    lines = [
        f"[{'+' if c.ok else '-'}] {c.name}: {c.text} ({c.milliseconds:.1f} ms)"
        + ("" if c.needed or c.ok else " (optional: the portal continues without it)")
        for c in checks
    ]
    return HttpResponse("\n".join([*lines, f"readyz: {status}", ""]), content_type="text/plain", status=code)


@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when the database answers and is migrated; Redis down, a silent planner or a disk that is short of room
    is 200 with `degraded`."""
    checks = list(run_checks())
    failed = [check.name for check in checks if check.needed and not check.ok]
    degraded = [check.name for check in checks if not check.needed and not check.ok]
    status = "unavailable" if failed else "degraded" if degraded else "ok"
    code = 503 if failed else 200
    if "verbose" in request.GET and may_look_inside(request):
        return _verbose(request, checks, status, code)
    return JsonResponse({"status": status, "failed": failed, "degraded": degraded}, status=code)


#: What the thread that looks has found wanting, and what it looks at: an answer that has to be given before it
#: is back names the one or the other.
_wanting: list[str] = []
_under_way = "database"


def without_answer() -> list[str]:
    """What fails, or does not answer, as far as a look that is under way has come."""
    return list(_wanting) or [_under_way]


def begin() -> None:
    """A new look comes up; what it asks first is the database."""
    global _under_way
    _wanting.clear()
    _under_way = "database"


def run_checks() -> Iterator[Check]:
    """Look at everything a serving process needs, then at what it can do without."""
    begin()
    database = _timed("database", True, _database)
    if not database.ok:
        _wanting.append(database.name)
    yield database
    if database.ok:
        migrations = _timed("migrations", True, _migrations)
        yield migrations
        if migrations.ok:
            yield _timed("planner", False, _planner)
            yield _timed("policies", False, _policies)
            yield _timed("nodes", False, _nodes)
            yield _timed("notifications", False, _notifications)
            yield _timed("outside", False, _outside)
    yield _timed("redis", False, _redis)
    yield _timed("disk", False, _disk)


def may_look_inside(request: HttpRequest) -> bool:
    """An operator who is signed in, or the bearer of MUSTER_METRICS_TOKEN; being on this machine is no right.

    Jobs are on this machine too. The session is asked for only when it must be.
    """
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    expected = settings.MUSTER_METRICS_TOKEN
    if kind.lower() == "bearer" and expected and hmac.compare_digest(token.encode(), expected.encode()):
        return True
    try:
        return bool(request.user.is_staff)
    except (AttributeError, DatabaseError):
        return False


def _timed(name: str, needed: bool, look: Callable[[], str]) -> Check:
    global _under_way
    _under_way = name
    started = time.perf_counter()
    try:
        text, ok = look(), True
    except (DatabaseError, redis.RedisError, OSError, _NotReadyError) as error:
        text, ok = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, False
        log.warning("check %s failed: %s", name, text)
    return Check(name, ok, needed, text, (time.perf_counter() - started) * 1000)


class _NotReadyError(Exception):
    pass


def _database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return "answers"


def _migrations() -> str:
    applied = MigrationRecorder(connection).applied_migrations()
    missing = sorted(f"{app}.{name}" for app, name in leaf_migrations() - set(applied))
    if missing:
        raise _NotReadyError(f"not applied: {', '.join(missing)}; run `manage.py migrate`")
    return "all applied"


@cache
def leaf_migrations() -> frozenset[tuple[str, str]]:
    """The last migration of each app in this code; it cannot change while the process lives."""
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


def _planner() -> str:
    from scheduler.services.planning.residents import memories  # not before the apps are there
    from scheduler.state.lease.planner_liveness import longest_silence

    silent = longest_silence()
    if silent is not None:
        raise _NotReadyError(
            f"no cycle for {silent:.0f} s; look at the worker of queue `scheduling`, and at beat"
        )
    wrong = sum(one.differences for one in memories())
    if wrong:
        times = "once" if wrong == 1 else f"{wrong} times"
        return (
            f"running; its pending jobs in memory differed {times} from the database, and were reloaded: "
            "look for `resident_jobs_differ` in its log and report it"
        )
    return "running"


def _policies() -> str:
    from scheduler.state.records.policy_faults import open_faults  # not before the apps are there

    faults = open_faults()
    if faults:
        raise _NotReadyError("; ".join(map(str, faults)))
    return "no faults"


def _nodes() -> str:
    from scheduler.services.cluster.quarantine import nodes_out_of_service  # not before the apps are there

    away = nodes_out_of_service()
    if away:
        raise _NotReadyError(
            "; ".join(f"{node.name} is out of service: {node.drain_reason}" for node in away[:20])
        )
    return "all in service"


#: Events, mails and messages that are due for longer say that nobody delivers them.
NOTIFICATIONS_LATE_SECONDS = 600.0


def _notifications() -> str:
    from notifications.services.outbox import backlogs  # not before the apps are there

    late = [one for one in backlogs() if one.seconds > NOTIFICATIONS_LATE_SECONDS]
    if late:
        words = ", ".join(f"{one.channel}: {one.overdue} for {one.seconds:.0f} s" for one in late)
        raise _NotReadyError(f"overdue ({words}); look at the worker of queue `default`, and at beat")
    return "delivered"


def _outside() -> str:
    from infra.circuits.shared import open_circuits  # not before the apps are there
    from infra.models import System

    left_alone = open_circuits(System.STORAGE, System.MAIL, System.QUOTA)
    if left_alone:
        raise _NotReadyError("; ".join(map(_left_alone, left_alone)))
    return "no failures in the latest calls"


def _left_alone(row: Circuit) -> str:
    when = f"at {written(row.open_until)}" if row.state == "open" and row.open_until else "with the next call"
    return f"{row} failed {row.failures} times in a row ({row.text}); tried again {when}"


def _redis() -> str:
    _redis_client(settings.REDIS_URL).ping()
    return "answers"


def _disk() -> str:
    short = shortages(fresh=True)
    if short:
        raise _NotReadyError("; ".join(row.text for row in short))
    return "enough free space"


@lru_cache(maxsize=1)
def _redis_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_connect_timeout=0.5, socket_timeout=0.5)
