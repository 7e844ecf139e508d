"""Budgets: which periods an entry counts in, and what a job would take from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from quotas.core.ledger import Amount, Entry
from quotas.core.periods import Period, period_at, periods_between

#: What a budget counts, by the name of the amount that is multiplied by the seconds.
COUNTED: Final[Mapping[str, str]] = {
    "gpu_milli_seconds": "gpu_millis",
    "cpu_milli_seconds": "cpu_millis",
    "money_micros": "money_micros",
}


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """A budget as far as sums need it: what it counts, and when it begins anew; times in whole seconds."""

    id: int
    resource: str
    period: Period
    from_s: int
    until_s: int | None = None

    def period_at(self, at_s: int) -> tuple[int, int] | None:
        return period_at(self.period, at_s, from_s=self.from_s, until_s=self.until_s)

    def cuts(self, begin_s: int, end_s: int) -> set[int]:
        """Where a hold has to be cut, so that each part counts in one period."""
        found = periods_between(self.period, begin_s, end_s, from_s=self.from_s, until_s=self.until_s)
        return {edge for period in found for edge in period}


def first_period(terms: BudgetTerms) -> tuple[int, int]:
    """The first and the last second of the period that it begins with."""
    found = terms.period_at(terms.from_s)
    return found if found is not None else (terms.from_s, terms.from_s + 1)


#: A period of a budget: the budget's id, and its first and last second.
Key = tuple[int, int, int]


def moves(entries: Iterable[tuple[Entry, Iterable[BudgetTerms]]]) -> dict[Key, Amount]:
    """What entries add to each period of the budgets that they count on."""
    sums: defaultdict[Key, Amount] = defaultdict(Amount)
    for entry, budgets in entries:
        for budget in budgets:
            period = budget.period_at(entry.from_s)
            if period is not None:
                sums[(budget.id, *period)] += entry.amount(COUNTED[budget.resource])
    return {key: amount for key, amount in sums.items() if amount.held or amount.charged}
