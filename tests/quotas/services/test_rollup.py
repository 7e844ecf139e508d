"""Old lines of the ledger are added up by the day: every sum stays, and the database takes nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from accounts.models import AuditEvent
from infra.times_in_text import written
from quotas.core.pricing import Price
from quotas.models import Budget, BudgetPeriod, LedgerEntry, LedgerRollUp
from quotas.selectors.budgets import sum_of_period
from quotas.selectors.usage import GROUPS, usage, visible_entries, within
from quotas.services import rollup
from quotas.services.budgets import adjust, make_budget
from tests.support.factories import Cast, JobFactory, MembershipFactory, ProjectFactory, the_cast
from tests.support.ledgers import a_life
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC)
PRICES = (Price("gpu_millis", 2_000_000, 0), Price("cpu_millis", 10_001, 0))
NOBODY_RUNS = "SELECT 0 WHERE false"


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def figures(cast: Cast) -> list[object]:
    """Everything that is ever asked of the ledger: by each group, by kind, by the day, and by budgets."""
    every = visible_entries(cast.admin)
    found: list[object] = [
        usage(every, group) for group in ((), *GROUPS, ("day", "project", "user", "gpu_model"))
    ]
    for kind in ("hold", "charge", "refund", "adjust"):
        found.append(usage(within(every, kinds=[kind]), ("day", "project")))
    found.append(
        usage(within(every, begin=MIDNIGHT + timedelta(days=1), end=MIDNIGHT + timedelta(days=2)), "user")
    )
    found += [sum_of_period(row) for row in BudgetPeriod.objects.order_by("pk").select_related("budget")]
    return found


lives = st.lists(
    st.tuples(
        st.integers(0, 3 * 86_400), st.one_of(st.none(), st.integers(0, 100_000)), st.integers(0, 3),
        st.sampled_from(["A100", "H100"]), st.integers(0, 3), st.booleans(),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(lives=lives, corrected=st.integers(-5, 5))
@how(max_examples=12)
def test_no_sum_changes_whatever_was_used(lives: list, corrected: int) -> None:
    with transaction.atomic():
        cast = the_cast()
        projects = [cast.project, ProjectFactory(organization=cast.project.organization)]
        people = [MembershipFactory(project=project).user for project in projects]
        for resource in ("gpu_milli_seconds", "money_micros"):
            make_budget(
                subject=cast.project, name=resource, resource=resource, amount=10**9, period="month",
                starts_at=MIDNIGHT - timedelta(days=9), by=cast.operator, reason="as agreed",
            )  # fmt: skip
            Budget.objects.latest("pk").periods.all().delete()
            BudgetPeriod.objects.create(
                budget=Budget.objects.latest("pk"), amount=10**9, starts_at=MIDNIGHT,
                ends_at=MIDNIGHT + timedelta(days=2),
            )  # fmt: skip
        for began, used, gpus, model, whose, priced in lives:
            a_life(
                projects[whose % 2], people[whose // 2], began=MIDNIGHT + timedelta(seconds=began), used=used,
                gpus=gpus, model=model, prices=PRICES if priced else (), asked=50_000,
            )  # fmt: skip
        if corrected:
            adjust(project=cast.project, resource="gpu_milli_seconds", amount=corrected * 1000, by=cast.operator,
                   reason="measured", at=MIDNIGHT)  # fmt: skip
            adjust(project=cast.project, resource="money_micros", amount=corrected, by=cast.operator,
                   reason="measured", at=MIDNIGHT)  # fmt: skip
        before, lines = figures(cast), LedgerEntry.objects.count()

        gone = rollup.rule(running=NOBODY_RUNS).remove(list(LedgerEntry.objects.values_list("pk", flat=True)))

        assert gone == lines
        assert figures(cast) == before
        assert not LedgerEntry.objects.filter(roll_up=None).exists()
        transaction.set_rollback(True)


def test_it_takes_whole_old_attempts_that_do_not_run_and_says_so(cast: Cast, settings) -> None:
    settings.MUSTER_KEEP_LEDGER_DAYS = 40
    now = timezone.now().replace(hour=12)
    old = [a_life(cast.project, cast.owner, began=now - timedelta(days=60), used=60 + n) for n in range(3)]
    runs = a_life(cast.project, cast.owner, began=now - timedelta(days=60), used=None)
    young = a_life(cast.project, cast.owner, began=now - timedelta(days=41), used=3 * 86_400, asked=86_400)
    rule = rollup.rule(running=f"SELECT {runs}::bigint")

    assert rule.count(now) == rule.carry_out(now) == 9

    assert set(LedgerEntry.objects.filter(roll_up=None).values_list("job_number", flat=True)) == {runs, young}
    sums = LedgerEntry.objects.exclude(roll_up=None)
    assert not sums.filter(job_number__in=old).exists()
    charged = sums.get(kind="charge", gpu_millis=1)
    assert charged.charged_seconds == 1000 * (60 + 61 + 62)
    roll_up = LedgerRollUp.objects.get()
    assert charged.reason == f"3 lines of this day, rolled up at {written(roll_up.at)}"
    assert (roll_up.lines, AuditEvent.objects.get(action="ledger.roll_up").after["digest"]) == (
        9,
        roll_up.digest,
    )
    assert rule.carry_out(now) == 0


def test_the_database_takes_lines_away_by_nothing_else(cast: Cast) -> None:
    a_life(cast.project, cast.owner, began=MIDNIGHT, used=60)
    ids = list(LedgerEntry.objects.values_list("pk", flat=True))

    def refused(words: str, *statements: tuple[str, list]) -> None:
        *before, last = statements
        with as_owner(), transaction.atomic(), connection.cursor() as cursor:
            for statement, values in before:
                cursor.execute(statement, values)
            with pytest.raises(DatabaseError, match=words), transaction.atomic():
                cursor.execute(*last)
            transaction.set_rollback(True)

    refused("only by a roll-up", ("DELETE FROM quotas_ledgerentry", []))
    refused("Cannot update", ("UPDATE quotas_ledgerentry SET charged_seconds = 1", []))
    words = {"ids": ids, "at": timezone.now()}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(rollup._NAME, words)
        number = cursor.fetchone()[0]
    ours = ("SELECT set_config('muster.ledger_roll_up', %s, true)", [str(number)])
    # Not without the sums, not with others, not other lines, and not a line less.
    gone = ("DELETE FROM quotas_ledgerentry WHERE id = ANY(%s)", [ids])
    refused("every sum", ours, gone)
    more = ("INSERT INTO quotas_ledgerentry (kind, project_id, gpu_model, cpu_millis, memory_mib, gpu_millis,"
            " storage_mib, held_seconds, charged_seconds, held_micros, charged_micros, starts_at, ends_at, at,"
            " reason, roll_up_id) VALUES ('adjust', %s, '', 0, 0, 1, 0, 0, 1, 0, 0, now(), now(), now(), '', %s)",
            [cast.project.pk, number])  # fmt: skip
    refused("every sum", (rollup._ADD_UP, words | {"roll_up": number}), more, ours, gone)
    refused("only by a roll-up", ours, ("DELETE FROM quotas_ledgerentry WHERE id = ANY(%s)", [ids[1:]]))
    assert LedgerEntry.objects.count() == len(ids)


def test_retention_does_it_and_leaves_what_runs(cast: Cast, settings) -> None:
    from scheduler.services import retention

    settings.MUSTER_KEEP_LEDGER_DAYS = 1
    began = timezone.now() - timedelta(days=50)
    a_life(JobFactory(project=cast.project).project, cast.owner, began=began, used=60)

    assert retention.preview()["ledger_lines"] == 3
    assert retention.prune_all()["ledger_lines"] == 3
    assert usage(visible_entries(cast.admin))[0].gpu_milli_seconds == 60_000
