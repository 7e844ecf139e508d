"""Limits: what a start counts for on quota lines, and what a tree of them leaves free, on integers alone.

The arithmetic is that of hierarchical cohorts in Kueue (kubernetes-sigs/kueue, pkg/cache/scheduler/
resource_node.go and keps/79-hierarchical-cohorts), with one difference: there a cohort's quota is its own
plus what its members lend; here the nominal of a line above is the whole of its subtree, as an operator
writes it down, and the lines below divide it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

from quotas.core.gpu_models import model_matches
from quotas.core.resources import NAMES, Resources

#: The lines that count jobs instead of amounts.
RUNNING_JOBS: Final = "running_jobs"
PENDING_JOBS: Final = "pending_jobs"
#: No bound: more than any sum of amounts (each is below 2**53).
UNBOUNDED: Final = 1 << 62
#: In columns of numbers: no amount is said.
NONE: Final = -1

#: (line, amount), each line before the one above it.
Charges = Sequence[tuple[int, int]]


def charge(
    resource: str,
    per_task: Resources,
    tasks: int,
    *,
    gpu_model: str = "",
    devices: Mapping[str, int] | None = None,
) -> int:
    """What a job of equal tasks counts for on a line of this resource.

    GPUs in thousandths count whole devices as 1000 each, a share as what it is. A line for one GPU model
    counts `devices`: the thousandths held by model, which are known once the job was given devices.
    """
    if resource == RUNNING_JOBS:
        return 1
    if resource == PENDING_JOBS:
        return 0
    if gpu_model:
        held = devices or {}
        return sum(millis for model, millis in held.items() if model_matches(gpu_model, model))
    if resource == "gpu_millis":
        return per_task.gpu_millis_charged * tasks
    if resource in NAMES:
        return int(getattr(per_task, resource)) * tasks
    return dict(per_task.extras).get(resource, 0) * tasks


def bound_of(
    *, hard: int, nominal: int, borrowing_limit: int, enforce: bool, has_parent: bool, is_pool: bool
) -> int:
    """The most that may be in use on a line, whatever others use; -1 in, UNBOUNDED out: none.

    Borrowing is bounded by `borrowing_limit`, else only by what the lines above have left. A pool (the line
    of an organization) with none above it has nobody to borrow from: its nominal is all there is. The
    nominal of a project alone bounds nothing, it says what is its own.
    """
    if not enforce:
        return UNBOUNDED
    bounds = [hard] if hard >= 0 else []
    if nominal >= 0 and borrowing_limit >= 0:
        bounds.append(nominal + borrowing_limit)
    elif nominal >= 0 and is_pool and not has_parent:
        bounds.append(nominal)
    return min(bounds, default=UNBOUNDED)


class LimitTree:
    """Lines by number, each below one other or none, with what is in use on each.

    A line's *guarantee* is what its lending limit keeps back: nobody else may have it, used or idle. What a
    line takes of the one above is the larger of what is in use below it and its guarantee; the idle part of
    the guarantees below a line is *kept*: it counts there as if it were in use. So a start fits when on each
    line of its path what is in use and kept, and what comes on top, stays within the bound; what a guarantee
    covers comes on top of nothing above.
    """

    __slots__ = ("bound", "guarantee", "keeps", "kept", "nominal", "parent", "used")

    def __init__(
        self,
        *,
        parent: Sequence[int],
        used: Sequence[int],
        hard: Sequence[int],
        nominal: Sequence[int],
        borrowing_limit: Sequence[int],
        lending_limit: Sequence[int],
        enforce: Sequence[bool],
        is_pool: Sequence[bool],
    ) -> None:
        """`parent` is the number of the line above, -1 for none; amounts are -1 where none is said."""
        self.parent = list(parent)
        self.used = list(used)
        self.nominal = list(nominal)
        self.bound = [
            bound_of(
                hard=most, nominal=own, borrowing_limit=borrows, enforce=holds, has_parent=up >= 0,
                is_pool=pool,
            )
            for up, most, own, borrows, holds, pool in zip(
                parent, hard, nominal, borrowing_limit, enforce, is_pool, strict=True
            )
        ]  # fmt: skip
        self.guarantee = [
            max(own - lends, 0) if own >= 0 and lends >= 0 and holds else 0
            for own, lends, holds in zip(nominal, lending_limit, enforce, strict=True)
        ]
        #: Whether anything is kept back at all; else what is in use decides alone.
        self.keeps = any(self.guarantee)
        self.kept = [0] * len(self.parent)
        if self.keeps:
            for line in self._from_the_leaves():
                if (up := self.parent[line]) >= 0:
                    taken = max(self.used[line] + self.kept[line], self.guarantee[line])
                    self.kept[up] += taken - self.used[line]

    def copy(self) -> LimitTree:
        """The same lines, with counts of their own."""
        other = copy.copy(self)
        other.used, other.kept = list(self.used), list(self.kept)
        return other

    def path(self, line: int) -> list[int]:
        """The line and all above it, itself first."""
        found = []
        while line >= 0:
            found.append(line)
            line = self.parent[line]
        return found

    def free(self, line: int) -> int:
        """The most that could start now on this line and all above it; UNBOUNDED when no line bounds it."""
        path = self.path(line)
        room = most = UNBOUNDED
        for one in reversed(path):
            bound, used = self.bound[one], self.used[one]
            here = used + self.kept[one]
            own = self.guarantee[one] - here
            if own > 0:
                room += own
            if bound - here < room:
                room = max(bound - here, 0)
            if bound - used < most:
                most = bound - used
        left = min(room, most)
        return UNBOUNDED if left > UNBOUNDED >> 1 else max(left, 0)

    def short(self, charges: Charges) -> tuple[int, int] | None:
        """The first line without room for its amount."""
        used, bound = self.used, self.bound
        for line, amount in charges:
            if used[line] + amount > bound[line]:
                return line, amount
        return self._short_of_kept(charges) if self.keeps else None

    def _short_of_kept(self, charges: Charges) -> tuple[int, int] | None:
        reaches: dict[int, int] = {}  # what of the amount below comes on top of a line
        for line, amount in charges:
            more = reaches.get(line, amount)
            if more <= 0:
                up = 0
            else:
                here, own = self.used[line] + self.kept[line], self.guarantee[line]
                if here + more > self.bound[line]:
                    return line, amount
                up = max(here + more, own) - max(here, own)
            if self.parent[line] >= 0:
                reaches[self.parent[line]] = up
        return None

    def take(self, charges: Charges, *, sign: int = 1) -> None:
        """Count a start on its lines; `sign` -1 takes it back."""
        if not self.keeps:
            for line, amount in charges:
                self.used[line] += sign * amount
            return
        moved: dict[int, int] = {}
        for line, amount in charges:
            more, own = sign * amount, self.guarantee[line]
            before = self.used[line] + self.kept[line]
            self.used[line] += more
            self.kept[line] += moved.get(line, 0)
            after = self.used[line] + self.kept[line]
            if self.parent[line] >= 0:
                moved[self.parent[line]] = max(after, own) - max(before, own) - more

    def borrowed(self, line: int) -> int:
        """What is in use above the nominal; 0 where none is said."""
        return max(self.used[line] - self.nominal[line], 0) if self.nominal[line] >= 0 else 0

    def _from_the_leaves(self) -> list[int]:
        """Every line before the one above it; raises ValueError where lines stand above each other."""
        depth = [NONE] * len(self.parent)
        for leaf in range(len(self.parent)):
            walked, line = [], leaf
            while line >= 0 and depth[line] == NONE:
                walked.append(line)
                if len(walked) > len(depth):
                    raise ValueError("quota lines stand above each other in a circle")
                line = self.parent[line]
            base = depth[line] if line >= 0 else NONE
            for number, one in enumerate(reversed(walked), 1):
                depth[one] = base + number
        return sorted(range(len(depth)), key=lambda line: -depth[line])
