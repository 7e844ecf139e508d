"""What the ledger promises, whatever is held, for how long, and whenever it is charged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quotas.core import ledger
from quotas.core.ledger import Entry, Kind, balance
from quotas.core.periods import DAY, Period, periods_between
from quotas.core.pricing import Price, Rates, cost_micros

NOW = 1_795_000_000  # some second of November 2026

rates = st.builds(
    Rates,
    cpu_millis=st.integers(0, 64_000),
    memory_mib=st.integers(0, 1 << 20),
    gpu_millis=st.integers(0, 16_000),
    storage_mib=st.integers(0, 1 << 20),
    gpu_model=st.sampled_from(["", "A100", "H100"]),
)
prices = st.lists(
    st.builds(
        Price,
        resource=st.sampled_from(ledger.TIMED),
        micros_per_hour=st.integers(0, 5_000_000),
        from_s=st.integers(NOW - 10 * DAY, NOW + 10 * DAY),
        until_s=st.none(),
        gpu_model=st.just(""),
    ),
    max_size=3,
)


@dataclass
class Life:
    """An attempt: its entries, when it began and ended."""

    entries: list[Entry]
    began: int
    ended: int


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Held for some time, charged now and then, ended before or after its limit."""
    known = draw(prices)
    began = NOW + draw(st.integers(-3 * DAY, 3 * DAY))
    limit = draw(st.integers(1, 5 * DAY))
    held = draw(st.lists(rates, min_size=1, max_size=2, unique_by=lambda one: one.gpu_model))
    cuts = [begin for begin, _ in periods_between(Period.WEEK, began, began + limit, from_s=0)]
    entries = ledger.hold(held, at_s=began, seconds=limit, cuts=cuts, prices=known)
    at = began
    for step in draw(st.lists(st.integers(0, 2 * DAY), max_size=3)):
        at += step
        entries += ledger.charge(entries, until_s=at, final=False, prices=known)
    at += draw(st.integers(0, 2 * DAY))
    entries += ledger.charge(entries, until_s=at, final=True, prices=known)
    return Life(entries, began, at)


@given(lives())
def test_what_was_used_is_charged_to_the_second_and_nothing_stays_held(life: Life) -> None:
    seconds = life.ended - life.began
    held = {entry.rates for entry in life.entries if entry.kind is Kind.HOLD}

    for resource in ledger.TIMED:
        total = balance(life.entries, resource)
        assert total.held == 0
        assert total.charged == sum(getattr(one, resource) for one in held) * seconds
    assert balance(life.entries, "money_micros").held == 0


@given(lives())
def test_no_sum_of_holds_is_ever_negative(life: Life) -> None:
    for count in range(len(life.entries)):
        for resource in (*ledger.TIMED, "money_micros"):
            assert balance(life.entries[: count + 1], resource).held >= 0


@given(lives())
def test_no_period_gives_back_what_another_set_aside(life: Life) -> None:
    for begin, end in periods_between(Period.WEEK, life.began, life.ended + 8 * DAY, from_s=0):
        own = [entry for entry in life.entries if begin <= entry.from_s < end]
        for resource in (*ledger.TIMED, "money_micros"):
            assert balance(own, resource).held == 0
        for entry in own:
            assert entry.until_s <= end


@given(lives())
def test_a_charge_is_within_one_day_and_days_lose_no_second(life: Life) -> None:
    for one in {entry.rates for entry in life.entries}:
        charges = [e for e in life.entries if e.kind is Kind.CHARGE and e.rates == one]
        at = life.began
        for entry in charges:
            assert entry.from_s == at
            assert entry.from_s // DAY == (entry.until_s - 1) // DAY
            assert entry.charged_seconds == entry.until_s - entry.from_s
            at = entry.until_s
        assert at == life.ended


@given(lives())
def test_what_is_forgiven_leaves_nothing_charged(life: Life) -> None:
    entries = life.entries + ledger.forgive(life.entries)

    for resource in (*ledger.TIMED, "money_micros"):
        assert balance(entries, resource).taken == 0


@given(rates, prices, st.integers(0, 10 * DAY), st.lists(st.integers(0, 10 * DAY), max_size=4))
def test_the_cost_of_parts_is_that_of_the_whole_to_a_millionth_each(
    held: Rates, known: list[Price], seconds: int, cuts: list[int]
) -> None:
    edges = sorted({NOW, NOW + seconds, *(NOW + cut for cut in cuts if cut < seconds)})
    parts = [cost_micros(held, begin, end, known) for begin, end in pairwise(edges)]

    whole = cost_micros(held, NOW, NOW + seconds, known)

    assert abs(2 * (sum(parts) - whole)) <= len(parts) + 1


@given(
    seconds=st.integers(0, 5000),
    charged=st.booleans(),
    micros=st.integers(0, 10**9),
    ends=st.lists(st.integers(-10, 5010), max_size=30),
)
def test_a_charge_that_is_divided_is_charged_once(
    seconds: int, charged: bool, micros: int, ends: list[int]
) -> None:
    held = seconds if charged else seconds // 2
    micros = micros if seconds else 0  # no time costs nothing
    entry = Entry(Kind.CHARGE, Rates(1000, 1, 0, 0), NOW, NOW + seconds, -held, seconds, -micros // 2, micros)

    parts = ledger.split(entry, sorted(NOW + end for end in ends))

    for name in ("held_seconds", "charged_seconds", "held_micros", "charged_micros"):
        assert sum(getattr(part, name) for part in parts) == getattr(entry, name)
    assert len(parts) in (len(ends), len(ends) + 1)
    assert (parts[0].from_s if parts else entry.from_s, parts[-1].until_s if parts else entry.until_s) == (
        entry.from_s,
        entry.until_s,
    )
    assert all(before.until_s == after.from_s for before, after in pairwise(parts))
    assert all(part.charged_seconds >= 0 >= part.held_seconds for part in parts)
    assert all(part.charged_micros >= 0 >= part.held_micros for part in parts)
    assert all(part.charged_seconds == part.until_s - part.from_s for part in parts)
