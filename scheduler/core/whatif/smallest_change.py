"""What-if: the smallest single change of a request with which a pending job would start now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np

from scheduler.core.columns import rows_of
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import wall_of
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.gang_layout import fit_on
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import amount
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot

#: How many changes are planned in full at most: nearly always the first is confirmed.
MOST_PLANNED: Final = 4
#: How many GPU models are tried, those with the most devices first.
_MODELS: Final = 8


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a request with which the planner starts the job in this cycle."""

    #: "gpus", "cpu_millis", "memory_mib", "tasks", "gpu_model", "numa", "time_limit_seconds" or "queue"
    field: str
    before: int | str
    after: int | str
    start: Start

    def sentence(self, snapshot: Snapshot) -> str:
        """`With 7 GPUs instead of 8 the job would start now, on gpu-2.`"""
        names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
        nodes = [names[node] for node in self.start.node_ids]
        where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        words = words_of(self.field, self.before, self.after, each=len(self.start.placements) > 1)
        return f"{words} the job would start now, on {where}."


def words_of(field: str, before: int | str, after: int | str, *, each: bool = False) -> str:
    """`With 7 GPUs instead of 8`; `each`: the amounts are those of each of several tasks."""
    per_task = " a task" if each else ""
    if field == "tasks":
        return f"With {amount('tasks', int(after))} instead of {before}"
    if field == "gpu_model":
        other = f"{after} GPUs" if after else "GPUs of any model"
        return f"With {other} instead of {before}"
    if field == "time_limit_seconds":
        asked = f" instead of {_duration(int(before))}" if before else ""
        return f"With a time limit of {_duration(int(after))}{asked}"
    if field == "numa":
        return "Without the demand for one NUMA domain"
    if field == "queue":
        return f"In the queue {after}"
    after = amount(field, int(after))
    before = str(before) if field == "gpus" else amount(field, int(before))
    return f"With {after}{per_task} instead of {before}"


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


class Variant(NamedTuple):
    """A job with one thing changed; `loss` orders variants: the part of the request that is given up."""

    loss: int  # thousandths
    field: str
    before: int | str
    after: int | str
    request: RequestClass
    shape: Shape
    time_limit_seconds: int
    queue_row: int


def smallest_change(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    context: CycleContext,
    *,
    queue_ids: Iterable[int] = (),
    plugins: Plugins = NO_PLUGINS,
) -> Change | None:
    """The smallest change with which a waiting job would start in this cycle; None when no change tried helps.

    At most four are planned in full.
    `context`: the cycle after its plan (`context_after`). Each change is tried there first, and the first that fits
    is planned in full, so the answer is what the planner would do. `queue_ids`: the queues that the owner may use.
    """
    row = snapshot.job_row(job_id)
    tried = 0
    for variant in sorted(_variants(context, row, queue_ids), key=lambda one: (one.loss, one.field)):
        if not _fits(context, row, variant):
            continue
        start = plan_cycle(changed_snapshot(snapshot, row, variant), policy, plugins).start_of(job_id)
        if start is not None:
            return Change(variant.field, variant.before, variant.after, start)
        tried += 1
        if tried >= MOST_PLANNED:
            return None
    return None


def _variants(context: CycleContext, row: int, queue_ids: Iterable[int]) -> Iterator[Variant]:
    same = unchanged(context, row)
    per_task, shape = same.request.per_task, same.shape

    def fits(change: Variant) -> bool:
        return _fits(context, row, change)

    yield from elsewhere(context.cluster.snapshot, same, queue_ids, models=_MODELS)
    if per_task.gpus > 1:
        yield from _less(same, "gpus", per_task.gpus, 1, fits)
    if shape.tasks > 1 and not shape.nodes and not shape.tasks_per_node:
        yield from _less(same, "tasks", shape.tasks, 1, fits)
    if per_task.cpu_millis > 1000:
        yield from _less(same, "cpu_millis", per_task.cpu_millis, 1000, fits)
    if per_task.memory_mib > 1024:
        yield from _less(same, "memory_mib", per_task.memory_mib, 1024, fits)
    for limit in _limits(context, row, context.job_classes.of(row).query.reservation_rows):
        asked = same.time_limit_seconds
        yield same._replace(
            loss=1000 - 1000 * limit // asked if asked else 500,
            field="time_limit_seconds",
            before=asked,
            after=limit,
            time_limit_seconds=limit,
        )


def unchanged(context: CycleContext, row: int) -> Variant:
    """The job as it was submitted."""
    job_class, pending = context.job_classes.of(row), context.cluster.snapshot.pending
    limit = int(pending.time_limit_seconds[row])
    return Variant(0, "", 0, 0, job_class.query.request, job_class.shape, limit, job_class.queue_row)


def elsewhere(
    snapshot: Snapshot, same: Variant, queue_ids: Iterable[int], *, models: int
) -> Iterator[Variant]:
    """The same amounts elsewhere: in another queue, on another GPU model, across NUMA domains.

    Queues that allow as much time; any model, and `models` models by name, those with the most devices first.
    """
    queues, request, asked = snapshot.queues, same.request, same.time_limit_seconds
    for queue_id in sorted(set(queue_ids) & set(queues.id.tolist())):
        other = int(rows_of(queues.id, np.array([queue_id], dtype=np.int64), what="queue")[0])
        bound = int(queues.max_wall_seconds[other])
        if other != same.queue_row and not queues.paused[other] and not (bound and asked > bound):
            yield same._replace(
                loss=1,
                field="queue",
                before=queues.name[same.queue_row],
                after=queues.name[other],
                queue_row=other,
            )
    if request.gpu_model:
        for model in ("", *models_of(snapshot)[:models]):
            if model != request.gpu_model:
                yield same._replace(
                    loss=2 if model else 3,
                    field="gpu_model",
                    before=request.gpu_model,
                    after=model,
                    request=replace(request, gpu_model=model),
                )
    if request.one_domain:
        yield same._replace(
            loss=4, field="numa", before="one", after="prefer", request=replace(request, one_domain=False)
        )


def _less(
    same: Variant, field: str, asked: int, step: int, fits: Callable[[Variant], bool]
) -> Iterator[Variant]:
    """The largest smaller amount that fits, in whole steps, by bisection: a job that fits also fits with less."""

    def with_amount(steps: int) -> Variant:
        after = steps * step
        changed = same._replace(
            loss=max(1000 - 1000 * after // asked, 4), field=field, before=asked, after=after
        )
        if field == "tasks":
            return changed._replace(shape=replace(same.shape, tasks=after))
        amounts: dict[str, Any] = {field: after}
        per_task = replace(same.request.per_task, **amounts)
        return changed._replace(request=replace(same.request, per_task=per_task))

    low, high = 0, (asked - 1) // step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(with_amount(middle)) else (low, middle - 1)
    if low:
        yield with_amount(low)


def _limits(context: CycleContext, row: int, barring: tuple[int, ...]) -> Iterator[int]:
    """Shorter time limits: those that end before a reservation in the way, and the longest that the queue allows."""
    snapshot = context.cluster.snapshot
    asked = int(snapshot.pending.time_limit_seconds[row])
    bound = int(snapshot.queues.max_wall_seconds[context.job_classes.of(row).queue_row])
    found = {bound} if 0 < bound < asked else set()
    for number in barring:
        left = (int(snapshot.reservations.starts_ms[number]) - snapshot.now_ms) // 1000
        if left >= 60 and (not asked or left < asked):
            found.add(left // 60 * 60)
    yield from sorted(found, reverse=True)


def models_of(snapshot: Snapshot) -> list[str]:
    names, counts = np.unique(np.array(snapshot.devices.model, dtype=object).astype(str), return_counts=True)
    order = np.lexsort((names, -counts))
    return [str(names[number]) for number in order if names[number]]


def _fits(context: CycleContext, row: int, variant: Variant) -> bool:
    """Whether nodes and limits have room for the changed job after the plan."""
    cluster, workspace, job_class = context.cluster, context.workspace, context.job_classes.of(row)
    snapshot = cluster.snapshot
    request, tasks = variant.request, variant.shape.tasks
    bound = int(snapshot.queues.max_wall_seconds[variant.queue_row])
    if workspace.limits.queue_is_full(variant.queue_row) or (bound and variant.time_limit_seconds > bound):
        return False
    if (
        workspace.limits.short_quota(workspace.cluster.charges.of_request(job_class.payer, request, tasks))
        is not None
    ):
        return False
    if request.per_task.extras and workspace.limits.short_pool(request, tasks) is not None:
        return False
    if not workspace.budgets.allows(row, request, tasks, variant.time_limit_seconds):
        return False
    barring = job_class.query.reservation_rows
    if variant.field == "time_limit_seconds":
        ends_ms = snapshot.now_ms + variant.time_limit_seconds * 1000
        barring = tuple(one for one in barring if ends_ms > int(snapshot.reservations.starts_ms[one]))
    query = FilterQuery(
        request,
        snapshot.queues.partition_ids[variant.queue_row],
        barring,
        job_class.query.who,
        wall=int(wall_of(cluster, np.array([variant.time_limit_seconds or bound]))[0]),
        isolation=snapshot.queues.isolation.item(variant.queue_row),
        inside=job_class.query.inside,
        rules=job_class.query.rules,
    )
    candidates = Candidates(query, context.workspace_of(query), context.rules_of(query))
    if tasks == 1:
        return candidates.best() >= 0
    return fit_on(candidates.slots(), variant.shape, cluster)


def changed_snapshot(snapshot: Snapshot, row: int, variant: Variant) -> Snapshot:
    """The snapshot in which the job was submitted as changed."""
    pending = snapshot.pending
    columns = {
        "class_index": len(snapshot.classes),
        "tasks": variant.shape.tasks,
        "time_limit_seconds": variant.time_limit_seconds,
        "queue_id": int(snapshot.queues.id[variant.queue_row]),
    }
    changed = {}
    for name, value in columns.items():
        column = getattr(pending, name).copy()
        column[row] = value
        changed[name] = column
    groups = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    return Snapshot.build(
        **(groups | {"classes": (*snapshot.classes, variant.request), "pending": replace(pending, **changed)})
    )
