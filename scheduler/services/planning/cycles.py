"""The conductor: lease, load, plan, apply, record, announce."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import Error, transaction

from scheduler import outbox
from scheduler.backends.registry import UnknownBackend, capabilities_of
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.plugins import Plugin, tell_scheduled
from scheduler.core.policy import Policy
from scheduler.models import Cluster
from scheduler.state.apply import plans, resizes, suspension
from scheduler.state.apply.plans import Applied, Refusal
from scheduler.state.lease import leases
from scheduler.state.lease.lease_holder import new_holder, retire
from scheduler.state.lease.leases import HeldLease, LeaseLost
from scheduler.state.load import snapshots
from scheduler.state.records import recordings

log = structlog.get_logger(__name__)

PLUGIN_GROUP: Final = "muster.plugins"
#: A refusal means the world moved while we thought: look again at once, but not for ever.
MAX_ROUNDS: Final = 3
#: How long a cycle that was asked for waits for the one before it to end.
PATIENCE_SECONDS: Final = 2.0
_NAP_SECONDS: Final = 0.01
LONGEST_REST_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one call of the planner did."""

    cluster_id: int
    #: False: another planner has the lease, and sees what we would have seen.
    planned: bool = False
    started: int = 0
    refused: tuple[Refusal, ...] = ()
    #: Running jobs that were told to end for others.
    stopped: int = 0
    waiting: int = 0
    #: The recording of the last round; None when nothing new was decided.
    cycle_id: int | None = None
    rounds: int = 0
    load_us: int = 0
    plan_us: int = 0
    apply_us: int = 0
    #: The jobs that were started, by number.
    started_jobs: tuple[int, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "planned": self.planned,
            "started": self.started,
            "started_jobs": list(self.started_jobs),
            "refused": [refusal.as_dict() for refusal in self.refused],
            "stopped": self.stopped,
            "waiting": self.waiting,
            "cycle": self.cycle_id,
            "rounds": self.rounds,
            "load_us": self.load_us,
            "plan_us": self.plan_us,
            "apply_us": self.apply_us,
        }


def run_cycle(
    *, cluster_id: int, trigger: str, holder: str | None = None, patience_seconds: float = PATIENCE_SECONDS
) -> CycleResult:
    """Plan one cluster once, and again at once while starts are refused.

    Only one planner works on a cluster; a second waits up to `patience_seconds` for it to end, so that a
    change the first one did not see any more is planned now and not at the next tick of the clock.
    """
    own = None if holder else new_holder()
    try:
        return _plan_rounds(cluster_id, trigger, holder or own or "", patience_seconds)
    except Error:
        # The database may have been killed: whether it still has our lease is not known, and nobody uses it.
        if own:
            retire(own)
        raise


def _plan_rounds(cluster_id: int, trigger: str, holder: str, patience_seconds: float) -> CycleResult:
    lease = _take_lease(cluster_id, holder, patience_seconds)
    began = time.monotonic()
    result = CycleResult(cluster_id)
    if lease is None:
        return result
    try:
        while result.rounds < MAX_ROUNDS:
            outbox.planner_is_awake(cluster_id)
            lease, this_round = _round(lease, cluster_id, trigger)
            result = _joined(result, this_round)
            if not this_round.refused:
                break
    except LeaseLost as lost:
        log.warning("lease_lost", scope=lost.args[0], cluster=cluster_id)
    finally:
        leases.release(lease)
        ended = time.monotonic()
        _rested_at[cluster_id] = ended + min(ended - began, LONGEST_REST_SECONDS)
    return result


def rest(cluster_id: int) -> None:
    """Wait as long as this process's last cycle of this cluster took, from its end.

    Under a storm of changes planning takes at most half of the time, and each cycle sees more of them at
    once; after a pause nobody waits.
    """
    time.sleep(max(0.0, _rested_at.get(cluster_id, 0.0) - time.monotonic()))


_rested_at: dict[int, float] = {}


def _round(lease: HeldLease, cluster_id: int, trigger: str) -> tuple[HeldLease, CycleResult]:
    began, began_at = time.perf_counter_ns(), datetime.now(UTC)
    loaded = snapshots.load_snapshot(cluster_id=cluster_id)
    snapshot, policy = loaded.snapshot, able(loaded.policy, loaded.backend)
    read = time.perf_counter_ns()

    plan = plan_cycle(snapshot, policy, plugins=installed_plugins())
    thought = time.perf_counter_ns()

    recording = recordings.encode(snapshot, policy, plan, cluster_id=cluster_id)
    cycle_id = recordings.next_id() if recording else None
    lease = _still_ours(lease)
    writing = time.perf_counter_ns()
    at = datetime.now(UTC)
    suspension.apply_resumes(plan.resumes, lease=lease, at=at)
    with transaction.atomic():
        applied = plans.apply_starts(
            plan, cluster_id=cluster_id, backend=loaded.backend, policy=policy, lease=lease,
            cycle_id=cycle_id, at=at, plugins=installed_plugins(),
        )  # fmt: skip
        plans.apply_gatherings(plan, snapshot=snapshot, lease=lease, cycle_id=cycle_id, at=at)
        result = CycleResult(
            cluster_id=cluster_id,
            planned=True,
            started=len(applied.started),
            refused=applied.refused,
            stopped=len(applied.stopped),
            waiting=len(plan.waiting),
            cycle_id=cycle_id,
            rounds=1,
            load_us=(read - began) // 1000,
            plan_us=(thought - read) // 1000,
            apply_us=(time.perf_counter_ns() - writing) // 1000,
            started_jobs=tuple(start.job_id for start in applied.started),
        )
        if recording and cycle_id:
            recordings.record(
                recording, cycle_id=cycle_id, cluster_id=cluster_id, fencing_token=lease.token,
                trigger=trigger, started_at=began_at, load_us=result.load_us, plan_us=result.plan_us,
                apply_us=result.apply_us, pending_count=len(snapshot.pending),
                started_count=result.started, refused=[refusal.as_dict() for refusal in applied.refused],
            )  # fmt: skip
    resizes.give_back(applied.resized, at=at)
    _tell_plugins(policy, applied)
    plans.tell_waiting(plan, snapshot=snapshot, told=loaded.told, lease=lease, at=at)
    log.debug("cycle", trigger=trigger, **result.as_dict())
    return lease, result


def able(policy: Policy, backend: str) -> Policy:
    """The policy as the backend can carry it out: where jobs cannot stand still, they are requeued, and it is said."""
    if policy.preemption.mode != "suspend":
        return policy
    try:
        why = "" if capabilities_of(backend).suspends else f"the backend {backend} cannot suspend jobs"
    except UnknownBackend:
        why = f"the backend {backend} is not installed"
    return replace(policy, preemption=replace(policy.preemption, cannot_suspend=why))


def plan_all_clusters(*, trigger: str) -> list[CycleResult]:
    """One cycle for every cluster that nobody plans at this moment; one that fails holds up no other."""
    results = []
    for cluster_id in Cluster.objects.order_by("id").values_list("id", flat=True):
        try:
            results.append(run_cycle(cluster_id=cluster_id, trigger=trigger, patience_seconds=0))
        except Exception:
            log.exception("cycle_failed", cluster=cluster_id)
    return results


@cache
def installed_plugins() -> dict[str, Plugin]:
    """Every plugin that a package on this machine offers, by name; the policy says which are used.

    An entry point may name an object or a class that makes one without arguments.
    """
    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=PLUGIN_GROUP), key=lambda entry: entry.name):
        offered = entry.load()
        found[entry.name] = offered() if isinstance(offered, type) else offered
    return found


def _take_lease(cluster_id: int, holder: str, patience_seconds: float) -> HeldLease | None:
    scope, until = leases.cluster_scope(cluster_id), time.monotonic() + patience_seconds
    while True:
        lease = leases.acquire(scope, holder=holder, seconds=settings.MUSTER_LEASE_SECONDS)
        if lease is None and leases.end_if_gone(scope):
            log.info("lease_of_a_dead_planner_ended", scope=scope)
            continue
        if lease is not None or time.monotonic() >= until:
            return lease
        time.sleep(_NAP_SECONDS)


def _still_ours(lease: HeldLease) -> HeldLease:
    """The lease with most of its time ahead: a long thought must not end in the middle of a write."""
    if lease.trusted_seconds > settings.MUSTER_LEASE_SECONDS / 2:
        return lease
    return leases.renew(lease, seconds=settings.MUSTER_LEASE_SECONDS)


def _tell_plugins(policy: Policy, applied: Applied) -> None:
    """An outside plugin that fails when told has no say in what was decided."""
    try:
        tell_scheduled([installed_plugins()[name] for name in policy.plugins], applied.started)
    except Exception:
        log.exception("plugin_failed", plugins=policy.plugins)


def _joined(before: CycleResult, this: CycleResult) -> CycleResult:
    """Several rounds as one result: what was started adds up, the rest is the last round's."""
    return replace(
        this,
        started=before.started + this.started,
        stopped=before.stopped + this.stopped,
        started_jobs=before.started_jobs + this.started_jobs,
        rounds=before.rounds + 1,
        cycle_id=this.cycle_id or before.cycle_id,
    )
