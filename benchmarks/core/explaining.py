"""Explaining one job, and whom to stop, on a full cluster with a long queue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.core.cycles import a_cluster
from benchmarks.registry import Figures, benchmark, median_cpu_ms
from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import context_after, explain, node_table
from scheduler.core.whatif.smallest_change import smallest_change

CLASSES = ((0, ()), (10, (0,)), (25, (0,)), (50, (0, 10, 25)), (75, (0, 10, 25, 50)))


def _full() -> Snapshot:
    return a_cluster(nodes=1000, pending=10_000, classes=50, busy=0.91, with_gpus_only=True)


@benchmark("explain_ms")
def explaining() -> Figures:
    """One job of 10,000 on 1,000 nodes, from the snapshot: plan, blockers, every node, the smallest change.

    The dearest of eight jobs of different requests.
    """
    snapshot, policy = _full(), Policy(name="priority")

    def everything(job_id: int) -> None:
        plan = plan_cycle(snapshot, policy)
        after = context_after(snapshot, policy, plan)
        explain(snapshot, policy, job_id, plan, after=after)
        node_table(snapshot, policy, job_id, plan, after=after)
        smallest_change(snapshot, policy, job_id, after, queue_ids=snapshot.queues.id.tolist())

    plan = plan_cycle(snapshot, policy)
    jobs = plan.waiting.job_id[:: max(len(plan.waiting) // 8, 1)][:8].tolist()
    yield "explain_ms", max(median_cpu_ms(lambda job=job: everything(job)) for job in jobs)


@benchmark("preempt_cycle_ms_10k_1000", "preempt_added_ms")
def preempting() -> Figures:
    """The same cycle with preemption on and off: jobs of five classes, 7,280 running, sixteen victims at most."""
    snapshot = _full()
    dice = np.random.default_rng(3)
    running = snapshot.running
    mixed = replace(
        snapshot,
        running=replace(
            running,
            priority=dice.choice([0, 10, 25, 50, 75], len(running)),
            started_ms=snapshot.now_ms - dice.integers(600_000, 36_000_000, len(running)),
        ),
        pending=replace(snapshot.pending, priority=dice.choice([0, 10, 25, 50, 75], len(snapshot.pending))),
    )
    off = Policy(name="priority")
    on = replace(off, preemption=PreemptionPolicy(enabled=True, classes=CLASSES))
    without = median_cpu_ms(lambda: plan_cycle(mixed, off))
    figure = median_cpu_ms(lambda: plan_cycle(mixed, on))
    yield "preempt_cycle_ms_10k_1000", figure
    yield "preempt_added_ms", figure - without
