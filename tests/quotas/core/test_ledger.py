"""Examples of the ledger, of periods and of prices."""

from __future__ import annotations

from datetime import UTC, datetime

from quotas.core import ledger
from quotas.core.ledger import Amount, Entry, Kind, balance
from quotas.core.periods import Period, period_at, periods_between
from quotas.core.pricing import HOUR, Price, Rates, cost_micros

TWO_GPUS = Rates(cpu_millis=8000, memory_mib=65_536, gpu_millis=2000, gpu_model="H100")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_two_gpus_for_an_hour_that_end_after_forty_minutes() -> None:
    noon = at("2026-11-28 12:00")
    entries = ledger.hold([TWO_GPUS], at_s=noon, seconds=HOUR)

    entries += ledger.charge(entries, until_s=noon + 2400, final=True)

    assert entries == [
        Entry(Kind.HOLD, TWO_GPUS, noon, noon + 3600, held_seconds=3600),
        Entry(Kind.CHARGE, TWO_GPUS, noon, noon + 2400, held_seconds=-2400, charged_seconds=2400),
        Entry(Kind.REFUND, TWO_GPUS, noon + 2400, noon + 3600, held_seconds=-1200),
    ]
    assert balance(entries, "gpu_millis") == Amount(held=0, charged=2000 * 2400)


def test_work_over_the_end_of_a_month_is_charged_to_both_by_seconds() -> None:
    late, december = at("2026-11-30 23:50"), at("2026-12-01 00:00")
    entries = ledger.hold([TWO_GPUS], at_s=late, seconds=HOUR, cuts=[december])

    entries += ledger.charge(entries, until_s=december + 600, final=True)

    november = [entry for entry in entries if entry.from_s < december]
    assert balance(november, "gpu_millis") == Amount(0, 2000 * 600)
    assert balance(entries, "gpu_millis") == Amount(0, 2000 * 1200)


def test_work_past_its_limit_is_charged_out_of_nothing_held() -> None:
    noon = at("2026-11-28 12:00")
    entries = ledger.hold([TWO_GPUS], at_s=noon, seconds=100)

    entries += ledger.charge(entries, until_s=noon + 130, final=True)

    assert [(e.held_seconds, e.charged_seconds) for e in entries] == [(100, 0), (-100, 100), (0, 30)]


def test_months_weeks_and_windows() -> None:
    moment = at("2026-11-28 10:00")  # a Saturday

    assert period_at(Period.MONTH, moment, from_s=0) == (at("2026-11-01"), at("2026-12-01"))
    assert period_at(Period.WEEK, moment, from_s=0) == (at("2026-11-23"), at("2026-11-30"))
    window = (at("2026-11-10"), at("2026-11-29"))
    assert period_at(Period.WINDOW, moment, from_s=window[0], until_s=window[1]) == window
    assert period_at(Period.WINDOW, window[1], from_s=window[0], until_s=window[1]) is None
    assert period_at(Period.MONTH, moment, from_s=at("2026-11-15"), until_s=window[1]) == (
        at("2026-11-15"),
        window[1],
    )
    assert [begin for begin, _ in periods_between(Period.MONTH, moment, at("2027-01-02"), from_s=0)] == [
        at("2026-11-01"),
        at("2026-12-01"),
        at("2027-01-01"),
    ]


def test_a_price_of_the_model_goes_before_one_for_all_and_a_new_price_counts_from_its_second() -> None:
    noon = at("2026-11-28 12:00")
    known = [
        Price("gpu_millis", 1_000_000, from_s=0),
        Price("gpu_millis", 3_000_000, from_s=0, gpu_model="H100"),
        Price("gpu_millis", 6_000_000, from_s=noon + 1800, gpu_model="H100"),
        Price("cpu_millis", 10_000, from_s=0, until_s=noon + 1800),
    ]

    cost = cost_micros(TWO_GPUS, noon, noon + 3600, known)

    assert cost == 2 * (1_500_000 + 3_000_000) + 8 * 5_000
    assert cost_micros(Rates(gpu_millis=500, gpu_model="A40"), noon, noon + 3600, known) == 500_000
    assert cost_micros(Rates(gpu_millis=1), noon, noon + 1, [Price("gpu_millis", 1_800_000, from_s=0)]) == 1


def test_a_slice_costs_its_part_of_its_model_unless_it_has_a_price_of_its_own() -> None:
    prices = [
        Price("gpu_millis", 1_000_000, from_s=0),
        Price("gpu_millis", 7_000_000, from_s=0, gpu_model="H100"),
        Price("gpu_millis", 2_000_000, from_s=10, gpu_model="H100 MIG 1g.10gb"),
    ]

    def an_hour(model: str, *, of: list[Price] = prices) -> int:
        return cost_micros(Rates(gpu_millis=142, gpu_model=model), 100, 3700, of)

    assert an_hour("H100 MIG 1g.10gb") == 142 * 2_000
    assert an_hour("H100 MIG 1g.10gb", of=prices[:2]) == 142 * 7_000
    assert an_hour("A100 MIG 1g.10gb") == 142 * 1_000
    assert an_hour("H100") == 142 * 7_000
