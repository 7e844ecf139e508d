"""Plan to rows: one transaction, compare-and-set, and what no longer held comes back as data."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from infra.db.prepared import ask_together
from infra.times_in_text import written
from scheduler import outbox
from scheduler.core.columns import Ints
from scheduler.core.lifecycle import JobState
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Decision, Plan, Preempt, Resize, Start
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import Conflict, find_conflicts
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.apply import apply_sql, resizes, suspension
from scheduler.state.apply.refusals import VICTIM_CHANGED, Refusal
from scheduler.state.db.sql import Rows
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.ledger import ledger
from scheduler.state.ledger.ledger import Books
from scheduler.state.load import snapshots
from scheduler.state.load.quota_rows import Lines
from scheduler.state.load.snapshots import Locked

log = structlog.get_logger(__name__)

#: The database turned the start down although every check had passed: an invariant was about to break.
REFUSED_BY_CONSTRAINT: Final = "RefusedByConstraint"
#: The job is no longer queued as planned.
JOB_CHANGED: Final = "JobChanged"

#: Reasons written in one cycle at most: those who wait must not keep the next from starting.
TOLD_JOBS: Final = 10_000
#: Above so many, reasons whose numbers moved take turns; a reason of another kind is told first.
REWORDED_JOBS: Final = 2000
#: Of them, so many at the head of the line are told first; the others take turns over so many seconds.
FIRST_IN_LINE: Final = 1000
REWORDED_TURNS: Final = 16
#: Rows of one statement.
CHUNK: Final = 1000


#: What may have become of a node since it was chosen, by the gate that is closed now.
_SINCE: Final = {
    "gone": "is not there",
    "state": "is not responding",
    "cordoned": "is cordoned",
    "draining": "is draining",
    "reserved": "is reserved",
    "jobs": "violates affinity to other jobs",
    "device": "has that GPU in use or unhealthy",
    "gpu_health": "has too few healthy GPUs",
    "size": "is too small for one task",
    "gpus": "has too few free GPUs",
    "cpu_millis": "has too few free CPUs",
    "memory_mib": "has too little free memory",
    "storage_mib": "has too little free storage",
    "numa": "has no room in that NUMA domain",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan's starts: each is in one of the two."""

    started: tuple[Start, ...] = ()
    refused: tuple[Refusal, ...] = ()
    stopped: tuple[Preempt, ...] = ()
    resized: tuple[Resize, ...] = ()


@dataclass(frozen=True, slots=True)
class _Writer:
    """What every start of one plan has in common."""

    backend: str
    cycle_id: int | None
    at: datetime
    lines: Lines
    node_names: Mapping[int, str] = field(default_factory=dict)
    gpu_models: Mapping[int, str] = field(default_factory=dict)  # of each device
    hold_seconds: Mapping[int, int] = field(default_factory=dict)  # of each job
    books: Books = field(default_factory=Books)


def apply_starts(
    plan: Plan,
    *,
    cluster_id: int,
    backend: str,
    policy: Policy,
    lease: HeldLease,
    cycle_id: int | None,
    at: datetime,
    plugins: Plugins = NO_PLUGINS,
) -> Applied:
    """Write the starts that still hold; call it inside a transaction, which may hold the recording too.

    1. The term is checked and cannot be taken over until the transaction ends.
    2. The rows of the plan are locked in one order: queues, nodes, devices, quotas, budget periods, jobs.
    3. Every start is decided again on the fresh rows by the planner's own predicates.
    4. What holds is written, one statement a table; a job is whole or not at all.
    5. Should a constraint still refuse, only the start that broke it stays out.
    6. Victims, and those that give up tasks, are told, all of those of one job or none; none where that job or
       one of them has changed.

    Raises LeaseLost, and has written nothing, when another planner may have taken over.
    """
    if not plan.starts and not plan.preempts and not plan.resizes:
        return Applied()
    if not plan.starts:
        leases.fence(lease)
        stopped, resized, unmoved = _disturb(plan, cycle_id=cycle_id, at=at)
        return Applied((), tuple(unmoved), tuple(stopped), tuple(resized))
    (applied_to,) = leases.fence_and_read(lease, snapshots.applied_to(cluster_id))
    locked = _lock(plan, cluster_id, applied_to)
    fresh = locked.snapshot
    conflicts = {
        conflict.job_id: Refusal(conflict.job_id, conflict.reason.value, _why(conflict))
        for conflict in find_conflicts(plan, fresh, policy, plugins)
    }
    wanted = [start for start in plan.starts if start.job_id not in conflicts]
    writer = _Writer(
        backend, cycle_id, at,
        lines=locked.lines,
        node_names=dict(zip(fresh.nodes.id.tolist(), fresh.nodes.name, strict=True)),
        gpu_models=dict(zip(fresh.devices.id.tolist(), fresh.devices.model, strict=True)),
        hold_seconds=_hold_seconds(fresh),
        books=locked.books,
    )  # fmt: skip
    started, broken = _write(wanted, writer)
    stopped, resized, unmoved = _disturb(plan, cycle_id=cycle_id, at=at)
    refused = (*conflicts.values(), *broken, *unmoved)
    return Applied(tuple(started), refused, tuple(stopped), tuple(resized))


def tell_waiting(plan: Plan, *, snapshot: Snapshot, told: Ints, lease: HeldLease, at: datetime) -> int:
    """Give every waiting job its reason, where that is not what it says already; answers how many changed.

    After the starts and apart from them: a reason informs and decides nothing, so those who start do not
    wait until those who wait have been told.
    """
    reasons = [_told(decision) for decision in plan.decisions]
    jobs, which = _untold(plan, snapshot, told, reasons)
    changed = 0
    for first in range(0, len(jobs), CHUNK):
        some = slice(first, first + CHUNK)
        with transaction.atomic():
            leases.fence(lease)
            rows = apply_sql.tell_reasons(jobs[some].tolist(), which[some].tolist(), reasons, at=at)
            outbox.announce_many(
                [outbox.job_topic(number) for number, _, _ in rows]
                + [outbox.user_topic(user_id) for _, user_id, _ in rows]
                + [outbox.project_topic(project_id) for _, _, project_id in rows]
                + [outbox.QUEUES_TOPIC]
            )
        changed += len(rows)
    _expect(plan, snapshot=snapshot, lease=lease)
    return changed


def _expect(plan: Plan, *, snapshot: Snapshot, lease: HeldLease) -> None:
    """Keep the starts that jobs were promised, and forget those that are promised no more."""
    promised = {one.job_id: one.at_ms for one in plan.expected}
    pending = snapshot.pending
    shown = dict(zip(pending.id.tolist(), pending.promised_ms.tolist(), strict=True))
    stale = {number: 0 for number in pending.id[pending.promised_ms > 0].tolist() if number not in promised}
    due = {number: at for number, at in (promised | stale).items() if shown.get(number) != at}
    if due:
        with transaction.atomic():
            leases.fence(lease)
            numbers = apply_sql.expect_starts(due)
            outbox.announce_many([outbox.job_topic(number) for number in numbers])


# ------------------------------------------------------------------ starts


def _hold_seconds(fresh: Snapshot) -> dict[int, int]:
    """For how long each job's resources are set aside: its time limit, else its queue's, else the site's."""
    pending, queues = fresh.pending, fresh.queues
    most = dict(zip(queues.id.tolist(), queues.max_wall_seconds.tolist(), strict=True))
    rows = zip(
        pending.id.tolist(), pending.time_limit_seconds.tolist(), pending.queue_id.tolist(), strict=True
    )
    return {
        number: limit or most.get(queue_id, 0) or settings.LEDGER_OPEN_HOLD_SECONDS
        for number, limit, queue_id in rows
    }


def _lock(plan: Plan, cluster_id: int, applied_to: Rows) -> Locked:
    placements = [placement for start in plan.starts for placement in start.placements]
    return snapshots.load_for_apply(
        cluster_id=cluster_id,
        applied_to=applied_to,
        queue_ids=sorted({start.queue_id for start in plan.starts}),
        node_ids=sorted({placement.node_id for placement in placements}),
        device_ids=sorted({device for placement in placements for device in placement.device_ids}),
        project_ids=sorted({start.project_id for start in plan.starts}),
        job_ids=sorted(start.job_id for start in plan.starts),
    )


def _write(starts: Sequence[Start], writer: _Writer) -> tuple[list[Start], list[Refusal]]:
    """Write all, or find by halving those that a constraint refuses and write the others."""
    if not starts:
        return [], []
    try:
        with transaction.atomic():
            return _write_all(starts, writer)
    except IntegrityError as error:
        if len(starts) == 1:
            # The checks and the constraint disagree: a mistake of ours that the database has caught.
            log.error("start_refused_by_constraint", job=starts[0].job_id, error=str(error))
            return [], [Refusal(starts[0].job_id, REFUSED_BY_CONSTRAINT, _first_line(error))]
    middle = len(starts) // 2
    first, first_refused = _write(starts[:middle], writer)
    second, second_refused = _write(starts[middle:], writer)
    return first + second, first_refused + second_refused


def _write_all(starts: Sequence[Start], writer: _Writer) -> tuple[list[Start], list[Refusal]]:
    moved = apply_sql.schedule_jobs(starts, backend=writer.backend, cycle_id=writer.cycle_id, at=writer.at)
    numbers = {row.number for row in moved}
    refused = [
        Refusal(start.job_id, JOB_CHANGED, f"Job {start.job_id} is no longer queued as planned.")
        for start in starts
        if start.job_id not in numbers
    ]
    starts = [start for start in starts if start.job_id in numbers]
    if not starts:
        return [], refused
    attempts = {row.number: row.attempt_id for row in moved}
    names = {start.job_id: [writer.node_names[node] for node in start.node_ids] for start in starts}
    lines = ledger.holds(
        starts, moved,
        known=writer.books, seconds=writer.hold_seconds, model_of=writer.gpu_models, at=writer.at,
    )  # fmt: skip
    ask_together(
        apply_sql.insert_tasks(starts, attempts),
        apply_sql.insert_allocations(starts, attempts, at=writer.at),
        apply_sql.raise_node_counters(starts),
        apply_sql.raise_device_counters(starts),
        apply_sql.raise_quota_counters(
            starts, {row.number: row for row in moved}, writer.lines, writer.gpu_models
        ),
        *ledger.write(lines, writer.books, at=writer.at),
        apply_sql.insert_events(moved, nodes=names, cycle_id=writer.cycle_id, at=writer.at),
    )
    outbox.announce_many(
        [outbox.node_topic(node) for start in starts for node in start.node_ids]
        + [outbox.job_topic(row.number) for row in moved]
        + [outbox.user_topic(row.user_id) for row in moved]
        + [outbox.project_topic(row.project_id) for row in moved]
        + [outbox.CLUSTER_TOPIC, outbox.QUEUES_TOPIC]
    )
    return starts, refused


# ------------------------------------------------------------------ gangs that gather nodes


def apply_gatherings(
    plan: Plan, *, snapshot: Snapshot, lease: HeldLease, cycle_id: int | None, at: datetime
) -> None:
    """Keep nodes for gangs that begin to gather, and give them back for those whose time is up.

    A gang that has changed since the plan was made, or that somebody is changing at this moment, is left alone:
    the next cycle looks at it again. The plan holds victims by now, so it must not wait for anybody.
    """
    if not plan.reserves and not plan.given_back:
        return
    leases.fence(lease)
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    by_number = {one.job_id: one for one in plan.reserves}
    reserved = apply_sql.reserve_nodes(plan.reserves) if plan.reserves else []
    given = apply_sql.give_nodes_back(plan.given_back) if plan.given_back else []
    events: list[tuple[int, str, str, str]] = []
    for number, _, _, before in reserved:
        one = by_number[number]
        nodes = [names.get(node, str(node)) for node in one.node_ids]
        until = datetime.fromtimestamp(one.until_ms / 1000, tz=UTC)
        begins = "reserves nodes" if before == JobState.QUEUED else "reserves other nodes:"
        text = f"{begins} {', '.join(nodes)}, until {written(until)} at the latest"
        details = json.dumps({"nodes": nodes, "until": until.isoformat(), "cycle": cycle_id})
        events.append((number, "job.reserved", text[:300], details))
    for number, _, _ in given:
        text = "node assembly timed out: not all nodes became free"
        events.append((number, "job.queued", text, json.dumps({"cycle": cycle_id})))
    apply_sql.tell_gatherings(events, at=at)
    told = [row[:3] for row in reserved] + given
    outbox.announce_many(
        [outbox.job_topic(number) for number, _, _ in told]
        + [outbox.user_topic(user_id) for _, user_id, _ in told]
        + [outbox.project_topic(project_id) for _, _, project_id in told]
        + ([outbox.QUEUES_TOPIC, outbox.CLUSTER_TOPIC] if told else [])
    )


# ------------------------------------------------------------------ preemption

_STOPPABLE: Final = frozenset(
    {JobState.SCHEDULED, JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING, JobState.SUSPENDED}
)


def _disturb(
    plan: Plan, *, cycle_id: int | None, at: datetime
) -> tuple[list[Preempt], list[Resize], list[Refusal]]:
    """Stop victims and make others smaller: for one job all of it, or none."""
    judged = resizes.judge(plan.resizes)
    useless = judged.refused.keys() - {0}
    stopped, unstopped = _stop(
        [one for one in plan.preempts if one.for_job_id not in useless], cycle_id=cycle_id, at=at
    )
    judged = judged.without({one.job for one in unstopped})
    resizes.write(judged, cycle_id=cycle_id, at=at)
    return stopped, judged.able, [*unstopped, *judged.refused.values()]


def _stop(
    preempts: Sequence[Preempt], *, cycle_id: int | None, at: datetime
) -> tuple[list[Preempt], list[Refusal]]:
    if not preempts:
        return [], []
    rows, live = apply_sql.lock_for_preemption(
        [p.job_id for p in preempts] + [p.for_job_id for p in preempts if p.for_job_id],
        [p.attempt_id for p in preempts],
    )
    refused: dict[int, Refusal] = {}
    taints = apply_sql.taints_of({p.node_id for p in preempts if p.node_id})
    for preempt in preempts:
        if not preempt.for_job_id:
            continue
        waits, victim = rows.get(preempt.for_job_id), rows.get(preempt.job_id)
        if (
            waits is None
            or waits.state not in apply_sql.IN_LINE
            or waits.generation != preempt.for_generation
        ):
            why = f"Job {preempt.for_job_id} has changed: no job is stopped for it."
        elif victim is None or not _is_stoppable(preempt, rows, live):
            why = f"Job {preempt.job_id} was to be stopped and has changed: no job is stopped."
        else:
            continue
        refused.setdefault(preempt.for_job_id, Refusal(preempt.for_job_id, VICTIM_CHANGED, why))
    stopped = [
        preempt
        for preempt in preempts
        if (preempt.for_job_id and preempt.for_job_id not in refused)
        or (
            not preempt.for_job_id
            and (preempt.kind == "converge" or (preempt.node_id, *preempt.taint) in taints)
            and _is_stoppable(preempt, rows, live)
        )
    ]
    if stopped:
        epochs = {number: row.epoch for number, row in rows.items()}
        ended = [preempt for preempt in stopped if preempt.mode != "suspend"]
        if ended:
            apply_sql.stop_jobs(ended, epochs, at=at)
        suspension.ask([preempt for preempt in stopped if preempt.mode == "suspend"], epochs, at=at)
        apply_sql.tell_stopped(stopped, rows, cycle_id=cycle_id, at=at, taints=taints)
        told = [rows[preempt.job_id] for preempt in stopped]
        outbox.announce_many(
            [outbox.node_topic(node) for node in apply_sql.nodes_of_attempts(p.attempt_id for p in stopped)]
            + [outbox.job_topic(row.number) for row in told]
            + [outbox.user_topic(row.user_id) for row in told]
            + [outbox.project_topic(row.project_id) for row in told]
            + [outbox.CLUSTER_TOPIC, outbox.QUEUES_TOPIC]
        )
    return stopped, list(refused.values())


def _is_stoppable(
    preempt: Preempt, rows: Mapping[int, apply_sql.PreemptionRow], live: Collection[int]
) -> bool:
    victim = rows.get(preempt.job_id)
    if victim is None or preempt.attempt_id not in live:
        return False
    if preempt.mode == "suspend":
        return victim.state == JobState.RUNNING  # before that there is no process to stand still
    return victim.state in _STOPPABLE


def _why(conflict: Conflict) -> str:
    """What changed between the snapshot and the moment of writing."""
    facts = dict(conflict.facts)
    if "change" in facts:
        return f"The start was planned, but {facts['change']}."
    if "gate" in facts:
        node, gate = facts.get("node", facts.get("node_id")), str(facts["gate"])
        return f"It was to start on {node}, which {_SINCE.get(gate, f'{gate} turns away')} now."
    return sentence(conflict.reason, conflict.facts)


def _first_line(error: IntegrityError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


# ------------------------------------------------------------------ reasons


def _untold(
    plan: Plan, snapshot: Snapshot, told: Ints, reasons: Sequence[apply_sql.Told]
) -> tuple[Ints, Ints]:
    """The waiting jobs that do not show their reason yet, and which decision is theirs.

    A reason of another kind is always told. When only its numbers moved, the first in line are told
    and the others in turns: with 100,000 jobs waiting for the same GPUs, each start moves the numbers of all.
    """
    waiting = plan.waiting
    due = snapshots.reason_marks([(reason.code, reason.text) for reason in reasons])[waiting.decision]
    shown = told[np.searchsorted(snapshot.pending.id, waiting.job_id)]
    rows = np.flatnonzero(shown != due)
    if len(rows) > REWORDED_JOBS:
        turn = (snapshot.now_ms // 1000) % REWORDED_TURNS
        now = (
            ~snapshots.same_kind(shown[rows], due[rows])
            | (waiting.ahead_jobs[rows] < FIRST_IN_LINE)
            | (waiting.job_id[rows] % REWORDED_TURNS == turn)
        )
        rows = rows[now][:TOLD_JOBS]
    return waiting.job_id[rows], waiting.decision[rows]


def _told(decision: Decision) -> apply_sql.Told:
    return apply_sql.Told(
        code=decision.reason.value,
        category=CATEGORY[decision.reason].value,
        text=sentence(decision.reason, decision.facts),
        details=json.dumps(decision.details, sort_keys=True),
    )
