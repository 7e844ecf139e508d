"""Ledger: what an attempt sets aside, is charged and gets back; a balance is the sum of its entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from quotas.core.periods import cut, days_between
from quotas.core.pricing import Price, Rates, cost_micros

#: Resources that are counted by time, in the order they are shown: what is held times the seconds it is held.
TIMED: Final = ("cpu_millis", "memory_mib", "gpu_millis", "storage_mib")


class Kind(StrEnum):
    """What an entry does to the two sums, of what is held and of what was charged.

    hold: held rises. charge: charged rises, and held falls by as much of it as was set aside. refund: what
    was set aside and not needed, or what was charged and is forgiven, falls. adjust: a person's correction.

    Where no budget counts, nothing is set aside: an attempt has its charges alone, one for each day.
    """

    HOLD = "hold"
    CHARGE = "charge"
    REFUND = "refund"
    ADJUST = "adjust"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: an amount held for some seconds, and what becomes of the sums by it.

    Seconds are whole. A second belongs to the attempt that holds the resource as it begins: times are cut to the
    second below, so that two jobs one after the other on one GPU are charged every second exactly once.
    """

    kind: Kind
    rates: Rates
    from_s: int
    until_s: int
    held_seconds: int = 0
    charged_seconds: int = 0
    held_micros: int = 0
    charged_micros: int = 0
    #: Of the last charge of an attempt for which nothing was set aside: the seconds of its time limit that it did not
    #: use. Moves neither sum.
    unused_seconds: int | None = None

    def amount(self, resource: str) -> Amount:
        """What the entry adds to a resource's two sums; `money_micros` is one of the resources."""
        if resource == "money_micros":
            return Amount(self.held_micros, self.charged_micros)
        rate: int = getattr(self.rates, resource)
        return Amount(rate * self.held_seconds, rate * self.charged_seconds)


@dataclass(frozen=True, slots=True)
class Amount:
    """Of one resource: what is set aside, and what was charged for good."""

    held: int = 0
    charged: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.held + other.held, self.charged + other.charged)

    @property
    def taken(self) -> int:
        """The balance: what a budget no longer has."""
        return self.held + self.charged


def balance(entries: Iterable[Entry], resource: str) -> Amount:
    return sum((entry.amount(resource) for entry in entries), Amount())


def hold(
    rates: Sequence[Rates], *, at_s: int, seconds: int, cuts: Iterable[int] = (), prices: Sequence[Price] = ()
) -> list[Entry]:
    """Set aside what an attempt may use from now on, cut where a period of its budgets ends."""
    slices = list(cut(at_s, at_s + seconds, cuts))
    return [_hold(one, begin, end, prices) for one in rates for begin, end in slices]


def more_hold(
    entries: Sequence[Entry], *, until_s: int, cuts: Iterable[int] = (), prices: Sequence[Price] = ()
) -> list[Entry]:
    """Set aside more for an attempt that has no time limit and has nearly used what was set aside."""
    more: list[Entry] = []
    edges = list(cuts)
    for rates, own in _by_rates(entries):
        end = max(entry.until_s for entry in own if entry.kind is not Kind.REFUND)
        more += [_hold(rates, begin, until, prices) for begin, until in cut(end, max(end, until_s), edges)]
    return more


def charge(
    entries: Sequence[Entry], *, until_s: int, final: bool, prices: Sequence[Price] = ()
) -> list[Entry]:
    """Charge what was used since the last charge up to a moment, a line a day; at the end give the rest back.

    `entries` are all that this attempt has so far. What ran longer than was set aside is charged all the
    same, out of nothing held: it was used. After the final charge nothing is held any more.
    """
    new: list[Entry] = []
    for rates, own in _by_rates(entries):
        holds = sorted((entry for entry in own if entry.kind is Kind.HOLD), key=lambda entry: entry.from_s)
        since = max((entry.until_s for entry in own if entry.kind is Kind.CHARGE), default=holds[0].from_s)
        left = {one.from_s: _left(one, own) for one in holds}
        edges = [edge for one in holds for edge in (one.from_s, one.until_s)]
        for day, midnight in days_between(since, until_s):
            for begin, end in cut(day, midnight, edges):
                source = next((one for one in holds if one.from_s <= begin < one.until_s), None)
                cost = cost_micros(rates, begin, end, prices)
                seconds = end - begin
                used = _Left(seconds, cost)
                from_hold = _Left(0, 0)
                if source is not None:
                    rest = left[source.from_s]
                    from_hold = _Left(min(seconds, rest.seconds), min(cost, rest.micros))
                    left[source.from_s] = rest.less(from_hold)
                new.append(
                    Entry(
                        Kind.CHARGE, rates, begin, end, -from_hold.seconds, used.seconds,
                        -from_hold.micros, used.micros,
                    )
                )  # fmt: skip
        if final:
            for one in holds:
                rest = left[one.from_s]
                if rest.seconds or rest.micros:
                    begin = min(max(one.from_s, until_s), one.until_s)
                    new.append(
                        Entry(Kind.REFUND, rates, begin, one.until_s, -rest.seconds, 0, -rest.micros, 0)
                    )
    return new


@dataclass(frozen=True, slots=True)
class Run:
    """What an attempt holds, once for each GPU model; since when, and when its time limit ends (None = no limit)."""

    rates: Sequence[Rates]
    from_s: int
    limit_s: int | None = None


def charge_run(
    run: Run, entries: Sequence[Entry], *, until_s: int, final: bool, prices: Sequence[Price] = ()
) -> list[Entry]:
    """Charge what was used since the last charge up to a moment, where nothing was set aside: a line a day.

    `entries` are all that this attempt has so far. The last line says what the attempt did not use of its time limit;
    an attempt that ends in the second in which it began has a line of no seconds.
    """
    new: list[Entry] = []
    for rates in run.rates:
        model = rates.gpu_model
        charges = [entry for entry in entries if entry.kind is Kind.CHARGE and entry.rates.gpu_model == model]
        since = max((entry.until_s for entry in charges), default=run.from_s)
        own = [
            Entry(
                Kind.CHARGE, rates, begin, end, charged_seconds=end - begin,
                charged_micros=cost_micros(rates, begin, end, prices),
            )
            for begin, end in days_between(since, until_s)
        ]  # fmt: skip
        if final:
            end = max(until_s, since)
            unused = None if run.limit_s is None else max(run.limit_s - end, 0)
            if not own and (unused or not charges):
                own = [Entry(Kind.CHARGE, rates, end, end)]
            own[-1:] = [replace(entry, unused_seconds=unused) for entry in own[-1:]]
        new += own
    return new


def is_set_aside(entries: Iterable[Entry]) -> bool:
    """Whether something was set aside for an attempt with these entries."""
    return any(entry.kind is Kind.HOLD for entry in entries)


def split(entry: Entry, ends: Sequence[int]) -> list[Entry]:
    """One charge as one for each part of its time, in the order of these ends (s), and one for what is left.

    The parts add up to the entry in every sum; the last has what was not used. A part has no seconds where it ended
    in the second in which it began. An end before the entry begins has a part without seconds, one after it ends has
    what is left till then. The last part is left out when nothing is left.
    """
    parts: list[Entry] = []
    before = entry.from_s
    for end in [*ends, entry.until_s]:
        until = min(max(end, before), entry.until_s)
        sums = [
            _until(whole, entry, until) - _until(whole, entry, before)
            for whole in (entry.held_seconds, entry.charged_seconds, entry.held_micros, entry.charged_micros)
        ]
        parts.append(Entry(entry.kind, entry.rates, before, until, *sums))
        before = until
    rest = parts[-1]
    parts = parts if rest.until_s > rest.from_s or not ends else parts[:-1]
    return [*parts[:-1], replace(parts[-1], unused_seconds=entry.unused_seconds)]


def _until(whole: int, entry: Entry, at_s: int) -> int:
    """How much of a sum of the entry is of the time before this moment."""
    span = entry.until_s - entry.from_s
    return whole * (at_s - entry.from_s) // span if span else 0


def forgive(entries: Iterable[Entry]) -> list[Entry]:
    """Give back what was charged, line by line: the work was lost through no fault of its own."""
    return [
        replace(
            entry, kind=Kind.REFUND, held_seconds=0, charged_seconds=-entry.charged_seconds,
            held_micros=0, charged_micros=-entry.charged_micros, unused_seconds=None,
        )
        for entry in entries
        if entry.kind is Kind.CHARGE and (entry.charged_seconds or entry.charged_micros)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Left:
    seconds: int
    micros: int

    def less(self, other: _Left) -> _Left:
        return _Left(self.seconds - other.seconds, self.micros - other.micros)


def _hold(rates: Rates, begin: int, end: int, prices: Sequence[Price]) -> Entry:
    cost = cost_micros(rates, begin, end, prices)
    return Entry(Kind.HOLD, rates, begin, end, held_seconds=end - begin, held_micros=cost)


def _left(one: Entry, own: Sequence[Entry]) -> _Left:
    """What is still set aside by a hold after the charges within it."""
    taken = [e for e in own if e.kind is Kind.CHARGE and one.from_s <= e.from_s < one.until_s]
    return _Left(
        one.held_seconds + sum(e.held_seconds for e in taken),
        one.held_micros + sum(e.held_micros for e in taken),
    )


def _by_rates(entries: Sequence[Entry]) -> list[tuple[Rates, list[Entry]]]:
    """The entries of each GPU model that an attempt holds, those with a hold only."""
    found: dict[Rates, list[Entry]] = {}
    for entry in entries:
        if entry.kind is not Kind.ADJUST:
            found.setdefault(entry.rates, []).append(entry)
    return [(rates, own) for rates, own in found.items() if any(e.kind is Kind.HOLD for e in own)]
