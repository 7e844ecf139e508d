"""Ledger rows of attempts: written as they start and end, in the same transaction, with their budgets' counters.

Where a budget counts, a start sets aside, and the end charges and gives back. Where none does, an attempt has one line:
what it was charged at its end (and one for each midnight that it ran over).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import pgtrigger

from infra.db.prepared import ask, ask_together
from quotas.core import ledger
from quotas.core.budgets import BudgetTerms, Key, moves
from quotas.core.ledger import Entry, Kind
from quotas.core.periods import cut
from quotas.core.pricing import Price, Rates, cost_micros
from scheduler.core.plan import Start
from scheduler.outbox import JobOwner
from scheduler.state.db.query import Answer, Batch, fetch
from scheduler.state.db.sql import Statement, int_array, text_array, text_item
from scheduler.state.ledger.ledger_sql import (
    BUDGETS,
    ENTRIES,
    HELD,
    PERIODS_OF_ATTEMPTS,
    PRICES,
    RELEASED_EARLY,
    SUSPENDED,
    BudgetRow,
    EntryRow,
    HeldRow,
    PeriodRow,
    PriceRow,
)


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


def books(budgets: Iterable[BudgetRow], prices: Iterable[Price], periods: Iterable[PeriodRow] = ()) -> Books:
    """From what `BUDGETS`, `PRICES` and `PERIODS` found."""
    terms: defaultdict[int, list[BudgetTerms]] = defaultdict(list)
    for row in budgets:
        terms[row.project_id].append(row.terms())
    return Books(terms, list(prices), frozenset((row.budget_id, row.starts_s) for row in periods))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# ------------------------------------------------------------------ starts


@dataclass(slots=True)
class _Sum:
    """What several tasks hold together on GPUs of one model."""

    cpu_millis: int = 0
    memory_mib: int = 0
    gpu_millis: int = 0
    storage_mib: int = 0

    def rates(self, model: str) -> Rates:
        return Rates(
            cpu_millis=self.cpu_millis, memory_mib=self.memory_mib, gpu_millis=self.gpu_millis,
            storage_mib=self.storage_mib, gpu_model=model,
        )  # fmt: skip


def rates_of(start: Start, model_of: Mapping[int, str]) -> list[Rates]:
    """What all tasks of a start hold together, by the model of the GPUs they were given."""
    found: dict[str, _Sum] = {}
    each = start.per_task
    for placement in start.placements:
        models = [model_of.get(device, "") for device in placement.device_ids] or [""]
        own = found.setdefault(models[0], _Sum())
        own.cpu_millis += each.cpu_millis
        own.memory_mib += each.memory_mib
        own.storage_mib += each.storage_mib
        for _, model in zip(placement.device_ids, models, strict=False):
            found.setdefault(model, _Sum()).gpu_millis += placement.gpu_millis
    return [amounts.rates(model) for model, amounts in found.items()]


class StartedJob(JobOwner, Protocol):
    """A job that a plan starts, with its new attempt."""

    @property
    def attempt_id(self) -> int: ...


def holds(
    starts: Sequence[Start],
    moved: Iterable[StartedJob],
    *,
    known: Books,
    seconds: Mapping[int, int],
    model_of: Mapping[int, str],
    at: datetime,
) -> list[Line]:
    """What these starts set aside; `moved` are their jobs, each with its new attempt. Without a budget, nothing."""
    at_s = int(at.timestamp())
    of = {start.job_id: start for start in starts}
    # Jobs that ask the same in one project set the same aside.
    known_entries: dict[tuple[Any, ...], list[Entry]] = {}
    lines = []
    for job in moved:
        if not known.of(job.project_id):
            continue
        start, until_s = of[job.number], at_s + seconds[job.number]
        given = tuple(
            [(p.gpu_millis, *[model_of.get(d, "") for d in p.device_ids]) for p in start.placements]
        )
        key = (job.project_id, until_s, start.per_task, given)
        entries = known_entries.get(key)
        if entries is None:
            rates = rates_of(start, model_of)
            cuts = {edge for budget in known.of(job.project_id) for edge in budget.cuts(at_s, until_s)}
            entries = known_entries[key] = ledger.hold(
                rates, at_s=at_s, seconds=until_s - at_s, cuts=cuts, prices=known.prices
            )
        lines += [Line(job.project_id, job.user_id, job.number, job.attempt_id, entry) for entry in entries]
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
    ask(PERIODS_OF_ATTEMPTS, [int_array(attempt_ids), int_array(attempt_ids)])


class Accounts(NamedTuple):
    """What charging attempts reads: the entries of each, what each holds, and what writing more needs to know."""

    entries: Mapping[int, list[Entry]]
    runs: Mapping[int, ledger.Run]
    books: Books


class ReadAnswer(NamedTuple):
    """What `ask_ledger` found, once its batch was sent."""

    entries: Answer[list[EntryRow]]
    held: Answer[list[HeldRow]]
    budgets: Answer[list[BudgetRow]]
    prices: Answer[list[PriceRow]]

    def read(self) -> Accounts:
        """What was found, by attempt."""
        of: defaultdict[int, list[Entry]] = defaultdict(list)
        for row in self.entries.read():
            of[row.attempt_id].append(row.entry())
        runs = {attempt: held.run() for attempt, held in _rates_held(self.held.read()).items()}
        return Accounts(of, runs, books(self.budgets.read(), [row.price() for row in self.prices.read()]))


def ask_ledger(batch: Batch, endings: Sequence[Ending]) -> ReadAnswer:
    """Add to a batch what charging these attempts reads."""
    attempts = int_array(e.attempt_id for e in endings)
    return ReadAnswer(
        batch.add(ENTRIES, [int_array(e.job_number for e in endings), attempts]),
        batch.add(HELD, [attempts]),
        batch.add(BUDGETS, [int_array({e.project_id for e in endings}), _EPOCH]),
        batch.add(PRICES),
    )


def read(endings: Sequence[Ending]) -> Accounts:
    """The entries that these attempts have, and what writing more needs to know."""
    batch = Batch()
    answer = ask_ledger(batch, endings)
    batch.send(ask_together)
    return answer.read()


def charges(endings: Sequence[Ending], *, at: datetime, final: bool = True) -> tuple[list[Line], Books]:
    """What these attempts are charged until now, and at their end given back."""
    accounts = read(endings)
    return charged(endings, accounts, at=at, final=final), accounts.books


def charged(endings: Sequence[Ending], accounts: Accounts, *, at: datetime, final: bool = True) -> list[Line]:
    """The same, from what was read."""
    until_s, prices = int(at.timestamp()), accounts.books.prices
    lines: list[Line] = []
    for ending in endings:
        own, held = accounts.entries.get(ending.attempt_id, []), accounts.runs.get(ending.attempt_id)
        if held is None or ledger.is_set_aside(own):
            new = ledger.charge(own, until_s=until_s, final=final, prices=prices)
        else:
            new = ledger.charge_run(held, own, until_s=until_s, final=final, prices=prices)
        whose = (ending.project_id, ending.user_id, ending.job_number, ending.attempt_id)
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
        (
            row.attempt_id,
            Rates(row.cpu_millis, row.memory_mib, row.gpu_millis, row.storage_mib, row.gpu_model),
            row.released_s,
            until_s,
        )
        for row in fetch(RELEASED_EARLY, [int_array(e.attempt_id for e in endings), at])
    ]
    return _given_back(endings, known, parts, GIVEN_BACK_EARLY)


#: Why an entry of `given_back_suspended` is there.
GIVEN_BACK_SUSPENDED: Final = "it was suspended for another job and released its CPUs"
#: The same as entries said it before.
_SUSPENDED_BEFORE: Final = "suspended for another job; CPUs released"
#: Refunds of what was not held; every other refund of a charge forgives what was held.
GIVEN_BACK: Final = (GIVEN_BACK_EARLY, GIVEN_BACK_SUSPENDED, _SUSPENDED_BEFORE)


def given_back_suspended(endings: Sequence[Ending], known: Books, *, at: datetime) -> list[Line]:
    """What attempts were charged for CPUs while they were suspended, given back."""
    parts = [
        (row.attempt_id, Rates(row.cpu_millis, 0, 0, 0), row.from_s, row.until_s)
        for row in fetch(SUSPENDED, [at, int_array(e.attempt_id for e in endings)])
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


class HeldRates(NamedTuple):
    """What an attempt holds by its allocations, by GPU model; since when, and the time limit of its job (0 = none)."""

    rates: list[Rates]
    held_at: datetime
    limit_seconds: int

    def run(self) -> ledger.Run:
        """The same in seconds since 1970."""
        from_s = int(self.held_at.timestamp())
        return ledger.Run(self.rates, from_s, from_s + self.limit_seconds if self.limit_seconds else None)


def rates_held(attempt_ids: Sequence[int]) -> dict[int, HeldRates]:
    """What these attempts hold."""
    rows: list[HeldRow] = fetch(HELD, [int_array(attempt_ids)])
    return _rates_held(rows)


def _rates_held(rows: Iterable[HeldRow]) -> dict[int, HeldRates]:
    by_model: defaultdict[int, dict[str, _Sum]] = defaultdict(dict)
    first: dict[int, HeldRow] = {}
    for row in rows:
        first.setdefault(row.attempt_id, row)
        own = by_model[row.attempt_id].setdefault(row.models[0] if row.models else "", _Sum())
        own.cpu_millis += row.cpu_millis
        own.memory_mib += row.memory_mib
        own.storage_mib += row.storage_mib
        for model in row.models:
            by_model[row.attempt_id].setdefault(model, _Sum()).gpu_millis += row.gpu_millis // len(row.models)
    return {
        attempt_id: HeldRates(
            [amounts.rates(model) for model, amounts in by_model[attempt_id].items()],
            row.held_at,
            row.limit_seconds,
        )
        for attempt_id, row in first.items()
    }


@contextmanager
def whatever_is_so() -> Iterator[None]:
    """Write holds of running jobs even where a budget is spent: refusing would not stop them."""
    with pgtrigger.ignore("quotas.BudgetPeriod:budget_never_passed"):
        yield


# ------------------------------------------------------------------ writing

#: Column -> its type as a parameter, and its value of a line.
_OF_LINE: Final[dict[str, tuple[str, Callable[[Line], Any]]]] = {
    "project_id": ("bigint", lambda line: line.project_id),
    "user_id": ("bigint", lambda line: line.user_id),
    "job_number": ("bigint", lambda line: line.job_number),
    "attempt_id": ("bigint", lambda line: line.attempt_id),
    "reason": ("text", lambda line: line.reason[:200]),
}
#: The same of its entry.
_OF_ENTRY: Final[dict[str, tuple[str, Callable[[Entry], Any]]]] = {
    "kind": ("text", lambda entry: entry.kind.value),
    "gpu_model": ("text", lambda entry: entry.rates.gpu_model),
    "cpu_millis": ("bigint", lambda entry: entry.rates.cpu_millis),
    "memory_mib": ("bigint", lambda entry: entry.rates.memory_mib),
    "gpu_millis": ("bigint", lambda entry: entry.rates.gpu_millis),
    "storage_mib": ("bigint", lambda entry: entry.rates.storage_mib),
    "held_seconds": ("bigint", lambda entry: entry.held_seconds),
    "charged_seconds": ("bigint", lambda entry: entry.charged_seconds),
    "held_micros": ("bigint", lambda entry: entry.held_micros),
    "charged_micros": ("bigint", lambda entry: entry.charged_micros),
    "unused_seconds": ("bigint", lambda entry: entry.unused_seconds),
    "starts_at": ("bigint", lambda entry: entry.from_s),
    "ends_at": ("bigint", lambda entry: entry.until_s),
}
_TYPES: Final = {name: kind for name, (kind, _) in (*_OF_LINE.items(), *_OF_ENTRY.items())}
_NAMES: Final = ", ".join(_TYPES)
_INSERT: Final = f"""
INSERT INTO quotas_ledgerentry ({_NAMES}, at)
SELECT {", ".join(f"to_timestamp({n})" if n in ("starts_at", "ends_at") else n for n in _TYPES)}, %s
FROM unnest({", ".join(f"%s::{kind}[]" for kind in _TYPES.values())}) WITH ORDINALITY AS e({_NAMES}, place)
ORDER BY place
"""


def _values(lines: Sequence[Line]) -> list[str]:
    """The arrays of `_INSERT`: lines of jobs that asked the same have the same entry, which is written out once."""
    of_lines = [
        text_array(map(value, lines)) if kind == "text" else int_array(map(value, lines))
        for kind, value in _OF_LINE.values()
    ]
    known: dict[int, tuple[str, ...]] = {}
    rows = []
    for line in lines:
        row = known.get(id(line.entry))
        if row is None:
            row = known[id(line.entry)] = tuple(
                text_item(value(line.entry)) if kind == "text" else _number(value(line.entry))
                for kind, value in _OF_ENTRY.values()
            )
        rows.append(row)
    return of_lines + [f"{{{','.join(column)}}}" for column in zip(*rows, strict=True)]


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(value)


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
    statements: list[Statement] = [(_INSERT, [at, *_values(lines)])]
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
