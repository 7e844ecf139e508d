"""Suggestions: the smallest single thing to ask differently so that a job starts now, or well sooner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db.models import Q

from quotas.core.resources import show_cpus
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.whatif.earlier_start import earlier_change
from scheduler.core.whatif.explain import context_after
from scheduler.core.whatif.smallest_change import smallest_change, words_of
from scheduler.models import Queue
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.explanation_parts import NOT_IN_LINE, PlannedJob
from scheduler.services.planning.forecasts import StartRange, live_cycles

#: Reasons that asking for something else can do nothing about.
_NOT_CHANGED: Final = frozenset(
    {
        code
        for code in ReasonCode
        if CATEGORY[code] in (ReasonCategory.ASK, ReasonCategory.SYSTEM)
        and code is not ReasonCode.QUEUE_STOPPED
    }
    - {ReasonCode.QUOTA_ZERO, ReasonCode.AGENT_UNREACHABLE}
    | NOT_IN_LINE
    | {ReasonCode.DEPENDENCY_NEVER_SATISFIED, ReasonCode.IMAGE_NOT_FOUND}
)


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """The smallest single thing to ask differently, as a field of the request, and what it gains."""

    field: str  # of the request: "time_limit", "gpu_count", "gpu_type", "queue", ...
    value: str
    words: str
    starts_now: bool
    #: When it would start at the latest, and how much sooner that is.
    at: datetime | None = None
    gain_seconds: int = 0


def suggest_change(
    job: PlannedJob, start: StartRange | None, queue: Queue, project_id: int
) -> tuple[str, SuggestedChange | None]:
    """The smallest change that starts it now, in a sentence; else one that starts it well sooner.

    Only queues that the project may use are suggested. Without a range of its own no start can be called sooner.
    """
    found, plugins = job.found, installed_plugins()
    if found.headline is None or any(blocker.reason in _NOT_CHANGED for blocker in found.blockers):
        return "", None
    usable = Queue.objects.filter(Q(project=None) | Q(project=project_id), cluster_id=queue.cluster_id)
    slugs = {pk: (name, slug) for pk, name, slug in usable.values_list("pk", "name", "slug")}
    after = job.after or context_after(job.snapshot, job.policy, job.plan, plugins)
    now = smallest_change(job.snapshot, job.policy, job.job_id, after, queue_ids=slugs, plugins=plugins)
    names = dict(slugs.values())
    if now is not None:
        field, value = _as_request(now.field, now.after, names)
        words = words_of(now.field, now.before, now.after, each=len(now.start.placements) > 1)
        return now.sentence(job.snapshot), SuggestedChange(field, value, words, starts_now=True)
    if start is None or start.p90_at is None:
        return "", None
    sooner = earlier_change(
        job.snapshot, job.policy, job.job_id, after, int(start.p90_at.timestamp() * 1000), queue_ids=slugs,
        most_cycles=live_cycles(job.snapshot), plugins=plugins,
    )  # fmt: skip
    if sooner is None:
        return "", None
    return "", SuggestedChange(
        *_as_request(sooner.field, sooner.after, names),
        sooner.words,
        starts_now=False,
        at=datetime.fromtimestamp(sooner.at_ms / 1000, tz=UTC),
        gain_seconds=(sooner.before_ms - sooner.at_ms) // 1000,
    )


#: What a change of the core is called in a request.
REQUEST_FIELDS: Final = {
    "gpus": "gpu_count", "cpu_millis": "cpu_cores", "memory_mib": "memory", "tasks": "tasks",
    "gpu_model": "gpu_type", "time_limit_seconds": "time_limit", "queue": "queue",
    "numa": "numa",
}  # fmt: skip


def _as_request(field: str, value: int | str, slugs: Mapping[str, str]) -> tuple[str, str]:
    if field == "queue":
        value = slugs.get(str(value), str(value))
    elif field == "cpu_millis":
        value = show_cpus(int(value))
    elif field == "memory_mib":
        value = f"{value}Mi"
    return REQUEST_FIELDS[field], str(value)
