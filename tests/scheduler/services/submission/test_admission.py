"""Admission refuses exactly what the planner could never start on a cluster that is idle and open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.shape import Shape
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.snapshot.snapshot import MUST, PACKS, ProjectColumns, Snapshot
from scheduler.core.whatif.explain import Hypothetical, preview, with_job
from scheduler.core.whatif.idle_cluster import IdleCluster, idle, open_request, open_shape
from scheduler.services.submission.admission import Asked, reasons_against
from scheduler.services.submission.submitter import Bound
from tests.support.builders import World
from tests.support.strategies import worlds, worlds_of_lines


def asked_by(snapshot: Snapshot, row: int, times: int) -> Asked:
    """What a pending job of a world asks for, with its amounts a few times as large."""
    pending, request = snapshot.pending, snapshot.classes[snapshot.pending.class_index[row]]
    pack = int(pending.pack[row])
    per_task = request.per_task
    return Asked(
        replace(
            request,
            per_task=replace(
                per_task, cpu_millis=per_task.cpu_millis * times, memory_mib=per_task.memory_mib * times
            ),
        ),
        Shape(
            tasks=int(pending.tasks[row]),
            nodes=int(pending.nodes[row]),
            tasks_per_node=int(pending.tasks_per_node[row]),
            most=int(pending.most_tasks[row]),
            pack=PACKS[pack % MUST],
            must=pack >= MUST,
        ),
    )


def emptied(snapshot: Snapshot, row: int) -> Snapshot:
    """The cluster idle and open, with its limits and the project of one pending job, and nothing in use of them."""
    cluster, quotas = idle(snapshot), snapshot.quotas
    return Snapshot.build(
        now_ms=snapshot.now_ms,
        nodes=cluster.nodes,
        devices=cluster.devices,
        pools=cluster.pools,
        queues=replace(
            snapshot.queues,
            paused=np.zeros(len(snapshot.queues), dtype=np.bool_),
            running_jobs=np.zeros(len(snapshot.queues), dtype=np.int64),
            partition_ids=((),) * len(snapshot.queues),
        ),
        projects=snapshot.projects,
        quotas=replace(quotas, used=np.zeros(len(quotas), dtype=np.int64)),
    )


def in_line(asked: Asked, snapshot: Snapshot, row: int) -> Hypothetical:
    request, shape = open_request(asked.request), open_shape(asked.shape)
    pending = snapshot.pending
    return Hypothetical(
        request=request,
        queue_id=int(pending.queue_id[row]),
        project_id=int(pending.project_id[row]),
        user_id=int(pending.user_id[row]),
        tasks=shape.tasks,
        nodes=shape.nodes,
        tasks_per_node=shape.tasks_per_node,
        most_tasks=shape.most,
        pack=PACKS.index(shape.pack) + MUST * shape.must,
    )


def bounds_of(snapshot: Snapshot, row: int) -> list[Bound]:
    """The lines that a job counts on, as admission reads them: each with the least of its bounds."""
    # ... `hard`, what may be borrowed on top of the nominal, and the nominal of an organization above all.
    quotas, pending = snapshot.quotas, snapshot.pending
    projects: ProjectColumns = snapshot.projects
    own = projects.quota_line_ids[projects.id.tolist().index(int(pending.project_id[row]))]
    found: list[Bound] = []
    for line, line_id in enumerate(quotas.id.tolist()):
        nominal, borrows = int(quotas.nominal[line]), int(quotas.borrowing_limit[line])
        most = [int(quotas.hard[line])] if quotas.hard[line] >= 0 else []
        if nominal >= 0 and borrows >= 0:
            most.append(nominal + borrows)
        elif nominal >= 0 and quotas.is_pool[line] and not quotas.parent_id[line]:
            most.append(nominal)
        mine = quotas.user_id[line] in (0, pending.user_id[row])
        counted = quotas.job_type[line] == 0  # the hypothetical job has no type
        if line_id in own and most and mine and counted and quotas.enforce[line]:
            found.append(
                Bound(
                    0,
                    quotas.resource[line],
                    min(most),
                    quotas.owner[line],
                    quotas.gpu_model[line],
                    "",
                    line_id,
                )
            )
    return found


#: What the planner says of a job that no end of another job lets start.
NEVER = {code for code in ReasonCode if CATEGORY[code] is ReasonCategory.FIX} | {ReasonCode.QUOTA_ZERO}


def check(world: World, times: int) -> None:
    snapshot = world.snapshot
    if not len(snapshot.nodes):
        return  # where no node has joined, nothing is refused, and the planner says that there is none
    cluster = IdleCluster(idle(snapshot))
    for row in range(len(snapshot.pending)):
        asked, there = asked_by(snapshot, row, times), emptied(snapshot, row)
        job = in_line(asked, snapshot, row)

        refused = reasons_against(asked, bounds_of(snapshot, row), cluster)

        with_it, job_id = with_job(there, job)
        plan = plan_cycle(with_it, Policy())
        told = None if plan.start_of(job_id) is not None else plan.decision_of(job_id)
        found = preview(there, Policy(), job)
        never = [decision for decision in found.blockers if decision.reason in NEVER]
        assert bool(refused) == bool(never) == (told is not None and told.reason in NEVER), (asked, told)
        # Of several amounts that no node has, the planner names the first and admission each.
        assert {decision.facts for decision in never} <= {decision.facts for decision in refused}, (
            asked,
            never,
            refused,
        )
        if not never:
            assert (
                told is None or told.reason is ReasonCode.WAITING_FOR_QUOTA
            )  # kept back for others, used or not


@given(worlds(), st.sampled_from([1, 1, 2, 4]))
def test_admission_refuses_what_the_planner_could_never_start(world: World, times: int) -> None:
    check(world, times)


@given(worlds_of_lines(), st.sampled_from([1, 2]))
def test_admission_refuses_what_no_limit_could_ever_hold(world: World, times: int) -> None:
    check(world, times)
