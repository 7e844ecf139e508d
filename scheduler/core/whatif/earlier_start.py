"""What-if, earlier: the smallest single change of a request that starts a pending job much earlier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.smallest_change import Variant, changed_snapshot, elsewhere, unchanged, words_of

#: The least that a change has to gain: one of this many parts of the wait, and this time.
GAIN_PART: Final = 4
GAIN_MS: Final = 10 * 60_000
#: How many changes are tried: each one is a forecast of its own.
_PLAYED: Final = 8
#: How many GPU models are tried, those with the most devices first.
_MODELS: Final = 2
#: No shorter time limit is proposed.
_SHORTEST_SECONDS: Final = 300
#: Parts of the time limit that are tried, in eighths.
_EIGHTHS: Final = (6, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class EarlierStart:
    """One change of a request; if all jobs run to their limits the job starts at `at_ms` and not at `before_ms`."""

    field: str  # as of `what_if.Change`
    before: int | str
    after: int | str
    each: bool
    at_ms: int
    before_ms: int

    @property
    def words(self) -> str:
        """`With a time limit of 4:00:00 instead of 8:00:00`."""
        return words_of(self.field, self.before, self.after, each=self.each)


def earlier_change(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    context: CycleContext,
    before_ms: int,
    *,
    queue_ids: Iterable[int] = (),
    most_cycles: int = 100,
    plugins: Plugins = NO_PLUGINS,
) -> EarlierStart | None:
    """The smallest change that brings a job's latest start forward by a quarter of its wait or more; None = none.

    `before_ms`: the latest start of the unchanged job (the P90 of its forecast). Each change is played forward as the
    forecast is, so that both starts are computed in the same way.
    """
    row = snapshot.job_row(job_id)
    wait_ms = before_ms - snapshot.now_ms
    enough_ms = before_ms - max(wait_ms // GAIN_PART, GAIN_MS)
    if enough_ms < snapshot.now_ms:
        return None
    tried = sorted(lesser_requests(context, row, queue_ids), key=lambda one: (one.loss, one.field))
    for variant in tried[:_PLAYED]:
        future = play_forward(
            changed_snapshot(snapshot, row, variant),
            policy,
            RunTimes(),
            Course.LIMITS,
            [job_id],
            most_cycles=most_cycles,
            until_ms=enough_ms,
            plugins=plugins,
        )
        at_ms = future.started_ms.get(job_id)
        if at_ms is not None:
            return EarlierStart(
                variant.field, variant.before, variant.after, variant.shape.tasks > 1, at_ms, before_ms
            )
    return None


def lesser_requests(context: CycleContext, row: int, queue_ids: Iterable[int]) -> Iterator[Variant]:
    """Smaller requests; `loss` is the part that is given up, in thousandths."""
    same = unchanged(context, row)
    request, shape, asked = same.request, same.shape, same.time_limit_seconds
    yield from elsewhere(context.cluster.snapshot, same, queue_ids, models=_MODELS)
    for eighths in _EIGHTHS:
        limit = asked * eighths // 8 // 60 * 60
        if _SHORTEST_SECONDS <= limit < asked:
            yield same._replace(
                loss=1000 - 125 * eighths,
                field="time_limit_seconds",
                before=asked,
                after=limit,
                time_limit_seconds=limit,
            )
    gpus = request.per_task.gpus
    for fewer in dict.fromkeys((gpus // 2, gpus // 4)):
        if 0 < fewer < gpus:
            yield same._replace(
                loss=1000 - 1000 * fewer // gpus,
                field="gpus",
                before=gpus,
                after=fewer,
                request=replace(request, per_task=replace(request.per_task, gpus=fewer)),
            )
    if shape.tasks > 1 and not shape.nodes and not shape.tasks_per_node:
        fewer = shape.tasks // 2
        yield same._replace(
            loss=1000 - 1000 * fewer // shape.tasks,
            field="tasks",
            before=shape.tasks,
            after=fewer,
            shape=replace(shape, tasks=fewer),
        )
