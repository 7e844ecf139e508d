"""The shape of a script's job: what Slurm counts per node, per GPU and per CPU becomes amounts per task."""

from __future__ import annotations

from collections.abc import Callable

from django.db.models import QuerySet

from scheduler.models import Node
from scheduler.services.submission.sbatch.directives import Directives, Gpus


def translate(found: Directives, nodes: Callable[[], QuerySet[Node]] | None = None) -> None:
    """Fill the fields of the layout and of amounts per task; what does not go together is a problem.

    `nodes`: those that the job may run on, asked for where it requests whole nodes.
    """
    _check_pairs(found)
    if found.problems:
        return
    tasks = _tasks(found)
    per_node = found.tasks_per_node
    if per_node is None and found.nodes:
        per_node = -(-tasks // found.nodes)
    on_a_node = max(1, min(per_node or tasks, tasks))
    gpus = _gpus_per_task(found, tasks, on_a_node)
    if gpus.count:
        found.fill("gpu_count", gpus.count)
        if gpus.model:
            found.fill("gpu_type", gpus.model)
    cpus = found.cpus_per_task or (found.cpus_per_gpu or 0) * gpus.count or 1
    cpus = max(cpus, -(-(found.cpus_per_node or 0) // on_a_node))
    memory_mib = _memory_per_task(found, on_a_node, cpus=cpus, gpus=gpus.count)
    if (found.whole_node or found.whole_memory) and nodes is not None and not found.problems:
        cpus, memory_mib = _whole(found, nodes(), on_a_node, cpus, memory_mib)
        if found.nodes is None and tasks > 1 and found.tasks_per_node is None:
            found.fill("nodes", 1)
    found.fill("cpu_cores", cpus)
    if memory_mib:
        found.fill("memory", f"{memory_mib}Mi")
    if found.disk_per_node_mib:
        found.fill("storage_bytes", f"{-(-found.disk_per_node_mib // on_a_node)}Mi")


def _check_pairs(found: Directives) -> None:
    """Options that exclude each other, as in Slurm."""
    memory = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in found.said]
    if len(memory) > 1:
        found.wrong(memory[-1], f"{' and '.join(f'--{name}' for name in memory)} exclude each other; give one.")
    if found.cpus_per_gpu and found.cpus_per_task:
        found.wrong("cpus-per-gpu", "--cpus-per-gpu and --cpus-per-task exclude each other; give one.")
    if found.time_min is not None and found.fields.get("time_limit", found.time_min) < found.time_min:
        found.wrong("time-min", "--time-min is longer than --time; lower it, or leave it out.")
    if found.gpus_per_node is not None and found.gres is not None and found.gpus_per_node != found.gres:
        found.wrong("gres", "--gres and --gpus-per-node request different numbers of GPUs; give one.")
    models = {
        gpus.model
        for gpus in (found.gres, found.gpus_per_node, found.gpus_per_task, found.gpus_total)
        if gpus is not None and gpus.model
    }
    if len(models) > 1:
        found.wrong("gpus", f"GPUs of {' and '.join(sorted(models))} are requested; those of a job are of one model.")
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
            found.wrong("gpus", f"{total.count} GPUs are not a multiple of the {per_node.count} of each node.")
        elif total.count > per_node.count:
            found.nodes = total.count // per_node.count
    if each is not None and each.count and found.tasks is None:
        if total is None:
            found.wrong("gpus-per-task", "--gpus-per-task needs the number of tasks; add --ntasks.", "required")
        elif total.count % each.count:
            found.wrong("gpus-per-task", f"--gpus={total.count} is not a multiple of --gpus-per-task={each.count}.")
        else:
            found.tasks = total.count // each.count
    if found.tasks is not None and found.nodes is not None and found.nodes > found.tasks:
        found.note("nodes", f"{found.tasks} tasks need no more than {found.tasks} nodes, as in Slurm.")
        found.nodes = found.tasks
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
        return Gpus(_share_out(found, found.gpus_per_node.count, on_a_node, "gpus-per-node", "on each node"), model)
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
            "not-supported",
        )
        return 0
    return gpus // tasks


def _whole(
    found: Directives, nodes: QuerySet[Node], on_a_node: int, cpus: int, memory_mib: int
) -> tuple[int, int]:
    """CPUs and MiB of each task where the tasks of a node have all of it: the same for all nodes, or a problem."""
    option = "exclusive" if found.whole_node else "mem" if "mem" in found.said else "mem-per-cpu"
    sizes = sorted(set(nodes.order_by().values_list("cpu_millis_capacity", "memory_mib_capacity")))
    all_cpus = {cpu_millis // 1000 for cpu_millis, _ in sizes}
    all_memory = {mib for _, mib in sizes}
    if found.whole_node:
        if len(all_cpus) != 1 or min(all_cpus) % on_a_node:
            found.wrong(
                option,
                "--exclusive: whole nodes are requested by all their CPUs here, and the nodes of the queue "
                f"have {', '.join(map(str, sorted(all_cpus))) or 'no'} CPUs for {on_a_node} tasks each. "
                "Use --cpus-per-task, and --partition or --constraint for nodes of one size.",
                "not-supported",
            )
            return cpus, memory_mib
        cpus = max(cpus, min(all_cpus) // on_a_node)
        if found.memory_per_cpu_mib is not None:
            memory_mib = found.memory_per_cpu_mib * cpus
    if found.whole_memory:
        if len(all_memory) != 1:
            found.wrong(
                option,
                f"--{option}=0: all memory of a node is one amount here only where all nodes of the queue have the "
                "same; give an amount, or choose nodes of one size with --partition.",
                "not-supported",
            )
            return cpus, memory_mib
        memory_mib = min(all_memory) // on_a_node
    return cpus, memory_mib
