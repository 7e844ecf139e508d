"""Alerts: each problem is reported once, to the people it concerns, in one digest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from quotas.core.forecast import forecast
from quotas.models import Alert, AlertKind, Budget, Notice, Quota
from quotas.services.alerts import look_for_alerts, read_notice, unread_notices
from quotas.services.budgets import open_periods
from tests.support.factories import Cast, QuotaFactory, bearer, the_cast
from tests.support.ledgers import a_life

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def kinds(now: datetime = NOON) -> list[str]:
    return sorted(alert.kind for alert in look_for_alerts(now=now))


def a_budget(cast: Cast, hours: int, *, ends_at: datetime | None = None, **words: object) -> Budget:
    budget = Budget.objects.create(
        name="Autumn", project=cast.project, resource="gpu_milli_seconds", amount=hours * 3_600_000,
        period="month", starts_at=datetime(2026, 11, 1, tzinfo=UTC), ends_at=ends_at, **words,
    )  # fmt: skip
    open_periods(budget, now=NOON)
    return budget


def test_a_limit_tells_at_80_and_100_percent_and_past_its_soft_bound(cast: Cast) -> None:
    line = QuotaFactory(project=cast.project, resource="gpu_millis", hard=10_000, soft=9_000, used=7_999)

    assert kinds() == []
    Quota.objects.filter(pk=line.pk).update(used=8_000)
    assert kinds() == [AlertKind.NEARLY_FULL]
    Quota.objects.filter(pk=line.pk).update(used=10_000)
    assert kinds() == [AlertKind.FULL, AlertKind.SOFT_PASSED]
    assert kinds() == []
    assert "the limit of GPUs is fully used (10 of 10)" in Alert.objects.get(kind=AlertKind.FULL).text
    soft = Alert.objects.get(kind=AlertKind.SOFT_PASSED).text
    assert "over the soft limit of GPUs (10 in use, limit 9)." in soft


def test_a_cut_limit_and_one_that_may_borrow_tell_too(cast: Cast) -> None:
    words = {"project": cast.project, "hard": None, "nominal": 4000}
    QuotaFactory(resource="gpu_millis", borrowing_limit=4000, used=8000, job_type="interactive", **words)
    QuotaFactory(resource="cpu_millis", borrowing_limit=0, used=5000, **words)
    QuotaFactory(resource="storage_mib", used=5000, **words)  # borrows as much as there is

    assert kinds() == [AlertKind.FULL, AlertKind.FULL]

    texts = list(Alert.objects.order_by("id").values_list("text", flat=True))
    assert texts[0].endswith("the limit of GPUs of interactive jobs is fully used (8 of 8).")
    assert texts[1].endswith(
        "over the limit of CPU cores (5 of 4 in use), from before the limit was lowered; no new job starts."
    )


def test_what_is_no_longer_so_says_so_and_is_told_again_only_the_next_day(cast: Cast) -> None:
    line = QuotaFactory(project=cast.project, resource="gpu_millis", hard=1000, used=1000)
    assert kinds() == [AlertKind.FULL]

    Quota.objects.filter(pk=line.pk).update(used=0)
    assert kinds(NOON + timedelta(minutes=5)) == []
    assert Alert.objects.get().ended_at is not None
    Quota.objects.filter(pk=line.pk).update(used=1000)
    assert kinds(NOON + timedelta(minutes=10)) == []
    assert Alert.objects.get().ended_at is None
    assert kinds(NOON + timedelta(days=1)) == [AlertKind.FULL]


def test_a_budget_tells_of_its_share_its_forecast_and_its_end(cast: Cast) -> None:
    a_life(cast.project, cast.owner, began=datetime(2026, 11, 9, 9, 0, tzinfo=UTC), used=3600, gpus=4)
    budget = a_budget(cast, hours=20, ends_at=datetime(2026, 11, 30, tzinfo=UTC))

    assert kinds() == []  # 4 hours in a week: 16 last four weeks more
    a_life(cast.project, cast.owner, began=datetime(2026, 11, 9, 9, 0, tzinfo=UTC), used=3600, gpus=8)
    budget.periods.update(charged=12 * 3_600_000)
    assert kinds() == [AlertKind.RUNS_OUT]
    budget.periods.update(charged=17 * 3_600_000)
    assert kinds() == [AlertKind.NEARLY_FULL]
    budget.periods.update(charged=20 * 3_600_000)
    assert kinds() == [AlertKind.FULL]
    assert kinds(NOON + timedelta(days=14)) == [AlertKind.EXPIRES]


def test_leads_get_one_digest_and_others_nothing(cast: Cast) -> None:
    for resource in ("gpu_millis", "cpu_millis", "memory_mib"):
        QuotaFactory(project=cast.project, resource=resource, hard=1000, used=1000)

    look_for_alerts(now=NOON)
    look_for_alerts(now=NOON + timedelta(minutes=5))

    notice = Notice.objects.get()
    assert notice.user == cast.lead
    assert notice.alerts.count() == 3
    for name, person in cast.people().items():
        assert len(unread_notices(person)) == (name == "lead")


def test_a_notice_is_put_away_by_its_own_person_only(client: Client, cast: Cast) -> None:
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=1000, used=1000)
    look_for_alerts(now=NOON)
    number = Notice.objects.get().pk
    url = f"/api/v1/quotas/notices/{number}/read"

    assert client.post(url, headers=bearer(cast.colleague, "quota:read")).status_code == 404
    body = client.get("/api/v1/quotas/notices", headers=bearer(cast.lead, "quota:read")).json()
    assert [alert["kind"] for notice in body["results"] for alert in notice["alerts"]] == ["full"]
    assert client.post(url, headers=bearer(cast.lead, "quota:read")).status_code == 200
    assert unread_notices(cast.lead) == []
    assert read_notice(notice_id=number, by=cast.lead).read_at is not None


def test_only_operators_and_auditors_see_drift(client: Client, cast: Cast) -> None:
    answers = {
        name: client.get("/api/v1/quotas/drift", headers=bearer(person, "quota:read")).status_code
        for name, person in cast.people().items()
    }

    assert answers == dict.fromkeys(answers, 403) | {"operator": 200, "auditor": 200, "admin": 200}


@pytest.mark.parametrize(
    ("left", "used", "out"), [(100, 70, 10), (100, 10, None), (0, 5, 0), (50, 0, None), (600, 70, None)]
)
def test_a_budget_runs_out_at_the_pace_of_the_last_week(left: int, used: int, out: int | None) -> None:
    day = 86_400

    found = forecast(left=left, used_lately=used, since_s=0, now_s=7 * day, ends_s=30 * day)

    assert found.runs_out_s == (None if out is None else (7 + out) * day)


def test_alerts_are_kept_as_long_as_the_settings_say(cast: Cast) -> None:
    old = NOON - timedelta(days=200)
    alert = Alert.objects.create(kind=AlertKind.FULL, subject="quota 1", text="x", at=old, ended_at=old)

    look_for_alerts(now=NOON)

    assert Alert.objects.filter(pk=alert.pk).exists()
