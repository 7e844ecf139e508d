"""Remedies: what a headline names is taken away from a world, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler.core.reasons.causes import Cause, CauseCode
from scheduler.core.reasons.closed_nodes import _condition
from scheduler.core.snapshot.constraints import Labels, Requirement
from scheduler.core.snapshot.node_isolation import BITS
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import GROUPS, JobGate, ReservationColumns, Snapshot


def rebuilt(snapshot: Snapshot, classes: Iterable[RequestClass] | None = None, **groups: Any) -> Snapshot:
    """The snapshot with other tables."""
    kept = {name: getattr(snapshot, name) for name in GROUPS}
    return Snapshot.build(
        now_ms=snapshot.now_ms, classes=list(classes or snapshot.classes), **(kept | groups)
    )


def alone(snapshot: Snapshot, job_id: int) -> Snapshot:
    """Only this job waits."""
    return rebuilt(snapshot, pending=snapshot.pending.take(np.array([snapshot.job_row(job_id)])))


def remedied(snapshot: Snapshot, cause: Cause) -> Snapshot:
    """The snapshot, in which one job waits, once what the cause names is no more."""
    return _REMEDIES[cause.code](snapshot, cause.subject)


def _request(snapshot: Snapshot, change: Callable[[RequestClass], RequestClass]) -> Snapshot:
    asked = int(snapshot.pending.class_index[0])
    return rebuilt(
        snapshot,
        [change(request) if row == asked else request for row, request in enumerate(snapshot.classes)],
    )


def _asked(snapshot: Snapshot) -> RequestClass:
    return snapshot.classes[int(snapshot.pending.class_index[0])]


def _nodes(**words: Any) -> Callable[[Snapshot, str], Snapshot]:
    """Every node with this value."""

    def change(snapshot: Snapshot, _: str) -> Snapshot:
        columns = {
            name: (value,) * len(snapshot.nodes)
            if isinstance(getattr(snapshot.nodes, name), tuple)
            else np.full_like(getattr(snapshot.nodes, name), value)
            for name, value in words.items()
        }
        return rebuilt(snapshot, nodes=replace(snapshot.nodes, **columns))

    return change


def _without_taints(snapshot: Snapshot, subject: str) -> Snapshot:
    named = subject.split(", ")
    kept = tuple(
        tuple(
            t
            for t in taints
            if (f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}") not in named
        )
        for taints in snapshot.nodes.taints
    )
    return rebuilt(snapshot, nodes=replace(snapshot.nodes, taints=kept))


def _with_labels(snapshot: Snapshot, subject: str) -> Snapshot:
    added = dict(pair.split("=", 1) for pair in subject.split(", "))
    return _labelled(snapshot, lambda labels: labels | added)


def _labelled(snapshot: Snapshot, change: Callable[[dict[str, str]], dict[str, str]]) -> Snapshot:
    labels: tuple[Labels, ...] = tuple(
        tuple(sorted(change(dict(one)).items())) for one in snapshot.nodes.labels
    )
    return rebuilt(snapshot, nodes=replace(snapshot.nodes, labels=labels))


def _matching(snapshot: Snapshot, subject: str) -> Snapshot:
    def met(labels: dict[str, str], one: Requirement) -> dict[str, str]:
        value = {"In": one.values[:1], "Exists": ("",)}.get(one.operator)
        return labels | {one.key: value[0]} if value else {k: v for k, v in labels.items() if k != one.key}

    named = [one for term in _asked(snapshot).required_affinity for one in term if _condition(one) in subject]
    for one in named:
        snapshot = _labelled(snapshot, lambda labels, one=one: met(labels, one))  # type: ignore[misc]
    return snapshot


def _in_partitions(snapshot: Snapshot, _: str) -> Snapshot:
    queue = snapshot.queues.id.tolist().index(int(snapshot.pending.queue_id[0]))
    more = {*_asked(snapshot).partition_ids, *snapshot.queues.partition_ids[queue]}
    ids = tuple(tuple(sorted({*one, *more})) for one in snapshot.nodes.partition_ids)
    return rebuilt(snapshot, nodes=replace(snapshot.nodes, partition_ids=ids))


def _pending(**words: Any) -> Callable[[Snapshot, str], Snapshot]:
    def change(snapshot: Snapshot, _: str) -> Snapshot:
        columns = {
            name: np.full_like(getattr(snapshot.pending, name), value) for name, value in words.items()
        }
        return rebuilt(snapshot, pending=replace(snapshot.pending, **columns))

    return change


def _freed(snapshot: Snapshot, resource: str) -> Snapshot:
    """All that is in use of a resource is free; "" = of every resource."""
    nodes, devices, pools = snapshot.nodes, snapshot.devices, snapshot.pools
    if resource in pools.name:
        return rebuilt(snapshot, pools=replace(pools, used=pools.used * 0))
    names = [
        name
        for name in ("cpu_millis", "memory_mib", "storage_mib")
        if resource in ("", "nodes", "tasks", name)
    ]
    used = {f"used_{name}": getattr(nodes, f"used_{name}") * 0 for name in names}
    if resource in ("", "numa", "nodes", "tasks"):
        used["bound"] = ((),) * len(nodes)
    if resource in ("", "gpus", "gpu_millis", "nodes", "tasks"):
        devices = replace(devices, used_millis=devices.used_millis * 0)
    return rebuilt(snapshot, nodes=replace(nodes, **used), devices=devices)


def _smaller(snapshot: Snapshot, subject: str) -> Snapshot:
    """The request without what no node has."""
    if subject in ("tasks", "shape", ""):
        return _pending(tasks=1, nodes=0, tasks_per_node=0, most_tasks=0)(snapshot, "")
    if subject == "numa":
        return _request(snapshot, lambda one: replace(one, one_domain=False))
    gpus = subject in ("gpus", "gpu_millis", "gpu_model", "combination")

    def less(one: RequestClass) -> RequestClass:
        per_task = one.per_task
        extras = tuple(pair for pair in per_task.extras if pair[0] != subject)
        amounts: dict[str, Any] = {"gpus": 0, "gpu_millis": 0} if gpus else {}
        names = ("cpu_millis", "memory_mib", "storage_mib")
        amounts |= {name: 0 for name in names if subject in (name, "combination", "size")}
        words = {"gpu_model": "", "gpu_memory_mib": 0} if gpus else {}
        return replace(one, per_task=replace(per_task, extras=extras, **amounts), **words)

    return _request(snapshot, less)


def _anywhere(snapshot: Snapshot, _: str) -> Snapshot:
    return _pending(pack=0)(_request(snapshot, lambda one: replace(one, task_term=None)), "")


def _without_rules(snapshot: Snapshot, _: str) -> Snapshot:
    """No job has rules about other jobs."""
    return rebuilt(snapshot, [replace(one, job_terms=(), task_term=None) for one in snapshot.classes])


def _raised(snapshot: Snapshot, subject: str) -> Snapshot:
    quotas = snapshot.quotas
    named = np.array(
        [
            subject in (f"{owner} {resource}", f"{owner} {model} {resource}")
            for owner, model, resource in zip(quotas.owner, quotas.gpu_model, quotas.resource, strict=True)
        ],
        dtype=np.bool_,
    )
    return rebuilt(snapshot, quotas=replace(quotas, enforce=quotas.enforce & ~named))


def _queue(**words: Any) -> Callable[[Snapshot, str], Snapshot]:
    def change(snapshot: Snapshot, subject: str) -> Snapshot:
        at = snapshot.queues.name.index(subject)
        columns = {name: getattr(snapshot.queues, name).copy() for name in words}
        for name, value in words.items():
            columns[name][at] = value
        return rebuilt(snapshot, queues=replace(snapshot.queues, **columns))

    return change


def _fewer_running(snapshot: Snapshot, subject: str) -> Snapshot:
    if subject in snapshot.queues.name:
        return _queue(max_concurrent_jobs=0)(snapshot, subject)
    return _pending(array_max_running=0)(snapshot, "")


_REMEDIES: dict[CauseCode, Callable[[Snapshot, str], Snapshot]] = {
    CauseCode.TAINT: _without_taints,
    CauseCode.LABEL: _with_labels,
    CauseCode.NODE_AFFINITY: _matching,
    CauseCode.PARTITION: _in_partitions,
    CauseCode.NODE_TIME_LIMIT: _nodes(max_wall_seconds=0),
    CauseCode.ISOLATION: _nodes(isolation=sum(BITS.values()) if isinstance(BITS, dict) else -1),
    CauseCode.CORDON: _nodes(cordoned=False),
    CauseCode.DRAIN: _nodes(draining=False),
    CauseCode.FAULT: _nodes(faulty=False),
    CauseCode.UNREACHABLE: _nodes(state="up"),
    CauseCode.GPU_HEALTH: lambda snapshot, _: rebuilt(
        snapshot, devices=replace(snapshot.devices, healthy=snapshot.devices.healthy | True)
    ),
    CauseCode.RESERVATION: lambda snapshot, _: rebuilt(snapshot, reservations=ReservationColumns()),
    CauseCode.OTHER_JOBS: _without_rules,
    CauseCode.REQUEST: _smaller,
    CauseCode.TOPOLOGY: _anywhere,
    CauseCode.AMOUNT: _freed,
    CauseCode.NUMA: lambda snapshot, _: _freed(snapshot, ""),
    CauseCode.QUOTA: _raised,
    CauseCode.QUEUE: _queue(paused=False),
    CauseCode.QUEUE_TIME_LIMIT: _queue(max_wall_seconds=0),
    CauseCode.RUNNING_JOBS: _fewer_running,
    CauseCode.HOLD: _pending(gate=JobGate.OPEN),
    CauseCode.DEPENDENCY: _pending(gate=JobGate.OPEN),
    CauseCode.BACKOFF: _pending(gate=JobGate.OPEN, eligible_ms=0),
    CauseCode.BEGIN_TIME: _pending(eligible_ms=0),
    CauseCode.TURN: lambda snapshot, _: snapshot,  # the others are gone already
}
