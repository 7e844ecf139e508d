"""Share columns: fair-share factors of users and projects as columns that a cycle orders its jobs by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quotas.core.fairshare import NOTHING, product_factors
from quotas.core.share_tree import ORGANIZATION, PERSON, PROJECT, Shares
from scheduler.core.columns import Ints
from scheduler.core.snapshot.snapshot import ShareColumns, share_key


def share_columns(
    shares: Shares, project_ids: Iterable[int], *, flat: bool = False, product: bool = False
) -> ShareColumns:
    """The columns of these projects and everybody in them; `flat` hands on passed limits and no factors.

    `product`: factors by shares multiplied down the tree, in place of the places of Fair Tree.
    """
    tree, standings = shares.tree, shares.standings
    if not len(tree):
        return ShareColumns()
    kind = np.array(tree.kind)
    wanted = np.isin(tree.id, np.fromiter(project_ids, dtype=np.int64)) & (kind == PROJECT)
    is_person = (kind == PERSON) & wanted[np.maximum(tree.parent, 0)]
    rows: Ints = np.flatnonzero(wanted | is_person)
    person = is_person[rows]
    factor = product_factors(standings) if product else standings.factor
    limits = np.where(shares.over_row >= 0, shares.over_row, 0)[rows]
    passed = shares.over[rows] > NOTHING
    bound = np.where(shares.over == 2, tree.hard_percent, tree.soft_percent)
    return ShareColumns(
        id=share_key(
            np.where(person, tree.id[tree.parent[rows]], tree.id[rows]), np.where(person, tree.id[rows], 0)
        ),
        factor=np.full(len(rows), -1) if flat else factor[rows],
        over=shares.over[rows],
        owner=tuple(
            _owner(tree.kind[row], tree.name[row]) if there else ""
            for row, there in zip(limits.tolist(), passed.tolist(), strict=True)
        ),
        used_percent=np.where(passed, shares.percent[limits].astype(np.int64), 0),
        limit_percent=np.where(passed, bound[limits], 0),
    )


def _owner(kind: str, name: str) -> str:
    return f"{'organization' if kind == ORGANIZATION else 'project'} {name}"
