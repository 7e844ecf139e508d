"""Holds at the start, charges at the end, in the same transactions; budgets that cannot be overspent."""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import Error, IntegrityError, connection, transaction
from django.db.models import F
from django.test import override_settings

from accounts.models import AuditEvent, Project
from quotas.core.ledger import Entry, Kind
from quotas.core.periods import Period
from quotas.core.pricing import Rates
from quotas.models import Budget, BudgetPeriod, DriftFinding, DriftKind, LedgerEntry, OnSpent, PriceRow
from quotas.selectors.budgets import sum_of_period, terms_of
from quotas.selectors.usage import usage
from quotas.services.budget_impact import impact_of_budget
from quotas.services.budgets import change_budget, make_budget, open_periods
from quotas.services.reconcile import check_budgets
from scheduler.core.lifecycle import LIVE_TASK, TaskState
from scheduler.models import Allocation, Attempt, Job, Task
from scheduler.services.accounting import charging
from scheduler.services.planning import cycles
from scheduler.services.planning.job_preview import preview_job
from scheduler.state.db.sql import run_together
from scheduler.state.ledger import ledger
from scheduler.state.settle.settle import end_attempt, settle_many
from tests.scheduler.state.small import SmallWorld, broken_invariants, broken_ledger
from tests.support.factories import OperatorFactory, OrganizationFactory
from tests.support.locks import Apart
from tests.support.roles import as_owner, as_owner_without

pytestmark = pytest.mark.django_db

HOUR = 3600
NOW_S = int(datetime.now(UTC).timestamp())


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=16_000, gpus=4, gpus__model="H100")
    return world


def a_budget(world: SmallWorld, amount: int, **kwargs: object) -> Budget:
    kwargs = {
        "name": "GPU time", "project": world.project, "resource": "gpu_milli_seconds", "amount": amount,
        "period": Period.MONTH, "starts_at": datetime(2026, 1, 1, tzinfo=UTC),
    } | kwargs  # fmt: skip
    budget = Budget.objects.create(**kwargs)
    open_periods(budget)
    return budget


def started(world: SmallWorld, **kwargs: object) -> tuple[Job, Attempt]:
    job = world.job(**({"gpus": 1, "time_limit_seconds": HOUR} | kwargs))
    with pytest.MonkeyPatch.context() as patch:
        # The ledger cuts charges at midnight UTC: near it, the start is written for some hours before.
        now = datetime.now(UTC)
        began = now if (now + timedelta(hours=3)).date() == now.date() else now - timedelta(hours=4)
        patch.setattr(cycles, "datetime", SimpleNamespace(now=lambda zone: began))
        world.plan()
    return job, Attempt.objects.get(job=job)


def ended(attempt: Attempt, *, after: int) -> datetime:
    at = attempt.scheduled_at + timedelta(seconds=after)
    Task.objects.filter(attempt=attempt, state__in=LIVE_TASK).update(state=TaskState.SUCCEEDED, exit_code=0)
    assert settle_many([attempt.pk], at=at)
    return at


def sums(job: Job) -> tuple[int, int]:
    """GPU-seconds of a job in thousandths: set aside, and charged."""
    entries = LedgerEntry.objects.filter(job_number=job.number)
    return (
        sum(e.gpu_millis * e.held_seconds for e in entries),
        sum(e.gpu_millis * e.charged_seconds for e in entries),
    )


def test_a_start_sets_aside_what_was_asked_and_the_end_charges_what_was_used(world: SmallWorld) -> None:
    a_budget(world, 10**12)
    job, attempt = started(world, tasks=2, cpu_millis=1000)
    held = LedgerEntry.objects.get(job_number=job.number)

    ended(attempt, after=600)

    assert (held.kind, held.gpu_model, held.gpu_millis, held.cpu_millis) == (Kind.HOLD, "H100", 2000, 2000)
    assert (held.held_seconds, held.attempt_id, held.user) == (HOUR, attempt.pk, world.person)
    assert sums(job) == (0, 2000 * 600)
    assert {e.kind for e in LedgerEntry.objects.all()} == {Kind.HOLD, Kind.CHARGE, Kind.REFUND}


def test_the_longest_name_of_a_model_is_charged_whole(world: SmallWorld) -> None:
    """Nodes and jobs may name a model of 80 characters: limits, prices and the ledger take as many."""
    name = "NVIDIA " + "H" * 73
    world.node("n2", cpu_millis=16_000, gpus=1, gpus__model=name)
    job, attempt = started(world, gpu_model=name)
    ended(attempt, after=600)

    assert len(name) == 80
    assert {entry.gpu_model for entry in LedgerEntry.objects.filter(job_number=job.number)} == {name}


@pytest.mark.parametrize(("after", "unused"), [(0, HOUR), (600, HOUR - 600), (HOUR + 5, 0)])
def test_without_a_budget_a_run_has_one_line_that_says_what_it_did_not_use(
    world: SmallWorld, after: int, unused: int
) -> None:
    job, attempt = started(world, tasks=2, cpu_millis=1000)
    assert not LedgerEntry.objects.exists()

    ended(attempt, after=after)

    line = LedgerEntry.objects.get()
    assert (line.kind, line.gpu_model, line.gpu_millis, line.cpu_millis) == (Kind.CHARGE, "H100", 2000, 2000)
    assert (line.charged_seconds, line.unused_seconds, line.held_seconds) == (after, unused, 0)
    assert (line.job_number, line.attempt_id, line.user) == (job.number, attempt.pk, world.person)
    found = usage(LedgerEntry.objects.all())[0]
    assert (found.gpu_milli_seconds, found.unused_gpu_milli_seconds) == (2000 * after, 2000 * unused)
    assert broken_invariants() == []


def test_without_a_budget_nothing_is_said_of_a_run_without_a_limit_but_what_it_used(
    world: SmallWorld,
) -> None:
    _, attempt = started(world, time_limit_seconds=None)

    assert charging.extend_holds(now=attempt.scheduled_at + timedelta(days=3)) == 0
    ended(attempt, after=100)

    line = LedgerEntry.objects.get()
    assert (line.kind, line.charged_seconds, line.unused_seconds) == (Kind.CHARGE, 100, None)


def test_without_a_budget_each_day_is_charged_at_midnight(world: SmallWorld) -> None:
    job, attempt = started(world, time_limit_seconds=30 * HOUR)
    tomorrow = attempt.scheduled_at + timedelta(days=1)

    assert charging.charge_running(now=tomorrow) == 1
    assert charging.charge_running(now=tomorrow) == 0
    ended(attempt, after=29 * HOUR)

    lines = list(LedgerEntry.objects.order_by("id"))
    assert {line.kind for line in lines} == {Kind.CHARGE}
    assert [line.unused_seconds for line in lines] == [None] * (len(lines) - 1) + [HOUR]
    assert sums(job) == (0, 29 * HOUR * 1000)
    assert broken_ledger() == []


@pytest.mark.parametrize("charged_before", [False, True])
def test_a_budget_sets_aside_for_what_runs_when_it_is_made(world: SmallWorld, charged_before: bool) -> None:
    job, attempt = started(world, time_limit_seconds=80 * HOUR)
    end = int(attempt.scheduled_at.timestamp()) + 80 * HOUR
    began = int(attempt.scheduled_at.timestamp())
    if charged_before:
        charging.charge_running(now=attempt.scheduled_at + timedelta(days=1))
        began += began % 86_400 and 86_400 - began % 86_400
    admin = OperatorFactory()
    words = {"subject": world.project, "resource": "gpu_milli_seconds", "period": "window"}
    ends = datetime.fromtimestamp(end - end % 86_400 + 20 * 86_400, tz=UTC)
    begins = attempt.scheduled_at.replace(hour=0, minute=0, second=0, microsecond=0)
    expected = impact_of_budget(
        None, subject=world.project, resource="gpu_milli_seconds", amount=10**6, on_spent="refuse"
    ).taken

    budget = make_budget(
        **words, name="GPUs", amount=10**6, starts_at=begins, ends_at=ends, by=admin, reason="as agreed"
    )

    row = budget.periods.get()
    assert row.held == (end - began) * 1000 > row.amount
    assert row.held + row.charged == expected
    assert (charging.heal_ledger(), check_budgets()) == (0, 0)
    assert not DriftFinding.objects.exists()
    ended(attempt, after=30 * HOUR)
    row.refresh_from_db()
    assert (row.held, row.charged, sums(job)) == (0, 30 * HOUR * 1000, (0, 30 * HOUR * 1000))
    assert broken_invariants() == []


def test_a_project_that_comes_under_a_budget_sets_aside_for_what_runs(world: SmallWorld) -> None:
    job, attempt = started(world)
    elsewhere = OrganizationFactory()
    a_budget(world, 10**12, project=None, organization=elsewhere)
    later = attempt.scheduled_at + timedelta(seconds=60)
    assert charging.heal_ledger(now=later) == 0

    Project.objects.filter(pk=world.project.pk).update(organization=elsewhere)
    assert charging.heal_ledger(now=later) == 1

    assert sums(job) == (HOUR * 1000, 0)
    assert not DriftFinding.objects.exists()  # the budget is younger than the attempt
    assert LedgerEntry.objects.get().reason == "its budget began to count while it ran"


def test_money_follows_the_price_list(world: SmallWorld) -> None:
    PriceRow.objects.create(
        resource="gpu_millis", gpu_model="H100", micros_per_hour=2_000_000,
        valid_from=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    a_budget(world, 10**12)
    job, attempt = started(world)

    ended(attempt, after=1800)

    entries = LedgerEntry.objects.filter(job_number=job.number)
    assert entries.get(kind=Kind.HOLD).held_micros == 2_000_000
    assert sum(e.held_micros for e in entries) == 0
    assert sum(e.charged_micros for e in entries) == 1_000_000


def test_a_lost_node_is_not_paid_for_and_the_rule_is_a_setting(world: SmallWorld) -> None:
    job, attempt = started(world)
    other, kept = started(world)
    later = attempt.scheduled_at + timedelta(seconds=500)

    end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="n1 went silent", at=later)
    with override_settings(LEDGER_FORGIVES=[]):
        end_attempt(attempt_id=kept.pk, epoch=kept.epoch, lost_text="n1 went silent", at=later)

    assert sums(job) == (0, 0)
    refund = LedgerEntry.objects.get(job_number=job.number, kind=Kind.REFUND, charged_seconds__lt=0)
    assert (refund.charged_seconds, refund.reason) == (-500, "lost: n1 went silent")
    used = sum(e.charged_seconds for e in LedgerEntry.objects.filter(job_number=other.number))
    assert used == int(later.timestamp()) - int(kept.scheduled_at.timestamp())


def test_usage_is_the_same_by_user_by_project_by_model_and_by_allocation(world: SmallWorld) -> None:
    world.node("n2", cpu_millis=16_000, gpus=2)
    for number in range(6):
        job = world.job(gpus=1 + number % 2, time_limit_seconds=HOUR, tasks=1)
        if number % 2:
            job.user = world.person
    world.plan()
    for number, attempt in enumerate(Attempt.objects.order_by("id")):
        ended(attempt, after=90_000 * number + 7)

    by: dict[str, defaultdict[object, int]] = {k: defaultdict(int) for k in ("user", "project", "model")}
    for entry in LedgerEntry.objects.filter(kind=Kind.CHARGE):
        used = entry.gpu_millis * entry.charged_seconds
        by["user"][entry.user_id] += used
        by["project"][entry.project_id] += used
        by["model"][entry.gpu_model] += used
    held = [
        a.gpu_millis * (int(a.released_at.timestamp()) - int(a.held_at.timestamp()))
        for a in Allocation.objects.exclude(released_at=None)
    ]
    assert {sum(sums.values()) for sums in by.values()} == {sum(held)}
    assert sum(held) > 0


def test_entries_cannot_be_altered(world: SmallWorld) -> None:
    a_budget(world, 10**12)
    started(world)

    for change in (
        lambda: LedgerEntry.objects.update(held_seconds=1),
        lambda: LedgerEntry.objects.all().delete(),
        lambda: connection.cursor().execute("TRUNCATE quotas_ledgerentry"),
    ):
        with pytest.raises(Error, match="denied"), transaction.atomic():
            change()
        with pytest.raises(Error, match=r"ledger|Cannot"), transaction.atomic(), as_owner():
            change()

    assert LedgerEntry.objects.count() == 1


# ------------------------------------------------------------------ budgets


def test_counters_of_a_budget_are_the_sums_of_the_ledger(world: SmallWorld) -> None:
    a_budget(world, 10 * HOUR * 1000)
    parent = world.project.organization
    a_budget(world, 100 * HOUR * 1000, project=None, organization=parent, period=Period.WEEK)
    _, first = started(world)
    started(world)

    ended(first, after=60)

    for row in BudgetPeriod.objects.all():
        assert (row.held, row.charged) == (sum_of_period(row).held, sum_of_period(row).charged)
    current = BudgetPeriod.objects.filter(budget__project=world.project).order_by("starts_at")
    assert sum(row.held for row in current) == HOUR * 1000
    assert sum(row.charged for row in current) == 60 * 1000


def test_a_job_over_the_end_of_a_period_counts_in_both(world: SmallWorld) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1)
    for begin in (today, tomorrow):
        a_budget(
            world, 10**9, period=Period.WINDOW, starts_at=begin, ends_at=begin + timedelta(days=1)
        )  # fmt: skip
    job, attempt = started(world, time_limit_seconds=30 * HOUR)
    midnight = int(tomorrow.timestamp())
    before = midnight - int(attempt.scheduled_at.timestamp())

    first, second = BudgetPeriod.objects.order_by("starts_at")
    assert (first.held, second.held) == (before * 1000, min(30 * HOUR - before, 24 * HOUR) * 1000)
    ended(attempt, after=before + 100)

    first, second = BudgetPeriod.objects.order_by("starts_at")
    assert (first.held, first.charged) == (0, before * 1000)
    assert second.held == 0
    assert sums(job)[1] == first.charged + second.charged


def test_the_database_refuses_what_a_spent_budget_refuses(world: SmallWorld) -> None:
    budget = a_budget(world, 3 * HOUR * 1000)
    for _ in range(4):
        world.job(gpus=1, time_limit_seconds=HOUR)

    world.plan()

    assert Attempt.objects.count() == 3
    assert sum(row.held for row in budget.periods.all()) == 3 * HOUR * 1000
    assert broken_invariants() == []
    period = budget.periods.order_by("starts_at").first()
    with pytest.raises(Error), transaction.atomic():
        BudgetPeriod.objects.filter(pk=period.pk).update(held=period.amount + 1)


@pytest.mark.parametrize("on_spent", [OnSpent.DEMOTE, OnSpent.WARN])
def test_a_budget_that_only_demotes_or_warns_stops_nobody(world: SmallWorld, on_spent: OnSpent) -> None:
    a_budget(world, 1000, on_spent=on_spent)

    _, attempt = started(world)

    assert attempt.pk


# ------------------------------------------------------------------ while it runs, and after a crash


def test_what_runs_over_midnight_is_charged_for_the_day_and_the_rest_at_its_end(world: SmallWorld) -> None:
    budget = a_budget(world, 10**12)
    job, attempt = started(world, time_limit_seconds=80 * HOUR)
    began = int(attempt.scheduled_at.timestamp())
    tomorrow = attempt.scheduled_at + timedelta(days=1)
    midnight = began - began % 86_400 + 86_400

    assert charging.charge_running(now=tomorrow) == 1
    assert charging.charge_running(now=tomorrow) == 0

    assert sums(job) == ((80 * HOUR - (midnight - began)) * 1000, (midnight - began) * 1000)
    ended(attempt, after=30 * HOUR)
    assert sums(job) == (0, 30 * HOUR * 1000)
    assert sum(row.charged for row in budget.periods.all()) == 30 * HOUR * 1000


def test_a_job_without_a_limit_holds_more_before_its_hold_is_used_up(world: SmallWorld) -> None:
    a_budget(world, 10**12)
    job, attempt = started(world, time_limit_seconds=None)
    assert sums(job) == (HOUR * 1000, 0)

    assert charging.extend_holds(now=attempt.scheduled_at + timedelta(seconds=60)) == 0
    assert charging.extend_holds(now=attempt.scheduled_at + timedelta(seconds=3500)) == 1

    assert sums(job) == (7100 * 1000, 0)
    ended(attempt, after=5000)
    assert sums(job) == (0, 5000 * 1000)


def test_what_is_held_anew_after_days_of_silence_counts_in_each_period(world: SmallWorld) -> None:
    edge = datetime.now(UTC) + timedelta(days=1)
    terms = {"period": Period.WINDOW, "starts_at": edge - timedelta(days=9)}
    first = a_budget(world, 10**12, **terms, ends_at=edge)
    job, attempt = started(world, time_limit_seconds=None)
    began = attempt.scheduled_at
    second = a_budget(world, 10**12, **terms | {"starts_at": edge}, ends_at=edge + timedelta(days=30))

    assert charging.extend_holds(now=began + timedelta(days=5)) == 1

    held = {row.budget_id: row.held for row in BudgetPeriod.objects.all()}
    before = int(edge.timestamp()) - int(began.timestamp())
    assert held == {first.pk: before * 1000, second.pk: ((5 * 24 + 1) * HOUR - before) * 1000}
    assert sums(job) == ((5 * 24 + 1) * HOUR * 1000, 0)


@pytest.mark.parametrize("period", [Period.WINDOW, Period.MONTH])
def test_a_budget_that_is_given_more_time_counts_and_refuses_again(world: SmallWorld, period: Period) -> None:
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    budget = a_budget(
        world, HOUR * 1000, period=period, starts_at=midnight - timedelta(days=2), ends_at=midnight
    )
    open_periods(budget, now=now - timedelta(days=1))
    started(world, time_limit_seconds=5 * HOUR)  # nothing counts now; not over, also where it began before
    assert BudgetPeriod.objects.get(budget=budget, starts_at__lt=midnight).held == 0

    by = OperatorFactory()
    change_budget(budget=budget, changes={"ends_at": midnight + timedelta(days=2)}, by=by, reason="more time")

    held = sum(row.held for row in BudgetPeriod.objects.filter(budget=budget))  # two at the end of a month
    assert (held, check_budgets()) == (5 * HOUR * 1000, 0)
    job = world.job(gpus=1, time_limit_seconds=HOUR)
    world.plan()
    job.refresh_from_db()
    assert (job.state, job.reason_code) == ("queued", "BudgetSpent")


def test_a_budget_that_is_to_end_sooner_keeps_the_sums_of_what_is_left_of_its_period(
    world: SmallWorld,
) -> None:
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    budget = a_budget(world, 10**12, period=Period.WINDOW, ends_at=midnight + timedelta(days=30))
    LedgerEntry.objects.create(
        kind=Kind.HOLD, project=world.project, gpu_millis=1000, held_seconds=HOUR, at=now, reason="",
        starts_at=midnight + timedelta(days=3), ends_at=midnight + timedelta(days=3, hours=1),
    )  # fmt: skip
    check_budgets()
    assert BudgetPeriod.objects.get(budget=budget).held == HOUR * 1000

    change_budget(
        budget=budget,
        changes={"ends_at": midnight + timedelta(days=1)},
        by=OperatorFactory(),
        reason="less time",
    )

    assert (BudgetPeriod.objects.get(budget=budget).held, check_budgets()) == (0, 0)


def test_an_attempt_without_a_hold_gets_one_and_a_stale_hold_ends(world: SmallWorld) -> None:
    budget = a_budget(world, 10**12)
    Budget.objects.update(created_at=datetime.now(UTC) - timedelta(days=1))
    job, attempt = started(world, tasks=2)
    gone, other = started(world)
    with as_owner_without("quotas.LedgerEntry:ledger_only_rolled_up"):
        LedgerEntry.objects.filter(job_number=job.number).delete()
    BudgetPeriod.objects.update(held=F("held") + 5, charged=7)
    Attempt.objects.filter(pk=other.pk).update(
        state="failed", ended_at=other.scheduled_at + timedelta(seconds=40)
    )

    later = attempt.scheduled_at + timedelta(seconds=60)
    assert charging.heal_ledger(now=later) == 2
    assert charging.heal_ledger(now=later) == 0
    repaired = check_budgets()

    assert repaired > 0
    for row in budget.periods.all():
        assert (row.held, row.charged) == (sum_of_period(row).held, sum_of_period(row).charged)
    held, charged = sums(job)
    assert (held >= 2000 * HOUR, charged) == (True, 0)
    assert sums(gone) == (0, 40 * 1000)
    kinds = set(DriftFinding.objects.values_list("kind", flat=True))
    assert kinds == {DriftKind.MISSING_HOLD, DriftKind.STALE_HOLD, DriftKind.BUDGET}
    assert AuditEvent.objects.filter(action="budget.repair").exists()
    assert check_budgets() == 0


def test_a_preview_says_what_a_budget_that_warns_has_left(world: SmallWorld) -> None:
    a_budget(world, 5 * HOUR * 1000, on_spent=OnSpent.WARN)
    payload = {"command": "true", "queue": world.queue.slug, "project": world.project.slug, "gpu_count": 2}

    payload |= {"memory": "1Gi"}
    few = preview_job(payload=payload | {"time_limit": "1:00:00"}, by=world.person)
    many = preview_job(payload=payload | {"time_limit": "3:00:00"}, by=world.person)

    assert [(use.needs, use.passed) for use in few.budgets] == [(2 * HOUR * 1000, False)]
    assert many.verdict == "starts_now"
    assert many.budgets[0].text == (
        f"Reserves 6 GPU-hours of the budget GPU time of {world.project}; 5 GPU-hours of 5 GPU-hours are "
        "left. The job starts anyway."
    )


@pytest.mark.django_db(transaction=True)
def test_two_planners_at_once_never_overspend_a_budget(world: SmallWorld) -> None:
    """Without any check of theirs: the row and its trigger alone hold (twelve want one hour, five are left)."""
    budget = a_budget(world, 5 * HOUR * 1000, period=Period.WINDOW, ends_at=datetime(2099, 1, 1, tzinfo=UTC))
    line = ledger.Line(
        world.project.pk, world.person.pk, 1, 1,
        Entry(Kind.HOLD, Rates(gpu_millis=1000), NOW_S, NOW_S + HOUR, held_seconds=HOUR),
    )  # fmt: skip
    known = ledger.Books({world.project.pk: [terms_of(budget)]})
    outcomes: list[str] = []

    def start(number: int) -> None:
        try:
            with transaction.atomic():
                run_together(*ledger.write([line._replace(attempt_id=number)], known, at=datetime.now(UTC)))
            outcomes.append("started")
        except IntegrityError:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=start, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["refused"] * 7 + ["started"] * 5
    assert LedgerEntry.objects.count() == 5
    assert broken_ledger() == []


@pytest.mark.django_db(transaction=True)
def test_two_that_heal_at_once_charge_once(world: SmallWorld) -> None:
    a_budget(world, 10**12)
    job, attempt = started(world)
    ended_at = attempt.scheduled_at + timedelta(seconds=40)
    Attempt.objects.filter(pk=attempt.pk).update(state="failed", ended_at=ended_at)
    later = attempt.scheduled_at + timedelta(seconds=60)

    with transaction.atomic():
        assert charging.heal_ledger(now=later) == 1
        other = Apart(lambda: charging.heal_ledger(now=later))
        other.until_it_waits()
    other.end()

    assert sums(job) == (0, 40 * 1000)
