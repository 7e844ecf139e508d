"""Each invariant of the rows is seen to fail once what keeps it is taken out of the code."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import IntegrityError
from django.utils import timezone

from quotas.models import LedgerEntry
from quotas.services.budgets import make_budget
from scheduler.core.lifecycle import PUBLIC, JobState, PublicState
from scheduler.models import Attempt, Job
from scheduler.models import job as job_model
from scheduler.services.jobs import write_jobs
from scheduler.services.jobs.bulk_insert import NewRows
from scheduler.state.apply import apply_starts
from scheduler.state.settle import charges, outcomes, release, settle
from tests.scheduler.portal import submit_many
from tests.scheduler.state.small import SmallWorld, broken_invariants
from tests.support.factories import OperatorFactory

pytestmark = pytest.mark.django_db

#: A statement that does nothing, and has no rows.
NOTHING: Final = ("SELECT 1 WHERE false", [])

Patch = pytest.MonkeyPatch


def a_gang_starts_and_ends(*, budget: bool = False) -> list[str]:
    """What contradicts itself once a gang of two and a job that runs on have started, and once the gang has ended."""
    world = SmallWorld()
    if budget:
        make_budget(
            subject=world.project, name="GPUs", resource="gpu_milli_seconds", amount=10**12, period="month",
            by=OperatorFactory(), reason="as agreed",
        )  # fmt: skip
    for name in ("n1", "n2"):
        world.node(name, cpu_millis=4000, gpus=2)
    for resource in ("gpu_millis", "cpu_millis", "running_jobs"):
        world.quota(resource, 16_000)
    gang = world.job("gang", tasks=2, gpus=1, cpu_millis=3000, time_limit_seconds=600)
    world.job("stays", cpu_millis=1000, time_limit_seconds=600)

    assert world.plan().started == 2
    found = broken_invariants()
    attempt = Attempt.objects.get(job=gang)
    later = timezone.now() + timedelta(minutes=5)
    try:
        settle.end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="gone", at=later)
    except IntegrityError as refused:  # the database has seen it first
        found.append(str(refused))
    if not LedgerEntry.objects.filter(attempt_id=attempt.pk, kind="charge").exists():
        found.append("nothing is charged")
    return found + broken_invariants()


@pytest.mark.parametrize("budget", [False, True])
def test_nothing_contradicts_itself(budget: bool) -> None:
    assert a_gang_starts_and_ends(budget=budget) == []


def _one_task_less(name: str) -> Callable[[Patch], None]:
    """Rows for all tasks of a gang but the last."""

    def mutate(patch: Patch) -> None:
        real = getattr(apply_starts, name)

        def fewer(starts: Any, attempts: Any, **more: Any) -> Any:
            cut = [
                start._replace(placements=start.placements[: max(len(start.placements) - 1, 1)])
                for start in starts
            ]
            return real(cut, attempts, **more)

        patch.setattr(apply_starts, name, fewer)

    return mutate


def _no(module: Any, name: str, instead: Any = NOTHING) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, lambda *_, **__: instead)


def _nothing_is_released(patch: Patch) -> None:
    patch.setattr(release, "parameters", lambda _, at: [at, "{}"])


MUTANTS: Final[dict[str, tuple[Callable[[Patch], None], str]]] = {
    "I1: no device counts what it gives": (_no(apply_starts, "raise_device_counters"), "0 and holds 1000"),
    "I1, I2: what ends is given back to nobody": (_no(release.Released, "statements", []), "counts 1000 and holds 0"),
    "I2: no node counts what it gives": (_no(apply_starts, "raise_node_counters"), "counts 0 cpu_millis and holds"),
    "I3: no quota counts a start": (_no(apply_starts, "raise_quota_counters"), "counts 0 and is"),
    "I3: no quota counts an end": (_no(release, "quota_statements", []), "counts 2 and is 1"),
    "I5: a job goes on without its attempt": (_no(outcomes, "job_statement"), "with 0 live attempts"),
    "I5: an attempt goes on without its job": (_no(outcomes, "attempt_statement"), "with 1 live attempts"),
    "I6: what is over keeps what it held": (_nothing_is_released, "is over and holds"),
    "I7: a gang's tasks are written in part": (_one_task_less("insert_tasks"), "runs in part"),
    "I8: nobody is charged": (_no(charges, "charge_statements", []), "nothing is charged"),
    "I8: what was set aside stays so": (_no(charges, "charge_statements", []), "seconds aside"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, says = MUTANTS[mutant]
    breaks(monkeypatch)

    assert any(says in text for text in a_gang_starts_and_ends(budget=says == "seconds aside"))


def accepted_and_counted() -> tuple[int, int]:
    """How many submissions were accepted, and how many jobs all states together have: some wait, some run."""
    world = SmallWorld()
    world.node("n1", cpu_millis=2000)
    payload = {"command": "true", "project": world.project.slug, "queue": world.queue.slug, "cpu_cores": 1}
    accepted = len(submit_many(payloads=[payload] * 3, by=world.person))
    assert world.plan().started == 2
    return accepted, sum(Job.objects.in_public_states([state]).count() for state in PublicState)


def _a_job_that_nobody_submitted(patch: Patch) -> None:
    real = write_jobs.insert_jobs_with_events

    def one_more(rows: NewRows, *more: Any) -> Any:
        for column in rows.differing.values():
            column.append(column[0])
        rows.differing["uuid"][-1] = uuid.uuid4()
        return real(rows, *more)

    patch.setattr(write_jobs, "insert_jobs_with_events", one_more)


def _a_state_between_all_others(patch: Patch) -> None:
    left = {state: public for state, public in PUBLIC.items() if state != JobState.SCHEDULED}
    patch.setattr(job_model, "PUBLIC", left)


@pytest.mark.parametrize("mutant", [None, _a_job_that_nobody_submitted, _a_state_between_all_others])
def test_no_submission_is_lost_and_none_is_made_up(
    mutant: Callable[[Patch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant is not None:
        mutant(monkeypatch)

    accepted, counted = accepted_and_counted()

    assert (counted == accepted) is (mutant is None)
