"""Why jobs wait, written to their rows where they report another reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
from django.db import transaction

from scheduler import outbox
from scheduler.core.columns import Ints
from scheduler.core.plan import Decision, Plan
from scheduler.core.reason_codes import CATEGORY
from scheduler.core.reasons.messages import sentence
from scheduler.state.apply.apply_sql import PLANNED_STATES
from scheduler.state.db.sql import int_array, run
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load import reason_marks

#: Reasons written in one cycle at most: pending jobs must not delay the next starts.
MAX_REASONS: Final = 10_000
#: With more changed reasons than this, those whose numbers alone have changed take turns.
MAX_REWORDED: Final = 2000
#: The first jobs in the cycle's order get a reworded reason at once ...
FIRST_JOBS: Final = 1000
#: ... and every other job in one of this many turns of one second.
REWORDING_TURNS: Final = 16
#: Rows of one statement.
CHUNK: Final = 1000


class PendingReason(NamedTuple):
    """A reason as the columns of a job hold it."""

    code: str
    category: str
    text: str
    details: str  # JSON


class WrittenJob(NamedTuple):
    """A job whose reason was written."""

    number: int
    user_id: int
    project_id: int


class WrittenReasons(NamedTuple):
    """The jobs whose reason was written, and the marks of their new reasons."""

    numbers: Ints
    marks: Ints


def write_pending_reasons(
    plan: Plan, *, pending_ids: Ints, reported: Ints, now_ms: int, lease: HeldLease, at: datetime
) -> WrittenReasons:
    """Write the reason of every pending job that reports another one; answers which were written.

    `reported` has a mark of the reason that each job of `pending_ids` shows (`reason_marks`); these rise. Apart
    from the starts and after them: a reason informs and decides nothing, so starts do not wait for it.
    """
    reasons = [_reason_of(decision) for decision in plan.decisions]
    marks = reason_marks.reason_marks([(reason.code, reason.text) for reason in reasons])
    shown = reported[np.searchsorted(pending_ids, plan.waiting.job_id)]
    jobs, which = reasons_to_write(plan, shown, marks, now_ms=now_ms)
    numbers: list[int] = []
    for first in range(0, len(jobs), CHUNK):
        chunk = slice(first, first + CHUNK)
        with transaction.atomic():
            leases.fence(lease)
            rows = _write(jobs[chunk].tolist(), which[chunk].tolist(), reasons, at=at)
            outbox.announce_jobs(rows)
        numbers += [row.number for row in rows]
    written = np.array(sorted(numbers), dtype=np.int64)
    return WrittenReasons(written, marks[which[np.searchsorted(jobs, written)]])


def reasons_to_write(plan: Plan, shown: Ints, marks: Ints, *, now_ms: int) -> tuple[Ints, Ints]:
    """The waiting jobs that do not report their reason yet, by rising number, and which decision is theirs.

    `shown` has the mark that each waiting job shows, `marks` that of each decision. A reason of another kind is
    always written. Where only its numbers have changed, the first jobs get it at once and the others in turns:
    with 100,000 jobs that wait for the same GPUs, each start changes the numbers of all.
    """
    waiting = plan.waiting
    due = marks[waiting.decision]
    rows = np.flatnonzero(shown != due)
    if len(rows) > MAX_REWORDED:
        turn = (now_ms // 1000) % REWORDING_TURNS
        now = (
            ~reason_marks.same_kind(shown[rows], due[rows])
            | (waiting.ahead_jobs[rows] < FIRST_JOBS)
            | (waiting.job_id[rows] % REWORDING_TURNS == turn)
        )
        rows = rows[now][:MAX_REASONS]
    return waiting.job_id[rows], waiting.decision[rows]


def _reason_of(decision: Decision) -> PendingReason:
    return PendingReason(
        code=decision.reason.value,
        category=CATEGORY[decision.reason].value,
        text=sentence(decision.reason, decision.facts),
        details=json.dumps(decision.details, sort_keys=True),
    )


def _write(
    jobs: Sequence[int], which: Sequence[int], reasons: Sequence[PendingReason], *, at: datetime
) -> list[WrittenJob]:
    """Write the reason `reasons[which[i]]` to `jobs[i]`; answers the jobs that were written.

    A job that another transaction has locked is left to the next cycle: a reason is never worth waiting for.
    """
    rows = run(
        """
        WITH waiting AS (
            SELECT number FROM scheduler_job WHERE number = ANY(%s::bigint[]) AND state = ANY(%s)
            ORDER BY number FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE scheduler_job AS job SET reason_code = reason.code, reason_category = reason.category,
            reason_text = reason.text, reason_details = reason.details::jsonb, reason_at = %s
        FROM waiting
            JOIN unnest(%s::bigint[], %s::int[]) AS due(number, which) ON due.number = waiting.number
            JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
                AS reason(code, category, text, details, place) ON reason.place = due.which + 1
        WHERE job.number = waiting.number
        RETURNING job.number, job.user_id, job.project_id
        """,
        [
            int_array(jobs), list(PLANNED_STATES), at, int_array(jobs), int_array(which),
            [r.code for r in reasons], [r.category for r in reasons], [r.text for r in reasons],
            [r.details for r in reasons],
        ],
    )  # fmt: skip
    return [WrittenJob(*row) for row in rows]
