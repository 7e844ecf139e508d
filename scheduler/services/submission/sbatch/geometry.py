"""The shape of a script's job: what Slurm counts per node, per GPU and per CPU becomes amounts per task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

from scheduler.services.submission.sbatch.directives import NOT_SUPPORTED, Directives, Gpus
from scheduler.services.submission.sbatch.places import Machine


def translate(found: Directives) -> None:
    """Fill the fields of the layout and of amounts per task; what does not go together is a problem."""
    _check_pairs(found)
    if found.problems:
        return
    _check_times(found)
    tasks = _tasks(found)
    per_node = found.tasks_per_node
    if per_node is None and found.nodes:
        per_node = -(-tasks // found.nodes)
    on_a_node = found.on_a_node = max(1, min(per_node or tasks, tasks))
    gpus = _gpus_per_task(found, tasks, on_a_node)
    if gpus.count:
        found.fill("gpu_count", gpus.count)
        if gpus.model:
            found.fill("gpu_type", gpus.model)
    cpus = found.cpus_per_task or (found.cpus_per_gpu or 0) * gpus.count or 1
    cpus = max(cpus, -(-(found.cpus_per_node or 0) // on_a_node))
    found.fill("cpu_cores", cpus)
    if memory_mib := _memory_per_task(found, on_a_node, cpus=cpus, gpus=gpus.count):
        found.fill("memory", f"{memory_mib}Mi")
    if found.disk_per_node_mib:
        found.fill("storage_bytes", f"{-(-found.disk_per_node_mib // on_a_node)}Mi")


def request_whole_nodes(found: Directives, machines: Sequence[Machine]) -> None:
    """`--exclusive` and `--mem=0`: the tasks of a node request all of it, where all nodes have the same."""
    on_a_node, fields = found.on_a_node, found.fields
    if found.whole_node:
        cpus, gpus = {machine.cpus for machine in machines}, {machine.gpus for machine in machines}
        has_gpus = "gpu_count" in fields
        if (
            len(cpus) != 1
            or min(cpus) % on_a_node
            or (has_gpus and (len(gpus) != 1 or min(gpus) % on_a_node))
        ):
            found.wrong(
                "exclusive",
                "--exclusive: a whole node is requested by all its CPUs and GPUs here, and the nodes that the job may "
                f"run on have {', '.join(map(str, sorted(cpus))) or 'no'} CPUs for {on_a_node} tasks on a node: "
                "nodes of different sizes, or a rest that no task has, do not exist in one request here. "
                "Use --cpus-per-task, and --partition or --constraint for nodes of one size.",
                NOT_SUPPORTED,
            )
            return
        fields["cpu_cores"] = max(fields["cpu_cores"], min(cpus) // on_a_node)
        if has_gpus:
            fields["gpu_count"] = min(gpus) // on_a_node
        if found.memory_per_cpu_mib is not None:
            fields["memory"] = f"{found.memory_per_cpu_mib * fields['cpu_cores']}Mi"
    if found.whole_memory:
        memory = {machine.memory_mib for machine in machines}
        option = "mem" if "mem" in found.said else "mem-per-cpu"
        if len(memory) != 1:
            found.wrong(
                option,
                f"--{option}=0: all memory of a node can be requested only where the nodes that the job may run on "
                "have the same amount; give an amount, or choose nodes of one size with --partition.",
                NOT_SUPPORTED,
            )
            return
        fields["memory"] = f"{min(memory) // on_a_node}Mi"
    if (found.whole_node or found.whole_memory) and found.nodes is None and found.tasks_per_node is None:
        found.fill("nodes", 1)


def _check_times(found: Directives) -> None:
    """`--time-min` lets the time limit end at the deadline."""
    limit, least = found.fields.get("time_limit"), found.time_min
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


def _check_pairs(found: Directives) -> None:
    """Options that exclude each other, as in Slurm."""
    memory = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in found.said]
    if len(memory) > 1:
        found.wrong(
            memory[-1], f"{' and '.join(f'--{name}' for name in memory)} exclude each other; give one."
        )
    if found.cpus_per_gpu and found.cpus_per_task:
        found.wrong("cpus-per-gpu", "--cpus-per-gpu and --cpus-per-task exclude each other; give one.")
    if found.gpus_per_node is not None and found.gres is not None and found.gpus_per_node != found.gres:
        found.wrong("gres", "--gres and --gpus-per-node request different numbers of GPUs; give one.")
    models = {
        gpus.model
        for gpus in (found.gres, found.gpus_per_node, found.gpus_per_task, found.gpus_total)
        if gpus is not None and gpus.model
    }
    if len(models) > 1:
        found.wrong(
            "gpus", f"GPUs of {' and '.join(sorted(models))} are requested; those of a job are of one model."
        )
    if (
        found.tasks and found.nodes and found.tasks_per_node
        and found.tasks > (found.most_nodes or found.nodes) * found.tasks_per_node
    ):  # fmt: skip
        found.wrong(
            "ntasks",
            f"{found.tasks} tasks do not fit {found.most_nodes or found.nodes} nodes with "
            f"{found.tasks_per_node} tasks each.",
        )


def _tasks(found: Directives) -> int:
    """The number of tasks, from the nodes or the GPUs where it is not given; fills `tasks` and `nodes`."""
    total, each = found.gpus_total, found.gpus_per_task
    per_node = found.gpus_per_node or found.gres
    if total is not None and total.count and per_node is not None and per_node.count and found.nodes is None:
        if total.count % per_node.count:
            found.wrong(
                "gpus", f"{total.count} GPUs are not a multiple of the {per_node.count} of each node."
            )
        elif total.count > per_node.count:
            found.nodes = total.count // per_node.count
    if each is not None and each.count and found.tasks is None:
        if total is None:
            found.wrong(
                "gpus-per-task", "--gpus-per-task needs the number of tasks; add --ntasks.", "required"
            )
        elif total.count % each.count:
            found.wrong(
                "gpus-per-task", f"--gpus={total.count} is not a multiple of --gpus-per-task={each.count}."
            )
        else:
            found.tasks = total.count // each.count
    if found.tasks is not None and found.nodes is not None and found.nodes > found.tasks:
        found.note("nodes", f"{found.tasks} tasks need no more than {found.tasks} nodes, as in Slurm.")
        found.nodes = found.tasks
    most = found.most_nodes or 0
    if found.tasks is None and found.nodes is not None and most > found.nodes and not (total or per_node):
        # As many nodes as are free, from the least to the most.
        each_node = found.tasks_per_node or 1
        for name, value in (("min_tasks", found.nodes), ("tasks", most)):
            found.fill(name, value * each_node)
        found.fill("tasks_per_node", each_node)
        return most * each_node
    if most and most != found.nodes:
        found.note("nodes", f"The number of nodes is fixed here: {found.nodes}, the least of the range.")
    if found.tasks is not None and found.nodes is not None and found.tasks_per_node is not None:
        found.tasks_per_node = min(found.tasks_per_node, -(-found.tasks // found.nodes))
    for name in ("nodes", "tasks", "tasks_per_node"):
        if (value := getattr(found, name)) is not None:
            found.fill(name, value)
    if found.tasks is None:
        return (found.nodes or 1) * (found.tasks_per_node or 1)
    return found.tasks


def _memory_per_task(found: Directives, on_a_node: int, *, cpus: int, gpus: int) -> int:
    """MiB; 0 where the script does not say."""
    if found.memory_per_cpu_mib is not None:
        return found.memory_per_cpu_mib * cpus
    if found.memory_per_gpu_mib is not None:
        if not gpus:
            found.wrong("mem-per-gpu", "--mem-per-gpu needs GPUs; add --gpus, or use --mem.", "required")
        return found.memory_per_gpu_mib * gpus
    return -(-(found.memory_per_node_mib or 0) // on_a_node)


def _gpus_per_task(found: Directives, tasks: int, on_a_node: int) -> Gpus:
    model = next(
        (
            gpus.model
            for gpus in (found.gpus_per_task, found.gpus_per_node, found.gres, found.gpus_total)
            if gpus is not None and gpus.model
        ),
        "",
    )
    total = found.gpus_total.count if found.gpus_total is not None else None
    if found.gpus_per_task is not None:
        each = found.gpus_per_task.count
        if total is not None and total != each * tasks:
            found.wrong("gpus", f"--gpus={total} is not the {each * tasks} GPUs of {tasks} tasks.")
        return Gpus(each, model)
    if found.gpus_per_node is not None:
        return Gpus(
            _share_out(found, found.gpus_per_node.count, on_a_node, "gpus-per-node", "on each node"), model
        )
    if found.gres is not None:
        return Gpus(_share_out(found, found.gres.count, on_a_node, "gres", "on each node"), model)
    return Gpus(_share_out(found, total, tasks, "gpus", "in all") if total else 0, model)


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
