"""A recorded cycle: planned again from its bytes, described in sentences, and why it placed a job where it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from scheduler.core.cycle import plan_cycle
from scheduler.core.ordering.choice import choose, in_force
from scheduler.core.placement.plugins import PluginError, PluginFailed
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import GATE_WORDS, sentence
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.codec import CodecError
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.why_here import WhyHere, why_here
from scheduler.models import Attempt, Cycle, Job
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.explanation_parts import Gate
from scheduler.state.records import recordings
from scheduler.state.records.recordings import NotRecorded

#: Jobs named in one line of a shown plan.
NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording opened, and what planning from it gives today."""

    cycle_id: int
    snapshot: Snapshot
    policy: Policy
    recorded: Plan
    #: Byte for byte the same plan, in the canonical form.
    identical: bool
    #: The first difference as a sentence; "" where there is none.
    difference: str
    digest: str


def replay(*, cycle_id: int) -> Replay:
    """Choose by the rules and plan a recorded cycle again, and compare; raises NotRecorded, CodecError, PluginError."""
    recording = recordings.load(cycle_id)
    snapshot = codec.decode_snapshot(recording.snapshot)
    policy = codec.decode_policy(recording.policy)
    chosen = choose(snapshot, policy)
    again = plan_cycle(snapshot, chosen, plugins=installed_plugins())
    encoded = codec.encode_plan(again)
    recorded = codec.decode_plan(recording.plan)
    # Older programs wrote the same plan in other bytes.
    identical = encoded == recording.plan or codec.digest(recorded) == codec.digest(again)
    identical = identical and in_force(policy) == in_force(chosen)
    return Replay(
        cycle_id=cycle_id,
        snapshot=snapshot,
        policy=policy,
        recorded=recorded,
        identical=identical,
        difference=_other_rules(policy, chosen) or ("" if identical else first_difference(recorded, again)),
        digest=recording.plan_digest,
    )


def _other_rules(recorded: Policy, again: Policy) -> str:
    """Which rule is in force now where another one was recorded; "" where all are the same."""
    for old, new in zip(in_force(recorded), in_force(again), strict=True):
        if old != new:
            words = [f"rule {one.rule}" if one.rule else "no rule" for one in (old, new)]
            return f"profile {old.profile}: recorded {words[0]}; now {words[1]}"
    return ""


def first_difference(recorded: Plan, again: Plan) -> str:
    """The first decision that differs: starts in their order, then the jobs that wait."""
    for number, (old, new) in enumerate(zip(recorded.starts, again.starts, strict=False), start=1):
        if old != new:
            return f"start {number}: recorded {_start(old)}; now {_start(new)}"
    if len(recorded.starts) != len(again.starts):
        return f"recorded {len(recorded.starts)} starts, now {len(again.starts)}"
    if recorded.preempts != again.preempts:
        return f"recorded {len(recorded.preempts)} stops, now {len(again.preempts)}, or others"
    if recorded.resizes != again.resizes:
        return f"recorded {len(recorded.resizes)} changes of size, now {len(again.resizes)}, or others"
    if recorded.resumes != again.resumes:
        return f"recorded {len(recorded.resumes)} suspended jobs that resume, now {len(again.resumes)}, or others"
    before, after = recorded.reasons, again.reasons
    for job in sorted(before.keys() | after.keys()):
        old_words, new_words = _waiting_reason(recorded, job), _waiting_reason(again, job)
        if old_words != new_words:
            return f"job {job}: recorded {old_words}; now {new_words}"
    return "the same decisions, in another order or with other expected starts"


def describe(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """The plan in lines for a person: the starts, then the jobs that wait with their reasons."""
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    yield (
        f"{len(snapshot.nodes)} nodes, {len(snapshot.running)} running jobs, "
        f"{len(snapshot.pending)} pending: "
        f"{len(plan.starts)} start, {len(plan.waiting)} wait"
    )
    for start in plan.starts:
        yield f"start job {start.job_id} on {', '.join(names[node] for node in start.node_ids)}"
    for preempt in plan.preempts:
        if preempt.kind == "converge":
            yield f"stop job {preempt.job_id}: a limit of {preempt.line} was cut"
            continue
        verb = "suspend" if preempt.mode == "suspend" else "stop"
        yield f"{verb} job {preempt.job_id} for job {preempt.for_job_id} ({preempt.kind})"
    for resize in plan.resizes:
        because = (
            f"for job {resize.for_job_id} ({resize.kind})" if resize.ranks else "because resources are idle"
        )
        yield f"give job {resize.job_id} {resize.tasks} tasks instead of {resize.before} {because}"
    for one in plan.resumes:
        yield f"resume job {one.job_id}"
    for decision, jobs in plan.by_decision():
        if len(jobs):
            some = ", ".join(map(str, jobs[:NAMED].tolist()))
            more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
            yield f"wait {decision.reason.value}: {sentence(decision.reason, decision.facts)} [{some}{more}]"


def _start(start: Start) -> str:
    places = ", ".join(
        f"rank {p.rank} on node {p.node_id}" + (f" devices {list(p.device_ids)}" if p.device_ids else "")
        for p in start.placements
    )
    return f"job {start.job_id} ({places})"


def _waiting_reason(plan: Plan, job: int) -> str:
    try:
        decision = plan.decision_of(job)
    except KeyError:
        return "nothing"
    return f"{decision.reason.value} {plan.details_of(job)}"


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that the job has, or that it might have had, with the points of each scorer from 0 to 100."""

    node_id: int
    name: str
    chosen: bool
    total: int
    parts: dict[str, int]


@dataclass(frozen=True, slots=True)
class PlacementBasis:
    """How the job came to its nodes. `unknown` says why that is not known any more; "" = it is."""

    cycle: int | None = None
    at: datetime | None = None
    order: str = ""
    #: The rule that chose the order or the placement; "" = none did.
    rule: str = ""
    placement: str = ""
    backfill: str = ""
    place: int = 0
    starts: int = 0
    gates: tuple[Gate, ...] = ()
    nodes: tuple[ScoredNode, ...] = ()
    exact: bool = False
    unknown: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def placement_basis(job: Job) -> PlacementBasis | None:
    """The basis of the latest attempt; None for a job that has never started. Nothing is stored for it beforehand."""
    attempt = Attempt.objects.filter(job=job).order_by("-epoch").values_list("cycle_id", flat=True).first()
    if attempt is None:
        return None
    at = Cycle.objects.filter(pk=attempt).values_list("started_at", flat=True).first()
    try:
        recording = recordings.load(attempt)
        snapshot, policy = codec.decode_snapshot(recording.snapshot), codec.decode_policy(recording.policy)
        plan = codec.decode_plan(recording.plan)
        found = why_here(snapshot, policy, plan, job.number, installed_plugins())
        queue = policy.of_queue(job.queue_id)
    except NotRecorded:
        return PlacementBasis(attempt, at, unknown="The recording of the cycle is no longer kept.")
    except (CodecError, PluginError, PluginFailed, KeyError) as error:
        return PlacementBasis(attempt, at, unknown=f"The recording cannot be read: {error}.")
    if found is None:
        return PlacementBasis(attempt, at, unknown="The recording of the cycle does not name the job.")
    return PlacementBasis(
        cycle=attempt,
        at=at,
        order=queue.name,
        rule=queue.adaptive.rule if queue.adaptive else "",
        placement=queue.placement,
        backfill=policy.backfill,
        place=found.place,
        starts=found.starts,
        gates=_funnel(found),
        nodes=tuple(
            ScoredNode(one.node_id, one.name, one.chosen, one.total, dict(one.parts)) for one in found.scores
        ),
        exact=found.exact,
    )


def _funnel(found: WhyHere) -> tuple[Gate, ...]:
    """From all nodes, filter by filter, to those that were scored."""
    left = found.nodes
    gates = [Gate("all", "nodes in the cluster", 0, left)]
    for count in found.gates:
        if count.first:
            left -= count.first
            gates.append(
                Gate(
                    count.gate, GATE_WORDS.get(count.gate, f"are excluded by {count.gate}"), count.first, left
                )
            )
    return (*gates, Gate("fits", "eligible", 0, found.eligible))
