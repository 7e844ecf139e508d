"""The panel beside the submit form: what would become of the job, from the planner itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounts.models import User
from quotas.models import Quota
from scheduler.services.specs import JobSpec, parse_job
from scheduler.web.quota import WORDS


@dataclass(frozen=True, slots=True)
class Effect:
    """One quota line before and after."""

    word: str
    quota: Quota
    before: int
    after: int

    @property
    def scale(self) -> int:
        return max(self.quota.hard or 0, self.after, 1)

    @property
    def adds(self) -> int:
        return self.after - self.before

    @property
    def passes(self) -> bool:
        return self.quota.enforce and self.quota.hard is not None and self.after > self.quota.hard


@dataclass(frozen=True, slots=True)
class Panel:
    spec: JobSpec
    effects: list[Effect]


def panel_of(payload: Mapping[str, Any], *, by: User) -> Panel:
    """Raises what submitting it would raise."""
    spec = parse_job(payload, by=by)
    return Panel(spec, _effects(spec))


def _effects(spec: JobSpec) -> list[Effect]:
    total = spec.total
    needs = {
        "cpu_millis": total.cpu_millis,
        "memory_mib": total.memory_mib,
        "gpu_millis": spec.per_task.gpu_millis_charged * spec.tasks,
        "storage_mib": total.storage_mib,
        "running_jobs": 1,
    }
    lines = {line.resource: line for line in Quota.objects.filter(project=spec.project)}
    return [
        Effect(word, lines[resource], lines[resource].used, lines[resource].used + needs[resource])
        for resource, word in WORDS.items()
        if resource in lines and lines[resource].hard is not None and needs[resource]
    ]
