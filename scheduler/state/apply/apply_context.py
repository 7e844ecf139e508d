"""What all decisions of one plan have in common when they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from quotas.providers.base import QuotaStart
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.lease.leases import HeldLease


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """Which cluster's plan is written, under which lease, and the moment that its rows bear."""

    cluster_id: int
    #: Name of the backend that runs the attempts.
    backend: str
    #: What the plan was made from.
    snapshot: Snapshot
    policy: Policy
    lease: HeldLease
    at: datetime
    #: The recording of this cycle; None when it is not recorded.
    cycle_id: int | None = None
    plugins: Plugins = field(default_factory=lambda: NO_PLUGINS)
    #: By project: the quota provider that decides about its starts; and by job what that has let through.
    providers: Mapping[int, str] = field(default_factory=dict)
    quota_starts: Mapping[int, QuotaStart] = field(default_factory=dict)
