"""Quota lines: their queries, whose each line is, which is above which, and what a job counts on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from quotas.core.gpu_models import model_matches
from quotas.core.limits import NONE, RUNNING_JOBS, UNBOUNDED, LimitTree, bound_of, charge
from quotas.core.line_paths import LinePaths
from quotas.core.resources import Resources
from scheduler.core.snapshot.snapshot import QuotaColumns
from scheduler.state.db.query import Answer, Batch, RowQuery
from scheduler.state.db.sql import int_array
from scheduler.state.load.load_sql import ANY_OF, ms, number_of_type


class LineRow(NamedTuple):
    """A quota line with its owner."""

    id: int
    organization_id: int | None
    project_id: int | None
    user_id: int | None
    of_organization: int | None  # the organization of its project
    owner: str
    resource: str
    gpu_model: str
    job_type: str
    job_type_number: int  # as jobs in a snapshot have it; 0 = all types
    hard: int | None
    nominal: int | None
    borrowing_limit: int | None
    lending_limit: int | None
    used: int
    enforce: bool
    generation: int
    converge_ms: int

    @property
    def is_pool(self) -> bool:
        return self.organization_id is not None


class OrganizationRow(NamedTuple):
    """An organization, and the one above it."""

    id: int
    parent_id: int | None


LINE_COLUMNS: Final = {
    "id": "quota.id",
    "organization_id": "quota.organization_id",
    "project_id": "quota.project_id",
    "user_id": "quota.user_id",
    "of_organization": "project.organization_id",
    "owner": """CASE WHEN quota.organization_id IS NOT NULL THEN 'organization ' || organization.slug
        WHEN quota.project_id IS NULL THEN 'user ' || person.username
        ELSE coalesce(person.username || ' in ', '') || 'project ' || project.slug END""",
    "resource": "quota.resource",
    "gpu_model": "quota.gpu_model",
    "job_type": "quota.job_type",
    "job_type_number": f"CASE WHEN quota.job_type = '' THEN 0 ELSE {number_of_type('quota.job_type')} END",
    "hard": "quota.hard",
    "nominal": "quota.nominal",
    "borrowing_limit": "quota.borrowing_limit",
    "lending_limit": "quota.lending_limit",
    "used": "quota.used",
    "enforce": "quota.enforce",
    "generation": "quota.generation",
    "converge_ms": f"coalesce({ms('quota.over_since')} + 1000 * quota.converge_after_seconds::bigint, 0)",
}
_FROM_LINES: Final = """SELECT {columns}
FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
    LEFT JOIN accounts_organization organization ON organization.id = quota.organization_id
    LEFT JOIN accounts_user person ON person.id = quota.user_id
"""
#: The organizations that the projects are in, up to the root.
_UP: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id IN (SELECT organization_id FROM accounts_project WHERE id = {projects})
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
)
"""
#: The same of projects and organizations that have a lending limit.
_LENDERS_UP: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id IN (
        SELECT coalesce(quota.organization_id, project.organization_id)
        FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
        WHERE quota.lending_limit IS NOT NULL AND quota.enforce
    )
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
)
"""
_ORGANIZATION_COLUMNS: Final = {"id": "up.id", "parent_id": "up.parent_id"}

#: Every line that jobs of these people in these projects count on.
LINES: Final = RowQuery(
    LineRow,
    LINE_COLUMNS,
    _UP
    + _FROM_LINES
    + """WHERE (quota.project_id = {projects} AND (quota.user_id IS NULL OR quota.user_id = {users})
        OR quota.organization_id IN (SELECT id FROM up)
        OR quota.project_id IS NULL AND quota.user_id = {users})
    AND quota.resource <> 'pending_jobs' {bounded}
ORDER BY quota.id {lock}""",
)
ORGANIZATIONS: Final = RowQuery(OrganizationRow, _ORGANIZATION_COLUMNS, _UP + "SELECT {columns} FROM up")
BOUNDED: Final = "AND (quota.hard IS NOT NULL OR quota.nominal IS NOT NULL)"
#: Lines that lend no more than a limit, and the lines above them: they count also where no job of theirs waits.
LENDERS: Final = RowQuery(
    LineRow,
    LINE_COLUMNS,
    _LENDERS_UP
    + _FROM_LINES
    + """WHERE (quota.lending_limit IS NOT NULL AND quota.enforce OR quota.organization_id IN (SELECT id FROM up))
    AND quota.resource <> 'pending_jobs' AND (quota.hard IS NOT NULL OR quota.nominal IS NOT NULL)
ORDER BY quota.id""",
)
LENDERS_ORGANIZATIONS: Final = RowQuery(
    OrganizationRow, _ORGANIZATION_COLUMNS, _LENDERS_UP + "SELECT {columns} FROM up"
)


class Lines(LinePaths[LineRow]):
    """Lines of some projects, people, and of the organizations above them, with the line above each."""

    def __init__(
        self,
        rows: Iterable[LineRow],
        organizations: Iterable[tuple[int, int | None]],
        projects: Iterable[tuple[int, int | None]] = (),
    ) -> None:
        """`organizations` are (id, parent id), `projects` (id, organization id), for those without a line."""
        found = list(rows)
        organization_of: dict[int, int | None] = dict(projects)
        for row in found:
            if row.project_id is not None:
                organization_of.setdefault(row.project_id, row.of_organization)
        super().__init__(found, above=dict(organizations), organization_of=organization_of)

    def with_lenders(self) -> Lines:
        """With lines of others that keep something back of the lines above them; read now."""
        batch = Batch()
        rows, organizations = batch.add(LENDERS), batch.add(LENDERS_ORGANIZATIONS)
        batch.send()
        return self.with_others(rows.read(), organizations.read())

    def with_others(self, rows: Iterable[LineRow], organizations: Iterable[tuple[int, int | None]]) -> Lines:
        """With further lines; what is here stays as it is, since its rows may be locked."""
        return Lines(
            [*self.rows.values(), *(row for row in rows if row.id not in self.rows)],
            [*organizations, *self._above.items()],
            self._organization.items(),
        )

    def tree(self) -> tuple[LimitTree, dict[int, int]]:
        """What is left on the lines that bound, lend or borrow, and the number of each line in the tree."""
        c = self.columns()
        number = {line: place for place, line in enumerate(c.id.tolist())}
        tree = LimitTree(
            parent=[number.get(line, NONE) for line in c.parent_id.tolist()],
            used=c.used.tolist(), hard=c.hard.tolist(), nominal=c.nominal.tolist(),
            borrowing_limit=c.borrowing_limit.tolist(), lending_limit=c.lending_limit.tolist(),
            enforce=c.enforce.tolist(), is_pool=c.is_pool.tolist(),
        )  # fmt: skip
        return tree, number

    def columns(self) -> QuotaColumns:
        """The lines that bound, lend or borrow, for the planner."""
        parents = self.parents()
        above = set(parents.values())
        kept = [
            row
            for row in self.rows.values()
            if row.hard is not None or parents[row.id] or row.id in above or _bound(row, 0) < UNBOUNDED
        ]
        kept.sort(key=lambda row: row.id)
        return QuotaColumns.from_columns(
            parent_id=[parents[row.id] for row in kept],
            **{name: [value(row) for row in kept] for name, value in _PLANNER_COLUMNS.items()},
        )


#: Column of `QuotaColumns` -> its value of a line.
_PLANNER_COLUMNS: Final[Mapping[str, Callable[[LineRow], Any]]] = {
    "id": lambda row: row.id,
    "owner": lambda row: row.owner,
    "resource": lambda row: row.resource,
    "hard": lambda row: _or_none(row.hard),
    "used": lambda row: row.used,
    "enforce": lambda row: row.enforce,
    "generation": lambda row: row.generation,
    "nominal": lambda row: _or_none(row.nominal),
    "borrowing_limit": lambda row: _or_none(row.borrowing_limit),
    "lending_limit": lambda row: _or_none(row.lending_limit),
    "is_pool": lambda row: row.is_pool,
    "gpu_model": lambda row: row.gpu_model,
    "user_id": lambda row: row.user_id or 0,
    "job_type": lambda row: row.job_type_number,
    "converge_ms": lambda row: row.converge_ms,
}


class LinesAnswer:
    """What `ask_lines` found, once its batch was sent."""

    def __init__(
        self,
        rows: Answer[list[LineRow]],
        organizations: Answer[list[OrganizationRow]],
        lenders: Answer[list[LineRow]],
        lenders_organizations: Answer[list[OrganizationRow]],
    ) -> None:
        self._rows, self._organizations = rows, organizations
        self._lenders, self._lenders_organizations = lenders, lenders_organizations

    def read(self, projects: Iterable[tuple[int, int | None]] = ()) -> Lines:
        """The lines; `projects` are (id, organization id), for those without a line of their own."""
        own = self._rows.read()
        met = {row.id for row in own}  # these may be locked, so they are as they are now
        return Lines(
            [*own, *(row for row in self._lenders.read() if row.id not in met)],
            [*self._lenders_organizations.read(), *self._organizations.read()],
            projects,
        )


def ask_lines(
    batch: Batch,
    project_ids: Iterable[int],
    people: Iterable[int],
    *,
    users: str = ANY_OF,
    bounded: str = "",
    lock: str = "",
    lenders: bool = True,
) -> LinesAnswer:
    """Add to a batch the lines that jobs of these people in these projects count on, and lending lines of others.

    `users` finds people's ids from what `people` are. Without `lenders` those of others are left out.
    """
    projects, persons = int_array(project_ids), int_array(people)
    return LinesAnswer(
        batch.add(
            LINES, [projects, projects, persons, persons],
            projects=ANY_OF, users=users, bounded=bounded, lock=lock,
        ),
        batch.add(ORGANIZATIONS, [projects], projects=ANY_OF),
        batch.add(LENDERS, when=lenders),
        batch.add(LENDERS_ORGANIZATIONS, when=lenders),
    )  # fmt: skip


def load_lines(
    project_ids: Iterable[int], people: Iterable[int], *, projects: Iterable[tuple[int, int | None]] = ()
) -> Lines:
    """All lines that jobs of these people in these projects count on, and lending lines of others."""
    batch = Batch()
    answer = ask_lines(batch, project_ids, people)
    batch.send()
    return answer.read(projects)


def charges_of(
    rows: Iterable[LineRow], per_task: Resources, tasks: int, devices: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """(line id, amount) of a job with this many equal tasks, which holds these GPU thousandths by model."""
    for row in rows:
        amount = charge(row.resource, per_task, tasks, gpu_model=row.gpu_model, devices=devices)
        if amount:
            yield row.id, amount


def held_by_model(devices: Iterable[int], gpu_millis: int, models: Mapping[int, str]) -> Counter[str]:
    """Thousandths by model name, where each device gives `gpu_millis`."""
    held: Counter[str] = Counter()
    for device in devices:
        held[models.get(device, "")] += gpu_millis
    return held


class Held(Protocol):
    """Amounts that something holds."""

    @property
    def cpu_millis(self) -> int: ...

    @property
    def memory_mib(self) -> int: ...

    @property
    def storage_mib(self) -> int: ...

    @property
    def gpu_millis(self) -> int: ...


class Limiting(Protocol):
    """What a line counts."""

    @property
    def resource(self) -> str: ...

    @property
    def gpu_model(self) -> str: ...


def amount_held(line: Limiting, held: Held, by_model: Mapping[str, int]) -> int:
    """What a running job counts for on a line, from what it holds."""
    if line.resource == RUNNING_JOBS:
        return 1
    if line.gpu_model:
        return sum(millis for model, millis in by_model.items() if model_matches(line.gpu_model, model))
    return int(getattr(held, line.resource))


def _bound(row: LineRow, parent: int) -> int:
    return bound_of(
        hard=_or_none(row.hard), nominal=_or_none(row.nominal), enforce=row.enforce, is_pool=row.is_pool,
        borrowing_limit=_or_none(row.borrowing_limit), has_parent=bool(parent),
    )  # fmt: skip


def _or_none(amount: int | None) -> int:
    return NONE if amount is None else amount
