"""Quota lines as rows: whose they are, which stands above which, and what a job counts on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from quotas.core.gpu_models import model_matches
from quotas.core.limits import NONE, RUNNING_JOBS, UNBOUNDED, LimitTree, bound_of, charge
from quotas.core.line_paths import LinePaths
from quotas.core.resources import Resources
from scheduler.core.snapshot.snapshot import QuotaColumns
from scheduler.state.db.sql import Rows


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
    def is_pool(self) -> bool:
        return self.organization_id is not None


class Lines(LinePaths[LineRow]):
    """Lines of some projects, people, and of the organizations above them, with what stands above what."""

    def __init__(self, rows: Iterable[Sequence[Any]], organizations: Rows, projects: Rows = ()) -> None:  # type: ignore[assignment]
        """`organizations` are (id, parent id), `projects` (id, organization id), for those without a line."""
        found = [LineRow(*row) for row in rows]
        organization_of: dict[int, int | None] = {row[0]: row[-1] for row in projects}
        for row in found:
            if row.project_id is not None:
                organization_of.setdefault(row.project_id, row.of_organization)
        super().__init__(
            found, above={row[0]: row[1] for row in organizations}, organization_of=organization_of
        )

    def with_others(self, rows: Iterable[Sequence[Any]], organizations: Rows) -> Lines:
        """With lines of others that keep something back of those above them; what is here stays as it is."""
        others = (row for row in rows if row[0] not in self.rows)
        return Lines(
            [*self.rows.values(), *others],
            [*self._above.items(), *(row for row in organizations if row[0] not in self._above)],
            list(self._organization.items()),
        )

    def tree(self) -> tuple[LimitTree, dict[int, int]]:
        """What is left on those that bound, lend or borrow, and the number that each has in it."""
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
        """Those that bound, lend or borrow, for the planner."""
        parents = self.parents()
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
