"""What a quota provider outside Muster is to count for the attempts of a plan: written with them, told after them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from quotas import outbox
from quotas.providers.allocations import as_json
from quotas.providers.base import QuotaStart
from scheduler.core.plan import Start
from scheduler.state.db.sql import Statement, int_array

_INSERT: Final = """
INSERT INTO quotas_providerallocation (attempt_id, job_number, project_id, provider, state, start, text, asked_at,
    tries, next_try_at)
SELECT attempt_id, job_number, project_id, provider, 'asked', start, '', %s, 0, %s
FROM json_to_recordset(%s::json) AS a(attempt_id bigint, job_number bigint, project_id bigint, provider text,
    start jsonb)
"""


def statements(
    starts: Sequence[Start],
    attempts: Mapping[int, int],
    *,
    providers: Mapping[int, str],
    asked: Mapping[int, QuotaStart],
    at: datetime,
) -> list[Statement]:
    """The rows of these starts; none where Muster alone decides.

    `attempts` are by job, `providers` by project, `asked` by job: what a provider has let through.
    """
    rows: list[dict[str, Any]] = [
        {
            "attempt_id": attempts[start.job_id],
            "job_number": start.job_id,
            "project_id": start.project_id,
            "provider": providers[start.project_id],
            "start": as_json(asked[start.job_id]),
        }
        for start in starts
        if start.job_id in asked
    ]
    if not rows:
        return []
    outbox.tell_providers_soon()
    numbers = int_array(row["job_number"] for row in rows)
    return [
        (_INSERT, [at, at, json.dumps(rows)]),
        (
            "DELETE FROM quotas_refusedstart WHERE job_number = ANY(%s::bigint[])",
            [numbers],
        ),
    ]
