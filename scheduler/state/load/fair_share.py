"""Usage and shares for a cycle: not read where neither the order nor a limit of a share depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from quotas.core.fairshare import METERED
from quotas.core.share_tree import Pair, Use
from quotas.selectors.fair_share_source import share_rules, share_source, shares_at, use_at
from scheduler.core.ordering.share_columns import share_columns
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import PendingColumns, ProjectColumns, ShareColumns
from scheduler.state.db.query import RowQuery


class ShareShape(NamedTuple):
    """What the tree of shares looks like."""

    flat: bool  # all open projects are side by side, their members with equal weight
    limited: bool  # some share has a limit


SHARE_SHAPE: Final = RowQuery(
    ShareShape,
    {
        "flat": """(SELECT min(organization_id) FROM accounts_project WHERE active)
            IS NOT DISTINCT FROM (SELECT max(organization_id) FROM accounts_project WHERE active)
        AND NOT EXISTS (SELECT FROM accounts_membership WHERE share_weight <> 1)""",
        "limited": """EXISTS (SELECT FROM accounts_project
            WHERE share_soft_percent IS NOT NULL OR share_hard_percent IS NOT NULL)
        OR EXISTS (SELECT FROM accounts_organization
            WHERE share_soft_percent IS NOT NULL OR share_hard_percent IS NOT NULL)""",
    },
    "SELECT {columns}",
)


def with_shares(
    projects: ProjectColumns,
    pending: PendingColumns,
    policy: Policy,
    *,
    at_ms: int,
    shape: ShareShape,
) -> tuple[ProjectColumns, ShareColumns]:
    """What each project has used, and the place of its people in the tree of shares.

    The tree counts as flat or not by its shape, unless the policy says which.
    """
    ordered = any(_by_fair_share(one) for one in (policy, *(own for _, own in policy.queues)))
    if not ordered and not shape.limited:
        return projects, ShareColumns()
    flat = policy.shares == "flat" or (policy.shares == "auto" and shape.flat)
    decay, metering = share_rules()
    at, numbers = at_ms / 1000, projects.id.tolist()
    used = use_at(at, decay=decay, project_ids=numbers if flat and not shape.limited else None)
    shares = ShareColumns()
    if not flat or shape.limited:
        pairs = {*zip(pending.project_id.tolist(), pending.user_id.tolist(), strict=True)}
        tree = shares_at(at, decay=decay, metering=metering, pairs=pairs, used=used)
        shares = share_columns(tree, numbers, flat=flat or not ordered)
    capacity = share_source().capacity() if metering.dominant else {}
    weighed = metering.usage(dict(zip(METERED, _sums(used, numbers), strict=True)), capacity)
    return replace(projects, used_gpu_seconds=weighed.astype(np.int64)), shares


def _by_fair_share(policy: Policy) -> bool:
    """Whether fair share has a say in the order of this policy."""
    return policy.name == "fairshare" or any(name == "fairshare" for name, _ in policy.factors)


def _sums(used: Mapping[Pair, Use], project_ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """What each project used of each metered resource, all its people together."""
    row = {number: place for place, number in enumerate(project_ids)}
    sums = np.zeros((len(METERED), len(project_ids)))
    for (project_id, _), use in used.items():
        if project_id in row:
            sums[:, row[project_id]] += use
    return sums
