"""Requests that could never start: larger than the hard quota, or than any machine there is (C16)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quotas.core.gpu_models import model_matches, slice_of, sliced, suits
from quotas.core.resources import Resources, show_cpus, show_mib
from quotas.models import QuotaResource
from scheduler.core.cluster import numa
from scheduler.core.snapshot.request_classes import HARD_EFFECTS, Requirement, Taint, Toleration
from scheduler.models import Device, Job, Node
from scheduler.selectors import NodeShape, cluster_shapes
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.submitter import Bound
from scheduler.state.db.sql import run
from scheduler.state.load import load_sql


def check_fit(
    inputs: Inputs,
    *,
    per_task: Resources,
    gpu_model: str,
    tasks: int,
    nodes: int | None,
    tasks_per_node: int | None,
    job_type: str,
    bounds: Iterable[Bound],
    cluster_id: int,
) -> None:
    """Name what makes the request impossible, with the number that exists.

    Only capacity counts, whatever the state of the machines and whoever uses them now: what is impossible
    today only because of a label, a drain or a full cluster is for the planner to explain.
    """
    _check_quota(inputs, per_task, tasks, gpu_model, job_type, bounds)
    size = (per_task, gpu_model, tasks, nodes, tasks_per_node)
    if _holds(cluster_shapes(cluster_id), *size):
        return
    # A machine may have joined since those figures were read.
    shapes = cluster_shapes(cluster_id, fresh=True)
    if not _holds(shapes, *size):
        _explain(inputs, shapes, per_task, gpu_model, tasks, nodes, tasks_per_node)


def _check_quota(
    inputs: Inputs, per_task: Resources, tasks: int, gpu_model: str, job_type: str, bounds: Iterable[Bound]
) -> None:
    total, gpu_millis = per_task * tasks, per_task.gpu_millis_charged * tasks
    asked = {
        QuotaResource.CPU_MILLIS: (total.cpu_millis, "cpu_cores", show_cpus, "CPU cores"),
        QuotaResource.MEMORY_MIB: (total.memory_mib, "memory", show_mib, "of memory"),
        QuotaResource.GPU_MILLIS: (gpu_millis, "gpu_count", show_cpus, "GPUs"),
        QuotaResource.STORAGE_MIB: (total.storage_mib, "storage_bytes", show_mib, "of storage"),
        QuotaResource.RUNNING_JOBS: (1, "project", str, "running jobs"),
    }
    for bound in bounds:
        if bound.resource not in asked or bound.job_type not in ("", job_type):
            continue
        # What model a job that names none is given, the planner sees to.
        if bound.gpu_model and not (gpu_model and model_matches(bound.gpu_model, gpu_model)):
            continue
        amount, field, show, what = asked[QuotaResource(bound.resource)]
        if amount > bound.hard:
            inputs.wrong(
                field,
                f"Requests {show(amount)} {bound.gpu_model}{' ' if bound.gpu_model else ''}{what} in all; "
                f"the hard limit of {bound.owner} is {show(bound.hard)}. "
                "Request less, or request a higher limit.",
                code="exceeds-quota",
            )


def _holds(
    shapes: tuple[NodeShape, ...],
    per_task: Resources,
    gpu_model: str,
    tasks: int,
    nodes: int | None,
    tasks_per_node: int | None,
) -> bool:
    if not shapes:
        return True  # no machine has joined yet: wait for one instead of refusing everything
    room: list[int] = []
    for shape in shapes:
        fits = _tasks_that_fit(shape, per_task, gpu_model)
        room += [min(fits, tasks_per_node or fits)] * min(shape.count, nodes or shape.count)
    if nodes is not None:
        room = sorted(room, reverse=True)[:nodes]
        if len(room) < nodes or not room[-1]:
            return False
    return sum(room) >= tasks


def _tasks_that_fit(shape: NodeShape, per_task: Resources, gpu_model: str) -> int:
    """How many tasks an empty node of this shape holds."""
    gpus = _matching(shape, gpu_model)
    if per_task.cpu_millis > shape.most_cpu_millis or per_task.memory_mib > shape.most_memory_mib:
        return 0
    bounds = [
        shape.cpu_millis // max(1, per_task.cpu_millis),
        shape.memory_mib // max(1, per_task.memory_mib),
    ]
    if per_task.storage_mib:
        bounds.append(shape.storage_mib // per_task.storage_mib)
    if slice_of(gpu_model):
        bounds.append(gpus)
    elif per_task.gpu_millis:
        bounds.append(gpus * (1000 // per_task.gpu_millis))
    elif per_task.gpus:
        bounds.append(gpus // per_task.gpus)
    return min(bounds)


def tasks_that_fit_now(node: Node, job: Job, bound: numa.Bound) -> int:
    """How many of the job's tasks this node has room for at this moment; none where it may not run.

    `bound` is what `bound_now` says.
    """
    if not _may_run_on(node, job):
        return 0
    devices = [d for d in node.devices.all() if d.healthy and not d.gone]
    if job.cpu_millis > node.cpu_millis or job.memory_mib > node.memory_mib:
        return 0
    fitting = [d for d in devices if suits(sliced(job.gpu_model, job.gpu_slice), d.model)]
    bounds = [
        (node.cpu_millis_capacity - node.used_cpu_millis) // max(1, job.cpu_millis),
        (node.memory_mib_capacity - node.used_memory_mib) // max(1, job.memory_mib),
    ]
    if job.storage_mib:
        bounds.append((node.storage_mib - node.used_storage_mib) // job.storage_mib)
    if job.gpu_slice:
        bounds.append(sum(1 for d in fitting if d.used_millis == 0))
    elif job.gpu_millis:
        bounds.append(sum((1000 - d.used_millis) // job.gpu_millis for d in fitting))
    elif job.gpus:
        bounds.append(sum(1 for d in fitting if d.used_millis == 0) // job.gpus)
    if job.numa == "one" and node.numa_domains > 1:
        bounds.append(_tasks_in_domains(node, job, fitting, bound))
    return max(0, min(bounds))


def bound_now(job: Job) -> numa.Bound:
    """What is bound in NUMA domains by node id and number, if this job demands one; asked for once."""
    if job.numa != "one":
        return {}
    nodes = list(Node.objects.filter(cluster_id=job.queue.cluster_id).values_list("pk", flat=True))
    rows = run(load_sql.BOUND, [nodes])
    return {(node_id, number): (cpu, memory) for node_id, number, cpu, memory in rows}


def _tasks_in_domains(node: Node, job: Job, fitting: list[Device], bound: numa.Bound) -> int:
    """How many tasks find all they need in one domain of a node; none where it does not say what these have."""
    total = 0
    for number, cpu_millis, memory_mib in node.domains:
        if job.cpu_millis > cpu_millis or job.memory_mib > memory_mib:
            continue
        cpu, memory = bound.get((node.pk, number), (0, 0))
        used = [d.used_millis for d in fitting if d.numa_domain == number]
        bounds = [
            (cpu_millis * node.cpu_millis_capacity // node.cpu_millis - cpu) // max(1, job.cpu_millis),
            (memory_mib * node.memory_mib_capacity // node.memory_mib - memory) // max(1, job.memory_mib),
        ]
        if job.gpu_millis and not job.gpu_slice:
            bounds.append(sum((1000 - millis) // job.gpu_millis for millis in used))
        elif job.gpus:
            bounds.append(used.count(0) // job.gpus)
        total += max(0, min(bounds))
    return total


def _may_run_on(node: Node, job: Job) -> bool:
    labels = {str(key): str(value) for key, value in node.labels.items()}
    tolerations = [Toleration(**item) for item in job.tolerations]
    taints = [
        Taint(**{name: taint.get(name) or "" for name in ("key", "value", "effect")}) for taint in node.taints
    ]
    terms = job.affinity.get("required") or []
    return (
        all(labels.get(key) == value for key, value in job.node_selector.items())
        and all(
            any(toleration.tolerates(taint) for toleration in tolerations)
            for taint in taints
            if taint.effect in HARD_EFFECTS
        )
        and (not terms or any(_holds_all(term, labels) for term in terms))
    )


def _holds_all(term: list[dict[str, Any]], labels: dict[str, str]) -> bool:
    return all(
        Requirement(item["key"], item["operator"], tuple(item["values"])).holds_for(labels) for item in term
    )


def _matching(shape: NodeShape, gpu_model: str) -> int:
    return sum(count for model, count in shape.gpus if suits(gpu_model, model))


def _explain(
    inputs: Inputs,
    shapes: tuple[NodeShape, ...],
    per_task: Resources,
    gpu_model: str,
    tasks: int,
    nodes: int | None,
    tasks_per_node: int | None,
) -> None:
    gpu_name = f"{gpu_model} GPUs" if gpu_model else "GPUs"
    largest_gpus = max(_matching(shape, gpu_model) for shape in shapes)
    all_gpus = sum(_matching(shape, gpu_model) * shape.count for shape in shapes)
    largest = [
        ("gpu_count", per_task.gpus, largest_gpus, str, gpu_name),
        ("cpu_cores", per_task.cpu_millis, max(s.most_cpu_millis for s in shapes), show_cpus, "CPU cores"),
        ("memory", per_task.memory_mib, max(s.most_memory_mib for s in shapes), show_mib, "of memory"),
        ("storage_bytes", per_task.storage_mib, max(s.storage_mib for s in shapes), show_mib, "of storage"),
    ]
    said = False
    for field, amount, most, show, what in largest:
        if amount > most:
            beside = f" ({all_gpus} in the whole cluster)" if field == "gpu_count" else ""
            inputs.wrong(
                field,
                f"Requests {show(amount)} {what} in one task; the largest node has {show(most)}{beside}. "
                "The job can never start as written: request less per task, or more tasks.",
                code="can-never-fit",
            )
            said = True
    if said:
        return
    if not any(_tasks_that_fit(shape, per_task, gpu_model) for shape in shapes):
        field = "gpu_count" if per_task.gpus else "cpu_cores"
        inputs.wrong(
            field,
            "No single node has all that one task requests, although each part exists on some node. "
            "The job can never start as written: request less of one resource.",
            code="can-never-fit",
        )
        return
    count = sum(shape.count for shape in shapes)
    whole = sum(_tasks_that_fit(shape, per_task, gpu_model) * shape.count for shape in shapes)
    layout = f" on {nodes} nodes" if nodes else ""
    layout += f" with {tasks_per_node} on each" if tasks_per_node else ""
    gpus = f"; it has {all_gpus} {gpu_name}" if per_task.gpus else ""
    inputs.wrong(
        "nodes" if nodes and nodes > count else "tasks",
        f"Requests {tasks} tasks at once{layout}; the whole cluster has {count} nodes and holds {whole} such "
        f"tasks{gpus}. The job can never start as written: request fewer tasks.",
        code="can-never-fit",
    )
