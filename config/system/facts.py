"""What a support bundle says, part by part: values of settings, rows and files, never anything of a job's inside."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from config import health
from config.settings.declared import SETTINGS, read
from infra.models import Circuit
from scheduler.agent import OLDEST_PROTOCOL, PROTOCOL, VERSION
from scheduler.models import Node
from scheduler.state.records.policy_faults import open_faults

log = structlog.get_logger(__name__)

#: Of a bundle; older cycles are in the portal.
MOST_CYCLES: Final = 200
MOST_ALARMS: Final = 500
ALARMS_SINCE: Final = timedelta(days=14)
PACKAGES: Final = (
    "django", "djangorestframework", "celery", "kombu", "redis", "psycopg", "numpy", "uvicorn", "channels", "boto3",
    "cryptography", "django-celery-beat", "prometheus-client",
)  # fmt: skip
_TABLES: Final = """
SELECT c.relname, c.reltuples::bigint, pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0), s.last_autovacuum
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY 3 DESC
"""
_CYCLES: Final = """
SELECT id, cluster_id, trigger, started_at, load_us, plan_us, apply_us, pending_count, started_count, refused_count,
    fencing_token, snapshot_digest, plan_digest
FROM scheduler_cycle ORDER BY id DESC LIMIT %s
"""
_JOBS: Final = """
SELECT job.state, job.reason_code, count(*) FROM scheduler_unfinishedjob unfinished
    JOIN scheduler_job job ON job.queue_id = unfinished.queue_id AND job.number = unfinished.number
GROUP BY 1, 2 ORDER BY 3 DESC
"""
_LEASES: Final = "SELECT scope, holder, token, expires_at FROM scheduler_lease ORDER BY scope"
_ALARMS: Final = """
SELECT kind, text, count, last_at FROM (
    SELECT DISTINCT ON (kind, group_key, text) kind, text, count, last_at FROM notifications_notification
    WHERE kind = ANY(%s) AND last_at > %s ORDER BY kind, group_key, text, last_at DESC
) alarms ORDER BY last_at DESC LIMIT %s
"""
_FINDINGS: Final = "SELECT key, at FROM notifications_finding WHERE at > %s ORDER BY at DESC LIMIT %s"


def versions() -> dict[str, Any]:
    """Of Muster, what it runs on and with, and the protocols of agents that it serves."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        (postgres,) = cursor.fetchone()
    return {
        "muster": VERSION,
        "agent_protocols": {"oldest": OLDEST_PROTOCOL, "newest": PROTOCOL},
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "postgresql": postgres,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def settings_shown() -> dict[str, Any]:
    """Each declared setting with its value; of a secret only whether there is one."""
    shown: dict[str, Any] = {}
    for setting in SETTINGS.values():
        if not setting.in_settings:
            continue
        value = value_of(setting.name)
        shown[setting.name] = ("set" if value else "not set") if setting.secret else value
    return shown


def value_of(name: str) -> Any:
    """What a declared setting is: as Django has it, else as the environment says."""
    return getattr(settings, name) if hasattr(settings, name) else read(name)


def checks() -> dict[str, Any]:
    """The checks of /readyz, systems outside that failed lately, and what planning does without."""
    return {
        "checks": [asdict(check) for check in health.run_checks()],
        "circuits": _or_error(lambda: list(Circuit.objects.values())),
        "policy_faults": _or_error(lambda: [fault._asdict() for fault in open_faults()]),
    }


def alarms(now: datetime) -> dict[str, Any]:
    """What operators were notified of in the last two weeks, and what was found by looking."""
    from notifications.core.kinds import KINDS  # not before the apps are there

    since = now - ALARMS_SINCE
    kinds = [kind.value for kind, about in KINDS.items() if about.operators]
    return {
        "notified": _rows(_ALARMS, [kinds, since, MOST_ALARMS]),
        "found": _rows(_FINDINGS, [since, MOST_ALARMS]),
    }


def database() -> dict[str, Any]:
    """Tables with their sizes, rows and dead rows, as PostgreSQL estimates them."""
    return {"tables": _rows(_TABLES, [])}


def migrations() -> dict[str, Any]:
    """What was applied and when, and what this code has beyond that."""
    applied = MigrationRecorder(connection).applied_migrations()
    return {
        "applied": [
            {"app": app, "name": name, "at": row.applied} for (app, name), row in sorted(applied.items())
        ],
        "missing": sorted(f"{app}.{name}" for app, name in health.leaf_migrations() - set(applied)),
    }


def planning() -> dict[str, Any]:
    """The last cycles with their times and counts, who plans, and jobs by state and reason; no job by itself."""
    return {
        "cycles": _rows(_CYCLES, [MOST_CYCLES]),
        "leases": _rows(_LEASES, []),
        "jobs": _rows(_JOBS, []),
    }


def nodes() -> list[Mapping[str, Any]]:
    """What agents say of their machines; no key."""
    found: list[Mapping[str, Any]] = []
    for node in Node.objects.select_related("heartbeat", "cluster").order_by("name"):
        found.append(
            {
                "name": node.name, "cluster": node.cluster.slug, "state": node.state, "cordoned": node.cordoned,
                "draining": node.draining, "drain_reason": node.drain_reason, "trouble": node.trouble,
                "agent_version": node.agent_version, "agent_protocol": node.agent_protocol,
                "last_seen_at": node.last_seen_at, "clock_skew_ms": node.clock_skew_ms,
                "cpu_millis": node.cpu_millis, "used_cpu_millis": node.used_cpu_millis,
                "memory_mib": node.memory_mib, "used_memory_mib": node.used_memory_mib,
                "gpu_millis": node.gpu_millis, "used_gpu_millis": node.used_gpu_millis,
                "numa_domains": node.numa_domains, "labels": node.labels, "taints": node.taints,
                "isolation": node.isolation, "generation": node.generation,
            }
        )  # fmt: skip
    return found


def parts() -> dict[str, Any]:
    """Every part of a bundle but the logs, by the name of its file; of one that cannot be read, the error."""
    now = timezone.now()
    made: dict[str, Callable[[], Any]] = {
        "versions": lambda: {**versions(), "made_at": now.astimezone(UTC)},
        "settings": settings_shown,
        "health": checks,
        "alarms": lambda: alarms(now),
        "database": database,
        "migrations": migrations,
        "planning": planning,
        "nodes": nodes,
    }
    return {name: _or_error(make) for name, make in made.items()}


def _or_error(make: Callable[[], Any]) -> Any:
    # A bundle is wanted where something is broken, and that may be what a part reads.
    try:
        return make()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        log.warning("bundle_part_failed", error=text)
        return {"error": text}


def _rows(sql: str, parameters: list[Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
