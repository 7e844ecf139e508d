"""The cycle: plan_cycle, a snapshot in and a plan out, as a list of named steps."""

from __future__ import annotations

import numpy as np

from scheduler.core.cluster.budgets import demoted
from scheduler.core.columns import rows_of
from scheduler.core.cycle_state import CycleState
from scheduler.core.ordering.ordering import order_jobs, strict_queues
from scheduler.core.pending_headlines import explain_rows
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.preemption.elastic import grow
from scheduler.core.preemption.preemption import (
    awaited_rows,
    awaiting_decisions,
    choose_victims,
    hold_places,
)
from scheduler.core.preemption.suspension import before_them, resume, suspended_rows
from scheduler.core.preemption.taint_eviction import evictions
from scheduler.core.reasons.job_reasons import job_reasons
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.start_passes import start_in_order, try_start


def plan_cycle(snapshot: Snapshot, policy: Policy, plugins: Plugins = NO_PLUGINS) -> Plan:
    """Decide which pending jobs start and where, and why each other job waits.

    Idea: take the jobs in order, try each, and note why it waits if it does not start. The code differs in that
    jobs of one class (equal request, shape, queue, project) are tried until the first that does not fit: inside
    a cycle capacity and quota only shrink, so the others of its class would not fit either. Steps that disturb
    running jobs come last.
    """
    cycle = CycleState(snapshot, policy, plugins)
    exclude_ineligible(cycle)
    order_queues(cycle)
    start_preemptors(cycle)
    start_gathered_gangs(cycle)
    start_ahead_of_suspended(cycle)
    resume_suspended(cycle)
    start_pending(cycle)
    reserve_for_gangs(cycle)
    explain_pending(cycle)
    evict_from_tainted_nodes(cycle)
    select_victims(cycle)
    grow_elastic(cycle)
    return cycle.plan()


def exclude_ineligible(cycle: CycleState) -> None:
    """Note the jobs that their own row, queue or project stops: no node is asked about these."""
    for rows, decision in job_reasons(cycle.context.cluster):
        cycle.decisions.add(rows, decision)


def order_queues(cycle: CycleState) -> None:
    """Sort the pending jobs of all queues into one order, and find the queues where a waiting job stops the rest."""
    context = cycle.context
    cycle.order = order_jobs(context.cluster, cycle.policy, context.rules)
    cycle.strict = strict_queues(context.cluster, cycle.policy)
    cycle.considered = cycle.remaining = cycle.order[cycle.decisions.is_clear[cycle.order]]


def start_preemptors(cycle: CycleState) -> None:
    """Start the jobs for which victims were stopped, before all others; hold what is free of the nodes of the rest."""
    context = cycle.context
    awaited = awaited_rows(context.cluster, cycle.considered)
    left: list[int] = []
    for row in awaited.tolist():
        start = try_start(context, row, context.job_classes.of(row))
        if start is None:
            left.append(row)
        else:
            cycle.starts.append(start)
    if left:
        cycle.held = hold_places(context, np.array(left, dtype=np.int64))
    cycle.leave_out(awaited)


def start_gathered_gangs(cycle: CycleState) -> None:
    """Start the gangs that gather nodes, and keep the nodes of those that still gather."""
    if not cycle.gangs.is_active:
        return
    gathering = cycle.gangs.gathering_among(cycle.remaining)
    cycle.starts += start_in_order(cycle.context, gathering)
    cycle.leave_out(gathering)
    cycle.may_gather = cycle.remaining
    cycle.gangs.keep(cycle.starts, cycle.considered)


def start_ahead_of_suspended(cycle: CycleState) -> None:
    """Start the jobs that may have a suspended job wait longer, before any suspended job is resumed."""
    cycle.suspended = suspended_rows(cycle.context)
    if not len(cycle.suspended):
        return
    in_line = cycle.strict if cycle.policy.backfill == "none" else None
    above = before_them(
        cycle.context, cycle.policy.preemption, cycle.suspended, cycle.remaining, strict=in_line
    )
    cycle.leave_out(cycle.starter.run(above))


def resume_suspended(cycle: CycleState) -> None:
    """Resume suspended jobs whose CPUs are free."""
    if not len(cycle.suspended):
        return
    cycle.resumes, uses = resume(cycle.context, cycle.suspended)
    cycle.starter.occupy(uses)
    cycle.gangs.resumed = uses


def start_pending(cycle: CycleState) -> None:
    """Start the rest in order: whatever fits, or with backfill whatever delays no expected start ahead."""
    cycle.starter.run(cycle.remaining, gangs=cycle.gangs)
    cycle.starts += cycle.starter.starts
    cycle.gangs.promised = cycle.starter.reserved


def reserve_for_gangs(cycle: CycleState) -> None:
    """Let the next gangs in the order begin to gather nodes as these come free."""
    for row in cycle.may_gather.tolist() if cycle.gangs.is_active else ():
        cycle.gangs.offer(row, cycle.starts)


def explain_pending(cycle: CycleState) -> None:
    """Note the headline reason of every job that does not start, from what is left."""
    ids = np.array([start.job_id for start in cycle.starts], dtype=np.int64)
    cycle.waiting[rows_of(cycle.snapshot.pending.id, ids, what="pending job")] = False
    explain_rows(cycle.context, cycle.waiting, cycle.decisions, strict=cycle.strict, starter=cycle.starter)
    for row, decision in cycle.gangs.decisions:
        cycle.decisions.set_unless_barred(row, decision)


def evict_from_tainted_nodes(cycle: CycleState) -> None:
    """Stop the jobs that no longer tolerate a NoExecute taint of their node."""
    cycle.evicted = evictions(cycle.context.cluster, cycle.policy.preemption.grace_seconds)


def select_victims(cycle: CycleState) -> None:
    """Choose jobs to stop, suspend or shrink for jobs that only capacity keeps waiting.

    No victim is chosen for a job whose budget is spent, for a job whose victims have not ended yet, or for a gang
    that has just begun to gather nodes.
    """
    policy, rows = cycle.policy, cycle.considered
    excluded = np.isin(rows, [*cycle.held, *cycle.gathering_begun()]) | demoted(cycle.snapshot)[rows]
    cycle.preempted = choose_victims(
        cycle.context,
        rows[cycle.waiting[rows] & ~excluded],
        policy.preemption,
        strict=cycle.strict,
        leaving=cycle.evicted,
        resize_seconds=policy.resize_seconds,
    )
    cycle.resizes = cycle.preempted.resizes
    awaiting = awaiting_decisions(cycle.context.cluster, cycle.held, policy.preemption.grace_seconds)
    for row, decision in [*awaiting, *cycle.preempted.decisions]:
        cycle.decisions.add(np.array([row], dtype=np.int64), decision)
    cycle.decisions.add_facts(cycle.preempted.unsearched, search_ended=1)
    for unpressed, pressure in cycle.preempted.unpressed:
        cycle.decisions.add_facts(unpressed, **pressure.facts)


def grow_elastic(cycle: CycleState) -> None:
    """Grow an elastic job where nothing else happens in this cycle and no job waits for capacity."""
    rows = cycle.considered
    if not cycle.policy.resize_seconds or cycle.changes_anything():
        return
    if (cycle.waiting[rows] & ~cycle.decisions.wait_for_people(rows)).any():
        return
    cycle.resizes = grow(
        cycle.context, cycle.policy, lambda snapshot, policy: plan_cycle(snapshot, policy, cycle.plugins)
    )
