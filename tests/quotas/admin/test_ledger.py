"""The admin pages of budgets, prices and the ledger: amounts in hours and money, a reason always, no edits of lines."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent
from quotas.models import Budget, BudgetPeriod, LedgerEntry, PriceRow
from tests.quotas.admin.test_admin import enter
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
    return client.post(reverse("admin:quotas_budget_add"), values)


def test_an_operator_makes_and_cuts_a_budget_in_hours(cast: Cast) -> None:
    client = enter(cast.operator)

    assert make(client, cast).status_code == 302
    budget = Budget.objects.get()
    assert budget.amount == 361_800_000
    url = reverse("admin:quotas_budget_change", args=[budget.pk])
    assert client.get(url).status_code == 200
    assert (
        client.post(
            url, {"name": "Autumn", "amount": "2", "on_spent": "warn", "reason": "cut"} | PERIODS
        ).status_code
        == 302
    )

    assert {(row.amount, row.enforce) for row in BudgetPeriod.objects.all()} == {(7_200_000, False)}
    assert list(AuditEvent.objects.order_by("id").values_list("action", "reason")) == [
        ("budget.make", "granted"), ("budget.change", "cut"),
    ]  # fmt: skip


def test_without_a_reason_or_a_subject_no_budget_is_made(cast: Cast) -> None:
    client = enter(cast.operator)

    for change in ({"reason": ""}, {"project": ""}):
        assert make(client, cast, **change).status_code == 200
    assert not Budget.objects.exists()


def test_a_new_price_ends_the_one_before_it(cast: Cast) -> None:
    client = enter(cast.operator)
    for day, price in (("2026-11-01", "2"), ("2026-12-01", "2.5")):
        response = client.post(
            reverse("admin:quotas_pricerow_add"),
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
