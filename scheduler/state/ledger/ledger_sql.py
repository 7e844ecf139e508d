"""The queries of the ledger: budgets on the path of projects, their periods, prices, entries, and what was held."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from quotas.core.budgets import BudgetTerms
from quotas.core.ledger import Entry, Kind
from quotas.core.periods import Period
from quotas.core.pricing import Price, Rates
from scheduler.state.db.query import RowQuery

ANY_OF: Final = "ANY(%s::bigint[])"


def _s(column: str) -> str:
    """A moment in whole seconds since 1970."""
    return f"floor(extract(epoch FROM {column}))::bigint"


#: From each project up to the root organization; nothing where there is no budget at all.
_PATH: Final = """
WITH RECURSIVE path(project_id, organization_id) AS (
    SELECT project.id, project.organization_id FROM accounts_project project
    WHERE project.id = {projects} AND EXISTS (SELECT 1 FROM quotas_budget)
    UNION
    SELECT path.project_id, organization.parent_id FROM path
        JOIN accounts_organization organization ON organization.id = path.organization_id
    WHERE organization.parent_id IS NOT NULL
)"""
_THESE_PROJECTS: Final = _PATH.format(projects=ANY_OF)


# ------------------------------------------------------------------ budgets, periods, prices


class BudgetRow(NamedTuple):
    """A budget that a project counts on."""

    project_id: int
    budget_id: int
    resource: str
    period: str
    from_s: int
    until_s: int | None

    def terms(self) -> BudgetTerms:
        return BudgetTerms(self.budget_id, self.resource, Period(self.period), self.from_s, self.until_s)


#: The budgets that each project counts on, unless they ended before.
BUDGETS: Final = RowQuery(
    BudgetRow,
    {
        "project_id": "path.project_id",
        "budget_id": "budget.id",
        "resource": "budget.resource",
        "period": "budget.period",
        "from_s": _s("budget.starts_at"),
        "until_s": _s("budget.ends_at"),
    },
    f"""{_THESE_PROJECTS}
SELECT DISTINCT {{columns}}
FROM quotas_budget budget JOIN path
    ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id
WHERE budget.ends_at IS NULL OR budget.ends_at > %s
ORDER BY path.project_id, budget.id""",
)


class PeriodRow(NamedTuple):
    """A period of a budget that is not over."""

    id: int
    budget_id: int
    owner: str  # "Autumn of project vision"
    resource: str
    amount: int
    used: int  # set aside and charged
    starts_s: int
    ends_s: int
    on_spent: str
    project_ids: list[int]


#: The periods of these projects' budgets that are not over; locked by writers that will move their counters.
PERIODS: Final = RowQuery(
    PeriodRow,
    {
        "id": "period.id",
        "budget_id": "period.budget_id",
        "owner": "budget.name || ' of ' || coalesce('project ' || project.slug, organization.name)",
        "resource": "budget.resource",
        "amount": "period.amount",
        "used": "period.held + period.charged",
        "starts_s": _s("period.starts_at"),
        "ends_s": _s("period.ends_at"),
        "on_spent": "budget.on_spent",
        "project_ids": """ARRAY(SELECT DISTINCT path.project_id FROM path
        WHERE budget.project_id = path.project_id OR budget.organization_id = path.organization_id ORDER BY 1)""",
    },
    f"""{_THESE_PROJECTS}
SELECT {{columns}}
FROM quotas_budgetperiod period JOIN quotas_budget budget ON budget.id = period.budget_id
    LEFT JOIN accounts_project project ON project.id = budget.project_id
    LEFT JOIN accounts_organization organization ON organization.id = budget.organization_id
WHERE period.ends_at > statement_timestamp() AND period.budget_id IN (
    SELECT budget.id FROM quotas_budget budget JOIN path
        ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id)
ORDER BY period.id {{lock}}""",
)
#: Locks the periods that these attempts (given twice) have been running in.
PERIODS_OF_ATTEMPTS: Final = f"""{
    _PATH.format(
        projects=f'''ANY(SELECT job.project_id FROM scheduler_attempt attempt
        JOIN scheduler_job job ON job.number = attempt.job_id WHERE attempt.id = {ANY_OF})'''
    )
}
SELECT period.id FROM quotas_budgetperiod period
WHERE period.ends_at > (SELECT min(scheduled_at) FROM scheduler_attempt WHERE id = {ANY_OF})
    AND period.budget_id IN (SELECT budget.id FROM quotas_budget budget JOIN path
        ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id)
ORDER BY period.id FOR NO KEY UPDATE
"""


class PriceRow(NamedTuple):
    """A price, as `quotas.core.pricing.Price` has it."""

    resource: str
    micros_per_hour: int
    from_s: int
    until_s: int | None
    gpu_model: str

    def price(self) -> Price:
        return Price(**self._asdict())


PRICES: Final = RowQuery(
    PriceRow,
    {
        "resource": "price.resource",
        "micros_per_hour": "price.micros_per_hour",
        "from_s": _s("price.valid_from"),
        "until_s": _s("price.valid_until"),
        "gpu_model": "price.gpu_model",
    },
    "SELECT {columns} FROM quotas_pricerow price ORDER BY price.id",
)


# ------------------------------------------------------------------ entries


class EntryRow(NamedTuple):
    """An entry of an attempt."""

    attempt_id: int
    kind: str
    cpu_millis: int
    memory_mib: int
    gpu_millis: int
    storage_mib: int
    gpu_model: str
    from_s: int
    until_s: int
    held_seconds: int
    charged_seconds: int
    held_micros: int
    charged_micros: int

    def entry(self) -> Entry:
        rates = Rates(self.cpu_millis, self.memory_mib, self.gpu_millis, self.storage_mib, self.gpu_model)
        return Entry(
            Kind(self.kind), rates, self.from_s, self.until_s, held_seconds=self.held_seconds,
            charged_seconds=self.charged_seconds, held_micros=self.held_micros,
            charged_micros=self.charged_micros,
        )  # fmt: skip


ENTRIES: Final = RowQuery(
    EntryRow,
    {
        "attempt_id": "entry.attempt_id",
        "kind": "entry.kind",
        "cpu_millis": "entry.cpu_millis",
        "memory_mib": "entry.memory_mib",
        "gpu_millis": "entry.gpu_millis",
        "storage_mib": "entry.storage_mib",
        "gpu_model": "entry.gpu_model",
        "from_s": _s("entry.starts_at"),
        "until_s": _s("entry.ends_at"),
        "held_seconds": "entry.held_seconds",
        "charged_seconds": "entry.charged_seconds",
        "held_micros": "entry.held_micros",
        "charged_micros": "entry.charged_micros",
    },
    f"""SELECT {{columns}} FROM quotas_ledgerentry entry
WHERE entry.job_number = {ANY_OF} AND entry.attempt_id = {ANY_OF} AND entry.kind <> 'adjust' ORDER BY entry.id""",
)


# ------------------------------------------------------------------ what attempts held


class HeldRow(NamedTuple):
    """What one task of an attempt holds, and the time limit of the job (0 = none)."""

    attempt_id: int
    held_at: datetime
    limit_seconds: int
    models: list[str]  # of each of its GPUs
    cpu_millis: int
    memory_mib: int
    gpu_millis: int
    storage_mib: int


HELD: Final = RowQuery(
    HeldRow,
    {
        "attempt_id": "allocation.attempt_id",
        "held_at": "allocation.held_at",
        "limit_seconds": "coalesce(request.time_limit_seconds, queue.max_wall_seconds, 0)",
        "models": """ARRAY(SELECT device.model FROM unnest(allocation.device_ids) WITH ORDINALITY AS held(id, place)
        JOIN scheduler_device device ON device.id = held.id ORDER BY held.place)""",
        "cpu_millis": "allocation.cpu_millis + allocation.suspended_cpu_millis",
        "memory_mib": "allocation.memory_mib",
        "gpu_millis": "allocation.gpu_millis",
        "storage_mib": "allocation.storage_mib",
    },
    f"""SELECT {{columns}}
FROM scheduler_allocation allocation JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_queue queue ON queue.id = job.queue_id
WHERE allocation.attempt_id = {ANY_OF} ORDER BY allocation.attempt_id, allocation.rank""",
)


class SuspendedRow(NamedTuple):
    """CPUs that an attempt did not hold while it was suspended."""

    attempt_id: int
    cpu_millis: int
    from_s: int
    until_s: int


#: When attempts were suspended, and the CPUs they released then; those of a task that ended meanwhile, only until
#: its end. Suspensions that last end at the moment that is given.
SUSPENDED: Final = RowQuery(
    SuspendedRow,
    {
        "attempt_id": "each.attempt_id",
        "cpu_millis": "sum(each.cpu_millis)::bigint",
        "from_s": "each.from_s",
        "until_s": "each.until_s",
    },
    f"""SELECT {{columns}} FROM (
    SELECT held.attempt_id, held.cpu_millis + held.suspended_cpu_millis AS cpu_millis,
        floor(extract(epoch FROM greatest(still.starts_at, held.held_at)))::bigint AS from_s,
        floor(extract(epoch FROM least(coalesce(still.ends_at, %s), held.released_at)))::bigint AS until_s
    FROM scheduler_suspension still JOIN scheduler_allocation held ON held.attempt_id = still.attempt_id
    WHERE still.attempt_id = {ANY_OF} AND still.starts_at IS NOT NULL
) each WHERE each.from_s < each.until_s
GROUP BY each.attempt_id, each.from_s, each.until_s ORDER BY each.attempt_id, each.from_s, each.until_s""",
)


class ReleasedRow(NamedTuple):
    """What one task of an attempt held until it released it."""

    attempt_id: int
    cpu_millis: int
    memory_mib: int
    gpu_millis: int
    storage_mib: int
    gpu_model: str
    released_s: int


#: What tasks of these attempts held that had released it before a moment.
RELEASED_EARLY: Final = RowQuery(
    ReleasedRow,
    {
        "attempt_id": "held.attempt_id",
        "cpu_millis": "held.cpu_millis + held.suspended_cpu_millis",
        "memory_mib": "held.memory_mib",
        "gpu_millis": "held.gpu_millis",
        "storage_mib": "held.storage_mib",
        "gpu_model": """coalesce((
        SELECT device.model FROM scheduler_device device WHERE device.id = held.device_ids[1]), '')""",
        "released_s": _s("held.released_at"),
    },
    f"""SELECT {{columns}}
FROM scheduler_allocation held
WHERE held.attempt_id = {ANY_OF} AND held.released_at < %s
ORDER BY held.attempt_id, held.rank""",
)
