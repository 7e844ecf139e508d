"""Starts at quota providers outside Muster: reported as attempts begin and end; refused jobs are sent back.

The planner asks before it starts a job, so a refusal afterwards is rare: others used up what was free in between.
"""

from __future__ import annotations

import structlog
from django.db import transaction
from django.utils import timezone

from quotas.models import named_providers, provider_label
from quotas.services.deciding import allocations as provider_allocations
from scheduler.core.lifecycle import JobState, StopReason
from scheduler.models import Job
from scheduler.services.execution import dispatch
from scheduler.services.jobs.verbs import ask_to_end
from scheduler.state.db.sql import run
from scheduler.state.lifecycle.transitions import ImpossibleMove, StaleJob

log = structlog.get_logger(__name__)

#: What is known of an attempt until it has ended; one that is gone has ended.
_ENDED = """
UPDATE quotas_providerallocation held SET ended_at = %s,
    next_try_at = CASE WHEN held.state <> 'refused' THEN %s::timestamptz END, tries = 0
WHERE held.ended_at IS NULL AND held.state IN ('asked', 'held', 'refused')
    AND NOT EXISTS (SELECT FROM scheduler_attempt a WHERE a.id = held.attempt_id AND a.is_live)
"""
_REFUSED = """
SELECT refused.attempt_id, refused.job_number, refused.provider, refused.text
FROM quotas_providerallocation refused JOIN scheduler_attempt a ON a.id = refused.attempt_id
WHERE refused.state = 'refused' AND refused.ended_at IS NULL AND a.is_live AND a.stop_asked_at IS NULL
ORDER BY refused.job_number
"""


def tell_providers() -> int:
    """Make every call that is due, and send back the jobs that were refused; answers how many calls were made.

    Safe at any time and several times at once: all that is to be done follows from rows.
    """
    now = timezone.now()
    run(_ENDED, [now, now])
    sent = provider_allocations.tell_due() if named_providers() else 0
    for attempt_id, number, provider, text in run(_REFUSED):
        _send_back(attempt_id, number, f"{provider_label(provider)} refused the start: {text}")
    return sent


def _send_back(attempt_id: int, number: int, because: str) -> None:
    """Ask the job to end and wait again; one that is ending already is left alone."""
    try:
        with transaction.atomic():
            job = Job.objects.get(number=number)
            if job.attempts.live().filter(pk=attempt_id).exists():
                ask_to_end(
                    job, JobState.PREEMPTING, StopReason.QUOTA_REFUSED, by=None, because=because[:300],
                    now=timezone.now(),
                )  # fmt: skip
    except (ImpossibleMove, StaleJob, Job.DoesNotExist) as error:
        log.info("refused_start_ends_by_itself", job=number, error=str(error))
        return
    dispatch.end_unstarted([attempt_id], text=because[:300])
