"""Use and shares for a cycle: nothing is read where the order does not depend on it and no share has a limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quotas.core.fairshare import METERED
from quotas.selectors.fair_share_source import share_rules, share_source, shares_at, use_at
from scheduler.core.ordering.share_columns import share_columns
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import PendingColumns, ProjectColumns, ShareColumns


def with_shares(
    projects: ProjectColumns,
    pending: PendingColumns,
    policy: Policy,
    *,
    at_ms: int,
    flat: bool,
    limited: bool,
) -> tuple[ProjectColumns, ShareColumns]:
    """What each project has used, and how its people stand in the tree of shares.

    `flat` says what the tree looks like; a policy may insist on either.
    """
    ordered = any(
        one.name == "fairshare" or any(name == "fairshare" for name, _ in one.factors)
        for one in (policy, *(own for _, own in policy.queues))
    )
    if not ordered and not limited:
        return projects, ShareColumns()
    flat = policy.shares == "flat" or (policy.shares == "auto" and flat)
    decay, metering = share_rules()
    at, numbers = at_ms / 1000, projects.id.tolist()
    used = use_at(at, decay=decay, project_ids=numbers if flat and not limited else None)
    shares = ShareColumns()
    if not flat or limited:
        pairs = {*zip(pending.project_id.tolist(), pending.user_id.tolist(), strict=True)}
        tree = shares_at(at, decay=decay, metering=metering, pairs=pairs, used=used)
        shares = share_columns(tree, numbers, flat=flat or not ordered)
    row = {number: place for place, number in enumerate(numbers)}
    sums = np.zeros((len(METERED), len(numbers)))
    for (project_id, _), use in used.items():
        if project_id in row:
            sums[:, row[project_id]] += use
    capacity = share_source().capacity() if metering.dominant else {}
    weighed = metering.usage(dict(zip(METERED, sums, strict=True)), capacity)
    return replace(projects, used_gpu_seconds=weighed.astype(np.int64)), shares
