"""Explain: why a submitted job waits, from the planner's view of this moment; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from accounts.models import User
from accounts.permissions import require
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import ACTIVE, HOW_ENDED, PENDING, TERMINAL, JobState
from scheduler.core.plan import Decision, Plan
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.reasons.causes import cause_of
from scheduler.core.reasons.messages import sentence
from scheduler.core.whatif.explain import Explanation, NodeVerdict, context_after, explain
from scheduler.models import Job
from scheduler.selectors import visible_jobs
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.explanation_parts import (
    NOT_IN_LINE,
    Blocker,
    Gate,
    PlannedJob,
    blockers_of,
    funnel,
    headline_of,
    moment_of,
    node_verdicts,
    nodes_of,
)
from scheduler.services.planning.forecasts import Record, StartRange, kept_range, range_now, record
from scheduler.services.planning.profiles import OrderInForce, leaving_out_failing, order_of
from scheduler.services.planning.replay import PlacementBasis, placement_basis
from scheduler.services.planning.suggestions import SuggestedChange, suggest_change
from scheduler.services.planning.suspension_reason import suspension_reason
from scheduler.state.load.snapshots import Loaded, load_snapshot

#: Jobs ahead that are named.
NAMED_AHEAD: Final = 10


@dataclass(frozen=True, slots=True)
class AheadJob:
    """One job that goes first; what the asker may not see is None."""

    number: int | None
    name: str | None
    project: str | None
    gpus: int
    tasks: int
    #: The number as people say it: `123_3` for an element of an array.
    said_number: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLine:
    """What one node says to one task of the job."""

    node_id: int
    name: str
    gate: str | None
    sentence: str
    slots: int


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """Why a job is where it is: the headline, everything behind it, and who goes first."""

    state: str
    headline: str
    reason_code: str = ""
    category: str = ""
    details: Mapping[str, Any] | None = None
    #: What to change, for programs: a code and a subject; None for a job that does not wait.
    cause: Mapping[str, str] | None = None
    blockers: tuple[Blocker, ...] = ()
    gates: tuple[Gate, ...] = ()
    position: int | None = None
    ahead_jobs: int = 0
    ahead_gpus: int = 0
    ahead: tuple[AheadJob, ...] = ()
    node_table: tuple[NodeLine, ...] = ()
    #: The smallest single change with which it would start now, in a sentence; "" when no one change does.
    suggestion: str = ""
    #: The change of the suggestion, or else one with which it starts well sooner.
    change: SuggestedChange | None = None
    #: When it is likely to start, and how often such ranges were right.
    start: StartRange | None = None
    record: Record | None = None
    #: By what the jobs of its queue are ordered and placed, and by which rule, as the next cycle has it.
    order: OrderInForce | None = None
    snapshot_at: datetime | None = None
    #: Of a job that has started: the filters, the order and the scores by which it was given its nodes.
    placement: PlacementBasis | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def explain_job(*, job: Job, by: User, nodes: bool = False) -> JobExplanation:
    """Say why a job waits; a job that does not wait says that.

    `nodes` adds what every node says to one of its tasks. Raises NotFound or NotAllowed.
    """
    require(by, "view", job)
    if job.state not in (JobState.QUEUED, JobState.RESERVED):
        found = _not_in_queue(job)
        return replace(found, placement=placement_basis(job)) if job.state not in PENDING else found
    loaded = load_snapshot(cluster_id=job.queue.cluster_id)
    return leaving_out_failing(loaded, lambda left: _explained(left, job, by, nodes=nodes))


def _explained(loaded: Loaded, job: Job, by: User, *, nodes: bool) -> JobExplanation:
    try:
        planned = _planned(loaded, job)
    except KeyError:  # it left the queue since the row was read
        job.refresh_from_db()
        return _not_in_queue(job)
    verdicts = node_verdicts(planned)
    gates, table = funnel(verdicts, planned.policy), _node_lines(verdicts) if nodes else ()
    headline = planned.found.headline
    if headline is None:
        return _starts_now(job, planned, gates, table)
    return _waits(job, by, planned, headline, gates, table, cluster_id=loaded.cluster_id)


def _planned(loaded: Loaded, job: Job) -> PlannedJob:
    """The job as the next cycle would see and plan it. Raises KeyError for one that is not in line."""
    snapshot, policy, plugins = (
        loaded.snapshot,
        policy_for_backend(loaded.policy, loaded.backend),
        installed_plugins(),
    )
    plan = plan_cycle(snapshot, policy, plugins)
    after = context_after(snapshot, policy, plan, plugins)
    found = explain(snapshot, policy, job.number, plan, plugins, after)
    return PlannedJob(snapshot, policy, job.number, plan, found, after)


def _node_lines(verdicts: tuple[NodeVerdict, ...]) -> tuple[NodeLine, ...]:
    return tuple(NodeLine(v.node_id, v.name, v.gate, v.sentence, v.slots) for v in verdicts)


def _starts_now(
    job: Job, planned: PlannedJob, gates: tuple[Gate, ...], table: tuple[NodeLine, ...]
) -> JobExplanation:
    start = planned.found.start
    assert start is not None  # it has no headline
    where = ", ".join(node.name for node in nodes_of(start, planned.snapshot)[:3])
    return JobExplanation(
        state=job.public_state.value,
        headline=f"Nothing blocks the job: the next cycle starts it on {where}.",
        gates=gates,
        node_table=table,
        snapshot_at=moment_of(planned.snapshot),
    )


def _waits(
    job: Job,
    by: User,
    planned: PlannedJob,
    headline: Decision,
    gates: tuple[Gate, ...],
    table: tuple[NodeLine, ...],
    *,
    cluster_id: int,
) -> JobExplanation:
    found, reason = planned.found, headline.reason
    start = range_now(planned.snapshot, planned.policy, job.number, cluster_id=cluster_id)
    suggestion, change = suggest_change(planned, start, job.queue, job.project_id)
    in_line = CATEGORY[reason] is ReasonCategory.WAIT and reason not in NOT_IN_LINE
    return JobExplanation(
        state=job.public_state.value,
        headline=headline_of(found),
        reason_code=reason.value,
        category=CATEGORY[reason].value,
        details=headline.details,
        cause=cause_of(reason, headline.facts)._asdict(),
        blockers=blockers_of(found),
        gates=gates,
        position=found.position if in_line else None,
        ahead_jobs=found.ahead_jobs if in_line else 0,
        ahead_gpus=found.ahead_gpus if in_line else 0,
        ahead=_ahead(planned.plan, found, by) if in_line else (),
        node_table=table,
        suggestion=suggestion,
        change=change,
        start=start or kept_range(job.number),
        record=record(),
        order=order_of(planned.policy, job.queue_id),
        snapshot_at=moment_of(planned.snapshot),
    )


def _not_in_queue(job: Job) -> JobExplanation:
    """A job that the planner does not look at explains itself."""
    state = job.public_state.value
    if job.state in TERMINAL:
        return JobExplanation(state=state, headline=job.end_text or f"The job {HOW_ENDED[job.state]}.")
    suspended = suspension_reason(job)
    if suspended:
        return JobExplanation(state=job.public_state.value, headline=suspended)
    if job.state in ACTIVE:
        return JobExplanation(state=state, headline=f"The job is {state}.")
    code = job.reason_code or ReasonCode.NOT_EVALUATED_YET.value
    text = job.reason_text or sentence(ReasonCode(code), ())
    category = CATEGORY[ReasonCode(code)].value
    cause = cause_of(ReasonCode(code), job.reason_details)._asdict()
    return JobExplanation(
        state=state,
        headline=text,
        reason_code=code,
        category=category,
        details=job.reason_details,
        cause=cause,
        blockers=(Blocker(code, category, text, cause),),
        snapshot_at=job.reason_at,
    )


def _ahead(plan: Plan, found: Explanation, by: User) -> tuple[AheadJob, ...]:
    """The first in line before this job; names only of jobs that the asker may see."""
    waiting = plan.waiting
    in_line = {
        number
        for number, decision in enumerate(plan.decisions)
        if CATEGORY[decision.reason] is ReasonCategory.WAIT and decision.reason not in NOT_IN_LINE
    }
    before = sorted(
        (ahead, job)
        for job, decision, ahead in zip(
            waiting.job_id.tolist(), waiting.decision.tolist(), waiting.ahead_jobs.tolist(), strict=True
        )
        if ahead < found.ahead_jobs and decision in in_line and job != found.job_id
    )
    numbers = [job for _, job in before[:NAMED_AHEAD]]
    sizes = {
        row[0]: row[1:] for row in Job.objects.filter(pk__in=numbers).values_list("number", "gpus", "tasks")
    }
    seen = {job.number: job for job in visible_jobs(by).filter(number__in=numbers)}
    return tuple(
        AheadJob(
            number=seen[number].number if number in seen else None,
            name=seen[number].name if number in seen else None,
            project=seen[number].project.slug if number in seen else None,
            gpus=sizes[number][0] * sizes[number][1],
            tasks=sizes[number][1],
            said_number=seen[number].said_number if number in seen else None,
        )
        for number in numbers
        if number in sizes
    )
