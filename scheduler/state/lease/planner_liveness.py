"""Whether planners are at work: with every cycle, also one with nothing to do, a lease begins its next term."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.core.cache import cache
from django.db.models import OuterRef, Subquery, TextField, Value
from django.db.models.functions import Cast, Concat, JSONObject

from scheduler.models import Cluster, Lease, PolicyFault
from scheduler.state.lease.leases import cluster_scope

#: Without a new cycle for so long, a planner is said to be silent; the clock asks for one every PLAN_SECONDS.
SILENT_SECONDS: Final = 30.0
REMEMBERED_SECONDS: Final = 24 * 3600

#: Cluster -> the term seen last, and when it was first seen: what is remembered while the cache is away.
_terms: dict[int, tuple[int, float]] = {}


def term_since(cluster_id: int, token: int | None, *, clock: Callable[[], float] = time.time) -> float | None:
    """Since when a cluster's lease is known to be in this term; None for a cluster never planned."""
    if token is None:
        return None
    key = f"muster:term:{cluster_id}"
    for known in (cache.get(key), _terms.get(cluster_id)):
        if known is not None and known[0] == token:
            return float(known[1])
    _terms[cluster_id] = (token, clock())
    cache.set(key, _terms[cluster_id], REMEMBERED_SECONDS)
    return _terms[cluster_id][1]


def forget_terms() -> None:
    """Forget what this process has seen; the cache keeps what all have."""
    _terms.clear()


def silence(since: float | None, *, clock: Callable[[], float] = time.time) -> float | None:
    """How long that is, once it is longer than a planner that is at work takes; else None."""
    lasted = 0.0 if since is None else clock() - since
    return lasted if lasted > max(SILENT_SECONDS, 5 * settings.PLAN_SECONDS) else None


def silent_for(cluster_id: int) -> float | None:
    """For how many seconds a cluster's planner has begun no term; None while it is at work."""
    token = Lease.objects.filter(scope=cluster_scope(cluster_id)).values_list("token", flat=True).first()
    return silence(term_since(cluster_id, token))


def longest_silence() -> float | None:
    """Of all clusters; None while every planner is at work."""
    tokens = dict(Lease.objects.values_list("scope", "token"))
    found = [
        silence(term_since(pk, tokens.get(cluster_scope(pk))))
        for pk in Cluster.objects.values_list("pk", flat=True)
    ]
    return max((each for each in found if each is not None), default=None)


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """A cluster, whether somebody paused it, and since when its planner is in the same term."""

    pk: int
    name: str
    paused: bool
    paused_reason: str
    paused_by: str
    paused_at: datetime | None
    since: float | None
    #: (subject, reason) of what of its policy is out of use.
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def failing(self) -> str:
        """Why its cycles fail; "" = they do not."""
        return next((reason for subject, reason in self.faults if subject == PolicyFault.CYCLE), "")

    @property
    def out_of_use(self) -> tuple[tuple[str, str], ...]:
        """What it is planned without, and why."""
        return tuple(fault for fault in self.faults if fault[0] != PolicyFault.CYCLE)

    @property
    def silent(self) -> bool:
        return silence(self.since) is not None

    @property
    def since_at(self) -> datetime | None:
        return None if self.since is None else datetime.fromtimestamp(self.since, tz=UTC)


def clusters_now() -> list[ClusterNow]:
    """Every cluster; one query."""
    faults = PolicyFault.objects.filter(cluster=OuterRef("pk")).order_by("id")
    token = Lease.objects.filter(scope=Concat(Value("cluster:"), Cast(OuterRef("pk"), TextField())))
    return [
        ClusterNow(
            pk=cluster.pk,
            name=cluster.name,
            paused=cluster.paused,
            paused_reason=cluster.paused_reason,
            paused_by=cluster.paused_by,
            paused_at=cluster.paused_at,
            since=term_since(cluster.pk, cluster.token),
            faults=tuple((fault["subject"], fault["reason"]) for fault in cluster.found),
        )
        for cluster in Cluster.objects.annotate(
            token=Subquery(token.values("token")[:1]),
            found=ArraySubquery(faults.values(one=JSONObject(subject="subject", reason="reason"))),
        ).values_list(
            "pk", "name", "paused", "paused_reason", "paused_by", "paused_at", "token", "found", named=True
        )
    ]
