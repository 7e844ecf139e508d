"""One verb on all jobs that a filter finds, a bounded number in each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction

from accounts.models import User
from accounts.services import audit
from infra.errors import MusterError
from infra.request_cost import until_caller_gone
from scheduler.core.lifecycle import ACTIVE, INTERRUPTED, PENDING, TERMINAL, JobState
from scheduler.models import Job
from scheduler.models.job import JobQuerySet
from scheduler.services.changes.change import change_job
from scheduler.services.changes.many import VERBS, Outcome, act_on_many
from scheduler.services.jobs.verbs import requeue_job

#: Jobs of one call, and of one transaction of it.
MOST_JOBS: Final = 10_000
USUAL_JOBS: Final = 1000
BATCH: Final = 500
_ENDING: Final = frozenset({JobState.STOPPING, JobState.PREEMPTING, JobState.MIGRATING})
#: States in which a verb changes a job; jobs in other states do not match.
#: A filter that names states may requeue jobs that have ended, too: without one, all that ever ended would run again.
STATES: Final[Mapping[str, frozenset[JobState]]] = {
    "cancel": frozenset(JobState) - TERMINAL - {JobState.STOPPING},
    "hold": PENDING | INTERRUPTED,
    "release": frozenset({JobState.HELD}),
    "requeue": (ACTIVE | INTERRUPTED) - _ENDING,
    "reprioritise": PENDING | INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """What became of the jobs of one call; `left` more match, whose numbers are above `last`."""

    matched: int
    outcome: Outcome
    left: int
    last: int | None


def act_on_matching(
    verb: str, jobs: JobQuerySet, *, by: User, words: str, reason: str = "", priority: Any = None,
    most: int = USUAL_JOBS, after: int = 0, dry_run: bool = False, names_states: bool = False,
) -> FilterOutcome:  # fmt: skip
    """Apply a verb to the jobs that can be changed by it, the oldest first; `words` are the filter for the audit trail.

    Each job is judged by itself, with the rights of `by`. What a batch has done stays done when a later one fails.
    With `names_states` the filter says which states, so that `requeue` takes jobs that have ended, too.
    """
    states = STATES[verb] | (TERMINAL if verb == "requeue" and names_states else frozenset())
    matching = jobs.in_states(states).filter(number__gt=after).order_by("number")
    numbers = list(matching.values_list("number", flat=True)[:most])
    total = Outcome()
    thing = audit.Thing("jobs", "", f"jobs by filter: {words}"[:200])
    for at in until_caller_gone(range(0, len(numbers), BATCH)):
        batch = numbers[at : at + BATCH]
        if verb in VERBS:
            total.add(act_on_many(verb, batch, by=by, reason=reason, thing=thing, dry_run=dry_run))
        else:
            total.add(_one_by_one(_verb(verb, by=by, reason=reason, priority=priority), batch, by, dry_run))
    last = numbers[-1] if numbers else None
    left = matching.filter(number__gt=last).count() if len(numbers) == most else 0
    return FilterOutcome(len(numbers), total, left, last)


def _verb(verb: str, *, by: User, reason: str, priority: Any) -> Callable[[Job], Any]:
    if verb == "requeue":
        return lambda job: requeue_job(job=job, by=by, reason=reason)
    return lambda job: change_job(job=job, changes={"priority": priority}, by=by, reason=reason)


def _one_by_one(verb: Callable[[Job], Any], numbers: Sequence[int], by: User, dry_run: bool) -> Outcome:
    """Each job in a transaction of its own, with its own audit row; a dry run takes each back."""
    outcome = Outcome()
    jobs: Iterable[Job] = Job.objects.filter(pk__in=numbers).select_related("queue", "project", "user")
    for job in jobs.order_by("pk"):  # type: ignore[attr-defined]
        before = job.generation
        try:
            with transaction.atomic():
                changed = verb(job)
                if dry_run:
                    transaction.set_rollback(True)
        except MusterError as error:
            if not dry_run:
                audit.record_refusal(error, by=by)
            outcome.refused[job.number] = error.message
            continue
        (outcome.done if changed.generation != before else outcome.unchanged).append(job.number)
    return outcome
