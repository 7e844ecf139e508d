"""Where running jobs would start if they were moved now, from the planner's view of this moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from scheduler.core.whatif.moved import MovedJob, Place, places_of
from scheduler.models import Job
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.hypothetical import hypothetical_of_row
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.state.load.snapshots import Loaded, load_snapshot

#: Said of a job that has stopped running since it was looked at.
GONE = Place((), "The job is no longer running.")


def moved_job(job: Job, terms: Mapping[str, Any]) -> MovedJob:
    """A running job as it would wait again, with the terms of its move."""
    asked = hypothetical_of_row(job, move=terms)
    return MovedJob(
        number=job.number,
        request=asked.request,
        submitted_ms=int(job.created_at.timestamp() * 1000),
        tasks=asked.tasks,
        most_tasks=asked.most_tasks,
        nodes=asked.nodes,
        tasks_per_node=asked.tasks_per_node,
    )


def find_places(
    cluster_id: int,
    jobs: Iterable[tuple[Job, Mapping[str, Any]]],
    *,
    closed: Collection[int] = (),
    loaded: Loaded | None = None,
) -> dict[int, Place]:
    """Where each of these jobs, with the terms of its move, would start if all were moved now, by job number.

    Jobs that wait in line go first where the planner would let them. Outside of any transaction: it plans.
    """
    wanted = {job.number: moved_job(job, terms) for job, terms in jobs}
    if not wanted:
        return {}
    loaded = loaded or load_snapshot(cluster_id=cluster_id)
    there = set(loaded.snapshot.running.id.tolist())
    found = leaving_out_failing(
        loaded,
        lambda left: places_of(
            left.snapshot,
            policy_for_backend(left.policy, left.backend),
            [job for number, job in wanted.items() if number in there],
            closed=closed,
            plugins=installed_plugins(),
        ),
    )
    return {number: found.get(number, GONE) for number in wanted}
