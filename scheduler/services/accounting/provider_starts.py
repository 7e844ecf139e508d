"""What quota providers outside Muster say to a plan, between planning and applying; no transaction is open.

Asked are the starts, and the jobs for which others would be stopped or nodes kept: nothing is done for a job that
its provider refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from quotas.models import named_providers
from quotas.providers.base import QuotaCheck, QuotaStart
from quotas.providers.calls import words_of
from quotas.providers.registry import deciding_projects
from quotas.providers.waiting import away_sentence
from quotas.services.deciding import checks as provider_checks
from scheduler.core.plan import Plan, Start
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.apply.refusals import Refusal
from scheduler.state.db.sql import int_array, run
from scheduler.state.load.quota_rows import held_by_model


@dataclass(frozen=True, slots=True)
class DecidedPlan:
    """The plan without what providers refused; by project the provider that decides about its starts."""

    plan: Plan
    providers: Mapping[int, str] = field(default_factory=dict)
    #: What each accepted start asked for: the provider counts it once the attempt is written.
    starts: Mapping[int, QuotaStart] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


def decided_by_providers(plan: Plan, snapshot: Snapshot) -> DecidedPlan:
    """Ask the providers of the projects of this plan, all at once, and leave out what they refuse.

    What they say is written down, so that the next snapshot has it: a refused job waits with the provider's words.
    """
    if not named_providers():
        return DecidedPlan(plan)
    numbers = _concerned(plan)
    rows = {number: snapshot.job_row(number) for number in numbers}
    projects = {number: int(snapshot.pending.project_id[row]) for number, row in rows.items()}
    providers = deciding_projects(projects.values())
    numbers = [number for number in numbers if projects[number] in providers]
    if not numbers:
        return DecidedPlan(plan)
    starts = _quota_starts(numbers, plan, snapshot)
    numbers = [number for number in numbers if number in starts]
    names = [providers[projects[number]] for number in numbers]
    asked = [(name, starts[number]) for name, number in zip(names, numbers, strict=True)]
    answers = provider_checks.ask(asked)
    refused: dict[int, tuple[str, QuotaStart, QuotaCheck, int]] = {}
    refusals: dict[int, Refusal] = {}
    for place, (name, start) in enumerate(asked):
        number = start.job_number
        if name in answers.away:
            if settings.QUOTA_PROVIDER_WHEN_AWAY == "wait":
                text = away_sentence(name, "unreachable", answers.away[name])
                refusals[number] = Refusal(number, ReasonCode.QUOTA_PROVIDER_AWAY.value, text)
        elif not answers.checks[place].allowed:
            check = answers.checks[place]
            refused[number] = (name, start, check, int(snapshot.pending.generation[rows[number]]))
            text = words_of(name, check)
            refusals[number] = Refusal(number, ReasonCode.QUOTA_PROVIDER_REFUSES.value, text)
    _keep(asked, answers, refused)
    kept = _without(plan, refusals.keys())
    accepted = {start.job_id for start in kept.starts}
    return DecidedPlan(
        kept, providers, {number: starts[number] for number in numbers if number in accepted},
        tuple(refusals.values()),
    )  # fmt: skip


def refused_now(start: QuotaStart) -> tuple[ReasonCode, str] | None:
    """Why the provider of its project keeps a job waiting that could start now; None: it may start. For a preview.

    Nothing is written down: the job does not exist.
    """
    name = deciding_projects([start.project_id]).get(start.project_id)
    if name is None:
        return None
    answers = provider_checks.ask([(name, start)])
    if name in answers.away:
        if settings.QUOTA_PROVIDER_WHEN_AWAY != "wait":
            return None
        return ReasonCode.QUOTA_PROVIDER_AWAY, away_sentence(name, "unreachable", answers.away[name])
    check = answers.checks[0]
    return None if check.allowed else (ReasonCode.QUOTA_PROVIDER_REFUSES, words_of(name, check))


def _concerned(plan: Plan) -> list[int]:
    """The jobs that start, and those for which something else is done, each once."""
    numbers = [start.job_id for start in plan.starts]
    numbers += [one.for_job_id for one in plan.preempts if one.for_job_id]
    numbers += [one.for_job_id for one in plan.resizes if one.for_job_id]
    numbers += [one.job_id for one in plan.reserves]
    return list(dict.fromkeys(numbers))


def _quota_starts(numbers: Iterable[int], plan: Plan, snapshot: Snapshot) -> dict[int, QuotaStart]:
    """What each of these jobs asks for; one that is not there any more is left out."""
    placed = {start.job_id: start for start in plan.starts}
    job_types: dict[int, str] = dict(
        run(
            "SELECT number, job_type FROM scheduler_jobrequest WHERE number = ANY(%s::bigint[])",
            [int_array(numbers)],
        )
    )
    pending = snapshot.pending
    found = {}
    for number in numbers:
        if number not in job_types:
            continue
        row, start = snapshot.job_row(number), placed.get(number)
        found[number] = QuotaStart(
            project_id=int(pending.project_id[row]),
            resources=snapshot.job_class(number).per_task,
            job_type=job_types[number],
            tasks=len(start.placements) if start is not None else int(pending.tasks[row]),
            user_id=int(pending.user_id[row]),
            devices=devices_of(start, snapshot) if start is not None else {},
            job_number=number,
        )
    return found


def devices_of(start: Start, snapshot: Snapshot) -> dict[str, int]:
    """Thousandths of GPUs by model that a start is given."""
    models = dict(zip(snapshot.devices.id.tolist(), snapshot.devices.model, strict=True))
    held: Counter[str] = Counter()
    for placement in start.placements:
        held += held_by_model(placement.device_ids, placement.gpu_millis, models)
    return dict(held)


def _keep(
    asked: Iterable[tuple[str, QuotaStart]],
    answers: provider_checks.ProviderAnswers,
    refused: Mapping[int, tuple[str, QuotaStart, QuotaCheck, int]],
) -> None:
    projects: dict[str, list[int]] = {}
    for name, start in asked:
        projects.setdefault(name, []).append(start.project_id)
    for name, its in projects.items():
        if name in answers.away:
            provider_checks.note_away(name, its, answers.away[name], answers.again_at[name])
        else:
            provider_checks.note_answer(name, its)
    if refused:
        provider_checks.keep_refusals(refused)


def _without(plan: Plan, refused: Any) -> Plan:
    """The plan without these jobs, and without what would be done for them."""
    if not refused:
        return plan
    return replace(
        plan,
        starts=tuple(one for one in plan.starts if one.job_id not in refused),
        preempts=tuple(one for one in plan.preempts if one.for_job_id not in refused),
        resizes=tuple(one for one in plan.resizes if one.for_job_id not in refused),
        reserves=tuple(one for one in plan.reserves if one.job_id not in refused),
    )
