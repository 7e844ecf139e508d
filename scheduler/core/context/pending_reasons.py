"""Pending reasons: everything that keeps a class of jobs waiting, with its numbers, strongest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from scheduler.core.cluster.job_charges import OpenLine
from scheduler.core.columns import Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import Decision, Facts, decide
from scheduler.core.reason_codes import PRECEDENCE, ReasonCode
from scheduler.core.reasons.shortfalls import not_now


class PendingReasons:
    """Why classes of jobs do not start, as the workspace of a cycle stands now."""

    def __init__(self, context: CycleContext) -> None:
        self._context = context
        self._cluster, self._workspace = context.cluster, context.workspace
        self._now: dict[int, Decision | None] = {}
        self._now_at = -1

    def nodes(self, job_class: JobClass) -> Decision | None:
        """Why no nodes are there for it now; None when they are."""
        if self._now_at != self._workspace.columns.log_length:
            self._now.clear()
            self._now_at = self._workspace.columns.log_length
        if job_class.placement_class not in self._now:
            self._now[job_class.placement_class] = not_now(
                self._context.whole_candidates(job_class),
                job_class.shape,
                self._context.rules_of(job_class.query),
            )
        return self._now[job_class.placement_class]

    def pool(self, job_class: JobClass) -> Decision | None:
        """Whether a licence or other extra of the cluster is short."""
        short = self._workspace.limits.short_pool(job_class.query.request, job_class.shape.tasks)
        if short is None:
            return None
        name, needs, free, total = short
        return decide(ReasonCode.WAITING_FOR_RESOURCES, resource=name, needs=needs, free=free, total=total)

    def queue(self, queue_row: int) -> Decision | None:
        """Whether a queue already runs as many jobs as it may."""
        workspace = self._workspace
        if not workspace.limits.queue_is_full(queue_row):
            return None
        return decide(
            ReasonCode.RATE_LIMITED,
            scope="queue",
            queue=self._cluster.snapshot.queues.name[queue_row],
            running=workspace.limits.queue_running[queue_row],
            limit=workspace.limits.queue_bound[queue_row],
        )

    def quota_line(self, line: int, need: int, payer: int = -1) -> Decision | None:
        """Whether a quota line has no room for an amount, with its place in the tree as the payer sees it."""
        quotas, limits = self._cluster.snapshot.quotas, self._workspace.limits.tree
        bound, used, kept = limits.bound[line], limits.used[line], limits.kept[line]
        if limits.short(((line, need),)) is None:
            return None
        facts: Facts = {
            "owner": quotas.owner[line],
            "resource": quotas.resource[line],
            "needs": need,
            "limit": bound,
        }
        if quotas.gpu_model[line]:
            facts["gpu_model"] = quotas.gpu_model[line]
        if bound == 0:
            return decide(ReasonCode.QUOTA_ZERO, **facts)
        if need > bound:
            return decide(ReasonCode.EXCEEDS_MAX_QUOTA, **facts)
        if kept:
            facts["kept"] = kept
        own = self._own_line(line, payer)
        if own is not None:
            facts["own"] = quotas.owner[own]
            facts["own_used"] = limits.used[own]
            if limits.nominal[own] >= 0:
                facts["own_nominal"] = limits.nominal[own]
                facts["may_borrow"] = max(
                    limits.free(own) - max(limits.nominal[own] - limits.used[own], 0), 0
                )
        return decide(ReasonCode.WAITING_FOR_QUOTA, used=used, **facts)

    def _own_line(self, line: int, payer: int) -> int | None:
        """The payer's first line below this one; None when there is none."""
        if payer < 0:
            return None
        limits = self._workspace.limits.tree
        return next(
            (one for one in self._cluster.paths.lines[payer] if one != line and line in limits.path(one)),
            None,
        )

    def quota(self, job_class: JobClass) -> list[Decision]:
        """Every quota line without room for a job of this class, whatever devices it is given."""
        charges = self._context.charges(job_class)
        return _present(
            self.quota_line(line, need, job_class.payer) for line, need in self._context.short_lines(charges)
        )

    def model_quota(self, job_class: JobClass) -> list[Decision]:
        """Every line for a GPU model that keeps devices of that model from a job of this class."""
        opened = self._context.open_lines(job_class)
        return _present(self.open_line(one, job_class) for one in opened)

    def open_line(self, one: OpenLine, job_class: JobClass) -> Decision | None:
        """Whether a line for a GPU model has no room for a job that may be given others as well.

        One that is too small for it leaves it the others: for those it waits, and for no person.
        """
        if self._leaves_others(one, job_class):
            quotas = self._cluster.snapshot.quotas
            return decide(
                ReasonCode.WAITING_FOR_QUOTA,
                owner=quotas.owner[one.line],
                resource=quotas.resource[one.line],
                needs=one.amount,
                limit=self._workspace.limits.tree.bound[one.line],
                gpu_model=quotas.gpu_model[one.line],
                elsewhere=1,
            )
        return self.quota_line(one.line, one.amount, job_class.payer)

    def _leaves_others(self, one: OpenLine, job_class: JobClass) -> bool:
        return one.amount > self._workspace.limits.tree.bound[one.line] and not self._context.never_by_quota(
            job_class
        )

    def other_models(self) -> Iterator[tuple[int, Decision]]:
        """(class, decision) wherever a line for one GPU model is too small for a class that may have others."""
        for number in range(len(self._context.job_classes)) if self._cluster.charges.has_model_lines else ():
            job_class = self._context.job_classes[number]
            for one in self._context.open_lines(job_class):
                decision = self.open_line(one, job_class) if self._leaves_others(one, job_class) else None
                if decision is not None:
                    yield number, decision

    def placement_reasons(self, job_class: JobClass) -> list[Decision]:
        """What keeps this request from nodes and pools, in any queue, strongest first."""
        never = self._context.never(job_class)
        return (
            [never]
            if never is not None
            else _by_strength(_present((self.pool(job_class), self.nodes(job_class))))
        )

    def of_class(self, job_class: JobClass) -> list[Decision]:
        """Everything that keeps a class's jobs from starting now, strongest first; empty = nothing does."""
        limits = [*_present([self.queue(job_class.queue_row)]), *self.quota(job_class)]
        return _by_strength([*self.placement_reasons(job_class), *limits, *self.model_quota(job_class)])

    def short_classes(self) -> tuple[Ints, Ints, Ints]:
        """(class, quota row, need) wherever a class meets a quota line without room, for all classes at once."""
        tree = self._workspace.limits.tree
        if self._cluster.charges.has_model_lines or tree.keeps:
            return self._short_classes_one_by_one()
        return self._context.line_needs.short(tree)

    def _short_classes_one_by_one(self) -> tuple[Ints, Ints, Ints]:
        found: list[tuple[int, int, int]] = []
        for number in range(len(self._context.job_classes)):
            job_class = self._context.job_classes[number]
            charges = self._context.charges(job_class)
            found.extend((number, line, need) for line, need in self._context.short_lines(charges))
            for one in self._context.open_lines(job_class):
                if self._leaves_others(one, job_class):
                    continue  # said by `other_models`
                if self._workspace.limits.short_quota(((one.line, one.amount),)) is not None:
                    found.append((number, one.line, one.amount))
        group_of, line_of, need_of = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return group_of, line_of, need_of


def _present(decisions: Iterable[Decision | None]) -> list[Decision]:
    return [decision for decision in decisions if decision is not None]


def _by_strength(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda decision: PRECEDENCE[decision.reason])
