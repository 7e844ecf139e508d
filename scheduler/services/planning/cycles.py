"""One planning cycle of a cluster: lease, load, plan, ask providers, apply, record, announce."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

import numpy as np
import structlog
from django.conf import settings
from django.db import Error, transaction

from scheduler.backends.registry import UnknownBackend, capabilities_of
from scheduler.core.columns import Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.ordering.choice import choose, in_force, without_rules
from scheduler.core.placement.plugins import BrokenPlugin, Plugin, PluginFailed, tell_scheduled
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.services.accounting import metric_counts
from scheduler.services.accounting.provider_starts import DecidedPlan, decided_by_providers
from scheduler.services.planning.residents import resident_of, say_memory
from scheduler.state.apply import (
    apply_plan,
    apply_resizes,
    apply_suspension,
    expected_starts,
    pending_reasons,
    policy_choices,
)
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_plan import Applied
from scheduler.state.apply.refusals import Refusal
from scheduler.state.lease import leases
from scheduler.state.lease.lease_holder import new_holder, retire
from scheduler.state.lease.leases import HeldLease, LeaseLost
from scheduler.state.load.resident.folded import Folded
from scheduler.state.load.snapshots import Loaded
from scheduler.state.records import policy_faults, recordings
from scheduler.state.records.recordings import NewRecording

log = structlog.get_logger(__name__)

PLUGIN_GROUP: Final = "muster.plugins"
#: After a refusal the cluster is planned again at once, on fresh rows; this many rounds at most.
MAX_ROUNDS: Final = 3
#: How long a cycle waits for the one before it to end.
PATIENCE_SECONDS: Final = 2.0
LEASE_RETRY_SECONDS: Final = 0.01
#: Longest rest between two cycles of a cluster.
MAX_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one call of the planner did."""

    cluster_id: int
    #: False: another planner has the lease, and plans the same changes.
    planned: bool = False
    started: int = 0
    refused: tuple[Refusal, ...] = ()
    #: Running jobs that were asked to end, or to be suspended, for others.
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
    """Plan one cluster once, and again at once while decisions are refused.

    Only one planner works on a cluster; a second waits up to `patience_seconds` for it to end, so that changes
    which the first did not see are planned now and not at the next tick of the clock.
    """
    own = None if holder else new_holder()
    try:
        return _plan_until_applied(cluster_id, trigger, holder or own or "", patience_seconds)
    except Error:
        # The database may have been killed: it may still have this lease, under a holder that nothing uses again.
        if own:
            retire(own)
        raise


def _plan_until_applied(cluster_id: int, trigger: str, holder: str, patience_seconds: float) -> CycleResult:
    lease = _take_lease(cluster_id, holder, patience_seconds)
    began = time.monotonic()
    result = CycleResult(cluster_id)
    if lease is None:
        return result
    try:
        out_of_use: set[str] = set()
        while result.rounds < MAX_ROUNDS:
            try:
                lease, this_round = plan_once(lease, cluster_id, trigger)
            except PluginFailed as failed:
                if failed.name in out_of_use:
                    raise
                out_of_use.add(failed.name)
                policy_faults.put_out_of_use(cluster_id, failed.name, failed.reason)
                continue
            result = _joined(result, this_round)
            if not this_round.refused:
                break
    except LeaseLost as lost:
        resident_of(cluster_id).forget()
        log.warning("lease_lost", scope=lost.args[0], cluster=cluster_id)
    except BaseException:
        resident_of(cluster_id).forget()
        raise
    finally:
        leases.release(lease)
        ended = time.monotonic()
        _next_cycle_at[cluster_id] = ended + min(ended - began, MAX_PAUSE_SECONDS)
    return result


def next_cycle_at(cluster_id: int) -> float:
    """When this process may plan a cluster again, on the monotonic clock: it rests for as long as a cycle took.

    In a storm of changes planning then takes at most half of the time, and each cycle sees more changes at once.
    """
    return _next_cycle_at.get(cluster_id, 0.0)


#: By cluster, on the monotonic clock.
_next_cycle_at: dict[int, float] = {}


def forget_rests() -> None:
    """Let each cluster be planned at once: for tests, whose clusters are gone a moment later."""
    _next_cycle_at.clear()


def plan_once(lease: HeldLease, cluster_id: int, trigger: str) -> tuple[HeldLease, CycleResult]:
    """One round: load, plan, apply, record; answers the lease, which may have been renewed, and what was done."""
    times, resident = _Times(), resident_of(cluster_id)
    found = resident.load(lease.token)
    loaded, folded = found.loaded, found.folded
    snapshot, policy = loaded.snapshot, policy_for_backend(loaded.policy, loaded.backend)
    times.end_of("load")
    plan, policy, followed = _plan(loaded, policy)
    times.end_of("plan")
    new_choice = policy_choices.is_new(snapshot, policy)
    recording = recordings.encode(snapshot, policy, plan, cluster_id=cluster_id, always=new_choice)
    decided = decided_by_providers(plan, snapshot)
    times.end_of("providers")
    lease = _renewed_if_old(lease)
    context = ApplyContext(
        cluster_id=cluster_id, backend=loaded.backend, snapshot=snapshot, policy=policy, lease=lease,
        at=datetime.now(UTC), cycle_id=recordings.next_id() if recording else None,
        plugins=installed_plugins(), providers=decided.providers, quota_starts=decided.starts,
    )  # fmt: skip
    applied, result = _apply(decided, context, recording, trigger, times, folded, followed)
    _notify_plugins(policy, applied)
    metric_counts.add_by_queue(
        metric_counts.BACKFILLED,
        [start.queue_id for start in applied.started if start.job_id in plan.backfilled],
    )
    reasons = pending_reasons.write_pending_reasons(
        folded.unfolded(plan), pending_ids=folded.ids, reported=folded.marks, now_ms=snapshot.now_ms,
        lease=lease, at=context.at,
    )  # fmt: skip
    resident.note("reason_mark", reasons.numbers, reasons.marks)
    expected = expected_starts.write_expected_starts(plan, snapshot=snapshot, lease=lease)
    resident.note("promised_ms", *_columns_of(expected))
    say_memory(cluster_id)
    log.debug("cycle", trigger=trigger, **result.as_dict())
    return lease, result


def _plan(loaded: Loaded, policy: Policy) -> tuple[Plan, Policy, Sequence[Mapping[str, Any]]]:
    """The plan by this policy, and the versions of profiles that were followed; without a rule that cannot be followed,
    by the default policy where it cannot be followed itself; operators then see it.

    Raises PluginFailed, and whatever planning by the default policy raises.
    """
    cluster_id, problem = loaded.cluster_id, loaded.profile_problem
    policy_faults.rules_are_gone(cluster_id, loaded.rules_gone)
    set_aside = dict(loaded.rule_problems)
    while not problem:
        try:
            plan = plan_cycle(loaded.snapshot, policy, plugins=installed_plugins())
        except PluginFailed:
            raise
        except Exception as error:
            log.exception("policy_failed", cluster=cluster_id)
            why = f"planning raised {type(error).__name__}: {error}"
            rules = {(one.profile, one.rule) for one in in_force(policy) if one.rule}
            set_aside |= {policy_faults.rule_label(rule, profile): why for profile, rule in rules}
            policy = choose(loaded.snapshot, without_rules(policy, rules))
            problem = "" if rules else why
        else:
            for rule, why in set_aside.items():
                policy_faults.set_rule_aside(cluster_id, rule, why)
            if loaded.profile_was_out:
                policy_faults.profile_is_well(cluster_id)
            return plan, policy, loaded.profiles
    policy = Policy()
    plan = plan_cycle(loaded.snapshot, policy)
    policy_faults.note_profile(cluster_id, problem)
    return plan, policy, ()


def _columns_of(values: Mapping[int, int]) -> tuple[Ints, Ints]:
    return np.array([*values], dtype=np.int64), np.array([*values.values()], dtype=np.int64)


def _apply(
    decided: DecidedPlan,
    context: ApplyContext,
    recording: NewRecording | None,
    trigger: str,
    times: _Times,
    folded: Folded,
    profiles: Sequence[Mapping[str, Any]],
) -> tuple[Applied, CycleResult]:
    """Write the plan and its recording in one transaction; resumed jobs before it, released tasks after it."""
    plan = decided.plan
    times.restart()
    apply_suspension.apply_resumes(plan.resumes, lease=context.lease, at=context.at)
    with transaction.atomic():
        policy_choices.write(context)
        applied = apply_plan.apply_plan(plan, context)
        applied = replace(applied, refused=(*decided.refused, *applied.refused))
        times.end_of("apply")
        result = CycleResult(
            cluster_id=context.cluster_id,
            planned=True,
            started=len(applied.started),
            refused=applied.refused,
            stopped=len(applied.stopped),
            waiting=len(plan.waiting) + len(folded.folded_ids),
            cycle_id=context.cycle_id,
            rounds=1,
            load_us=times.microseconds("load"),
            plan_us=times.microseconds("plan"),
            apply_us=times.microseconds("apply"),
            started_jobs=tuple(start.job_id for start in applied.started),
        )
        if recording and context.cycle_id:
            recordings.record(
                recording, cycle_id=context.cycle_id, cluster_id=context.cluster_id,
                fencing_token=context.lease.token, trigger=trigger, started_at=times.began_at,
                load_us=result.load_us, plan_us=result.plan_us, apply_us=result.apply_us,
                pending_count=len(folded.ids), started_count=result.started,
                refused=[refusal.as_dict() for refusal in applied.refused],
                rules=[one._asdict() for one in in_force(context.policy)], profiles=profiles,
            )  # fmt: skip
    if recording and context.cycle_id:
        recordings.keep_base(recording, context.cluster_id, context.cycle_id)
    apply_resizes.release_unfetched_tasks(applied.resized, at=context.at)
    return applied, result


class _Times:
    """How long each step of a round took."""

    def __init__(self) -> None:
        self.began_at = datetime.now(UTC)
        self._ns: dict[str, int] = {}
        self._step_began = time.perf_counter_ns()

    def restart(self) -> None:
        """Count what was done since the last step in no step."""
        self._step_began = time.perf_counter_ns()

    def end_of(self, step: str) -> None:
        now = time.perf_counter_ns()
        self._ns[step] = now - self._step_began
        self._step_began = now

    def microseconds(self, step: str) -> int:
        return self._ns[step] // 1000


def policy_for_backend(policy: Policy, backend: str) -> Policy:
    """The policy as this backend can carry it out: where it cannot suspend, jobs are requeued and say why."""
    if policy.preemption.mode != "suspend":
        return policy
    try:
        why = "" if capabilities_of(backend).suspends else f"the backend {backend} cannot suspend jobs"
    except UnknownBackend:
        why = f"the backend {backend} is not installed"
    return replace(policy, preemption=replace(policy.preemption, cannot_suspend=why))


@cache
def installed_plugins() -> dict[str, Plugin]:
    """Every plugin that an installed package offers, by name; the policy says which are used.

    An entry point may name an object or a class that makes one without arguments. One that cannot be loaded harms
    only policies that name it.
    """
    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=PLUGIN_GROUP), key=lambda entry: entry.name):
        try:
            offered = entry.load()
            found[entry.name] = offered() if isinstance(offered, type) else offered
        except Exception as error:
            log.exception("plugin_not_loaded", plugin=entry.name)
            reason = f"could not be loaded: {type(error).__name__}: {error}"
            found[entry.name] = BrokenPlugin(entry.name, reason)
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
        time.sleep(LEASE_RETRY_SECONDS)


def _renewed_if_old(lease: HeldLease) -> HeldLease:
    """The lease with at least half of its time ahead: it must not run out in the middle of a write."""
    if lease.trusted_seconds > settings.MUSTER_LEASE_SECONDS / 2:
        return lease
    return leases.renew(lease, seconds=settings.MUSTER_LEASE_SECONDS)


def _notify_plugins(policy: Policy, applied: Applied) -> None:
    """Pass the starts to outside plugins; one that fails changes nothing of what was decided."""
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
