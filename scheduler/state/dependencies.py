"""Lets jobs go that waited for others, or says that they wait for nothing any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from django.db import connection
from django.db.models import Q

from scheduler.core.lifecycle import TERMINAL, JobState
from scheduler.core.reasons import CATEGORY, ReasonCode
from scheduler.models import DependencyKind, Job, JobDependency
from scheduler.state.transitions import StaleJob, move_job


def holds(kind: str, state: str) -> bool | None:
    """Whether a dependency on a job in this state holds: None while that is open."""
    if state not in TERMINAL:
        return None
    if kind == DependencyKind.COMPLETION:
        return True
    if kind == DependencyKind.SUCCESS:
        return state == JobState.COMPLETED
    return state == JobState.FAILED


def lock_states(numbers: Iterable[int]) -> dict[int, str]:
    """States of jobs that somebody is about to wait for; they keep them until this transaction ends.

    A job that ends at this moment either shows its end here, or finds the new dependency when it looks for
    what waited for it: no wait is ever lost between the two.
    """
    wanted = sorted(set(numbers))
    if not wanted:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT number, state FROM scheduler_job WHERE number = ANY(%s) ORDER BY number FOR SHARE",
            [wanted],
        )
        return dict(cursor.fetchall())


def resolve_dependants(ended: Iterable[Job], *, at: datetime) -> set[int]:
    """Settle what waited for jobs that have just ended; answers the clusters that have new work to plan.

    Call it in the transaction that ended them, after their states were written.
    """
    states = {job.number: job.state for job in ended}
    open_ones = JobDependency.objects.filter(on_id__in=states, satisfied__isnull=True)
    touched: set[int] = set()
    verdicts: dict[bool, list[int]] = defaultdict(list)
    for pk, job_id, on_id, kind in open_ones.values_list("pk", "job_id", "on_id", "kind"):
        verdict = holds(kind, states[on_id])
        if verdict is not None:
            verdicts[verdict].append(pk)
            touched.add(job_id)
    for verdict, ids in verdicts.items():
        JobDependency.objects.filter(pk__in=ids).update(satisfied=verdict)
    return _let_go(touched, at=at)


def _let_go(numbers: set[int], *, at: datetime) -> set[int]:
    """Queue the blocked jobs of these that wait for nothing any more; tell those that never will."""
    clusters: set[int] = set()
    waiting = Job.objects.filter(number__in=numbers, state=JobState.BLOCKED).select_related("queue")
    for job in waiting.order_by("number").select_for_update(of=("self",), no_key=True):
        unmet = list(
            job.dependencies.filter(Q(satisfied=False) | Q(satisfied__isnull=True)).select_related("on")
        )
        never = [d for d in unmet if d.satisfied is False]
        if never:
            Job.objects.filter(pk=job.pk).update(**never_satisfied(never[0], at=at))
        elif not unmet:
            try:
                move_job(
                    job,
                    JobState.QUEUED,
                    because="every job it waited for has ended as it should",
                    at=at,
                    eligible_at=max(at, job.begin_at) if job.begin_at else at,
                    **not_evaluated(at),
                )
            except StaleJob:
                continue  # cancelled or held at this moment
            clusters.add(job.queue.cluster_id)
    return clusters


def never_satisfied(dependency: JobDependency, *, at: datetime) -> dict[str, object]:
    """The reason columns of a job whose dependency can no longer hold."""
    other = dependency.on
    ended = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}
    return _reason(
        ReasonCode.DEPENDENCY_NEVER_SATISFIED,
        f"Waits for {dependency.kind} of job {other.number} ({other.name}), "
        f"which {ended[JobState(other.state)]}. It can never start: "
        "cancel it, or submit it again without that dependency.",
        {"job": other.number, "kind": dependency.kind, "state": other.state},
        at,
    )


def waits_for(numbers: list[int], names: dict[int, str], *, at: datetime) -> dict[str, object]:
    """The reason columns of a job that waits for these jobs."""
    shown = ", ".join(f"{number} ({names[number]})" for number in numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    what = "job" if len(numbers) == 1 else f"{len(numbers)} jobs:"
    return _reason(
        ReasonCode.DEPENDENCY, f"Waits for {what} {shown}{more}.", {"jobs": numbers, "open": len(numbers)}, at
    )


def not_evaluated(at: datetime) -> dict[str, object]:
    """The reason columns of a job that no cycle has looked at yet."""
    return _reason(ReasonCode.NOT_EVALUATED_YET, "Not looked at yet; the next planning cycle does.", {}, at)


def _reason(code: ReasonCode, text: str, details: dict[str, object], at: datetime) -> dict[str, object]:
    return {
        "reason_code": code.value,
        "reason_category": CATEGORY[code].value,
        "reason_text": text,
        "reason_details": details,
        "reason_at": at,
    }
