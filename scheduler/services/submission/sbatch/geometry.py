"""The shape of a script's job: what Slurm counts per node, per GPU and per CPU becomes amounts per task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.utils import timezone

from scheduler.services.submission.sbatch.directives import NOT_SUPPORTED, Amounts, Directives, Gpus
from scheduler.services.submission.sbatch.places import Machine


def translate(found: Directives) -> None:
    """Fill the fields of the layout and of amounts per task; what does not go together is a problem."""
    _check_pairs(found)
    if found.problems:
        return
    _check_times(found)
    tasks = _tasks(found)
    shape, amounts = found.shape, found.amounts
    per_node = shape.tasks_per_node
    if per_node is None and shape.nodes:
        per_node = -(-tasks // shape.nodes)
    on_a_node = shape.on_a_node = max(1, min(per_node or tasks, tasks))
    gpus = _gpus_per_task(found, tasks)
    if gpus.count:
        found.fill("gpu_count", gpus.count)
        if gpus.model:
            found.fill("gpu_type", gpus.model)
    cpus = amounts.cpus_per_task or (amounts.cpus_per_gpu or 0) * gpus.count or 1
    cpus = max(cpus, -(-(amounts.cpus_per_node or 0) // on_a_node))
    found.fill("cpu_cores", cpus)
    if memory_mib := _memory_per_task(found, cpus=cpus, gpus=gpus.count):
        found.fill("memory", f"{memory_mib}Mi")
    if amounts.disk_per_node_mib:
        found.fill("storage_bytes", f"{-(-amounts.disk_per_node_mib // on_a_node)}Mi")


# ---------------------------------------------------------------- what does not go together


def _check_pairs(found: Directives) -> None:
    """Options that exclude each other, as in Slurm."""
    amounts = found.amounts
    memory = [f"--{name}" for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in found.said]
    if len(memory) > 1:
        found.wrong(memory[-1][2:], f"{' and '.join(memory)} exclude each other; give one.")
    if amounts.cpus_per_gpu and amounts.cpus_per_task:
        found.wrong("cpus-per-gpu", "--cpus-per-gpu and --cpus-per-task exclude each other; give one.")
    if amounts.gpus_per_node and amounts.gres and amounts.gpus_per_node != amounts.gres:
        found.wrong("gres", "--gres and --gpus-per-node request different numbers of GPUs; give one.")
    models = sorted({gpus.model for gpus in _kinds(amounts) if gpus.model})
    if len(models) > 1:
        text = f"GPUs of {' and '.join(models)} are requested; those of a job are of one model."
        found.wrong("gpus", text)
    _check_room(found)


def _kinds(amounts: Amounts) -> list[Gpus]:
    """What is said of GPUs, the narrowest first."""
    kinds = (amounts.gpus_per_task, amounts.gpus_per_node, amounts.gres, amounts.gpus_total)
    return [gpus for gpus in kinds if gpus is not None]


def _check_room(found: Directives) -> None:
    """More tasks than the nodes may have."""
    shape = found.shape
    nodes = shape.most_nodes or shape.nodes
    if shape.tasks and nodes and shape.tasks_per_node and shape.tasks > nodes * shape.tasks_per_node:
        found.wrong(
            "ntasks", f"{shape.tasks} tasks do not fit {nodes} nodes with {shape.tasks_per_node} tasks each."
        )


def _check_times(found: Directives) -> None:
    """`--time-min` lets the time limit end at the deadline."""
    limit, least = found.fields.get("time_limit"), found.times.time_min
    if least is None:
        return
    if limit is not None and limit < least:
        found.wrong("time-min", "--time-min is longer than --time; lower it, or leave it out.")
        return
    left = None
    if deadline := found.fields.get("deadline"):
        left = int((datetime.fromisoformat(deadline) - timezone.now()).total_seconds())
    if left is not None and limit is not None and least <= left < limit:
        found.fill("time_limit", left)
        found.note("time", f"The time limit is {left} s, until the deadline; --time-min allows that.")
    else:
        found.note("time-min", "Time limits are not shortened here to start a job earlier; --time counts.")


# ---------------------------------------------------------------- tasks and nodes


def _tasks(found: Directives) -> int:
    """The number of tasks, from the nodes or the GPUs where it is not given; fills the fields of the layout."""
    _count_by_gpus(found)
    shape = found.shape
    if shape.tasks is None and _is_range(found):
        return _as_many_as_are_free(found)
    _fit_nodes_to_tasks(found)
    for name, value in (
        ("nodes", shape.nodes), ("tasks", shape.tasks), ("tasks_per_node", shape.tasks_per_node),
    ):  # fmt: skip
        if value is not None:
            found.fill(name, value)
    return shape.tasks or (shape.nodes or 1) * (shape.tasks_per_node or 1)


def _fit_nodes_to_tasks(found: Directives) -> None:
    """No more nodes than tasks, and no more room on a node than its tasks need."""
    shape = found.shape
    if shape.tasks and shape.nodes and shape.nodes > shape.tasks:
        found.note("nodes", f"{shape.tasks} tasks need no more than {shape.tasks} nodes, as in Slurm.")
        shape.nodes = shape.tasks
    if shape.most_nodes and shape.most_nodes != shape.nodes:
        found.note("nodes", f"The number of nodes is fixed here: {shape.nodes}, the least of the range.")
    if shape.tasks and shape.nodes and shape.tasks_per_node:
        shape.tasks_per_node = min(shape.tasks_per_node, -(-shape.tasks // shape.nodes))


def _count_by_gpus(found: Directives) -> None:
    """Nodes of a total and an amount per node; tasks of a total and an amount per task."""
    shape, amounts = found.shape, found.amounts
    total = amounts.gpus_total.count if amounts.gpus_total else 0
    per_node = amounts.gpus_per_node or amounts.gres
    if shape.nodes is None and total and per_node and per_node.count:
        if total % per_node.count:
            found.wrong("gpus", f"{total} GPUs are not a multiple of the {per_node.count} of each node.")
        elif total > per_node.count:
            shape.nodes = total // per_node.count
    each = amounts.gpus_per_task.count if amounts.gpus_per_task else 0
    if shape.tasks is None and each:
        if not total:
            text = "--gpus-per-task needs the number of tasks; add --ntasks."
            found.wrong("gpus-per-task", text, "required")
        elif total % each:
            found.wrong("gpus-per-task", f"--gpus={total} is not a multiple of --gpus-per-task={each}.")
        else:
            shape.tasks = total // each


def _is_range(found: Directives) -> bool:
    """`--nodes=2-4`, with nothing else that fixes the number."""
    shape, amounts = found.shape, found.amounts
    of_gpus = amounts.gpus_total or amounts.gpus_per_node or amounts.gres
    return bool(shape.nodes and shape.most_nodes and shape.most_nodes > shape.nodes and not of_gpus)


def _as_many_as_are_free(found: Directives) -> int:
    """As many nodes as are free, from the least to the most of a range; the most tasks that there may be."""
    shape = found.shape
    each = shape.tasks_per_node or 1
    least, most = (shape.nodes or 1) * each, (shape.most_nodes or 1) * each
    found.fill("min_tasks", least)
    found.fill("tasks", most)
    found.fill("tasks_per_node", each)
    return most


# ---------------------------------------------------------------- amounts


def _memory_per_task(found: Directives, *, cpus: int, gpus: int) -> int:
    """MiB; 0 where the script does not say."""
    amounts = found.amounts
    if amounts.memory_per_cpu_mib is not None:
        return amounts.memory_per_cpu_mib * cpus
    if amounts.memory_per_gpu_mib is not None:
        if not gpus:
            found.wrong("mem-per-gpu", "--mem-per-gpu needs GPUs; add --gpus, or use --mem.", "required")
        return amounts.memory_per_gpu_mib * gpus
    return -(-(amounts.memory_per_node_mib or 0) // found.shape.on_a_node)


def _gpus_per_task(found: Directives, tasks: int) -> Gpus:
    amounts, on_a_node = found.amounts, found.shape.on_a_node
    model = next((gpus.model for gpus in _kinds(amounts) if gpus.model), "")
    total = amounts.gpus_total.count if amounts.gpus_total else 0
    if amounts.gpus_per_task is not None:
        each = amounts.gpus_per_task.count
        if total and total != each * tasks:
            found.wrong("gpus", f"--gpus={total} is not the {each * tasks} GPUs of {tasks} tasks.")
    elif amounts.gpus_per_node is not None:
        each = _share_out(found, amounts.gpus_per_node.count, on_a_node, "gpus-per-node", "on each node")
    elif amounts.gres is not None:
        each = _share_out(found, amounts.gres.count, on_a_node, "gres", "on each node")
    else:
        each = _share_out(found, total, tasks, "gpus", "in all")
    return Gpus(each, model)


def _share_out(found: Directives, gpus: int, tasks: int, option: str, where: str) -> int:
    """GPUs that several tasks have together are divided among them, as each task is given its own here."""
    if gpus % tasks:
        found.wrong(
            option,
            f"{gpus} GPUs cannot be divided among {tasks} tasks {where}; tasks that share one GPU do not exist here. "
            "Use --gpus-per-task, or another --ntasks.",
            NOT_SUPPORTED,
        )
        return 0
    return gpus // tasks


# ---------------------------------------------------------------- whole nodes


def request_whole_nodes(found: Directives, machines: Sequence[Machine]) -> None:
    """`--exclusive` and `--mem=0`: the tasks of a node request all of it, where all nodes have the same."""
    shape = found.shape
    if shape.whole_node and not found.problems:
        _all_cpus(found, machines)
    if shape.whole_memory and not found.problems:
        _all_memory(found, machines)
    if (shape.whole_node or shape.whole_memory) and shape.nodes is None and shape.tasks_per_node is None:
        found.fill("nodes", 1)


def _all_cpus(found: Directives, machines: Sequence[Machine]) -> None:
    fields, on_a_node = found.fields, found.shape.on_a_node
    cpus = _of_each(on_a_node, {machine.cpus for machine in machines})
    gpus = _of_each(on_a_node, {machine.gpus for machine in machines}) if "gpu_count" in fields else 0
    if cpus is None or gpus is None:
        sizes = ", ".join(str(size) for size in sorted({machine.cpus for machine in machines})) or "no"
        found.wrong(
            "exclusive",
            "--exclusive: a whole node is requested by all its CPUs and GPUs here, and the nodes that the job may run "
            f"on have {sizes} CPUs for {on_a_node} tasks on a node: nodes of different sizes, or a rest that no task "
            "has, do not exist in one request here. Use --cpus-per-task, and --partition or --constraint for nodes "
            "of one size.",
            NOT_SUPPORTED,
        )
        return
    fields["cpu_cores"] = max(fields["cpu_cores"], cpus)
    if gpus:
        fields["gpu_count"] = gpus
    if found.amounts.memory_per_cpu_mib is not None:
        fields["memory"] = f"{found.amounts.memory_per_cpu_mib * fields['cpu_cores']}Mi"


def _of_each(tasks: int, sizes: Collection[int]) -> int | None:
    """What each of the tasks of a node has of all; None where nodes differ, or a rest is left."""
    size = min(sizes, default=0)
    return size // tasks if len(sizes) == 1 and size % tasks == 0 else None


def _all_memory(found: Directives, machines: Sequence[Machine]) -> None:
    sizes = {machine.memory_mib for machine in machines}
    if len(sizes) == 1:
        found.fill("memory", f"{min(sizes) // found.shape.on_a_node}Mi")
        return
    option = "mem" if "mem" in found.said else "mem-per-cpu"
    found.wrong(
        option,
        f"--{option}=0: all memory of a node can be requested only where the nodes that the job may run on have the "
        "same amount; give an amount, or choose nodes of one size with --partition.",
        NOT_SUPPORTED,
    )
