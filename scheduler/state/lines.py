"""Quota lines as rows: whose they are, which stands above which, and what a job counts on each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from quotas.core.gpu_models import model_matches
from quotas.core.limits import NONE, RUNNING_JOBS, UNBOUNDED, bound_of, charge
from quotas.core.resources import Resources
from scheduler.core.snapshot import QuotaColumns
from scheduler.state.sql import Rows


class LineRow(NamedTuple):
    """A row of `queries.LINES`."""

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
    def limits_what(self) -> tuple[str, str, str]:
        """Lines below and above each other limit the same thing."""
        return self.resource, self.gpu_model, self.job_type

    @property
    def is_pool(self) -> bool:
        return self.organization_id is not None


class Lines:
    """Lines of some projects, people, and of the organizations above them, with what stands above what."""

    def __init__(self, rows: Iterable[Sequence[Any]], organizations: Rows, projects: Rows = ()) -> None:  # type: ignore[assignment]
        """`organizations` are (id, parent id), `projects` (id, organization id), for those without a line."""
        self.rows = {row[0]: LineRow(*row) for row in rows}
        self._above: dict[int, int | None] = {row[0]: row[1] for row in organizations}
        self._organization: dict[int, int | None] = {row[0]: row[-1] for row in projects}
        for row in self.rows.values():
            if row.project_id is not None:
                self._organization.setdefault(row.project_id, row.of_organization)
        self._of_project: defaultdict[int, list[LineRow]] = defaultdict(list)
        self._of_organization: defaultdict[int, list[LineRow]] = defaultdict(list)
        self._of_person: defaultdict[int, list[LineRow]] = defaultdict(list)
        for row in self.rows.values():
            if row.organization_id is not None:
                self._of_organization[row.organization_id].append(row)
            elif row.project_id is not None:
                self._of_project[row.project_id].append(row)
            elif row.user_id is not None:
                self._of_person[row.user_id].append(row)
        self._paths: dict[int, list[LineRow]] = {}
        self.has_people = bool(self._of_person)
        self.has_models = any(row.gpu_model for row in self.rows.values())

    def of_project(self, project_id: int) -> list[LineRow]:
        """Every line that some job of the project may count on: its people's, its own, those above."""
        if project_id not in self._paths:
            found = sorted(self._of_project[project_id], key=lambda row: (row.user_id is None, row.id))
            for organization_id in self.organizations_of(project_id):
                found.extend(self._of_organization[organization_id])
            self._paths[project_id] = found
        return self._paths[project_id]

    def organizations_of(self, project_id: int) -> Iterator[int]:
        """The project's organization and all above it."""
        met: set[int] = set()
        one = self._organization.get(project_id)
        while one is not None and one not in met:
            met.add(one)
            yield one
            one = self._above.get(one)

    def of_job(self, project_id: int, user_id: int, job_type: str) -> list[LineRow]:
        """The lines that a job counts on, each before the one above it."""
        return [
            row
            for row in (*self.of_project(project_id), *self._of_person.get(user_id, ()))
            if row.user_id in (None, user_id) and row.job_type in ("", job_type)
        ]

    def of_person(self, user_id: int) -> list[LineRow]:
        """The lines of one person, whatever the project."""
        return self._of_person.get(user_id, [])

    def parent_of(self, row: LineRow) -> int:
        """The line above that limits the same thing; 0 = none."""
        if row.organization_id is not None:
            above = self._up(self._above.get(row.organization_id))
        elif row.project_id is not None:
            own = self._of_project[row.project_id] if row.user_id is not None else []
            for other in own:
                if other.user_id is None and other.limits_what == row.limits_what:
                    return other.id
            above = self.organizations_of(row.project_id)
        else:
            return 0
        for organization_id in above:
            for other in self._of_organization[organization_id]:
                if other.limits_what == row.limits_what:
                    return other.id
        return 0

    def _up(self, organization_id: int | None) -> Iterator[int]:
        met: set[int] = set()
        while organization_id is not None and organization_id not in met:
            met.add(organization_id)
            yield organization_id
            organization_id = self._above.get(organization_id)

    def columns(self) -> QuotaColumns:
        """Those that bound, lend or borrow, for the planner."""
        parents = _without_circles({row.id: self.parent_of(row) for row in self.rows.values()})
        above = set(parents.values())
        kept = [
            row
            for row in self.rows.values()
            if row.hard is not None or parents[row.id] or row.id in above or _bound(row, 0) < UNBOUNDED
        ]
        kept.sort(key=lambda row: row.id)
        return QuotaColumns(
            id=[row.id for row in kept],
            owner=[row.owner for row in kept],
            resource=[row.resource for row in kept],
            hard=[_or_none(row.hard) for row in kept],
            used=[row.used for row in kept],
            enforce=[row.enforce for row in kept],
            generation=[row.generation for row in kept],
            parent_id=[parents[row.id] for row in kept],
            nominal=[_or_none(row.nominal) for row in kept],
            borrowing_limit=[_or_none(row.borrowing_limit) for row in kept],
            lending_limit=[_or_none(row.lending_limit) for row in kept],
            is_pool=[row.is_pool for row in kept],
            gpu_model=[row.gpu_model for row in kept],
            user_id=[row.user_id or 0 for row in kept],
            job_type=[row.job_type_number for row in kept],
            converge_ms=[row.converge_ms for row in kept],
        )


def charges_of(
    rows: Iterable[LineRow], per_task: Resources, tasks: int, devices: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """(line id, amount) of a job with so many equal tasks, that holds these GPU thousandths by model."""
    for row in rows:
        amount = charge(row.resource, per_task, tasks, gpu_model=row.gpu_model, devices=devices)
        if amount:
            yield row.id, amount


def held_by_model(devices: Iterable[int], gpu_millis: int, models: Mapping[int, str]) -> Counter[str]:
    """Thousandths by model name, where each device gives so many."""
    held: Counter[str] = Counter()
    for device in devices:
        held[models.get(device, "")] += gpu_millis
    return held


def _without_circles(parents: dict[int, int]) -> dict[int, int]:
    """Organizations can be put below each other by mistake: the lowest of such lines then has none above."""
    for line in sorted(parents):
        one, met = line, {0}
        while one not in met:
            met.add(one)
            one = parents.get(one, 0)
        if one:
            parents[one] = 0
    return parents


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
