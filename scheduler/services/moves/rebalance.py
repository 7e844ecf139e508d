"""Rebalancing: single moves of running jobs after which jobs start that wait now, with what each move costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from infra.errors import MusterError
from scheduler.core.lifecycle import RestartPolicy
from scheduler.core.plan import Start
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.moved import MovedJob, plan_moved, waiting_again
from scheduler.models import Attempt, Cluster, Job, JobMove, MoveCause, Node
from scheduler.selectors import job_by_ref, node_by_ref
from scheduler.services.moves.fates import RUNS, Cost, cost_of, gpus_of, last_checkpoints, nodes_of
from scheduler.services.moves.places import moved_job
from scheduler.services.moves.verbs import migrate_job, terms_of
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.services.submission.fields import Inputs, read_integer
from scheduler.simulator.fragmentation import Fragmentation
from scheduler.state.load.snapshots import Loaded, load_snapshot

#: Running jobs that are tried: each is a plan of its own. Those that cost the least go first.
MOST_TRIED: Final = 16
#: Moves that are applied together.
MOST_APPLIED: Final = 50


@dataclass(frozen=True, slots=True)
class Proposal:
    """One move: what it costs, and which waiting jobs start at once after it."""

    job: Job
    leaves: str
    target: Node
    cost: Cost
    starts: tuple[Job, ...]
    #: The part of all GPUs that is idle and of no use to the usual requests; None where no GPU is asked for.
    fragmented_before: float | None = None
    fragmented_after: float | None = None

    @property
    def started_gpus(self) -> float:
        return sum(map(gpus_of, self.starts))

    @property
    def payback_seconds(self) -> float | None:
        """When the jobs that start have used as many GPU-seconds as the move cost; None without GPUs."""
        return self.cost.gpu_seconds / self.started_gpus if self.started_gpus else None


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one move that was to be applied; `refused` is why it was not begun."""

    job: int
    node: str
    refused: str = ""


def propose_moves(*, cluster: Cluster, by: User) -> list[Proposal]:
    """Moves of one running job each, the one that starts the most GPUs first. Changes nothing. Raises NotAllowed.

    Each is looked at by itself: after one was applied the others may no longer hold. Plans up to 17 times.
    """
    permissions.require(by, "operate")
    loaded = load_snapshot(cluster_id=cluster.pk)
    if not len(loaded.snapshot.pending):
        return []
    candidates = _candidates(cluster, loaded.snapshot)
    return leaving_out_failing(loaded, lambda left: _proposals(left, candidates))


def _proposals(loaded: Loaded, candidates: Sequence[tuple[Attempt, Node, Cost]]) -> list[Proposal]:
    policy = policy_for_backend(loaded.policy, loaded.backend)
    before = plan_moved(loaded.snapshot, policy, [], plugins=installed_plugins())
    now_start = {start.job_id for start in before.starts}
    found = []
    for attempt, node, cost in candidates:
        moved = moved_job(attempt.job, terms_of([node.name]))
        plan = plan_moved(loaded.snapshot, policy, [moved], plugins=installed_plugins())
        own = plan.start_of(attempt.job_id)
        more = [one.job_id for one in plan.starts if one.job_id not in now_start | {attempt.job_id}]
        if own is not None and more and now_start <= {one.job_id for one in plan.starts}:
            found.append(_proposal(loaded, attempt, node, cost, moved, own, more))
    return sorted(
        found, key=lambda one: (-one.started_gpus, -len(one.starts), one.cost.seconds, one.job.number)
    )


def _candidates(cluster: Cluster, snapshot: Snapshot) -> list[tuple[Attempt, Node, Cost]]:
    """Jobs on one node that can be moved, those first that cost the least."""
    running = set(snapshot.running.id[snapshot.running.stop_by_ms == 0].tolist())
    moving = set(JobMove.objects.filter(ended_at=None).values_list("job_id", flat=True))
    attempts = [
        attempt
        for attempt in Attempt.objects.all_live()
        .filter(job__queue__cluster=cluster, job__state__in=RUNS)
        .exclude(job__restart_policy=RestartPolicy.NEVER)
        .select_related("job__user", "job__project", "job__queue")
        if attempt.job.checkpoint and attempt.job_id in running - moving
    ]
    saved, held = last_checkpoints(attempt.job_id for attempt in attempts), nodes_of(attempts)
    now = timezone.now()
    found = [
        (attempt, held[attempt.pk][0], cost_of(attempt, saved.get(attempt.job_id), at=now, saves=True))
        for attempt in attempts
        if len(held.get(attempt.pk, ())) == 1
    ]
    found.sort(key=lambda one: (one[2].gpu_seconds, one[2].seconds, one[0].job_id))
    return found[:MOST_TRIED]


def _proposal(
    loaded: Loaded, attempt: Attempt, node: Node, cost: Cost, moved: MovedJob, own: Start, more: Sequence[int]
) -> Proposal:
    before, after = _fragmented(loaded, moved, own)
    jobs = Job.objects.filter(pk__in=list(more)).select_related("user", "project").order_by("number")
    return Proposal(
        job=attempt.job,
        leaves=node.name,
        target=Node.objects.get(pk=own.node_ids[0]),
        cost=cost,
        starts=tuple(jobs),
        fragmented_before=before,
        fragmented_after=after,
    )


def _fragmented(loaded: Loaded, moved: MovedJob, own: Start) -> tuple[float | None, float | None]:
    """The fragmented part of the GPUs before and after the move, before any other job starts."""
    snapshot = loaded.snapshot
    measure = Fragmentation(snapshot)
    if not measure.is_measured:
        return None, None
    empty = waiting_again(snapshot, loaded.policy, [moved], plugins=installed_plugins())
    devices = empty.devices.used_millis.copy()
    used = {name: getattr(empty.nodes, f"used_{name}").copy() for name in ("cpu_millis", "memory_mib")}
    for placement in own.placements:
        for device in placement.device_ids:
            devices[np.searchsorted(empty.devices.id, device)] += placement.gpu_millis
        node = int(np.searchsorted(empty.nodes.id, placement.node_id))
        used["cpu_millis"][node] += own.per_task.cpu_millis
        used["memory_mib"][node] += own.per_task.memory_mib
    now = {"cpu_millis": snapshot.nodes.used_cpu_millis, "memory_mib": snapshot.nodes.used_memory_mib}
    return measure.fragmented(snapshot.devices.used_millis, now), measure.fragmented(devices, used)


def apply_moves(*, payload: Mapping[str, Any], by: User) -> list[Applied]:
    """Begin the moves of `moves`, each a job and the node that it goes to; answers what became of each.

    Each is looked at again first, as any migration is. Raises NotAllowed and InvalidInput.
    """
    permissions.require(by, "operate")
    inputs = Inputs(payload)
    inputs.refuse_unknown(("moves", "reason"))
    reason = inputs.text("reason", most=200) or "rebalancing"
    wanted = inputs.listing("moves", most=MOST_APPLIED)
    for place, one in enumerate(wanted):
        if not isinstance(one, Mapping) or set(one) != {"job", "node"}:
            inputs.wrong(f"moves/{place}", "Must be an object with job and node.", code="not-an-object")
        elif not 0 < (read_integer(one["job"]) or 0) < 2**63:
            inputs.wrong(f"moves/{place}/job", "Must be the number of a job.", code="not-a-number")
    if not wanted and not inputs.problems:
        inputs.wrong("moves", "Required: the moves to apply.", code="required")
    inputs.finish("The moves cannot be applied")
    return [_apply(read_integer(one["job"]) or 0, str(one["node"])[:120], by, reason) for one in wanted]


def _apply(number: int, name: str, by: User, reason: str) -> Applied:
    try:
        job, node = job_by_ref(by, number), node_by_ref(by, name)
        migrate_job(job=job, by=by, target=node, reason=reason, cause=MoveCause.REBALANCE)
    except MusterError as error:
        return Applied(number, name, error.message)
    return Applied(number, name)
