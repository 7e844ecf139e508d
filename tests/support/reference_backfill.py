"""The obvious check of backfill: let time pass by hand, and see that promises are kept and gaps are filled."""

from __future__ import annotations

from typing import Any

from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import JobGate, Snapshot
from tests.support.reference_planner import State, order_key

NEVER = 1 << 62


def check(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Assert of an EASY plan that its one promise is the earliest possible, is kept, and stops nobody needlessly."""
    state = State(snapshot)
    jobs = dict(state.jobs)
    starts = {start.job_id: start for start in plan.starts}
    order = [int(job["id"]) for job in sorted(jobs.values(), key=lambda job: order_key(state, job, policy))]
    assert len(plan.expected) <= 1

    # 1. In order until the first that nothing but room keeps waiting: everybody before it is tried as ever.
    at = 0
    promised: dict[str, Any] | None = None
    for at, number in enumerate(order):
        job = jobs[number]
        if number in starts:
            state.hold(starts[number])
            continue
        if not state.is_open(job) or not state.has_limits_left(job):
            continue
        assert not state.can_place(job), "a job ahead of every promise waits though it fits"
        begun = [starts[n] for n in order[:at] if n in starts]
        moment = _earliest(snapshot, jobs, begun, job)
        if moment is not None:
            promised = job
            break
    if promised is None:
        assert plan.expected == ()
        return
    if moment == NEVER:
        assert plan.expected == ()  # it waits for something whose end nobody knows
    else:
        assert [(e.job_id, e.at_ms) for e in plan.expected] == [(promised["id"], moment)]

    # 2. All that started later: over by then, or beside what was promised.
    later = [number for number in order[at + 1 :] if number in starts]
    kept = _at(snapshot, jobs, list(plan.starts), moment, without=promised)
    assert kept.can_place(promised), "a promise is broken"

    # 3. Whoever waits, or is smaller than it might be, and would fit now would still be there.
    for start in (one for one in plan.starts if one.job_id in later):
        state.hold(start, largest=_end(snapshot, jobs[start.job_id]) <= moment)
    for number in order[at + 1 :]:
        job = jobs[number]
        if number in starts or not state.is_open(job) or not state.has_limits_left(job):
            continue
        if state.can_place(job):
            assert _end(snapshot, job) > moment, "a job that would be over in time waits"


def _end(snapshot: Snapshot, job: dict[str, Any]) -> int:
    queue = State(snapshot).queues[int(job["queue_id"])]
    limit = int(job["time_limit_seconds"]) or int(queue["max_wall_seconds"])
    return snapshot.now_ms + limit * 1000 if limit else NEVER


def _at(
    snapshot: Snapshot,
    jobs: dict[int, dict[str, Any]],
    starts: list[Start],
    moment: int,
    *,
    without: dict[str, Any],
) -> State:
    """The cluster at a later moment: these have started, and what should have ended by then has."""
    state = State(snapshot)
    for start in starts:
        job = jobs[start.job_id]
        if _end(snapshot, job) > moment:
            request = state.request(job)
            for placement in start.placements:
                domain = placement.numa if request.one_domain else None
                state._begin(state.nodes[placement.node_id], job)
                state._move(state.nodes[placement.node_id], list(placement.device_ids), request, 1, domain)
    ends = {
        int(number): int(end) or NEVER
        for number, end in zip(snapshot.running.id.tolist(), snapshot.running.expected_end_ms.tolist())
    }
    for row in range(len(snapshot.allocations)):
        held = snapshot.allocations
        if max(ends[int(held.job_id[row])], snapshot.now_ms + 1) <= moment:
            node = state.nodes[int(held.node_id[row])]
            for name in ("cpu_millis", "memory_mib", "storage_mib"):
                node[f"used_{name}"] -= int(getattr(held, name)[row])
            if held.numa[row] >= 0:
                state._bind(
                    node["id"], int(held.numa[row]), -int(held.cpu_millis[row]), -int(held.memory_mib[row])
                )
            for device in held.device_ids[row]:
                state.devices[device]["used_millis"] -= int(held.gpu_millis[row])
    state.tasks = [task for task in state.tasks if task[4] > moment]
    object.__setattr__(state, "snapshot", _moved(snapshot, min(moment, NEVER // 2)))
    return state


def _moved(snapshot: Snapshot, now_ms: int) -> Snapshot:
    from dataclasses import replace

    return replace(snapshot, now_ms=now_ms)


def _earliest(
    snapshot: Snapshot, jobs: dict[int, dict[str, Any]], begun: list[Start], job: dict[str, Any]
) -> int | None:
    """The first moment at which something ends and the job fits, by trying them one after the other."""
    moments = {max(int(end), snapshot.now_ms + 1) for end in snapshot.running.expected_end_ms if end}
    moments |= {_end(snapshot, jobs[start.job_id]) for start in begun}
    moments |= {int(end) for end in snapshot.reservations.ends_ms.tolist()}
    for moment in sorted(m for m in moments if snapshot.now_ms < m < NEVER):
        if _at(snapshot, jobs, begun, moment, without=job).can_place(job):
            return moment
    return NEVER if _at(snapshot, jobs, begun, NEVER, without=job).can_place(job) else None


OPEN = JobGate.OPEN
