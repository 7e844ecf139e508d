"""Dry run of one submission (as `sbatch --test-only`): what would become of it now; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from accounts.models import User
from infra.errors import MusterError
from quotas.providers.base import QuotaStart
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import JobState, RestartPolicy
from scheduler.core.plan import Preempt, Start
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.relaxation import names_of
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import Hypothetical, explain, with_job
from scheduler.deadlines import DeadlineState, outlook, relaxations
from scheduler.services.accounting.budget_preview import BudgetUse, budget_uses
from scheduler.services.accounting.provider_starts import devices_of, refused_now
from scheduler.services.accounting.quota_preview import QuotaUse, quota_uses
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.explanation_parts import (
    NOT_IN_LINE,
    Blocker,
    Gate,
    PlannedJob,
    PreviewNode,
    blockers_of,
    funnel,
    headline_of,
    moment_of,
    node_verdicts,
    nodes_of,
)
from scheduler.services.planning.forecasts import Record, StartRange, range_now, record
from scheduler.services.planning.hypothetical import hypothetical_of
from scheduler.services.planning.preview_victims import Victim, victims_of, words_of
from scheduler.services.planning.profiles import OrderInForce, leaving_out_failing, order_of
from scheduler.services.planning.shared_snapshot import snapshot_of_now
from scheduler.services.planning.suggestions import SuggestedChange, suggest_change
from scheduler.services.submission.dependencies import waits_now
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import check_sizes, parse_job
from scheduler.state.load.snapshots import Loaded

STARTS_NOW: Final = "starts_now"
WOULD_WAIT: Final = "would_wait"
NEVER: Final = "never"
REFUSED: Final = "refused"

#: Problems that admission finds by comparing the request with the cluster and its limits.
_NEVER_CODES: Final = frozenset({"can-never-fit", "exceeds-quota"})

ONCE_WORDS: Final = (
    "The job runs at most once: it is never preempted, and if the node is lost or an operator stops the job, "
    "it fails and is not restarted."
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong input, as the submit form shows it."""

    field: str
    message: str
    code: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of a request that is submitted now, as it is."""

    verdict: str
    headline: str
    reason_code: str = ""
    category: str = ""
    way_out: str = ""
    problems: tuple[Problem, ...] = ()
    nodes: tuple[PreviewNode, ...] = ()
    gates: tuple[Gate, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    quota: tuple[QuotaUse, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    #: The jobs that it would stop or suspend: the first of them, and how many in all.
    victims: tuple[Victim, ...] = ()
    victims_count: int = 0
    ahead_jobs: int = 0
    ahead_gpus: int = 0
    position: int | None = None
    #: The smallest single change with which it would start now, in a sentence; "" when no one change does.
    suggestion: str = ""
    #: How many jobs it becomes; more than one for an array, and the rest is about the first of them.
    elements: int = 1
    #: What its restart policy means for it, where that has to be known before it is submitted.
    restarts: str = ""
    #: Which constraints are required until when, and what changes once all of them are relaxed; in sentences.
    relaxations: tuple[str, ...] = ()
    #: Why it is likely to miss its deadline; "" where it is not, or has none.
    deadline: str = ""
    #: The change of the suggestion, or else one with which it starts well sooner.
    change: SuggestedChange | None = None
    #: When it is likely to start, where it would wait; and how often such ranges were right.
    start: StartRange | None = None
    record: Record | None = None
    #: By what the jobs of its queue are ordered and placed, and by which rule; None for a request that is refused.
    order: OrderInForce | None = None
    snapshot_at: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def preview_job(*, payload: Mapping[str, Any], by: User) -> Preview:
    """What submitting this request now would lead to. An invalid request gives the verdict `refused`."""
    try:
        check_sizes([payload], field="array")
        spec = parse_job(payload, by=by)
    except MusterError as error:
        return _refused(error)
    loaded = snapshot_of_now(spec.queue.cluster_id, spec.project.pk, named=bool(spec.affinity.get("jobs")))
    return leaving_out_failing(loaded, lambda left: _preview_of(spec, by, left))


def _preview_of(spec: JobSpec, by: User, loaded: Loaded) -> Preview:
    job = _planned(loaded, hypothetical_of(spec, by))
    found = Preview(
        verdict="",
        headline="",
        gates=funnel(node_verdicts(job), job.policy),
        quota=quota_uses(spec, by, job.found.start, job.snapshot),
        budgets=budget_uses(spec),
        elements=spec.size,
        restarts=ONCE_WORDS if spec.restart_policy == RestartPolicy.NEVER else "",
        record=record(),
        order=order_of(job.policy, spec.queue.pk),
        snapshot_at=moment_of(job.snapshot),
    )
    own = _own_reason(spec)
    if own is not None:
        return replace(_waits_for_itself(found, job, own), deadline=_late(spec, found.start))
    orders, victims = victims_of(job.plan, job.job_id, by)
    found = _with_verdict(found, job, orders)
    if (refusal := _refused_outside(found, spec, by, job)) is not None:
        return refusal
    start = None
    if found.verdict == WOULD_WAIT:
        start = range_now(job.snapshot, job.policy, job.job_id, cluster_id=loaded.cluster_id)
    suggestion, change = suggest_change(job, start, spec.queue, spec.project.pk)
    found = _with_relaxations(found, spec, by, loaded)
    return replace(
        found,
        victims=victims,
        victims_count=len(orders),
        start=start,
        deadline=_late(spec, start),
        suggestion=suggestion,
        change=change,
    )


def _refused_outside(found: Preview, spec: JobSpec, by: User, job: PlannedJob) -> Preview | None:
    """The preview of a job that could start, and that the provider of its quota keeps waiting."""
    if job.found.start is None:
        return None
    said = refused_now(
        QuotaStart(
            project_id=spec.project.pk, resources=spec.per_task, job_type=spec.job_type,
            tasks=len(job.found.start.placements), user_id=by.pk,
            devices=devices_of(job.found.start, job.snapshot),
        )
    )  # fmt: skip
    if said is None:
        return None
    code, text = said
    return replace(
        found, verdict=WOULD_WAIT, headline=text, reason_code=code.value, category=CATEGORY[code].value, nodes=(),
    )  # fmt: skip


def _late(spec: JobSpec, start: StartRange | None) -> str:
    """Why a job that starts then is likely to miss its deadline, in a sentence; "" where it is not."""
    job = SimpleNamespace(
        state=JobState.QUEUED, deadline_at=spec.deadline_at, time_limit_seconds=spec.time_limit_seconds,
        begin_at=spec.begin_at, completed_at=None, expected_start_at=None, likely_start=start,
    )  # fmt: skip
    found = outlook(job)
    return found.text if found is not None and found.state == DeadlineState.LATE else ""


def _with_relaxations(found: Preview, spec: JobSpec, by: User, loaded: Loaded) -> Preview:
    """What the job lets be relaxed, and where it could start now if all of it were.

    A job that cannot start before waits all the same.
    """
    if not spec.relax:
        return found
    now = moment_of(loaded.snapshot)
    job = SimpleNamespace(
        state=JobState.QUEUED, eligible_at=max(now, spec.begin_at or now), assemblies_failed=0, epoch=0,
        relax=spec.relax, relaxed=None,
    )  # fmt: skip
    texts = [one.text for one in relaxations(job)]
    if found.verdict == STARTS_NOW:
        return replace(found, relaxations=tuple(texts))
    planned = _planned(loaded, hypothetical_of(spec, by, relaxed=names_of(spec.relax)))
    later = _with_verdict(Preview(verdict="", headline=""), planned, [])
    texts.append(f"With all of this relaxed: {later.headline}")
    verdict = WOULD_WAIT if later.verdict != NEVER else found.verdict
    return replace(found, relaxations=tuple(texts), verdict=verdict)


def _planned(loaded: Loaded, job: Hypothetical) -> PlannedJob:
    """The job as the next cycle would see and plan it, beside all others."""
    policy, plugins = policy_for_backend(loaded.policy, loaded.backend), installed_plugins()
    asked, job_id = with_job(loaded.snapshot, job)
    plan = plan_cycle(asked, policy, plugins)
    return PlannedJob(asked, policy, job_id, plan, explain(asked, policy, job_id, plan, plugins))


def _refused(error: MusterError) -> Preview:
    problems = tuple(Problem(p.field, p.message, p.code) for p in error.problems)
    never = bool(problems) and all(problem.code in _NEVER_CODES for problem in problems)
    first = problems[0].message if len(problems) == 1 else error.message
    return Preview(
        verdict=NEVER if never else REFUSED,
        headline=first,
        reason_code=ReasonCode.INVALID_SPEC.value if never else error.code,
        category=ReasonCategory.FIX.value,
        way_out=error.way_out,
        problems=problems,
    )


def _own_reason(spec: JobSpec) -> ReasonCode | None:
    """What the request itself says it waits for, before the planner looks at it."""
    if spec.held:
        return ReasonCode.HELD_BY_USER
    if spec.depends_on and any(condition.missing for condition in waits_now(spec)):
        return ReasonCode.DEPENDENCY
    return None


def _waits_for_itself(found: Preview, job: PlannedJob, own: ReasonCode) -> Preview:
    """The preview of a job that its own request keeps waiting: the planner does not look at such a job."""
    return replace(
        found,
        verdict=WOULD_WAIT,
        headline=sentence(own, ()),
        reason_code=own.value,
        category=CATEGORY[own].value,
        blockers=blockers_of(job.found),
    )


def _with_verdict(found: Preview, job: PlannedJob, orders: list[Preempt]) -> Preview:
    """The preview with what the planner decides of the job, and why; `orders` are those to its victims."""
    if job.found.start is not None:
        return replace(
            found,
            verdict=STARTS_NOW,
            headline=_start_words(job.found.start, job.snapshot),
            nodes=nodes_of(job.found.start, job.snapshot),
            blockers=blockers_of(job.found),
        )
    assert job.found.headline is not None
    code = job.found.headline.reason
    category = CATEGORY[code]
    verdict = NEVER if category is ReasonCategory.FIX else WOULD_WAIT
    # The numbers of the victims are not everybody's to know, so the planner's own sentence is replaced.
    headline = words_of(orders) if orders else headline_of(job.found)
    found = replace(
        found,
        verdict=verdict,
        headline=headline,
        reason_code=code.value,
        category=category.value,
        blockers=blockers_of(job.found, headline if orders else ""),
    )
    if verdict == NEVER or code in NOT_IN_LINE:
        return found
    ahead = job.found
    return replace(found, ahead_jobs=ahead.ahead_jobs, ahead_gpus=ahead.ahead_gpus, position=ahead.position)


def _start_words(start: Start, snapshot: Snapshot) -> str:
    nodes = nodes_of(start, snapshot)
    if len(nodes) == 1:
        return f"Would start now on {nodes[0].name}."
    named = ", ".join(node.name for node in nodes[:3])
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"Would start now on {len(nodes)} nodes: {named}{more}."
