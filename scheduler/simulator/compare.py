"""Compare policies on one workload: open it, run each policy, and find the users who wait longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scheduler.core.backfill.backfill import limits_of
from scheduler.core.columns import Ints
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.policy import BACKFILL_ORDERS, BACKFILLS, PLACEMENTS, POLICIES, Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import ClusterWorkload, as_cluster
from scheduler.simulator.openb import is_pods, read_openb
from scheduler.simulator.pool_replay import replay
from scheduler.simulator.report import Interventions, Loser, PlayedSchedule, Report, summarise, who_lost
from scheduler.simulator.synthetic import gpu_mix, rigid_jobs
from scheduler.simulator.workload import Workload, WorkloadError, read_swf

#: Called with the name of the policy, the jobs that have ended, and the jobs in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one workload: its figures, and the schedule that they are of."""

    report: Report
    schedule: PlayedSchedule

    __hash__ = None  # type: ignore[assignment]


def open_workload(name: str, nodes: Path | None = None) -> Workload | ClusterWorkload:
    """A log or a table of openb pods by its path, or a synthetic one: `rigid[:seed[:jobs]]`, `gpu[:seed[:jobs]]`.

    `nodes` is the table of nodes of openb pods, where it is not beside them. Raises WorkloadError.
    """
    kind, *numbers = name.split(":")
    if kind in {"rigid", "gpu"} and len(numbers) <= 2 and all(number.isdigit() for number in numbers):
        seed, jobs = [*map(int, numbers), *([1, 500][len(numbers) :])]
        return rigid_jobs(seed, jobs=jobs) if kind == "rigid" else gpu_mix(seed, jobs=jobs)
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(
            f"there is no file {name}; a workload of our own is rigid:SEED:JOBS or gpu:SEED:JOBS"
        )
    return read_openb(path, nodes) if is_pods(path) else read_swf(path)


#: Three bands of priority, from 0, 34 and 67: each may preempt the lower ones.
PREEMPT: Final = PreemptionPolicy(enabled=True, classes=((0, ()), (34, (0,)), (67, (0, 34))))


def policy_of(words: str) -> Policy:
    """`fifo+easy`, `sjf`, `fifo+easy+shortest`, `priority+conservative+spread`: a policy in words."""
    given: dict[str, Any] = {}
    for word in words.split("+"):
        if word == "preempt":
            given["preemption"] = PREEMPT
            continue
        for part, known in (
            ("name", POLICIES), ("backfill", BACKFILLS), ("placement", PLACEMENTS),
            ("backfill_order", BACKFILL_ORDERS),
        ):  # fmt: skip
            if word in known:
                given[part] = word
                break
        else:
            every = ", ".join((*POLICIES, *BACKFILLS, *PLACEMENTS, *BACKFILL_ORDERS, "preempt"))
            raise ValueError(f"{word!r} is no part of a policy; there are {every}")
    return Policy(**given)


#: Backfill modes that one pool replays exactly as the planner; deadlines and earlier expected starts need nodes.
_POOLED: Final = ("none", "easy", "conservative")


def _fits_pool(policy: Policy) -> bool:
    """Whether a pool of processors can follow the policy: all that it sets beside backfill concerns nodes."""
    same = policy == replace(
        Policy(), backfill=policy.backfill, backfill_order=policy.backfill_order,
        backfill_promises=policy.backfill_promises, backfill_scan=policy.backfill_scan,
        placement=policy.placement, weights=policy.weights, packing=policy.packing, tenant=policy.tenant,
        factors=policy.factors, age_cap_seconds=policy.age_cap_seconds, shares=policy.shares,
        assemblies=policy.assemblies, resize_seconds=policy.resize_seconds,
        preemption=replace(policy.preemption, enabled=False),
    )  # fmt: skip
    return same and policy.backfill in _POOLED


def run(
    workload: Workload | ClusterWorkload,
    name: str,
    policy: Policy,
    *,
    plugins: Plugins = NO_PLUGINS,
    progress: Progress = lambda name, ended, jobs: None,
) -> Result:
    """Simulate a workload under a policy. A log in order of arrival goes through the fast replay of one pool."""
    if isinstance(workload, Workload) and _fits_pool(policy):
        schedule = _replayed(workload, policy, lambda ended: progress(name, ended, len(workload.jobs)))
        return Result(summarise(name, schedule), schedule)
    cluster = as_cluster(workload) if isinstance(workload, Workload) else workload
    jobs = len(cluster.snapshot.pending)
    outcome = simulate(cluster, policy, plugins=plugins, progress=lambda ended: progress(name, ended, jobs))
    schedule = replace(
        _schedule_of(cluster, outcome.started_ms),
        ended_ms=outcome.ended_ms,
        begin_ms=cluster.snapshot.now_ms,
        busy_before=outcome.busy_before,
    )
    counted = Interventions(
        outcome.idle_while_waiting_percent,
        outcome.fragmentation_percent,
        outcome.preemptions,
        outcome.lost_ms / 3_600_000,
        outcome.suspensions,
        outcome.resizes,
    )
    return Result(summarise(name, schedule, counted), schedule)


def _replayed(workload: Workload, policy: Policy, progress: Callable[[int], None]) -> PlayedSchedule:
    jobs = workload.jobs
    started_ms = replay(workload, limits_of(policy), progress=progress).started_ms
    return PlayedSchedule(
        jobs.submitted_ms, started_ms, jobs.run_ms, jobs.processors, workload.processors, jobs.user_id
    )


def _schedule_of(workload: ClusterWorkload, started_ms: Ints) -> PlayedSchedule:
    pending = workload.snapshot.pending
    return PlayedSchedule(
        pending.submitted_ms, started_ms, workload.run_ms, workload.amounts, workload.capacity,
        pending.user_id, workload.users,
    )  # fmt: skip


def as_it_was(workload: ClusterWorkload) -> Result:
    """The schedule that the cluster really had, to compare with. Raises ValueError where it is not known."""
    if workload.started_ms is None:
        raise ValueError(f"it is not known how {workload.name} went")
    schedule = replace(_schedule_of(workload, workload.started_ms), ended_ms=workload.ended_ms)
    return Result(summarise("as it was", schedule), schedule)


def losers(first: Result, second: Result) -> tuple[Loser, ...]:
    """The users who wait longer under the second result, with their names where these are known."""
    one, other = first.schedule, second.schedule
    found = who_lost(one.started_ms, other.started_ms, one.submitted_ms, one.user_id)
    return tuple(replace(user, name=one.users.get(user.user_id, f"user {user.user_id}")) for user in found)
