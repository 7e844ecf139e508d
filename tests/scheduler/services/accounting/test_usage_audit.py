"""What each attempt was charged is compared with what it held; each kind of error is found and corrected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F
from django.test import override_settings

from accounts.models import AuditEvent
from quotas.core.ledger import Kind
from quotas.core.periods import Period
from quotas.models import BudgetPeriod, DriftFinding, DriftKind, LedgerEntry, PriceRow
from quotas.services.budgets import change_budget
from quotas.services.reconcile import check_budgets
from scheduler.core.lifecycle import TaskState
from scheduler.metrics import read_metrics
from scheduler.models import Attempt, Job, Node, Suspension, Task
from scheduler.services.accounting import charging, metric_counts
from scheduler.services.accounting.usage_audit import REASON, check_usage
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.state.ledger.test_ledger import HOUR, a_budget, ended, started, sums
from tests.scheduler.state.small import SmallWorld, broken_ledger
from tests.support.factories import OperatorFactory
from tests.support.roles import as_owner_without

pytestmark = pytest.mark.django_db

LATER = timedelta(hours=3)


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=16_000, gpus=2, gpus__model="H100")
    world.node("n2", cpu_millis=16_000, gpus=2, gpus__model="A100")
    PriceRow.objects.create(
        resource="gpu_millis", micros_per_hour=3_600_000, valid_from=datetime(2026, 1, 1, tzinfo=UTC)
    )
    return world


def lose(**which: object) -> None:
    with as_owner_without("quotas.LedgerEntry:ledger_only_rolled_up"):
        LedgerEntry.objects.filter(**which).delete()


def again(job: Job, **changes: object) -> None:
    """The charge of a job a second time, or another in its place."""
    entry = LedgerEntry.objects.filter(job_number=job.number, kind=Kind.CHARGE).order_by("-id")[0]
    entry.pk, entry.held_seconds, entry.held_micros = None, 0, 0
    for name, value in changes.items():
        setattr(entry, name, value)
    entry.save(force_insert=True)


def money(job: Job) -> int:
    return sum(LedgerEntry.objects.filter(job_number=job.number).values_list("charged_micros", flat=True))


def test_what_is_right_is_left_alone(world: SmallWorld) -> None:
    _, attempt = started(world, tasks=2)
    ended(attempt, after=600)
    started(world)
    _, other = started(world)
    end_attempt(
        attempt_id=other.pk, epoch=other.epoch, lost_text="gone", at=other.scheduled_at + timedelta(seconds=9)
    )
    lines = LedgerEntry.objects.count()

    assert check_usage(now=attempt.scheduled_at + LATER) == 0

    assert LedgerEntry.objects.count() == lines
    assert not DriftFinding.objects.exists()


@pytest.mark.parametrize("planted", ["missing", "nothing at all", "doubled", "too long", "too short"])
def test_a_wrong_charge_is_corrected_by_a_line_with_its_reason(world: SmallWorld, planted: str) -> None:
    metric_counts.count()
    budget = a_budget(world, 10**12)
    job, attempt = started(world)
    at = ended(attempt, after=600)
    if planted == "missing":
        lose(job_number=job.number, kind=Kind.CHARGE)
    elif planted == "nothing at all":
        lose(job_number=job.number)
    elif planted == "doubled":
        again(job)
    else:
        seconds = 660 if planted == "too long" else 500
        again(job, charged_seconds=seconds, charged_micros=seconds * 1000)
        lose(job_number=job.number, kind=Kind.CHARGE, charged_seconds=600)

    assert check_usage(now=at + LATER) == 1
    assert check_usage(now=at + LATER) == 0
    check_budgets()

    assert sums(job)[1] == 600_000
    assert money(job) == 600_000
    wrong = {"missing": 600, "nothing at all": 600, "doubled": -600, "too long": -60, "too short": 100}[
        planted
    ]
    line = LedgerEntry.objects.get(kind=Kind.ADJUST)
    assert (line.charged_seconds, line.gpu_millis, line.gpu_model, line.reason) == (
        wrong,
        1000,
        "H100",
        REASON,
    )
    assert (line.job_number, line.attempt_id, line.user) == (job.number, attempt.pk, world.person)
    found = DriftFinding.objects.filter(
        kind=DriftKind.USAGE, subject=f"job {job.number}: gpu_millis seconds charged"
    )
    assert [(one.was, one.found, one.repaired_at is not None) for one in found] == [
        (600_000 - 1000 * wrong, 600_000, True)
    ]
    metric_counts.count()
    found_wrong = next(metric for metric in read_metrics() if metric.name == "muster_quota_drift")
    assert ("usage", 3) in [
        (sample.labels["kind"], sample.value) for sample in found_wrong.samples
    ]  # cores, memory and the GPU
    assert AuditEvent.objects.get(action="ledger.repair").object_id == str(job.number)
    row = BudgetPeriod.objects.get(budget=budget, starts_at__lte=at, ends_at__gt=at)
    assert row.charged == 600_000


def test_a_charge_of_one_resource_only_and_of_two_gpu_models_is_put_right_by_its_parts(
    world: SmallWorld,
) -> None:
    job, attempt = started(world, tasks=4)
    at = ended(attempt, after=100)
    lose(job_number=job.number, gpu_model="A100", kind=Kind.CHARGE)

    assert check_usage(now=at + LATER) == 1

    by_model = {
        model: sum(e.gpu_millis * e.charged_seconds for e in LedgerEntry.objects.filter(gpu_model=model))
        for model in ("H100", "A100")
    }
    assert by_model == {"H100": 200_000, "A100": 200_000}
    cores = [e.cpu_millis * e.charged_seconds for e in LedgerEntry.objects.filter(job_number=job.number)]
    assert sum(cores) == sum(a.cpu_millis for a in attempt.allocations.all()) * 100


@override_settings(LEDGER_FORGIVES=["lost"])
def test_what_was_forgiven_comes_to_nothing(world: SmallWorld) -> None:
    job, attempt = started(world)
    at = attempt.scheduled_at + timedelta(seconds=500)
    end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="n1 went silent", at=at)
    assert check_usage(now=at + LATER) == 0
    again(job)

    assert check_usage(now=at + LATER) == 1

    assert (sums(job), money(job)) == ((0, 0), 0)


def test_only_the_thorough_check_looks_back_for_weeks(world: SmallWorld) -> None:
    job, attempt = started(world)
    at = ended(attempt, after=60)
    again(job)

    assert check_usage(now=at + timedelta(days=10)) == 0
    assert check_usage(now=at + timedelta(days=10), back=timedelta(days=35)) == 1


def test_a_job_that_began_before_the_ledger_and_runs_over_the_end_of_a_period_is_charged_in_both(
    world: SmallWorld,
) -> None:
    """An upgrade finds it running without a line; the period ends; it ends: each day has its part, once."""
    job, attempt = started(world, time_limit_seconds=80 * HOUR)
    lose(job_number=job.number)
    began = attempt.scheduled_at
    midnight = (began + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    budget = a_budget(
        world, 10**12, period=Period.WINDOW, starts_at=midnight - timedelta(days=9), ends_at=midnight
    )
    after = a_budget(
        world, 10**12, period=Period.WINDOW, starts_at=midnight, ends_at=midnight + timedelta(days=9)
    )

    assert charging.heal_ledger(now=began + timedelta(seconds=60)) == 1
    change_budget(budget=after, changes={"amount": 10**11}, by=OperatorFactory(), reason="agreed")
    charging.charge_running(now=midnight + timedelta(minutes=5))
    at = ended(attempt, after=30 * HOUR)

    first = int(midnight.timestamp()) - int(began.timestamp())
    rows = {row.budget_id: row for row in BudgetPeriod.objects.all()}
    assert (rows[budget.pk].held, rows[budget.pk].charged) == (0, first * 1000)
    assert (rows[after.pk].held, rows[after.pk].charged) == (0, (30 * HOUR - first) * 1000)
    assert check_budgets() == 0
    assert check_usage(now=at + LATER) == 0
    # A correction of it counts where it ended.
    again(job, charged_seconds=100, charged_micros=0, starts_at=at, ends_at=at)
    assert check_usage(now=at + LATER) == 1
    check_budgets()
    assert BudgetPeriod.objects.get(budget=after).charged == (30 * HOUR - first) * 1000


def stood_still(attempt: Attempt, begin: int, end: int) -> None:
    """It gave its CPUs back between these seconds after its start, and goes on."""
    moments = [attempt.scheduled_at + timedelta(seconds=after) for after in (begin, end)]
    Suspension.objects.create(
        attempt=attempt, for_job=1, for_epoch=1, asked_at=moments[0], starts_at=moments[0], ends_at=moments[1],
        cpu_millis=sum(attempt.allocations.values_list("cpu_millis", flat=True)),
    )  # fmt: skip
    Attempt.objects.filter(pk=attempt.pk).update(suspended_ms=(end - begin) * 1000)


def cpu_seconds(job: Job) -> int:
    return sum(e.cpu_millis * e.charged_seconds for e in LedgerEntry.objects.filter(job_number=job.number))


def test_a_job_that_stood_still_is_charged_what_it_held_meanwhile(world: SmallWorld) -> None:
    job, attempt = started(world, cpu_millis=1000)
    stood_still(attempt, 100, 300)

    at = ended(attempt, after=600)

    assert cpu_seconds(job) == 1000 * 400
    assert check_usage(now=at + LATER) == 0
    assert (sums(job)[1], broken_ledger()) == (600_000, [])
    again(job)
    assert check_usage(now=at + LATER) == 1
    assert (cpu_seconds(job), sums(job)[1], money(job)) == (400_000, 600_000, 600_000)


def test_a_task_that_ends_while_its_job_stands_still_is_given_back_once(world: SmallWorld) -> None:
    job, attempt = started(world, cpu_millis=1000, gpus=0, tasks=2, min_tasks=1, elastic=True)
    stood_still(attempt, 100, 300)
    attempt.allocations.filter(rank=1).update(
        released_at=attempt.scheduled_at + timedelta(seconds=200), cpu_millis=0, suspended_cpu_millis=1000
    )
    Node.objects.filter(pk=attempt.allocations.get(rank=1).node_id).update(
        used_cpu_millis=F("used_cpu_millis") - 1000
    )
    Task.objects.filter(attempt=attempt, rank=1).update(state=TaskState.STOPPED)

    at = ended(attempt, after=600)

    assert cpu_seconds(job) == 1000 * (400 + 100)
    assert check_usage(now=at + LATER) == 0


@pytest.mark.parametrize("why", ["a task ended before the others", "it stood still"])
def test_what_is_given_back_over_the_end_of_a_period_counts_in_both(world: SmallWorld, why: str) -> None:
    early = why.startswith("a task")
    terms = {"tasks": 2, "min_tasks": 1, "elastic": True} if early else {}
    _, attempt = started(world, cpu_millis=1000, time_limit_seconds=80 * HOUR, **terms)
    midnight = (attempt.scheduled_at + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    week = timedelta(days=9)
    same = {"resource": "cpu_milli_seconds", "period": Period.WINDOW}
    before = a_budget(world, 10**12, starts_at=midnight - week, ends_at=midnight, **same)
    after = a_budget(world, 10**12, starts_at=midnight, ends_at=midnight + week, **same)
    first = int(midnight.timestamp()) - int(attempt.scheduled_at.timestamp())
    if early:
        released = midnight - timedelta(seconds=min(60, first))
        attempt.allocations.filter(rank=1).update(released_at=released)
        Task.objects.filter(attempt=attempt, rank=1).update(state=TaskState.STOPPED)
        held_before, held_after = 2 * first - min(60, first), 3 * HOUR
    else:
        stood_still(attempt, max(first - 60, 0), first + HOUR)
        held_before, held_after = first - min(60, first), 2 * HOUR

    at = ended(attempt, after=first + 3 * HOUR)

    charged = {row.budget_id: row.charged for row in BudgetPeriod.objects.all()}
    assert charged == {before.pk: 1000 * held_before, after.pk: 1000 * held_after}
    assert check_budgets() == 0
    if not early:
        assert check_usage(now=at + LATER) == 0
