"""Blockers: everything that keeps a job waiting, each with its numbers; the strongest is the headline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from quotas.core.fairshare import HARD
from quotas.core.gpu_models import model_matches
from quotas.core.limits import charge
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import OpenLine, Workspace
from scheduler.core.columns import Ints
from scheduler.core.placement.candidates import Candidates, largest
from scheduler.core.placement.equivalence import JobClass, JobClasses, number_together
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.plugins import Rules
from scheduler.core.plan import Decision, Facts, Placement, decide
from scheduler.core.reason_codes import PRECEDENCE, ReasonCode
from scheduler.core.reasons.shortfalls import never_fits, not_now
from scheduler.core.snapshot.snapshot import GATE_REASONS, JobGate

#: What no device is called: every model that the request allows is closed to its payer.
NO_MODEL: Final = "none that its quota allows"


def own_blockers(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """What jobs' own rows and their queues say, before any node is asked: (pending rows, why)."""
    snapshot = cluster.snapshot
    pending, queues = snapshot.pending, snapshot.queues
    for gate, reason in GATE_REASONS.items() if pending.gate.any() else ():
        if gate is not JobGate.BACKOFF:
            yield np.flatnonzero(pending.gate == gate), decide(reason)
    for row in np.flatnonzero(queues.paused).tolist():
        why = decide(ReasonCode.QUEUE_STOPPED, queue=queues.name[row], text=queues.paused_text[row])
        yield np.flatnonzero(cluster.pending_queue == row), why
    shares = snapshot.shares
    if (shares.over == HARD).any():
        share_row = cluster.pending_share
        over = np.flatnonzero((share_row >= 0) & (shares.over[share_row] == HARD))
        for rows, values in split(over, share_row[over]):
            share = values[0]
            yield (
                rows,
                decide(
                    ReasonCode.FAIR_SHARE_BEHIND,
                    owner=shares.owner[share],
                    used_percent=int(shares.used_percent[share]),
                    limit_percent=int(shares.limit_percent[share]),
                ),
            )
    away = snapshot.projects.away_text
    for row, text in enumerate(away) if any(away) else ():
        if text:
            yield (
                np.flatnonzero(cluster.pending_project == row),
                decide(ReasonCode.QUOTA_PROVIDER_AWAY, text=text),
            )
    early = np.flatnonzero(pending.eligible_ms > snapshot.now_ms)
    for rows, values in split(early, pending.eligible_ms[early], pending.gate[early]):
        reason = ReasonCode.BACKOFF if values[1] == JobGate.BACKOFF else ReasonCode.BEGIN_TIME
        yield rows, decide(reason, begin_ms=values[0])
    if len(pending):
        bound = queues.max_wall_seconds[cluster.pending_queue]
        long = np.flatnonzero((bound > 0) & (pending.time_limit_seconds > bound))
        for rows, values in split(long, pending.time_limit_seconds[long], cluster.pending_queue[long]):
            yield (
                rows,
                decide(
                    ReasonCode.EXCEEDS_MAX_WALLTIME,
                    needs=values[0],
                    limit=int(queues.max_wall_seconds[values[1]]),
                    queue=queues.name[values[1]],
                ),
            )


def array_blockers(cluster: ClusterIndex, workspace: Workspace) -> Iterator[tuple[Ints, Decision]]:
    """Jobs of arrays that already have as many members running as they allow."""
    pending = cluster.snapshot.pending
    bound = np.flatnonzero((pending.array_id > 0) & (pending.array_max_running > 0))
    for rows, values in split(bound, pending.array_id[bound], pending.array_max_running[bound]):
        running = workspace.array_running.get(values[0], 0)
        if running >= values[1]:
            yield (
                rows,
                decide(
                    ReasonCode.RATE_LIMITED, scope="array", array=values[0], running=running, limit=values[1]
                ),
            )


class CycleContext:
    """What groups of jobs are told, each worked out once for one state of the workspace."""

    def __init__(self, cluster: ClusterIndex, rules: Rules) -> None:
        self.cluster = cluster
        self.workspace = Workspace(cluster)
        self.rules = rules
        self._rules = (rules, *(own for _, own in rules.queues))
        numbers = {queue_id: number for number, (queue_id, _) in enumerate(rules.queues, 1)}
        self.groups = JobClasses(cluster, numbers)
        self._candidates: dict[int, Candidates] = {}
        self._narrowed: dict[tuple[int, str], Candidates] = {}
        self._never: dict[int, Decision | None] = {}
        self._now: dict[int, Decision | None] = {}
        self._now_at = -1

    def rules_of(self, question: FilterQuery) -> Rules:
        """The rules by which nodes are chosen for a question: its queue's own, or the cluster's."""
        return self._rules[question.rules]

    def candidates(self, group: JobClass) -> Candidates:
        """The nodes for a group's question; groups with an equal question share them."""
        if not self.workspace.has_model_lines:
            return self._candidates.get(group.question_number) or self._whole(group)
        if (question := self.question(group)) is not group.question:
            key = (group.question_number, question.request.gpu_model)
            if key not in self._narrowed:
                self._narrowed[key] = Candidates(question, self.workspace, self.rules_of(question))
            return self._narrowed[key]
        return self._whole(group)

    def _whole(self, group: JobClass) -> Candidates:
        known = self._candidates.get(group.question_number)
        if known is None:
            known = Candidates(group.question, self.workspace, self.rules_of(group.question))
            self._candidates[group.question_number] = known
        return known

    def question(self, group: JobClass) -> FilterQuery:
        """What nodes are asked: the group's question, without the GPU models that quota is short of.

        A line for one model counts a job that may take any only by the devices it is given; so it is given
        none of a model whose lines have no room for all of it.
        """
        opened = self.workspace.open_lines(group.payer, group.class_index, group.shape.tasks)
        closed = {
            model
            for one in opened
            if self.workspace.short_quota(((one.line, one.amount),)) is not None
            for model in one.models
        }
        if not closed:
            return group.question
        request = group.question.request
        models = self.cluster.models_of(request.gpu_model, request.gpu_memory_mib)
        # A name that is the beginning of a closed one would let that in too.
        kept = [
            model
            for model in models
            if model not in closed and not any(model_matches(model, other) for other in closed)
        ]
        return replace(group.question, request=replace(request, gpu_model="|".join(kept) or NO_MODEL))

    def asks_whole(self, group: JobClass) -> bool:
        """Whether all models that the request allows are open to the group now."""
        return not self.workspace.has_model_lines or self.question(group) is group.question

    def charges_placed(self, group: JobClass, placements: Sequence[Placement]) -> tuple[tuple[int, int], ...]:
        """(quota row, amount) of every line that a job of this group counts on, placed so."""
        workspace, tasks = self.workspace, len(placements) or group.shape.tasks
        if not workspace.has_model_lines or not placements:
            return workspace.charges(group.payer, group.class_index, tasks)
        rows = self.cluster.device_row
        return workspace.charges_given(
            group.payer,
            group.class_index,
            tasks,
            (rows[device] for placement in placements for device in placement.device_ids),
            placements[0].gpu_millis,
        )

    def never(self, group: JobClass) -> Decision | None:
        """Why this can never start as written, however empty the cluster; None when it can."""
        if group.pair not in self._never:
            self._never[group.pair] = never_fits(
                self._whole(group), group.shape, self.rules_of(group.question)
            )
        return self._never[group.pair]

    def nodes(self, group: JobClass) -> Decision | None:
        """Why no nodes are there for it now; None when they are."""
        if self._now_at != self.workspace.log_length:
            self._now.clear()
            self._now_at = self.workspace.log_length
        if group.pair not in self._now:
            self._now[group.pair] = not_now(self._whole(group), group.shape, self.rules_of(group.question))
        return self._now[group.pair]

    def queue(self, queue_row: int) -> Decision | None:
        """Whether a queue already runs as many jobs as it may."""
        workspace = self.workspace
        if not workspace.queue_is_full(queue_row):
            return None
        return decide(
            ReasonCode.RATE_LIMITED,
            scope="queue",
            queue=self.cluster.snapshot.queues.name[queue_row],
            running=workspace.queue_running[queue_row],
            limit=workspace.queue_bound[queue_row],
        )

    def quota_line(self, line: int, need: int, payer: int = -1) -> Decision | None:
        """Whether a quota line has no room for so much, with its place in the tree as the payer sees it."""
        quotas, limits = self.cluster.snapshot.quotas, self.workspace.limits
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
        limits = self.workspace.limits
        return next(
            (one for one in self.workspace.payer_lines[payer] if one != line and line in limits.path(one)),
            None,
        )

    def quota(self, group: JobClass) -> list[Decision]:
        """Every quota line without room for a job of this group, whatever devices it is given."""
        charges = self.workspace.charges(group.payer, group.class_index, group.shape.tasks)
        return _there(self.quota_line(line, need, group.payer) for line, need in self._short(charges))

    def model_quota(self, group: JobClass) -> list[Decision]:
        """Every line for a GPU model that keeps devices of that model from a job of this group."""
        opened = self.workspace.open_lines(group.payer, group.class_index, group.shape.tasks)
        return _there(self.open_line(one, group) for one in opened)

    def open_line(self, one: OpenLine, group: JobClass) -> Decision | None:
        """Whether a line for a GPU model has no room for a job that may be given others as well.

        One that is too small for it leaves it the others: for those it waits, and for no person.
        """
        if self._leaves_others(one, group):
            quotas = self.cluster.snapshot.quotas
            return decide(
                ReasonCode.WAITING_FOR_QUOTA,
                owner=quotas.owner[one.line],
                resource=quotas.resource[one.line],
                needs=one.amount,
                limit=self.workspace.limits.bound[one.line],
                gpu_model=quotas.gpu_model[one.line],
                elsewhere=1,
            )
        return self.quota_line(one.line, one.amount, group.payer)

    def _leaves_others(self, one: OpenLine, group: JobClass) -> bool:
        return one.amount > self.workspace.limits.bound[one.line] and not self.never_by_quota(group)

    def other_models(self) -> Iterator[tuple[int, Decision]]:
        """(group, decision) wherever a line for one GPU model is too small for a group that may have others."""
        for number in range(len(self.groups)) if self.workspace.has_model_lines else ():
            group = self.groups[number]
            for one in self.workspace.open_lines(group.payer, group.class_index, group.shape.tasks):
                decision = self.open_line(one, group) if self._leaves_others(one, group) else None
                if decision is not None:
                    yield number, decision

    def never_by_quota(self, group: JobClass) -> bool:
        """Whether the group asks for more than a line can ever give: it waits for a person, not for a turn.

        A line of one GPU model that it is too large for leaves it the other models, where there are any.
        """
        if any(decision.reason in _TOO_LARGE for decision in self.quota(group)):
            return True
        bound = self.workspace.limits.bound
        opened = self.workspace.open_lines(group.payer, group.class_index, group.shape.tasks)
        closed = {model for one in opened if one.amount > bound[one.line] for model in one.models}
        request = group.question.request
        return bool(closed) and closed >= set(
            self.cluster.models_of(request.gpu_model, request.gpu_memory_mib)
        )

    def _short(self, charges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
        """Every line without room, not only the first."""
        limits = self.workspace.limits
        found = [(line, need) for line, need in charges if limits.used[line] + need > limits.bound[line]]
        if not found and (first := limits.short(charges)) is not None:
            found.append(first)
        return found

    def most_within_limits(self, group: JobClass) -> int:
        """How many tasks quotas and pools allow a job that is enough with fewer, where those are allowed."""
        workspace, request = self.workspace, group.question.request

        def allowed(tasks: int) -> bool:
            charges = workspace.charges(group.payer, group.class_index, tasks)
            opened = workspace.open_lines(group.payer, group.class_index, tasks)
            return (
                workspace.short_quota(charges) is None
                and workspace.short_pool(request, tasks) is None
                and all(
                    one.line in closed or workspace.short_quota(((one.line, one.amount),)) is None
                    for one in opened
                )
            )

        closed = {
            one.line
            for one in workspace.open_lines(group.payer, group.class_index, group.shape.tasks)
            if workspace.short_quota(((one.line, one.amount),)) is not None
        }

        return largest(group.shape.tasks, group.shape.most, allowed)

    def pool(self, group: JobClass) -> Decision | None:
        """Whether a licence or other extra of the cluster is short."""
        short = self.workspace.short_pool(group.question.request, group.shape.tasks)
        if short is None:
            return None
        name, needs, free, total = short
        return decide(ReasonCode.WAITING_FOR_RESOURCES, resource=name, needs=needs, free=free, total=total)

    def pair_blockers(self, group: JobClass) -> list[Decision]:
        """What keeps this request from nodes and pools, whoever asks, strongest first."""
        never = self.never(group)
        return [never] if never is not None else _by_strength(_there((self.pool(group), self.nodes(group))))

    def blockers(self, group: JobClass) -> list[Decision]:
        """Everything that keeps a group's jobs from starting now, strongest first; empty = nothing does."""
        found = [*self.pair_blockers(group), *_there([self.queue(group.queue_row)]), *self.quota(group),
                 *self.model_quota(group)]  # fmt: skip
        return _by_strength(found)

    def short_groups(self) -> tuple[Ints, Ints, Ints]:
        """(group, quota row, need) wherever a group meets a quota line without room: all groups at once."""
        groups, workspace, snapshot = self.groups, self.workspace, self.cluster.snapshot
        lines = workspace.payer_lines
        counts = np.array([len(rows) for rows in lines] or [0], dtype=np.int64)[groups.payer]
        none = np.zeros(0, dtype=np.int64)
        if not counts.sum():
            return none, none, none
        if workspace.has_model_lines or workspace.limits.keeps:
            return self._short_groups_one_by_one()
        pending, first = snapshot.pending, groups.first_row
        kind = number_together(len(first), pending.class_index[first], pending.tasks[first])
        resources = {name: number for number, name in enumerate(dict.fromkeys(snapshot.quotas.resource))}
        needs = np.zeros((int(kind.max()) + 1, len(resources)), dtype=np.int64)
        sample = np.zeros(len(needs), dtype=np.int64)
        sample[kind] = first
        for number, row in enumerate(sample.tolist()):
            per_task = snapshot.classes[int(pending.class_index[row])].per_task
            tasks = int(pending.tasks[row])
            needs[number] = [charge(name, per_task, tasks) for name in resources]
        resource = np.array([resources[name] for name in snapshot.quotas.resource], dtype=np.int64)
        used, hard = np.array(workspace.quota_used), np.array(workspace.quota_hard)
        if not (used + needs.max(axis=0)[resource] > hard).any():
            return none, none, none
        starts = np.cumsum([0, *(len(rows) for rows in lines)])
        flat = np.array([row for rows in lines for row in rows], dtype=np.int64)
        group = np.repeat(np.arange(len(groups)), counts)
        offset = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        line = flat[starts[groups.payer[group]] + offset]
        need = needs[kind[group], resource[line]]
        short = (need > 0) & (used[line] + need > hard[line])
        return group[short], line[short], need[short]

    def _short_groups_one_by_one(self) -> tuple[Ints, Ints, Ints]:
        found: list[tuple[int, int, int]] = []
        for number in range(len(self.groups)):
            group = self.groups[number]
            charges = self.workspace.charges(group.payer, group.class_index, group.shape.tasks)
            found.extend((number, line, need) for line, need in self._short(charges))
            for one in self.workspace.open_lines(group.payer, group.class_index, group.shape.tasks):
                if self._leaves_others(one, group):
                    continue  # said by `other_models`
                if self.workspace.short_quota(((one.line, one.amount),)) is not None:
                    found.append((number, one.line, one.amount))
        group_of, line_of, need_of = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return group_of, line_of, need_of


_TOO_LARGE: Final = frozenset({ReasonCode.EXCEEDS_MAX_QUOTA, ReasonCode.QUOTA_ZERO})


def _there(decisions: Iterable[Decision | None]) -> list[Decision]:
    return [decision for decision in decisions if decision is not None]


def _by_strength(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda decision: PRECEDENCE[decision.reason])


def split(rows: Ints, *columns: Ints) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """The rows by equal values of the columns (one value a row), each with those values."""
    if not len(rows):
        return
    order = np.lexsort((rows, *columns[::-1]))
    values = np.stack([column[order] for column in columns], axis=1)
    changes = np.flatnonzero((values[1:] != values[:-1]).any(axis=1)) + 1
    for part, first in zip(np.split(rows[order], changes), [0, *changes.tolist()], strict=True):
        yield part, tuple(values[first].tolist())
