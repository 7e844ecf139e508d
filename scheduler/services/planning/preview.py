"""What would happen to a job, and why one waits: the planner's own answers, and nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Q

from accounts.models import User
from accounts.permissions import require
from infra.errors import MusterError
from quotas.core.gpu_models import sliced
from quotas.core.resources import show_cpus
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import ACTIVE, TERMINAL, JobState, RestartPolicy
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.reasons.messages import GATE_WORDS, sentence
from scheduler.core.snapshot.snapshot import MUST, PACKS, Snapshot
from scheduler.core.whatif.explain import (
    Explanation,
    Hypothetical,
    NodeVerdict,
    context_after,
    explain,
    node_table,
    with_job,
)
from scheduler.core.whatif.what_if import smallest_change, words_of
from scheduler.core.whatif.what_if_earlier import earlier_change
from scheduler.models import Job, Queue
from scheduler.selectors import visible_jobs
from scheduler.services.accounting.budget_preview import BudgetUse, budget_uses
from scheduler.services.accounting.quota_preview import QuotaUse, quota_uses
from scheduler.services.planning.cycles import able, installed_plugins
from scheduler.services.planning.forecasts import (
    Record,
    StartRange,
    kept_range,
    live_cycles,
    range_now,
    record,
)
from scheduler.services.planning.preview_victims import Victim, would_stop
from scheduler.services.planning.preview_victims import words_of as words_of_victims
from scheduler.services.planning.suspension_reason import why_it_stands_still
from scheduler.services.submission.dependencies import waits_now
from scheduler.services.submission.job_spec import JobSpec, parse_job
from scheduler.services.submission.request_size import check_sizes
from scheduler.state.load.job_rows import class_of_request
from scheduler.state.load.snapshots import Loaded, load_snapshot

STARTS_NOW: Final = "starts_now"
WOULD_WAIT: Final = "would_wait"
NEVER: Final = "never"
REFUSED: Final = "refused"

#: A picture that took long to take serves everybody who asks for so long after.
SHARE_SECONDS: Final = 2.0
#: One that is quick to take is taken anew.
QUICK_SECONDS: Final = 0.05
#: Jobs ahead that are named.
NAMED_AHEAD: Final = 10

#: Problems that parse_job finds by comparing the request with what there is.
_NEVER_CODES: Final = frozenset({"can-never-fit", "exceeds-quota"})
#: Reasons that do not wait in line: nobody stands behind such a job.
_NOT_IN_LINE: Final = frozenset({ReasonCode.BEGIN_TIME, ReasonCode.DEPENDENCY, ReasonCode.BACKOFF})


@dataclass(frozen=True, slots=True)
class Gate:
    """One step of the funnel from all nodes to those that fit now."""

    name: str
    words: str
    turned_away: int
    left: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that would have to change."""

    code: str
    category: str
    text: str


ONCE_WORDS: Final = (
    "The job runs at most once: it is never preempted, and if the node is lost or an operator stops the job, "
    "it fails and is not restarted."
)


@dataclass(frozen=True, slots=True)
class PreviewNode:
    """What one node would be given: tasks, and the indices of its devices."""

    node_id: int
    name: str
    tasks: int
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong input, as the submit form shows it."""

    field: str
    message: str
    code: str


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """The smallest single thing to ask differently, as a field of the request, and what it gains."""

    field: str  # of the request: "time_limit", "gpu_count", "gpu_type", "queue", ...
    value: str
    words: str
    starts_now: bool
    #: When it would start at the latest, and how much sooner that is.
    at: datetime | None = None
    gain_seconds: int = 0


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
    #: Whom it would have stopped or suspended, the first of them, and of how many.
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
    #: The change of the suggestion, or else one with which it starts well sooner.
    change: SuggestedChange | None = None
    #: When it is likely to start, where it would wait; and how often such ranges were right.
    start: StartRange | None = None
    record: Record | None = None
    snapshot_at: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AheadJob:
    """One job that goes first; what the asker may not see is None."""

    number: int | None
    name: str | None
    project: str | None
    gpus: int
    tasks: int


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
    snapshot_at: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# ------------------------------------------------------------------ a job that nobody has submitted


def preview_job(*, payload: Mapping[str, Any], by: User) -> Preview:
    """Say what submitting this request now would lead to; a request that is wrong is answered, not raised."""
    try:
        check_sizes([payload], field="array")
        spec = parse_job(payload, by=by)
    except MusterError as error:
        return _refused(error)
    loaded = _picture(spec.queue.cluster_id, spec.project.pk, named=bool(spec.affinity.get("jobs")))
    policy = able(loaded.policy, loaded.backend)
    job = _hypothetical(spec, by)
    asked, job_id = with_job(loaded.snapshot, job)
    plugins = installed_plugins()
    plan = plan_cycle(asked, policy, plugins)
    found = explain(asked, policy, job_id, plan, plugins)
    orders, victims = would_stop(plan, job_id, by)
    own = _own_reason(spec)
    if own is not None:
        # Nothing of the planner's says more: it does not look at such a job.
        verdict, code, headline = WOULD_WAIT, own, sentence(own, ())
    elif found.start is not None:
        verdict, code, headline = STARTS_NOW, None, _start_words(found.start, asked)
    else:
        assert found.headline is not None
        code = found.headline.reason
        never = CATEGORY[code] is ReasonCategory.FIX
        verdict, headline = (
            NEVER if never else WOULD_WAIT,
            words_of_victims(orders) if orders else _headline(found),
        )
    start = (
        range_now(asked, policy, job_id, cluster_id=loaded.cluster_id)
        if verdict == WOULD_WAIT and own is None
        else None
    )
    suggestion, change = (
        _suggestion(asked, policy, job_id, plan, found, start, spec.queue, spec.project.pk)
        if own is None
        else ("", None)
    )
    line = code not in _NOT_IN_LINE and verdict == WOULD_WAIT and own is None
    return Preview(
        verdict=verdict,
        headline=headline,
        reason_code=code.value if code else "",
        category=CATEGORY[code].value if code else "",
        nodes=_nodes_of(found.start, asked) if found.start and own is None else (),
        gates=_funnel(_verdicts(asked, policy, job_id, plan), policy),
        # The numbers of those who make way are not everybody's to know.
        blockers=_blockers(found, headline if orders and own is None else ""),
        victims=victims if own is None else (),
        victims_count=len(orders) if own is None else 0,
        quota=quota_uses(spec, by, found.start, asked),
        budgets=budget_uses(spec),
        ahead_jobs=found.ahead_jobs if line else 0,
        ahead_gpus=found.ahead_gpus if line else 0,
        position=found.position if line else None,
        suggestion=suggestion,
        change=change,
        elements=spec.size,
        restarts=ONCE_WORDS if spec.restart_policy == RestartPolicy.NEVER else "",
        start=start,
        record=record(),
        snapshot_at=_moment(asked),
    )


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


def _hypothetical(spec: JobSpec, by: User) -> Hypothetical:
    return Hypothetical(
        request=class_of_request(
            spec.per_task,
            gpu_model=sliced(spec.gpu_model, spec.terms.gpu_slice),
            node_selector=spec.node_selector,
            tolerations=spec.tolerations,
            affinity=spec.affinity,
            **spec.terms.of_class(),
        ),
        queue_id=spec.queue.pk,
        project_id=spec.project.pk,
        user_id=by.pk,
        priority=spec.priority,
        tasks=spec.least_tasks,
        most_tasks=spec.tasks if spec.gang.min_tasks else 0,
        pack=PACKS.index(spec.gang.pack) + MUST * spec.gang.pack_required,
        nodes=spec.nodes or 0,
        tasks_per_node=spec.tasks_per_node or 0,
        time_limit_seconds=spec.time_limit_seconds or 0,
        name=spec.name,
        labels=tuple(sorted(spec.labels.items())),
        eligible_ms=int(spec.begin_at.timestamp() * 1000) if spec.begin_at else 0,
    )


def _start_words(start: Start, snapshot: Snapshot) -> str:
    nodes = _nodes_of(start, snapshot)
    if len(nodes) == 1:
        return f"Would start now on {nodes[0].name}."
    named = ", ".join(node.name for node in nodes[:3])
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"Would start now on {len(nodes)} nodes: {named}{more}."


def _nodes_of(start: Start, snapshot: Snapshot) -> tuple[PreviewNode, ...]:
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    index = dict(zip(snapshot.devices.id.tolist(), snapshot.devices.position.tolist(), strict=True))
    return tuple(
        PreviewNode(
            node_id=node_id,
            name=names[node_id],
            tasks=sum(1 for p in start.placements if p.node_id == node_id),
            devices=tuple(
                sorted({index[d] for p in start.placements if p.node_id == node_id for d in p.device_ids})
            ),
        )
        for node_id in start.node_ids
    )


# ------------------------------------------------------------------ a job that is there


def explain_job(*, job: Job, by: User, nodes: bool = False) -> JobExplanation:
    """Say why a job waits, from the planner's view of this moment; a job that does not wait says that.

    `nodes` adds what every node says to one of its tasks. Raises NotFound or NotAllowed.
    """
    require(by, "view", job)
    if job.state not in (JobState.QUEUED, JobState.RESERVED):
        return _not_in_queue(job)
    loaded = load_snapshot(cluster_id=job.queue.cluster_id)
    snapshot, policy = loaded.snapshot, able(loaded.policy, loaded.backend)
    plugins = installed_plugins()
    plan = plan_cycle(snapshot, policy, plugins)
    after = context_after(snapshot, policy, plan, plugins)
    try:
        found = explain(snapshot, policy, job.number, plan, plugins, after)
    except KeyError:  # it left the queue since the row was read
        job.refresh_from_db()
        return _not_in_queue(job)
    verdicts = _verdicts(snapshot, policy, job.number, plan, after if found.start is None else None)
    table = tuple(NodeLine(v.node_id, v.name, v.gate, v.sentence, v.slots) for v in verdicts) if nodes else ()
    gates = _funnel(verdicts, policy)
    if found.start is not None:
        where = ", ".join(node.name for node in _nodes_of(found.start, snapshot)[:3])
        return JobExplanation(
            state=job.public_state.value,
            headline=f"Nothing blocks the job: the next cycle starts it on {where}.",
            gates=gates,
            node_table=table,
            snapshot_at=_moment(snapshot),
        )
    assert found.headline is not None
    reason = found.headline.reason
    start = range_now(snapshot, policy, job.number, cluster_id=loaded.cluster_id)
    suggestion, change = _suggestion(
        snapshot, policy, job.number, plan, found, start, job.queue, job.project_id, after
    )
    in_line = CATEGORY[reason] is ReasonCategory.WAIT and reason not in _NOT_IN_LINE
    return JobExplanation(
        state=job.public_state.value,
        headline=_headline(found),
        reason_code=reason.value,
        category=CATEGORY[reason].value,
        details=found.headline.details,
        blockers=_blockers(found),
        gates=gates,
        position=found.position if in_line else None,
        ahead_jobs=found.ahead_jobs if in_line else 0,
        ahead_gpus=found.ahead_gpus if in_line else 0,
        ahead=_ahead(plan, found, by) if in_line else (),
        node_table=table,
        suggestion=suggestion,
        change=change,
        start=start or kept_range(job.number),
        record=record(),
        snapshot_at=_moment(snapshot),
    )


def _not_in_queue(job: Job) -> JobExplanation:
    """A job that the planner does not look at explains itself."""
    state = job.public_state.value
    if job.state in TERMINAL:
        return JobExplanation(state=state, headline=job.end_text or f"The job has {state}.")
    still = why_it_stands_still(job)
    if still:
        return JobExplanation(state=job.public_state.value, headline=still)
    if job.state in ACTIVE:
        return JobExplanation(state=state, headline=f"The job is {state}.")
    code = job.reason_code or ReasonCode.NOT_EVALUATED_YET.value
    text = job.reason_text or sentence(ReasonCode(code), ())
    category = CATEGORY[ReasonCode(code)].value
    return JobExplanation(
        state=state,
        headline=text,
        reason_code=code,
        category=category,
        details=job.reason_details,
        blockers=(Blocker(code, category, text),),
        snapshot_at=job.reason_at,
    )


def _ahead(plan: Plan, found: Explanation, by: User) -> tuple[AheadJob, ...]:
    """The first in line before this job; names only of jobs that the asker may see."""
    waiting = plan.waiting
    in_line = {
        number
        for number, decision in enumerate(plan.decisions)
        if CATEGORY[decision.reason] is ReasonCategory.WAIT and decision.reason not in _NOT_IN_LINE
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
        )
        for number in numbers
        if number in sizes
    )


# ------------------------------------------------------------------ what both have in common


def _picture(cluster_id: int, project_id: int, *, named: bool = False) -> Loaded:
    """A snapshot of now; one that took long to take is shared by all who ask within two seconds.

    `named`: with the names and labels of the project's jobs, for a request that asks about them.
    """
    if named:
        return load_snapshot(cluster_id=cluster_id, project_ids=[project_id], named_projects=[project_id])
    taken = _taken.get(cluster_id)
    if taken is not None:
        at, loaded = taken
        if time.monotonic() - at < SHARE_SECONDS and project_id in loaded.snapshot.projects.id:
            return loaded
    began = time.monotonic()
    loaded = load_snapshot(cluster_id=cluster_id, project_ids=[project_id])
    if time.monotonic() - began > QUICK_SECONDS:
        _taken[cluster_id] = (began, loaded)
    return loaded


_taken: dict[int, tuple[float, Loaded]] = {}


def _verdicts(
    snapshot: Snapshot, policy: Policy, job_id: int, plan: Plan, after: CycleContext | None = None
) -> tuple[NodeVerdict, ...]:
    """What each node says to the job, once everybody else that starts now has started."""
    others = replace(plan, starts=tuple(start for start in plan.starts if start.job_id != job_id))
    return node_table(snapshot, policy, job_id, others, installed_plugins(), after)


#: Reasons that asking for something else can do nothing about.
_NOT_CHANGED: Final = frozenset(
    {
        code
        for code in ReasonCode
        if CATEGORY[code] in (ReasonCategory.ASK, ReasonCategory.SYSTEM)
        and code is not ReasonCode.QUEUE_STOPPED
    }
    - {ReasonCode.QUOTA_ZERO, ReasonCode.AGENT_UNREACHABLE}
    | _NOT_IN_LINE
    | {ReasonCode.DEPENDENCY_NEVER_SATISFIED, ReasonCode.IMAGE_NOT_FOUND}
)


def _suggestion(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    plan: Plan,
    found: Explanation,
    start: StartRange | None,
    queue: Queue,
    project_id: int,
    after: CycleContext | None = None,
) -> tuple[str, SuggestedChange | None]:
    """The smallest change that starts it now, in a sentence; else one that starts it well sooner.

    Its owner may use these queues. Without a range of its own nothing can be said to be sooner.
    """
    if found.headline is None or any(blocker.reason in _NOT_CHANGED for blocker in found.blockers):
        return "", None
    usable = Queue.objects.filter(Q(project=None) | Q(project=project_id), cluster_id=queue.cluster_id)
    slugs = {pk: (name, slug) for pk, name, slug in usable.values_list("pk", "name", "slug")}
    after = after or context_after(snapshot, policy, plan, installed_plugins())
    now = smallest_change(snapshot, policy, job_id, after, queue_ids=slugs, plugins=installed_plugins())
    names = dict(slugs.values())
    if now is not None:
        field, value = _as_request(now.field, now.after, names)
        words = words_of(now.field, now.before, now.after, each=len(now.start.placements) > 1)
        return now.sentence(snapshot), SuggestedChange(field, value, words, starts_now=True)
    if start is None or start.p90_at is None:
        return "", None
    sooner = earlier_change(
        snapshot, policy, job_id, after, int(start.p90_at.timestamp() * 1000), queue_ids=slugs,
        most_cycles=live_cycles(snapshot), plugins=installed_plugins(),
    )  # fmt: skip
    if sooner is None:
        return "", None
    return "", SuggestedChange(
        *_as_request(sooner.field, sooner.after, names),
        sooner.words,
        starts_now=False,
        at=datetime.fromtimestamp(sooner.at_ms / 1000, tz=UTC),
        gain_seconds=(sooner.before_ms - sooner.at_ms) // 1000,
    )


#: What a change of the core is called in a request.
_REQUEST_FIELDS: Final = {
    "gpus": "gpu_count", "cpu_millis": "cpu_cores", "memory_mib": "memory", "tasks": "tasks",
    "gpu_model": "gpu_type", "time_limit_seconds": "time_limit", "queue": "queue",
    "numa": "numa",
}  # fmt: skip


def _as_request(field: str, value: int | str, slugs: Mapping[str, str]) -> tuple[str, str]:
    if field == "queue":
        value = slugs.get(str(value), str(value))
    elif field == "cpu_millis":
        value = show_cpus(int(value))
    elif field == "memory_mib":
        value = f"{value}Mi"
    return _REQUEST_FIELDS[field], str(value)


def _funnel(verdicts: Sequence[NodeVerdict], policy: Policy) -> tuple[Gate, ...]:
    """From all nodes, gate by gate, to those that could take a task of it now."""
    closed = Counter(verdict.gate for verdict in verdicts)
    left = len(verdicts)
    gates = [Gate("all", "nodes in the cluster", 0, left)]
    for name in (*policy.filters, *policy.plugins):
        if closed[name]:
            left -= closed[name]
            gates.append(Gate(name, GATE_WORDS.get(name, f"are excluded by {name}"), closed[name], left))
    gates.append(Gate("fits", "fit now", 0, left))
    return tuple(gates)


def _headline(found: Explanation) -> str:
    assert found.headline is not None
    decision = found.headline
    if CATEGORY[decision.reason] is not ReasonCategory.WAIT:
        return sentence(decision.reason, decision.facts)  # who goes first changes nothing for it
    return sentence(decision.reason, decision.facts, ahead_jobs=found.ahead_jobs, ahead_gpus=found.ahead_gpus)


def _blockers(found: Explanation, of_victims: str = "") -> tuple[Blocker, ...]:
    return tuple(
        Blocker(
            d.reason.value,
            CATEGORY[d.reason].value,
            of_victims
            if of_victims and d.reason is ReasonCode.WAITING_FOR_PREEMPTION
            else sentence(d.reason, d.facts),
        )
        for d in found.blockers
    )


def _moment(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.now_ms / 1000, tz=UTC)
