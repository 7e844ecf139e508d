"""Preview victims: the jobs that a request would stop or suspend, shown only as far as the asker may see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from accounts.models import User
from scheduler.core.plan import Plan, Preempt
from scheduler.models import Job
from scheduler.selectors import visible_jobs
from scheduler.state.lifecycle.verdicts import duration

#: Victims that are named.
NAMED_VICTIMS: Final = 10


@dataclass(frozen=True, slots=True)
class Victim:
    """One job that would be stopped or suspended; what the asker may not see of it is None."""

    number: int | None
    name: str | None
    project: str | None
    user: str | None
    priority: int | None
    #: Work since its start or its last checkpoint that would be done again; 0 for one that is suspended.
    lost_seconds: int | None
    gpus: int
    tasks: int
    #: "requeue" or "suspend".
    mode: str
    #: "preempt" or "reclaim".
    kind: str
    #: How long it would have to end.
    grace_seconds: int
    #: The number as people say it: `123_3` for an element of an array.
    said_number: str | None = None


def victims_of(plan: Plan, job_id: int, by: User) -> tuple[list[Preempt], tuple[Victim, ...]]:
    """The preemptions that the plan decides for this job, and the first of their victims."""
    orders = [preempt for preempt in plan.preempts if preempt.for_job_id == job_id]
    if not orders:
        return [], ()
    some = orders[:NAMED_VICTIMS]
    numbers = [preempt.job_id for preempt in some]
    sizes = {
        row[0]: row[1:] for row in Job.objects.filter(pk__in=numbers).values_list("number", "gpus", "tasks")
    }
    seen = {job.number: job for job in visible_jobs(by).filter(number__in=numbers)}
    victims = []
    for preempt in some:
        gpus, tasks = sizes.get(preempt.job_id, (0, 1))
        job = seen.get(preempt.job_id)
        victims.append(
            Victim(
                number=job.number if job else None,
                name=job.name if job else None,
                project=job.project.slug if job else None,
                user=job.user.username if job else None,
                priority=preempt.priority if job else None,
                lost_seconds=preempt.lost_seconds if job else None,
                gpus=gpus * tasks,
                tasks=tasks,
                mode=preempt.mode,
                kind=preempt.kind,
                grace_seconds=preempt.grace_seconds,
                said_number=job.said_number if job else None,
            )
        )
    return orders, tuple(victims)


def words_of(orders: list[Preempt]) -> str:
    """The headline of a preview with these preemptions."""
    count = len(orders)
    who = "1 job" if count == 1 else f"{count:,} jobs"
    if all(preempt.mode == "suspend" for preempt in orders):
        return f"Would suspend {who} and start as soon as {'it is' if count == 1 else 'they are'} suspended."
    grace = duration(max(preempt.grace_seconds for preempt in orders))
    ended = "it has" if count == 1 else "they have"
    back = " to reclaim lent quota" if orders[0].kind == "reclaim" else ""
    return f"Would preempt {who}{back} and start as soon as {ended} ended, after {grace} at the latest."
