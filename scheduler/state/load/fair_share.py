"""Usage, shares and turns for a cycle: not read where neither the order nor a limit of a share depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from quotas.core.fairshare import METERED
from quotas.core.share_tree import Pair, Use
from quotas.selectors.fair_share_source import share_rules, share_source, shares_at, use_at
from scheduler.core.ordering.fair_queue import CLOCK
from scheduler.core.ordering.share_columns import share_columns
from scheduler.core.policy import Policy, every_policy
from scheduler.core.snapshot.snapshot import (
    PendingColumns,
    ProjectColumns,
    ShareColumns,
    Snapshot,
    TurnColumns,
    turn_key,
)
from scheduler.state.db.query import RowQuery, fetch
from scheduler.state.db.sql import int_array


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
    ordered = any(_by_fair_share(one) for _, one in every_policy(policy))
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
        shares = share_columns(tree, numbers, flat=flat or not ordered, product=policy.shares == "product")
        if policy.shares == SLURM and ordered:
            shares = _as_slurm_says(shares, numbers)
    capacity = share_source().capacity() if metering.dominant else {}
    weighed = metering.usage(dict(zip(METERED, _sums(used, numbers), strict=True)), capacity)
    return replace(projects, used_gpu_seconds=weighed.astype(np.int64)), shares


#: The option of a profile by which Slurm's fair share orders.
SLURM: Final = "slurm"


class SlurmShareRow(NamedTuple):
    """The fair share of one person in the Slurm account of a project, from 0 to 1."""

    project_id: int
    user_id: int
    fair_share: float


SLURM_SHARES: Final = RowQuery(
    SlurmShareRow,
    {
        "project_id": "state.project_id",
        "user_id": "person.id",
        "fair_share": "(own.value->>'fair_share')::float",
    },
    """SELECT {columns} FROM quotas_providerstate state
    CROSS JOIN LATERAL jsonb_each(state.facts->'fair_share'->'users') own
    JOIN accounts_user person ON lower(person.username) = own.key
WHERE state.provider = 'slurm' AND state.project_id = ANY(%s::bigint[]) AND own.value->>'fair_share' IS NOT NULL
ORDER BY state.project_id, person.id""",
)


def _as_slurm_says(shares: ShareColumns, project_ids: Sequence[int]) -> ShareColumns:
    """The same people and limits with Slurm's fair share for a factor; 0 for whom Slurm has none, as in Slurm."""
    rows = fetch(SLURM_SHARES, [int_array(project_ids)])
    said = {(row.project_id << 31) | row.user_id: row.fair_share for row in rows}
    factor = [round(min(max(said.get(key, 0.0), 0.0), 1.0) * 1_000_000) for key in shares.id.tolist()]
    return replace(shares, factor=np.array(factor, dtype=np.int64))


def with_shares_for(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot of a recorded cycle with the usage and shares of its time that this policy orders by."""
    projects, shares = with_shares(
        snapshot.projects, snapshot.pending, policy, at_ms=snapshot.now_ms, shape=fetch(SHARE_SHAPE)[0]
    )
    return replace(snapshot, projects=projects, shares=shares.sorted_by_key())


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


class TurnRow(NamedTuple):
    """A tenant in virtual time, or a person with a weight (`virtual` is None)."""

    queue_id: int
    by_user: bool
    tenant_id: int
    virtual: int | None
    waiting: bool
    weight: int


#: What has no job left and is behind the virtual time begins there: as if there were no row.
_TURNS: Final = RowQuery(
    TurnRow,
    {
        "queue_id": "turn.queue_id",
        "by_user": "turn.by_user",
        "tenant_id": "turn.tenant_id",
        "virtual": "turn.virtual",
        "waiting": "turn.waiting",
        "weight": "coalesce(CASE WHEN turn.by_user THEN person.share_weight END, 1)",
    },
    """SELECT {columns} FROM scheduler_fairqueueturn turn
    LEFT JOIN accounts_user person ON person.id = turn.tenant_id
WHERE turn.cluster_id = %s AND (turn.waiting OR turn.tenant_id = 0 OR turn.virtual > (
    SELECT clock.virtual FROM scheduler_fairqueueturn clock WHERE clock.cluster_id = turn.cluster_id
        AND clock.queue_id = turn.queue_id AND clock.by_user = turn.by_user AND clock.tenant_id = 0))
ORDER BY turn.queue_id, turn.by_user, turn.tenant_id""",
)
_WEIGHTS: Final = RowQuery(
    TurnRow,
    {
        "queue_id": "0",
        "by_user": "true",
        "tenant_id": "person.id",
        "virtual": "NULL::bigint",
        "waiting": "false",
        "weight": "person.share_weight",
    },
    "SELECT {columns} FROM accounts_user person WHERE person.share_weight <> 1 ORDER BY person.id",
)


def turn_columns(cluster_id: int, policy: Policy) -> TurnColumns:
    """Where the tenants of policies that take turns, or would by a rule, are in virtual time, with people's weights."""
    taking = {
        (queue_id, own.tenant == "user") for queue_id, own in every_policy(policy) if own.name == "fair_queue"
    }
    if not taking:
        return TurnColumns()
    rows = {
        turn_key(row.queue_id, row.by_user, row.tenant_id): row
        for row in fetch(_TURNS, [cluster_id])
        if (row.queue_id, row.by_user) in taking
    }
    people = fetch(_WEIGHTS) if any(by_user for _, by_user in taking) else []
    for queue_id in sorted(queue_id for queue_id, by_user in taking if by_user):
        clock = rows.get(turn_key(queue_id, True, CLOCK))
        for person in people:
            key = turn_key(queue_id, True, person.tenant_id)
            at = clock.virtual if clock else 0
            rows.setdefault(key, person._replace(queue_id=queue_id, virtual=at))
    return TurnColumns.from_rows((key, *rows[key]) for key in sorted(rows))
