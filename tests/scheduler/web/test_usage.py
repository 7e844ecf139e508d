"""The usage page: whose figures, that each opens to its lines, and charts with a table beside them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from quotas.models import Budget, LedgerEntry
from quotas.services.alerts import look_for_alerts
from quotas.services.budgets import open_periods
from quotas.services.reconcile import Mismatch, record_drift
from quotas.services.rollup import roll_up
from scheduler.models import Allocation
from tests.scheduler.web.conftest import a_running_job
from tests.support.ledgers import a_life

YESTERDAY = timezone.now().replace(hour=1, minute=0, second=0, microsecond=0) - timedelta(days=1)


@pytest.fixture
def used(world):
    a_life(world.cast.project, world.cast.owner, began=YESTERDAY, used=1800, gpus=4)
    a_life(world.cast.project, world.cast.colleague, began=YESTERDAY, used=3600, gpus=1, model="H100")
    budget = Budget.objects.create(
        name="Autumn", project=world.cast.project, resource="gpu_milli_seconds", amount=36_000_000,
        period="window", starts_at=datetime(2026, 1, 1, tzinfo=UTC), ends_at=datetime(2099, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    open_periods(budget)
    return world


@pytest.mark.parametrize("person", ["owner", "colleague", "viewer", "operator", "auditor"])
def test_members_and_the_site_see_a_projects_usage(as_user, used, person) -> None:
    text = as_user(getattr(used.cast, person)).get(reverse("usage")).content.decode()

    assert "<b>3</b><span>GPU-hours used" in text
    assert "60 %" in text  # of five GPU-hours asked for
    assert "Autumn" in text
    assert "7</b> of 10 GPU-hours left" in text


def test_a_stranger_sees_neither_figures_nor_names(as_user, used) -> None:
    client = as_user(used.cast.stranger)
    text = client.get(reverse("usage")).content.decode()

    assert "No usage in these days" in text
    for hidden in ("Vision", "Autumn", "H100", "colleague"):
        assert hidden not in text
    assert client.get(reverse("usage"), {"project": "vision"}).status_code == 404
    assert "0 entries" in client.get(reverse("ledger"), {"user": "owner"}).content.decode()


def test_every_row_opens_to_lines_whose_sum_it_is(as_user, used) -> None:
    client = as_user(used.cast.owner)
    page = client.get(reverse("usage")).content.decode()
    rows = re.findall(
        r'href="(/usage/ledger/\?[^"]+)">([^<]+)</a></td><td class="num" data-label="GPU-hours">([^<]+)<',
        page,
    )

    assert {name for _, name, _ in rows} == {"Vision", "owner", "colleague", "A100", "H100"}
    for url, name, hours in rows:
        lines = client.get(url.replace("&amp;", "&")).content.decode()
        assert f"{hours} GPU-hours charged" in lines, name


def test_figures_of_old_days_open_to_lines_that_say_that_they_were_rolled_up(as_user, used) -> None:
    client = as_user(used.cast.owner)
    before = client.get(reverse("usage")).content.decode()
    roll_up(list(LedgerEntry.objects.values_list("pk", flat=True)))

    after = client.get(reverse("usage")).content.decode()
    lines = client.get(reverse("ledger"), {"user": "owner", "kind": "charge"}).content.decode()
    rows = client.get("/api/v1/quotas/ledger", {"user": "owner", "kind": "charge"}).json()["results"]

    figures = re.compile(r'data-label="[^"]+">[^<]+<|<b>[^<]+</b><span>[^<]+')
    assert figures.findall(after) == figures.findall(before)
    assert "1 line of this day, rolled up at" in lines
    assert "2 GPU-hours" in lines
    assert {row["rolled_up_at"] is not None for row in rows} == {True}


def test_charts_have_a_table_twin_and_no_script(as_user, used) -> None:
    text = as_user(used.cast.owner).get(reverse("usage")).content.decode()

    assert text.count('<svg class="chart"') == 2
    assert text.count("Show as table") == 2
    assert "<title>" in text
    assert "GPU-hours A100" in text


def test_lines_of_one_job_and_files_of_all(as_user, used) -> None:
    client = as_user(used.cast.owner)
    number = LedgerEntry.objects.order_by("id").first().job_number

    lines = client.get(reverse("ledger"), {"job": number}).content.decode()
    file = client.get(reverse("ledger"), {"export": "csv"})

    assert "3 entries" in lines
    assert len(b"".join(file.streaming_content).splitlines()) == 1 + LedgerEntry.objects.count()


def test_the_page_asks_no_more_for_many_jobs(as_user, used, django_assert_max_num_queries) -> None:
    for number in range(5):
        a_life(used.cast.project, used.cast.owner, began=YESTERDAY + timedelta(minutes=number), used=60)
    client = as_user(used.cast.owner)
    client.get(reverse("usage"))

    with django_assert_max_num_queries(22):
        client.get(reverse("usage"))


def test_a_notice_is_on_the_first_page_until_it_is_put_away(as_user, used) -> None:
    used.cast.project.quotas.update(used=8000)
    look_for_alerts()
    client = as_user(used.cast.lead)
    text = client.get(reverse("home")).content.decode()

    assert "the limit of CPU cores is fully used (8 of 8)" in text
    url = re.search(r'action="(/usage/notices/\d+/read/)"', text).group(1)
    assert as_user(used.cast.owner).post(url).status_code == 404
    assert as_user(used.cast.lead).post(url).status_code == 302
    assert "CPU cores is in use" not in client.get(reverse("home")).content.decode()


def test_operators_and_auditors_see_what_the_reconciler_found(as_user, used) -> None:
    record_drift([Mismatch("quota", "gpu_millis of vision", 5, 7)], reason="a crash", repaired=True)
    seen = {
        name: as_user(person).get(reverse("drift")).status_code for name, person in used.cast.people().items()
    }

    assert seen == dict.fromkeys(seen, 403) | {"operator": 200, "auditor": 200, "admin": 200}
    assert "gpu_millis of vision" in as_user(used.cast.auditor).get(reverse("drift")).content.decode()


def test_what_runs_is_shown_beside_what_the_ledger_says_until_it_is_charged(as_user, used) -> None:
    now = timezone.now()
    job = a_running_job(used)
    Allocation.objects.update(held_at=now - timedelta(minutes=30))
    client = as_user(used.cast.owner)

    before = client.get(reverse("usage")).content.decode()
    LedgerEntry.objects.create(
        kind="charge", project=job.project, user=job.user, job_number=job.number,
        attempt_id=job.attempts.get().pk, gpu_model="A100", gpu_millis=1000, held_seconds=-900,
        charged_seconds=900, starts_at=now - timedelta(minutes=30), ends_at=now - timedelta(minutes=15), at=now,
    )  # fmt: skip
    after = client.get(reverse("usage")).content.decode()

    assert "<b>3</b><span>GPU-hours used</span><em>+ 0.5 still running</em>" in before
    assert before.count('GPU-hours">2 <em class="still">+ 0.5</em>') == 2  # the owner's, and of A100
    assert "0.5 GPU-hours still running" in before  # in the chart
    assert re.search(r"<b>3\.[23]</b><span>GPU-hours used</span><em>\+ 0\.25 still running</em>", after)


def test_what_runs_of_others_or_of_other_days_is_not_shown(as_user, used) -> None:
    a_running_job(used)
    Allocation.objects.update(held_at=timezone.now() - timedelta(minutes=30))

    def told(person, **asked) -> bool:
        return "still running" in as_user(person).get(reverse("usage"), asked).content.decode()

    assert told(used.cast.colleague)
    assert told(used.cast.auditor)
    assert not told(used.cast.stranger)
    assert not told(used.cast.owner, user="colleague")
    assert not told(used.cast.owner, user="nobody")
    assert not told(used.cast.owner, until=YESTERDAY.date().isoformat())


def test_small_figures_are_never_written_with_an_exponent(as_user, used) -> None:
    a_life(used.cast.project, used.cast.lead, began=YESTERDAY, used=1, gpus=1)

    text = as_user(used.cast.owner).get(reverse("usage")).content.decode()

    assert "&lt;0.001" in text
    assert not re.search(r"\de-\d", text)


def test_the_sum_opens_to_the_lines_of_the_same_question(as_user, used) -> None:
    client = as_user(used.cast.operator)
    page = client.get(reverse("usage"), {"of_model": "H100", "user": "colleague"}).content.decode()

    link = re.search(r'<a href="([^"]*)"><b>[^<]*</b><span>GPU-hours used', page)
    assert link is not None
    url = link[1].replace("&amp;", "&")
    assert "of_model=H100" in url
    assert "kind=charge" in url
    assert client.get(reverse("usage"), {"user": "a\0"}).status_code == 422


def test_a_lead_asks_for_more_from_the_card_of_a_budget(as_user, used) -> None:
    cast, budget = used.cast, Budget.objects.get()
    link = f"?project={cast.project.slug}&amp;resource=budget-{budget.pk}"

    assert link in as_user(cast.lead).get(reverse("usage")).content.decode()
    assert link not in as_user(cast.owner).get(reverse("usage")).content.decode()
