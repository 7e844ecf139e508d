"""The headline reason of every pending job that does not start, found for all classes of jobs at once."""

from __future__ import annotations

import numpy as np

from scheduler.core.columns import Bools, Ints, distinct
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.decision_table import DecisionTable
from scheduler.core.plan import decide
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.job_reasons import array_reasons, rows_by_value
from scheduler.core.start_passes import BackfillPass, OrderedPass


def explain_rows(
    context: CycleContext,
    waiting: Bools,
    decisions: DecisionTable,
    *,
    strict: Bools,
    starter: OrderedPass | BackfillPass,
) -> None:
    """Note for every waiting job the strongest of its reasons.

    The same as the first of `PendingReasons.of_class` for each class of jobs, but for all classes at once.
    """
    cluster, job_classes = context.cluster, context.job_classes
    rows = np.flatnonzero(waiting)
    of_class = _class_reasons(context, rows, decisions)
    decisions.add_numbers(rows, of_class.of_row[job_classes.of_row[rows]])
    for array_rows, decision in array_reasons(cluster, context.workspace):
        decisions.add(array_rows, decision)
    for poor, decision in context.workspace.budgets.blockers():
        decisions.add(poor[waiting[poor]], decision)
    # Only a strict order and backfill leave a job waiting that would fit, or a plugin filter that answers
    # differently now.
    clear = rows[decisions.is_clear[rows]]
    for queue_row in distinct(cluster.pending.queue[clear]).tolist():
        here = clear[cluster.pending.queue[clear] == queue_row]
        queue = cluster.snapshot.queues.name[queue_row]
        if strict[queue_row]:
            decisions.add(here, decide(ReasonCode.PRIORITY, queue=queue))
        elif (turns := starter.turn_reasons(here)) is not None:
            for some, facts in turns:
                decisions.add(some, decide(ReasonCode.PRIORITY, queue=queue, **facts))
            here = here[decisions.is_clear[here]]
        if not strict[queue_row] and len(here):
            decisions.add(here, decide(ReasonCode.NOT_EVALUATED_YET, queue=queue))


def _class_reasons(context: CycleContext, rows: Ints, decisions: DecisionTable) -> DecisionTable:
    """The strongest reason of every class of these jobs: of its placement class, its queue and its quota lines."""
    reasons, cluster, job_classes = PendingReasons(context), context.cluster, context.job_classes
    met = np.zeros(len(job_classes), dtype=np.bool_)
    met[job_classes.of_row[rows]] = True
    of_class = DecisionTable(len(job_classes), decisions)
    of_placement_class = np.full(int(job_classes.placement_class.max(initial=-1)) + 1, -1, dtype=np.int64)
    asked = job_classes.placement_class[met]
    for number in np.flatnonzero(met)[np.unique(asked, return_index=True)[1]].tolist():
        found = reasons.placement_reasons(job_classes[number])
        if found:
            of_placement_class[job_classes.placement_class[number]] = decisions.number(found[0])
    of_class.add_numbers(np.arange(len(job_classes)), of_placement_class[job_classes.placement_class])
    for queue_row in range(len(cluster.snapshot.queues)):
        full = reasons.queue(queue_row)
        if full is not None:
            of_class.add(np.flatnonzero(job_classes.queue_row == queue_row), full)
    for numbers, (line, need) in rows_by_value(*reasons.short_classes()):
        for row in np.unique(job_classes.payer[numbers]).tolist():
            decision = reasons.quota_line(line, need, row)
            if decision is not None:
                of_class.add(numbers[job_classes.payer[numbers] == row], decision)
    for number, decision in reasons.other_models():
        of_class.add(np.array([number], dtype=np.int64), decision)
    return of_class
