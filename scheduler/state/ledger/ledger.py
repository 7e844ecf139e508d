"""Ledger rows of attempts: written as they start and end, in the same transaction, with their budgets' counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pgtrigger

from infra.db.prepared import ask, ask_together
from quotas.core import ledger
from quotas.core.budgets import BudgetTerms, Key, moves
from quotas.core.ledger import Entry, Kind
from quotas.core.periods import Period, cut
from quotas.core.pricing import Price, Rates, cost_micros
from scheduler.core.plan import Start
from scheduler.state.db.sql import Rows, Statement, int_array, run, text_array
from scheduler.state.load import load_sql


class Line(NamedTuple):
    """An entry, and whose it is."""

    project_id: int
    user_id: int
    job_number: int
    attempt_id: int
    entry: Entry
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Books:
    """What writing entries needs to know: the budgets on the path of each project, and prices."""

    budgets: Mapping[int, Sequence[BudgetTerms]] = field(default_factory=dict)
    prices: Sequence[Price] = ()
    #: The (budget, first second) of periods that are there for certain.
    periods: frozenset[tuple[int, int]] = frozenset()

    def of(self, project_id: int) -> Sequence[BudgetTerms]:
        return self.budgets.get(project_id, ())


def books(budget_rows: Rows, price_rows: Rows, period_rows: Rows = []) -> Books:  # noqa: B006  never changed
    """From rows of `queries.BUDGETS`, `queries.PRICES` and `queries.PERIODS`."""
    budgets: defaultdict[int, list[BudgetTerms]] = defaultdict(list)
    for project_id, budget_id, resource, period, from_s, until_s, *_ in budget_rows:
        budgets[project_id].append(BudgetTerms(budget_id, resource, Period(period), from_s, until_s))
    periods = frozenset((budget_id, from_s) for _, budget_id, from_s, *_ in period_rows)
    return Books(budgets, [Price(*row) for row in price_rows], periods)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# ------------------------------------------------------------------ starts


def rates_of(start: Start, model_of: Mapping[int, str]) -> list[Rates]:
    """What all tasks of a start hold together, by the model of the GPUs they were given."""
    found: dict[str, list[int]] = {}
    each = start.per_task
    for placement in start.placements:
        models = [model_of.get(device, "") for device in placement.device_ids] or [""]
        own = found.setdefault(models[0], [0, 0, 0, 0])
        own[0] += each.cpu_millis
        own[1] += each.memory_mib
        own[3] += each.storage_mib
        for _, model in zip(placement.device_ids, models, strict=False):
            found.setdefault(model, [0, 0, 0, 0])[2] += placement.gpu_millis
    return [Rates(*amounts, gpu_model=model) for model, amounts in found.items()]


def holds(
    starts: Sequence[Start],
    moved: Iterable[tuple[int, int, int, int, int]],
    *,
    known: Books,
    seconds: Mapping[int, int],
    model_of: Mapping[int, str],
    at: datetime,
) -> list[Line]:
    """What these starts set aside. `moved` has number, epoch, user, project and attempt of each."""
    at_s = int(at.timestamp())
    of = {start.job_id: start for start in starts}
    # Jobs that ask the same in one project set the same aside.
    known_entries: dict[tuple[Any, ...], list[Entry]] = {}
    lines = []
    for number, _, user_id, project_id, attempt_id, *_ in moved:
        rates, until_s = rates_of(of[number], model_of), at_s + seconds[number]
        key = (project_id, until_s, *rates)
        entries = known_entries.get(key)
        if entries is None:
            cuts = {edge for budget in known.of(project_id) for edge in budget.cuts(at_s, until_s)}
            entries = known_entries[key] = ledger.hold(
                rates, at_s=at_s, seconds=until_s - at_s, cuts=cuts, prices=known.prices
            )
        lines += [Line(project_id, user_id, number, attempt_id, entry) for entry in entries]
    return lines


# ------------------------------------------------------------------ ends


class Ending(NamedTuple):
    """An attempt that is charged, and why it is forgiven what it used, if it is."""

    attempt_id: int
    job_number: int
    project_id: int
    user_id: int
    forgiven: str = ""


def lock_periods(attempt_ids: Sequence[int]) -> None:
    """The counters that settling these attempts may move; after quota lines, before jobs."""
    ask(load_sql.PERIODS_OF_ATTEMPTS, [int_array(attempt_ids), int_array(attempt_ids)])


def read(endings: Sequence[Ending]) -> tuple[Mapping[int, list[Entry]], Books]:
    """The entries that these attempts have, and what writing more needs to know."""
    return as_read(ask_together(*to_read(endings)))


def to_read(endings: Sequence[Ending]) -> tuple[Statement, ...]:
    """The statements whose rows `as_read` reads."""
    return (
        (
            load_sql.ENTRIES,
            [int_array(e.job_number for e in endings), int_array(e.attempt_id for e in endings)],
        ),
        (load_sql.BUDGETS, [int_array({e.project_id for e in endings}), _EPOCH]),
        (load_sql.PRICES, []),
    )


def as_read(found: Sequence[Rows]) -> tuple[Mapping[int, list[Entry]], Books]:
    entries, budget_rows, price_rows = found
    known = books(budget_rows, price_rows)
    of: defaultdict[int, list[Entry]] = defaultdict(list)
    for attempt_id, *row in entries:
        of[attempt_id].append(entry_from(row))
    return of, known


def charges(endings: Sequence[Ending], *, at: datetime, final: bool = True) -> tuple[list[Line], Books]:
    """What these attempts are charged until now, and at their end given back."""
    of, known = read(endings)
    return charged(endings, of, known, at=at, final=final), known


def charged(
    endings: Sequence[Ending],
    of: Mapping[int, list[Entry]],
    known: Books,
    *,
    at: datetime,
    final: bool = True,
) -> list[Line]:
    """The same, from what was read."""
    until_s = int(at.timestamp())
    lines: list[Line] = []
    for ending in endings:
        own = of.get(ending.attempt_id, [])
        whose = (ending.project_id, ending.user_id, ending.job_number, ending.attempt_id)
        new = ledger.charge(own, until_s=until_s, final=final, prices=known.prices)
        lines += [Line(*whose, entry) for entry in new]
        if ending.forgiven:
            lines += [Line(*whose, entry, ending.forgiven) for entry in ledger.forgive([*own, *new])]
    return lines


#: Why an entry of `given_back_early` is there.
GIVEN_BACK_EARLY: Final = "the task ended before the others"


def given_back_early(endings: Sequence[Ending], known: Books, *, at: datetime) -> list[Line]:
    """What attempts were charged for tasks that had ended before them: their share of it, given back."""
    until_s = int(at.timestamp())
    parts = [
        (attempt_id, Rates(cpu, memory, gpu, storage, gpu_model=model), released_s, until_s)
        for attempt_id, cpu, memory, gpu, storage, model, released_s in run(
            load_sql.RELEASED_EARLY, [int_array(e.attempt_id for e in endings), at]
        )
    ]
    return _given_back(endings, known, parts, GIVEN_BACK_EARLY)


#: Why an entry of `given_back_suspended` is there.
GIVEN_BACK_SUSPENDED: Final = "suspended for another job; CPUs released"
#: Refunds of what was not held; every other one of what was charged forgives what was.
GIVEN_BACK: Final = (GIVEN_BACK_EARLY, GIVEN_BACK_SUSPENDED)


def given_back_suspended(endings: Sequence[Ending], known: Books, *, at: datetime) -> list[Line]:
    """What attempts were charged for CPUs while they stood still, given back."""
    parts = [
        (attempt_id, Rates(cpu_millis, 0, 0, 0), from_s, until_s)
        for attempt_id, cpu_millis, from_s, until_s in run(
            load_sql.STOOD_STILL, [at, int_array(e.attempt_id for e in endings)]
        )
    ]
    return _given_back(endings, known, parts, GIVEN_BACK_SUSPENDED)


def _given_back(
    endings: Sequence[Ending], known: Books, parts: Iterable[tuple[int, Rates, int, int]], reason: str
) -> list[Line]:
    """Refunds of (attempt, amounts, first second, last), cut where a period ends: each counts where it was charged."""
    whose = {e.attempt_id: (e.project_id, e.user_id, e.job_number, e.attempt_id) for e in endings}
    lines: list[Line] = []
    for attempt_id, rates, from_s, until_s in parts:
        budgets = known.of(whose[attempt_id][0])
        edges = {edge for budget in budgets for edge in budget.cuts(from_s, until_s)}
        for begin, end in cut(from_s, until_s, edges):
            cost = cost_micros(rates, begin, end, known.prices)
            entry = Entry(Kind.REFUND, rates, begin, end, charged_seconds=begin - end, charged_micros=-cost)
            lines.append(Line(*whose[attempt_id], entry, reason))
    return lines


def entry_from(row: Sequence[Any]) -> Entry:
    """An entry from the columns of `queries.ENTRIES` after the attempt."""
    kind, model, cpu, memory, gpu, storage, from_s, until_s, *sums = row
    return Entry(Kind(kind), Rates(cpu, memory, gpu, storage, model), from_s, until_s, *sums)


def rates_held(attempt_ids: Sequence[int]) -> dict[int, tuple[list[Rates], datetime, int]]:
    """What attempts hold by their allocations, by GPU model; since when, and the time limit of their job."""
    found: dict[int, tuple[dict[str, list[int]], datetime, int]] = {}
    for attempt_id, held_at, limit, models, cpu, memory, gpu, storage in run(
        load_sql.HELD_WITH_MODELS, [int_array(attempt_ids)]
    ):
        by_model, _, _ = found.setdefault(attempt_id, ({}, held_at, limit))
        own = by_model.setdefault(models[0] if models else "", [0, 0, 0, 0])
        own[0] += cpu
        own[1] += memory
        own[3] += storage
        for model in models:
            by_model.setdefault(model, [0, 0, 0, 0])[2] += gpu // len(models)
    return {
        attempt_id: (
            [Rates(*amounts, gpu_model=model) for model, amounts in by_model.items()],
            held_at,
            limit,
        )
        for attempt_id, (by_model, held_at, limit) in found.items()
    }


@contextmanager
def whatever_is_so() -> Iterator[None]:
    """Write holds of what runs already even where a budget is spent: refusing would not stop it."""
    with pgtrigger.ignore("quotas.BudgetPeriod:budget_never_passed"):
        yield


# ------------------------------------------------------------------ writing

_COLUMNS: Final = (
    ("kind", "text"), ("project_id", "bigint"), ("user_id", "bigint"), ("job_number", "bigint"),
    ("attempt_id", "bigint"), ("gpu_model", "text"), ("cpu_millis", "bigint"), ("memory_mib", "bigint"),
    ("gpu_millis", "bigint"), ("storage_mib", "bigint"), ("held_seconds", "bigint"),
    ("charged_seconds", "bigint"), ("held_micros", "bigint"), ("charged_micros", "bigint"),
    ("starts_at", "bigint"), ("ends_at", "bigint"), ("reason", "text"),
)  # fmt: skip
_NAMES: Final = ", ".join(name for name, _ in _COLUMNS)
_INSERT: Final = f"""
INSERT INTO quotas_ledgerentry ({_NAMES}, at)
SELECT {", ".join(f"to_timestamp({n})" if n in ("starts_at", "ends_at") else n for n, _ in _COLUMNS)}, %s
FROM unnest({", ".join(f"%s::{kind}[]" for _, kind in _COLUMNS)}) WITH ORDINALITY AS e({_NAMES}, place)
ORDER BY place
"""
#: A budget made while a job ran did not count its hold: the counter never goes below nothing.
_MOVE: Final = """
UPDATE quotas_budgetperiod period
SET held = greatest(0, period.held + moved.held), charged = period.charged + moved.charged
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS moved(budget_id, from_s, held, charged)
WHERE period.budget_id = moved.budget_id AND period.starts_at = to_timestamp(moved.from_s)
"""
#: A period far ahead that nobody has needed yet; the clock makes the near ones.
_OPEN: Final = """
INSERT INTO quotas_budgetperiod (budget_id, starts_at, ends_at, amount, enforce, held, charged)
SELECT budget.id, to_timestamp(wanted.from_s), to_timestamp(wanted.until_s), budget.amount,
    budget.on_spent = 'refuse', 0, 0
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS wanted(id, from_s, until_s)
    JOIN quotas_budget budget ON budget.id = wanted.id
ON CONFLICT (budget_id, starts_at) DO NOTHING
"""


def write(lines: Sequence[Line], known: Books, *, at: datetime) -> list[Statement]:
    """The statements that write entries and move the counters of their budgets; one a table."""
    if not lines:
        return []
    columns: list[list[Any]] = [[] for _ in _COLUMNS]
    for line in lines:
        e, r = line.entry, line.entry.rates
        row = (
            e.kind.value, line.project_id, line.user_id, line.job_number, line.attempt_id, r.gpu_model,
            r.cpu_millis, r.memory_mib, r.gpu_millis, r.storage_mib, e.held_seconds, e.charged_seconds,
            e.held_micros, e.charged_micros, e.from_s, e.until_s, line.reason[:200],
        )  # fmt: skip
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    values = [
        text_array(column) if kind == "text" else int_array(column)
        for column, (_, kind) in zip(columns, _COLUMNS, strict=True)
    ]
    statements: list[Statement] = [(_INSERT, [at, *values])]
    moved = moves((line.entry, known.of(line.project_id)) for line in lines)
    if moved:
        # By rising id, as every other writer takes these rows; they are locked already.
        keys: list[Key] = sorted(moved)
        budgets, begins, ends = (int_array(column) for column in zip(*keys, strict=True))
        if any(key[:2] not in known.periods for key in keys):
            statements.append((_OPEN, [budgets, begins, ends]))
        held, charged = (int_array(getattr(moved[key], name) for key in keys) for name in ("held", "charged"))
        statements.append((_MOVE, [budgets, begins, held, charged]))
    return statements
