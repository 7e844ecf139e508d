"""The admin pages of budgets, prices and the ledger: amounts in hours and money, a reason always, no edits of lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent
from quotas.models import Budget, BudgetPeriod, LedgerEntry, PriceRow
from quotas.services.budgets import change_budget, set_price
from tests.quotas.admin.test_admin import enter, save
from tests.support.factories import Cast, the_cast
from tests.support.ledgers import a_life

pytestmark = pytest.mark.django_db

PERIODS = {"periods-TOTAL_FORMS": 0, "periods-INITIAL_FORMS": 0}


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def make(client: Client, cast: Cast, **changes: object):
    values = {
        "name": "Autumn", "project": cast.project.pk, "resource": "gpu_milli_seconds", "period": "month",
        "amount": "100.5", "on_spent": "refuse", "starts_at_0": "2026-11-01", "starts_at_1": "00:00:00",
        "reason": "granted",
    } | PERIODS | changes  # fmt: skip
    return save(client, reverse("admin:quotas_budget_add"), values)


def test_an_operator_makes_and_cuts_a_budget_in_hours(cast: Cast) -> None:
    client = enter(cast.operator)

    assert make(client, cast).status_code == 302
    budget = Budget.objects.get()
    assert budget.amount == 361_800_000
    url = reverse("admin:quotas_budget_change", args=[budget.pk])
    assert client.get(url).status_code == 200
    cut = {"name": "Autumn", "amount": "2", "on_spent": "warn", "reason": "cut"} | PERIODS
    assert save(client, url, cut).status_code == 302

    assert {(row.amount, row.enforce) for row in BudgetPeriod.objects.all()} == {(7_200_000, False)}
    assert list(AuditEvent.objects.order_by("id").values_list("action", "reason")) == [
        ("budget.make", "granted"), ("budget.change", "cut"),
    ]  # fmt: skip


def test_a_cut_budget_says_first_what_is_used_and_what_becomes_of_jobs(cast: Cast) -> None:
    client = enter(cast.operator)
    make(client, cast, starts_at_0=f"{timezone.now():%Y-%m}-01")
    budget = Budget.objects.get()
    BudgetPeriod.objects.filter(starts_at__lte=timezone.now(), ends_at__gt=timezone.now()).update(
        charged=10_800_000
    )
    url = reverse("admin:quotas_budget_change", args=[budget.pk])
    cut = {"name": "Autumn", "amount": "2", "on_spent": "refuse", "reason": "cut", "seen": budget.generation}

    response = client.post(url, cut | PERIODS)

    preview = response.context["muster_preview"]
    assert [(row.label, row.one, row.other) for row in preview.rows] == [("Amount", "100.5", "2")]
    assert preview.sentences[1:] == (
        "3.0 GPU-hours of 2.0 GPU-hours are used or reserved in the current period.",
        "The budget is used up: new jobs wait for the next period; running jobs continue.",
    )
    assert preview.warns
    change_budget(budget=budget, changes={"amount": 36_000_000}, by=cast.admin, reason="more")
    clash = client.post(url, cut | PERIODS)
    assert clash.status_code == 409
    assert [(row.one, row.other) for row in clash.context["muster_clash"].rows] == [("2", "10")]
    budget.refresh_from_db()
    assert budget.amount == 36_000_000


def test_a_price_that_somebody_else_set_meanwhile_is_shown_beside_yours(cast: Cast) -> None:
    client, url = enter(cast.operator), reverse("admin:quotas_pricerow_add")
    a_life(cast.project, cast.owner, began=timezone.now() - timedelta(hours=2), used=3600)
    mine = {"resource": "gpu_millis", "per_hour": "3", "valid_from_0": "2026-11-01", "valid_from_1": "00:00:00",
            "reason": "list of prices", "seen": 0}  # fmt: skip

    looked = client.post(url, mine)
    set_price(resource="gpu_millis", micros_per_hour=2_000_000, valid_from=datetime(2026, 10, 1, tzinfo=UTC),
              by=cast.admin, reason="first")  # fmt: skip
    clash = client.post(url, mine | {"previewed": looked.context["adminform"].form["previewed"].value()})

    assert looked.context["muster_preview"].rows[0].other == "3"
    assert clash.status_code == 409
    assert ("3", "2") in [(row.one, row.other) for row in clash.context["muster_clash"].rows]
    assert not PriceRow.objects.filter(micros_per_hour=3_000_000).exists()


def test_without_a_reason_or_a_subject_no_budget_is_made(cast: Cast) -> None:
    client = enter(cast.operator)

    for change in ({"reason": ""}, {"project": ""}):
        assert make(client, cast, **change).status_code == 200
    assert not Budget.objects.exists()


def test_a_new_price_ends_the_one_before_it(cast: Cast) -> None:
    client = enter(cast.operator)
    for day, price in (("2026-11-01", "2"), ("2026-12-01", "2.5")):
        response = save(
            client, reverse("admin:quotas_pricerow_add"),
            {"resource": "gpu_millis", "gpu_model": "H100", "per_hour": price, "valid_from_0": day,
             "valid_from_1": "00:00:00", "reason": "list of prices"},
        )  # fmt: skip
        assert response.status_code == 302, response.content

    first, second = PriceRow.objects.order_by("valid_from")
    assert (first.micros_per_hour, second.micros_per_hour) == (2_000_000, 2_500_000)
    assert (first.valid_until, second.valid_until) == (second.valid_from, None)


def test_lines_can_be_looked_at_and_nothing_else(cast: Cast) -> None:
    a_life(cast.project, cast.owner, began=timezone.now(), used=60)
    entry = LedgerEntry.objects.order_by("id").first()

    for person in (cast.operator, cast.admin):
        client = enter(person)
        page = client.get(reverse("admin:quotas_ledgerentry_change", args=[entry.pk])).content.decode()
        assert client.get(reverse("admin:quotas_ledgerentry_changelist")).status_code == 200
        assert client.get(reverse("admin:quotas_ledgerentry_add")).status_code == 403
        assert 'name="_save"' not in page
