"""Quotas on real rows under whatever comes: after every step no device is held twice, sums hold, limits hold.

A machine submits, plans, ends, loses, cancels and requeues jobs, cuts and raises limits so that some borrow and
others take back, corrects and re-measures budgets, damages counters and repairs them, and kills the process at any
statement of any of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pgtrigger
import pytest
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.utils import timezone
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from infra.errors import Conflict, InvalidInput, TooMany
from quotas.models import BudgetPeriod, LedgerEntry, Quota
from quotas.services.budgets import adjust, change_budget, make_budget
from quotas.services.project_quota import drifting_projects, sync_quota
from quotas.services.quota_lines import Subject, drifting_lines, set_line, sync_lines
from quotas.services.reconcile import check_budgets
from scheduler.core.lifecycle import LIVE_TASK, TaskState
from scheduler.models import Allocation, Attempt, Device, Job, Lease, Task
from scheduler.services.accounting import charging, usage_audit
from scheduler.services.jobs.submit import submit_job
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.planning.cycles import run_cycle
from scheduler.state.apply.refusals import REFUSED_BY_CONSTRAINT
from scheduler.state.settle.settle import end_attempt, settle_many
from tests.scheduler.state.small import a_queue, broken_invariants
from tests.support.factories import (
    ClusterFactory,
    MembershipFactory,
    NodeFactory,
    OperatorFactory,
    OrganizationFactory,
    PriorityClassFactory,
    ProjectFactory,
    SchedulerProfileFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db

#: Few, for each example plays on a database: 3, or 20 with `thorough`.
EXAMPLES: Final = settings().max_examples // 20
STEPS: Final = 25
#: Finding the shortest way to a failure takes minutes: only where there is time for it.
PHASES: Final = tuple(p for p in Phase if EXAMPLES > 3 or p is not Phase.shrink)
HOUR: Final = 3600
PICK: Final = st.integers(0, 99)


class Killed(OperationalError):
    """The connection of a process that was killed."""


@contextmanager
def killed_at(statement: int) -> Iterator[None]:
    """Nothing from this statement on reaches the database; what was not committed by then is undone."""
    left = statement

    def execute(run: Callable[..., Any], sql: str, *rest: Any) -> Any:
        nonlocal left
        left -= 1
        if left > 0 or sql.startswith("ROLLBACK") or (left < 0 and sql.startswith("RELEASE")):
            return run(sql, *rest)
        raise Killed("the process was killed")

    try:
        with connection.execute_wrapper(execute):
            yield
    except Killed:
        # A statement outside any block was a transaction of its own: nothing but it is undone.
        transaction.set_rollback(False)


class Site:
    """A university with two labs, a project in each, two people, and six GPUs of two models."""

    def __init__(self) -> None:
        root = OrganizationFactory()
        labs = [OrganizationFactory(parent=root) for _ in range(2)]
        self.projects = [ProjectFactory(organization=lab) for lab in labs]
        self.people = [UserFactory() for _ in range(2)]
        for project in self.projects:
            for person in self.people:
                MembershipFactory(project=project, user=person, role="member")
        self.operator = OperatorFactory()
        low, high = (PriorityClassFactory(value=value) for value in (33, 66))
        high.preempts.add(low)
        profile = SchedulerProfileFactory(
            preemption_enabled=True, preemption={"reclaim": 1, "protected_seconds": 0, "most_times": 9}
        )
        self.cluster = ClusterFactory(profile=profile)
        self.queue = a_queue(self.cluster, "machine")
        for model in ("NVIDIA H100", "NVIDIA A100"):
            NodeFactory(cluster=self.cluster, gpus=3, gpus__model=model, cpu_millis=8000)
        self.lines: list[tuple[dict[str, Any], int]] = []
        #: The line above those that divide it.
        self.above: dict[int, int] = {}
        top = self._line(organization=root, nominal=4000)
        for lab, project in zip(labs, self.projects, strict=True):
            middle = self._line(organization=lab, nominal=3000)
            own = self._line(project=project, nominal=2000)
            self.above |= {own: middle, middle: top}
        self._line(resource="running_jobs", user=self.people[0], hard=4)
        self._line(project=self.projects[0], user=self.people[1], hard=2000)
        self._line(organization=root, gpu_model="H100", hard=3000)
        self._line(resource="cpu_millis", organization=labs[1], hard=6000)
        self._line(resource="running_jobs", project=self.projects[0], job_type="notebook", hard=1)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self.budgets = [
            make_budget(
                subject=subject, name="GPU time", resource="gpu_milli_seconds", amount=hours * HOUR * 1000,
                period="window", starts_at=today, ends_at=today + timedelta(days=30), by=self.operator,
                reason="as agreed",
            )
            for subject, hours in ((self.projects[0], 9), (root, 15))
        ]  # fmt: skip

    def _line(self, *, resource: str = "gpu_millis", **words: Any) -> int:
        subject = Subject(**{n: words.pop(n) for n in ("organization", "project", "user") if n in words})
        key = {"gpu_model": "", "job_type": ""} | {
            n: words.pop(n) for n in ("gpu_model", "job_type") if n in words
        }
        key |= {"subject": subject, "resource": resource, "by": self.operator, "reason": "as agreed"}
        pk = int(set_line(**key, changes=words).pk)
        self.lines.append((key, pk))
        return pk


class Quotas(RuleBasedStateMachine):
    """Everything happens in one transaction that is undone at the end; its savepoints stand for transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._all = transaction.atomic()
        self._all.__enter__()
        try:
            self.site = Site()
            self.remember()
        except BaseException:
            self.teardown()
            raise

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self._all.__exit__(None, None, None)

    # ------------------------------------------------------------ what happens

    def _submit(self, whose: int, gpus: int, tasks: int, word: int) -> None:
        asked = {
            "command": "true", "queue": self.site.queue.slug, "project": self.site.projects[whose % 2].slug,
            "gpu_count": gpus, "tasks": tasks, "cpu_cores": 1, "memory": "1Gi", "time_limit": "1:00:00",
            "priority": (40, 70)[word % 2], "job_type": ("batch", "notebook")[word % 3 == 0],
        }  # fmt: skip
        if word % 5 == 0:
            asked["gpu_type"] = "H100"
        with suppress(InvalidInput, TooMany):  # more than some line can ever hold
            submit_job(payload=asked, by=self.site.people[whose // 2 % 2])

    def _plan(self) -> None:
        Job.objects.pending().update(eligible_at=timezone.now())  # whoever waits to try again has waited
        done = run_cycle(cluster_id=self.site.cluster.pk, trigger="test")
        assert REFUSED_BY_CONSTRAINT not in {one.code for one in done.refused}, "the checks saw it all"

    def _end(self, which: int, seconds: int) -> None:
        if (attempt := self._one(Attempt.objects.live(), which)) is None:
            return
        state = (
            TaskState.STOPPED if attempt.stop_asked_at else (TaskState.SUCCEEDED, TaskState.FAILED)[which % 2]
        )
        with transaction.atomic():  # the agent's report, that has come before
            Task.objects.filter(attempt=attempt, state__in=LIVE_TASK).update(state=state, exit_code=which % 2)
        settle_many([attempt.pk], at=attempt.scheduled_at + timedelta(seconds=seconds))

    def _set(self, which: int, name: str, amount: int, later: int | None) -> None:
        key, pk = self.site.lines[which % len(self.site.lines)]
        unit = 1 if key["resource"] == "running_jobs" else 1000
        nominal = Quota.objects.values_list("nominal", flat=True).get(pk=pk)
        if name in ("borrowing_limit", "lending_limit") and nominal is None:
            name = "hard"
        set_line(**key, changes={name: amount * unit, "converge_after_seconds": later})

    @initialize(whose=st.permutations(range(4)), gpus=st.lists(st.integers(1, 2), min_size=4, max_size=8))
    def begin(self, whose: list[int], gpus: list[int]) -> None:
        """People of one project come first, so that they borrow, and then the others."""
        for place, amount in enumerate(gpus):
            self._submit(whose[place * 4 // len(gpus)], amount, 1, place + 1)
            if place % 3 == 2:
                self._plan()

    @rule(
        jobs=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), PICK), min_size=1, max_size=4),
        whose=st.integers(0, 3),
        then_plan=st.sampled_from([True, True, False]),
    )
    def submit(self, jobs: list[tuple[int, int, int]], whose: int, then_plan: bool) -> None:
        for gpus, tasks, word in jobs:
            self._submit(whose, gpus, tasks, word)
        if then_plan:
            self._plan()

    @rule()
    def plan(self) -> None:
        self._plan()

    @rule(
        which=PICK, seconds=st.integers(0, HOUR), how=st.sampled_from(["ends", "lost", "cancel", "requeue"])
    )
    def end(self, which: int, seconds: int, how: str) -> None:
        attempt = self._one(Attempt.objects.live().select_related("job"), which)
        if how == "ends" or attempt is None:
            self._end(which, seconds)
        elif how == "lost":
            at = attempt.scheduled_at + timedelta(seconds=seconds)
            end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="gone", at=at)
        else:
            verb = cancel_job if how == "cancel" else requeue_job
            with suppress(Conflict):  # it ends already
                verb(job=attempt.job, by=self.site.operator)

    @rule(
        which=PICK,
        name=st.sampled_from(["hard", "nominal", "borrowing_limit", "lending_limit"]),
        amount=st.integers(0, 6),
        later=st.sampled_from([None, 0]),
    )
    def cut_or_raise(self, **words: Any) -> None:
        self._set(**words)
        self.remember()

    @rule(
        what=st.sampled_from(["budget", "repair", "plan", "end", "submit", "set"]),
        amount=st.integers(1, 40),
        which=PICK,
    )
    def something_seldom(self, what: str, amount: int, which: int) -> None:
        """One rule, so that it takes a fifth of the steps: a budget is moved, a counter damaged, or a crash."""
        if what == "budget":
            self._move_a_budget(which % 2, amount // 2 - 2)
        elif what == "repair":
            self._damage_and_reconcile(which, amount * 77)
        else:
            self._crash(what, amount, which)

    def _move_a_budget(self, which: int, hours: int) -> None:
        amount, by = hours * HOUR * 1000, self.site.operator
        if hours > 3:
            change_budget(budget=self.site.budgets[which], changes={"amount": amount}, by=by, reason="agreed")
        elif hours:
            project = self.site.projects[which]
            adjust(project=project, resource="gpu_milli_seconds", amount=amount, by=by, reason="measured")
        self.remember()

    def _crash(self, what: str, statement: int, which: int) -> None:
        with killed_at(statement):
            if what == "plan":
                self._plan()
            elif what == "end":
                self._end(which, which)
            elif what == "submit":
                self._submit(which, which % 4, 1, which)
            else:
                self._set(which, "hard", which % 7, None)
        Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        self.remember(starts=False)

    def _damage_and_reconcile(self, which: int, off: int) -> None:
        """What is right is left alone; a wrong counter is found and put right."""
        assert (drifting_lines(), drifting_projects(), check_budgets()) == ([], [], 0)
        assert charging.heal_ledger() == 0
        assert usage_audit.check_usage(now=timezone.now() + timedelta(hours=3)) == 0
        _, pk = self.site.lines[which % len(self.site.lines)]
        with pgtrigger.ignore("quotas.Quota:quota_never_passed", "quotas.BudgetPeriod:budget_never_passed"):
            Quota.objects.filter(pk=pk).update(used=off)
            BudgetPeriod.objects.filter(budget=self.site.budgets[which % 2]).update(held=off)
        sync_lines(drifting_lines())
        for project in self.site.projects:
            sync_quota(project=project, by=None)
        check_budgets()

    # ------------------------------------------------------------ what always holds

    @invariant()
    def every_sum_is_that_of_what_is_held(self) -> None:
        assert broken_invariants() == []

    @invariant()
    def nothing_new_where_a_line_is_full(self) -> None:
        now = self._in_use()
        passed = {
            name: (used, self.before[name][0])
            for name, (used, bound) in now.items()
            if bound is not None and used > max(bound, self.before[name][0])
        }
        assert passed == {}, "more than the bound, and more than before"
        self.before = now

    @invariant()
    def what_was_charged_is_what_was_held(self) -> None:
        """To the second, for each person, project and GPU model, and so for their sums."""
        charged: Counter[tuple[int, int, str]] = Counter()
        for e in LedgerEntry.objects.filter(kind="charge", gpu_millis__gt=0):
            charged[e.project_id, e.user_id, e.gpu_model] += e.gpu_millis * e.charged_seconds
        models = dict(Device.objects.values_list("pk", "model"))
        held: Counter[tuple[int, int, str]] = Counter()
        for a in Allocation.objects.exclude(released_at=None).select_related("attempt__job"):
            seconds = int(a.released_at.timestamp()) - int(a.held_at.timestamp())
            for device in a.device_ids:
                whose = (a.attempt.job.project_id, a.attempt.job.user_id, models[device])
                held[whose] += a.gpu_millis // len(a.device_ids) * seconds
        assert +charged == +held

    def remember(self, *, starts: bool = True) -> None:
        """A bound was moved by hand: from now on nothing new above it."""
        now = self._in_use()
        self.before = now if starts else {name: (self.before[name][0], now[name][1]) for name in now}

    def _in_use(self) -> dict[str, tuple[int, int | None]]:
        """What each line and budget counts, also with what those below it keep back, and its bound."""
        rows = {row.pk: row for row in Quota.objects.filter(pk__in=[pk for _, pk in self.site.lines])}
        found: dict[str, tuple[int, int | None]] = {}
        with_kept = {pk: row.used for pk, row in rows.items()}
        for pk, above in self.site.above.items():  # from the leaves
            row = rows[pk]
            keeps = max(row.nominal - row.lending_limit, 0) if row.lending_limit is not None else 0
            with_kept[above] += max(keeps, with_kept[pk]) - row.used
        for pk, row in rows.items():
            bounds = [] if row.hard is None else [row.hard]
            if row.nominal is not None and row.borrowing_limit is not None:
                bounds.append(row.nominal + row.borrowing_limit)
            elif row.nominal is not None and row.organization and row.organization.parent is None:
                bounds.append(row.nominal)
            found[f"{row}"] = (row.used, min(bounds, default=None))
            found[f"{row} with what is kept back"] = (with_kept[pk], min(bounds, default=None))
        for period in BudgetPeriod.objects.select_related("budget"):
            found[f"budget {period.budget_id}"] = (period.held + period.charged, period.budget.amount)
        return found

    @staticmethod
    def _one(rows: Any, which: int) -> Any:
        found = list(rows.order_by("pk"))
        return found[which % len(found)] if found else None


def test_t23_limits_and_sums_hold_whatever_happens() -> None:
    how = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=PHASES)
    with override_settings(LEDGER_FORGIVES=["lost", "preempted"]):
        run_state_machine_as_test(Quotas, settings=how)
