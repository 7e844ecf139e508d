"""Projects, with the budgets they count on: their queries, and the columns of a snapshot from what these find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from django.conf import settings

from quotas.core.pricing import Price
from quotas.models import named_providers
from quotas.providers.waiting import away_sentence
from scheduler.core.columns import distinct
from scheduler.core.snapshot.snapshot import (
    BudgetColumns,
    PendingColumns,
    ProjectColumns,
    QuotaColumns,
    RunningColumns,
    SpentRule,
)
from scheduler.state.db.fragments import ANY_OF
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array
from scheduler.state.ledger.ledger_sql import PeriodRow
from scheduler.state.load.quota_rows import Lines


class ProjectRow(NamedTuple):
    """A project, and what it lost to preemption in the last day."""

    id: int
    name: str
    organization_id: int | None
    share_weight: int
    lost_gpu_seconds: int


PROJECTS: Final = RowQuery(
    ProjectRow,
    {
        "id": "project.id",
        "name": "project.slug",
        "organization_id": "project.organization_id",
        "share_weight": "project.share_weight",
        "lost_gpu_seconds": "coalesce(lost.gpu_seconds, 0)",
    },
    f"""SELECT {{columns}} FROM accounts_project project LEFT JOIN ({{lost}}) lost ON lost.project_id = project.id
    WHERE project.id = {ANY_OF} ORDER BY project.id""",
)
#: Work that the jobs of each project lost to preemption, in GPU seconds: since each start or its last checkpoint.
#: What was preempted is looked for first (`OFFSET 0`), and not among all the jobs that a project ever had.
LOST: Final = """SELECT job.project_id, sum(extract(epoch FROM attempt.stop_asked_at
            - greatest(coalesce(attempt.started_at, attempt.scheduled_at),
                CASE WHEN job.saved_at < attempt.stop_asked_at THEN job.saved_at END))
            * (SELECT count(*) FROM scheduler_task task WHERE task.attempt_id = attempt.id)
            * CASE WHEN request.gpu_millis > 0 THEN request.gpu_millis ELSE request.gpus * 1000 END / 1000
        )::bigint AS gpu_seconds
    FROM (SELECT id, job_id, scheduled_at, started_at, stop_asked_at FROM scheduler_attempt
        WHERE stopped_for IS NOT NULL AND stop_asked_at > statement_timestamp() - interval '1 day' OFFSET 0) attempt
        JOIN scheduler_job job ON job.number = attempt.job_id
        JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    GROUP BY job.project_id"""
#: For the applier: what was lost decides which job goes first and no more.
LOST_UNREAD: Final = "SELECT 0 AS project_id, 0 AS gpu_seconds"


class AwayRow(NamedTuple):
    """A project whose quota provider cannot be reached or refuses."""

    project_id: int
    provider: str
    status: str
    text: str


#: Projects that wait for their quota provider; none where jobs run meanwhile. One that decides about starts is asked
#: by the next plan once its pause is over; the others are tried by the round of exchanges.
AWAY: Final = RowQuery(
    AwayRow,
    {"project_id": "project_id", "provider": "provider", "status": "status", "text": "text"},
    f"""SELECT {{columns}} FROM quotas_providerstate
WHERE %s AND project_id = {ANY_OF} AND (status = 'refused'
    OR (status = 'unreachable' AND CASE WHEN provider = ANY(%s::text[])
        THEN next_try_at > statement_timestamp()
        ELSE since <= statement_timestamp() - make_interval(secs => %s) END))""",
)


def away_parameters(project_ids: Iterable[int]) -> list[Any]:
    """The parameters of `AWAY`."""
    waits = settings.QUOTA_PROVIDER_WHEN_AWAY == "wait"
    return [
        waits, int_array(project_ids), [*named_providers()], settings.QUOTA_PROVIDER_GRACE_SECONDS,
    ]  # fmt: skip


class RefusedRow(NamedTuple):
    """A job that the provider of its quota refused, and is not asked about again yet."""

    id: int
    generation: int
    text: str


REFUSED: Final = RowQuery(
    RefusedRow,
    {"id": "job_number", "generation": "generation", "text": "text"},
    "SELECT {columns} FROM quotas_refusedstart WHERE until > statement_timestamp() ORDER BY job_number",
)


def project_columns(
    projects: Iterable[ProjectRow],
    lines: Lines,
    quotas: QuotaColumns,
    pairs: Iterable[tuple[int, int]],
    away: Iterable[AwayRow] = (),
) -> ProjectColumns:
    """Columns of projects; `pairs` says who has jobs in which project (`pairs_of`)."""
    projects, known = list(projects), set(quotas.id.tolist())
    texts = {row.project_id: away_sentence(row.provider, row.status, row.text) for row in away}
    personal: dict[int, list[int]] = {}
    for project, user in pairs if lines.has_people else ():
        personal.setdefault(project, []).extend(row.id for row in lines.of_person(user))

    def line_ids(project: int) -> tuple[int, ...]:
        own = [row.id for row in lines.of_project(project)] + personal.get(project, [])
        return tuple(number for number in own if number in known)

    return ProjectColumns.from_columns(
        id=[row.id for row in projects],
        name=[row.name for row in projects],
        quota_line_ids=[line_ids(row.id) for row in projects],
        share_weight=[row.share_weight for row in projects],
        lost_gpu_seconds=[row.lost_gpu_seconds for row in projects],
        away_text=[texts.get(row.id, "") for row in projects],
    )


def organizations_of(projects: Iterable[ProjectRow]) -> list[tuple[int, int | None]]:
    """(project, its organization), as quota lines ask for it."""
    return [(row.id, row.organization_id) for row in projects]


def pairs_of(*jobs: PendingColumns | RunningColumns) -> list[tuple[int, int]]:
    """Who has jobs in which project: (project, user)."""
    projects = np.concatenate([columns.project_id for columns in jobs])
    users = np.concatenate([columns.user_id for columns in jobs])
    # As one number each: a set of numbers is found without sorting a hundred thousand pairs.
    width = int(users.max(initial=0)) + 1
    return [divmod(pair, width) for pair in distinct(projects * width + users).tolist()]


# ------------------------------------------------------------------ budgets

_RULES: Final = {"refuse": SpentRule.REFUSE, "demote": SpentRule.DEMOTE}


def budget_columns(periods: Iterable[PeriodRow], prices: Sequence[Price], *, now_ms: int) -> BudgetColumns:
    """The periods whose budgets refuse or demote; a budget that only warns is not the planner's."""
    valid = _valid_prices(prices, now_ms // 1000)
    ruled = [row for row in periods if row.on_spent in _RULES]
    return BudgetColumns.from_columns(
        id=[row.id for row in ruled],
        owner=[row.owner for row in ruled],
        resource=[row.resource for row in ruled],
        amount=[row.amount for row in ruled],
        used=[row.used for row in ruled],
        starts_ms=[row.starts_s * 1000 for row in ruled],
        ends_ms=[row.ends_s * 1000 for row in ruled],
        on_spent=[int(_RULES[row.on_spent]) for row in ruled],
        project_ids=[tuple(row.project_ids) for row in ruled],
        open_seconds=[settings.LEDGER_OPEN_HOLD_SECONDS] * len(ruled),
        prices=[valid if row.resource == "money_micros" else () for row in ruled],
    )


def _valid_prices(prices: Iterable[Price], now_s: int) -> tuple[tuple[str, str, int], ...]:
    """(resource, GPU model, micros an hour) of the prices that are valid now."""
    return tuple(
        (price.resource, price.gpu_model, price.micros_per_hour)
        for price in prices
        if price.from_s <= now_s and (price.until_s is None or now_s < price.until_s)
    )
