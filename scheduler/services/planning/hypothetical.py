"""Hypothetical jobs: a request, or a row that is not in line, as a job that the planner can look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from accounts.models import User
from quotas.core.gpu_models import sliced
from quotas.core.resources import Resources
from scheduler.core.snapshot.relaxation import names_of, pack_required
from scheduler.core.snapshot.snapshot import MUST, PACKS
from scheduler.core.whatif.explain import Hypothetical
from scheduler.models import Job
from scheduler.services.submission.job_spec import JobSpec, features_of
from scheduler.state.load.request_rows import class_of_request


def hypothetical_of(spec: JobSpec, by: User, *, relaxed: Collection[str] = ()) -> Hypothetical:
    """A request as it would be in line if `by` submitted it now; `relaxed` of its constraints are relaxed."""
    return Hypothetical(
        request=class_of_request(
            spec.per_task,
            gpu_model=spec.gpu_models,
            node_selector=spec.node_selector,
            tolerations=spec.tolerations,
            affinity={**spec.affinity, "relax": spec.relax, "relaxed": relaxed},
            **spec.of_class(),
        ),
        queue_id=spec.queue.pk,
        project_id=spec.project.pk,
        user_id=by.pk,
        priority=spec.priority,
        tasks=spec.least_tasks,
        most_tasks=spec.tasks if spec.min_tasks else 0,
        pack=_pack_number(spec.pack.level, spec.pack.required, spec.relax, relaxed),
        nodes=spec.nodes or 0,
        tasks_per_node=spec.tasks_per_node or 0,
        time_limit_seconds=spec.time_limit_seconds or 0,
        name=spec.name,
        labels=tuple(sorted(spec.labels.items())),
        eligible_ms=_ms(spec.begin_at),
        reservation_id=spec.reservation_id or 0,
    )


def hypothetical_of_row(job: Job, *, move: Mapping[str, Any] | None = None) -> Hypothetical:
    """A submitted job as it would be in line if nothing of its own held it; `move` are the terms of a move of it."""
    return Hypothetical(
        request=class_of_request(
            Resources(
                cpu_millis=job.cpu_millis,
                memory_mib=job.memory_mib,
                gpus=job.gpus,
                gpu_millis=job.gpu_millis,
                storage_mib=job.storage_mib,
                extras=tuple(sorted(job.extras.items())),
            ),
            gpu_model=sliced(job.gpu_model, job.gpu_slice),
            node_selector=job.node_selector,
            tolerations=job.tolerations,
            affinity={**job.affinity, "move": move, "relax": job.relax, "relaxed": job.relaxed},
            cpu_limit_millis=job.cpu_limit_millis or 0,
            memory_limit_mib=job.memory_limit_mib or 0,
            one_domain=job.numa == "one",
            features=features_of(job),
        ),
        queue_id=job.queue_id,
        project_id=job.project_id,
        user_id=job.user_id,
        priority=job.priority,
        tasks=job.min_tasks or job.tasks,
        most_tasks=job.tasks if job.min_tasks else 0,
        pack=_pack_number(job.pack, job.pack_required, job.relax, job.relaxed or ()),
        nodes=job.nodes or 0,
        tasks_per_node=job.tasks_per_node or 0,
        time_limit_seconds=job.time_limit_seconds or 0,
        name=job.name,
        labels=tuple(sorted(job.labels.items())),
        reservation_id=job.reservation_id or 0,
    )


def _pack_number(
    pack: str, required: bool, relax: Iterable[Mapping[str, Any]], relaxed: Collection[str]
) -> int:
    """The topology level that its tasks share, as a snapshot numbers it."""
    return PACKS.index(pack) + MUST * pack_required(required, kept=names_of(relax), relaxed=relaxed)


def _ms(at: datetime | None) -> int:
    return int(at.timestamp() * 1000) if at else 0
