"""From an assignment of the server to an order for the shim: folder, arguments, environment, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from scheduler.agent import numa
from scheduler.agent.elements import Elements, arguments_of
from scheduler.agent.isolation.devices import gpu_files
from scheduler.agent.protocol import (
    SECRETS,
    SECRETS_VARIABLE,
    Assignment,
    ElementsToRun,
    SecretsOfTask,
    SecretsToGive,
    TaskFolder,
    TaskOrder,
    folder_name,
    task_key,
)
from scheduler.agent.tasks.environment import GpuNames, environment
from scheduler.agent.tasks.output_paths import output_files

#: One argument may be this long on Linux (MAX_ARG_STRLEN); longer commands go through a file.
MAX_ARGUMENT_BYTES: Final = 100_000
#: Processes, not threads: a task with more is most likely out of control, and would take the node down.
PROCESS_LIMIT: Final = 1024


def task_order(
    assignment: Assignment,
    state: Path,
    *,
    node_name: str,
    gpu_names: GpuNames | None = None,
    numa_domains: int | None = None,
    process_limit: int = PROCESS_LIMIT,
    requests_are_limits: bool = False,
) -> TaskOrder:
    """What the shim is to start for this assignment.

    `numa_domains` is how many domains the command line lays out; None = the machine's own.
    """
    key = task_key(assignment["task"], assignment["epoch"])
    whose = TaskFolder(assignment["job"], assignment["epoch"], assignment["rank"], assignment["task"])
    folder = str(state / "tasks" / folder_name(whose, key))
    elements = assignment.get("elements")
    secrets = assignment.get("secrets")
    runs = secrets or elements or assignment
    argv, script = _program(runs["command"], runs["script"], folder)
    order = TaskOrder(
        key=key,
        folder=folder,
        cwd=assignment["working_dir"] or folder + "/work",
        script=script,
        argv=argv,
        env=environment(assignment, folder, node_name=node_name, gpu_names=gpu_names),
        limit_seconds=assignment["limit_seconds"],
        grace_seconds=assignment["grace_seconds"],
        meta={
            "task": assignment["task"],
            "epoch": assignment["epoch"],
            "job": assignment["job"],
            "job_id": assignment["job_id"],
            "user": assignment["user"],
            "devices": assignment["devices"],
            "memory_mib": assignment["memory_mib"],
        },
        process_limit=process_limit,
        user=assignment["user"],
        own_variables=sorted(assignment["env"]),
    )
    if "first_task" in assignment:
        order["first_task"] = assignment["first_task"]
    if elements is not None:
        order["meta"]["elements"] = True
        order["argv"] = _run_elements(elements, order, assignment["grace_seconds"])
    if secrets is not None:
        _add_secrets(order, secrets)
    if "checkpoint" in assignment:
        order["checkpoints"] = True
        order["meta"]["checkpoint"] = dict(assignment["checkpoint"])
        order["meta"]["limit_seconds"] = assignment["limit_seconds"]
    if "limit_signal" in assignment:
        order["meta"]["limit_signal"] = dict(assignment["limit_signal"])
    if (files := output_files(assignment, node_name=node_name)) is not None:
        order["output"] = files
    _bound(order, assignment, requests_are_limits=requests_are_limits)
    if gpu_names is not None and (devices := gpu_files(gpu_names[1])):
        order["device_files"] = devices
    if "probes" in assignment:
        _add_probes(order, assignment["probes"], assignment["grace_seconds"])
    if "numa_domain" in assignment:
        _bind_to_numa_domain(order, assignment, numa.domains(numa_domains))
    return order


def _add_secrets(order: TaskOrder, secrets: SecretsToGive) -> None:
    """Give the task its secrets; what comes back with every record says only that it has some."""
    order["secrets"] = SecretsOfTask(files=secrets["files"], masked=masked_values(secrets))
    order["meta"]["secrets"] = True
    order["env"] |= {SECRETS_VARIABLE: f"{order['folder']}/{SECRETS}", **secrets["env"]}
    order["own_variables"] = sorted({*order.get("own_variables", ()), *secrets["env"]})


def masked_values(secrets: SecretsToGive) -> list[str]:
    """All values of a task's secrets."""
    return sorted({*secrets["env"].values(), *secrets["files"].values()})


def _bound(order: TaskOrder, assignment: Assignment, *, requests_are_limits: bool) -> None:
    """Say what the task may use at most, and how much of the CPU it asks for."""
    if "memory_limit_mib" in assignment:
        order["memory_limit_mib"] = assignment["memory_limit_mib"]
    elif requests_are_limits and assignment["memory_mib"]:
        order["memory_limit_mib"] = assignment["memory_mib"]
    if "scratch_limit_mib" in assignment:
        order["scratch_limit_mib"] = assignment["scratch_limit_mib"]
    order["cpu_millis"] = assignment["cpu_millis"]
    if "cpu_limit_millis" in assignment:
        order["cpu_limit_millis"] = assignment["cpu_limit_millis"]


def _add_probes(order: TaskOrder, probes: list[dict[str, Any]], grace_seconds: int) -> None:
    """Give the guard the probes; those of GPUs are the agent's."""
    order["probes"] = probes
    order["meta"]["gpu_probes"] = [
        {"number": number, "grace": grace_seconds, **probe}
        for number, probe in enumerate(probes)
        if probe["kind"] == "gpu"
    ]


def _run_elements(elements: ElementsToRun, order: TaskOrder, grace_seconds: int) -> list[str]:
    """The arguments of what runs these elements, each with the arguments that the order has now."""
    indices, limit = tuple(elements["indices"]), elements["limit_seconds"]
    worst = elements["worst_exit_code"]
    return arguments_of(Elements(order["folder"], indices, limit, grace_seconds, worst, order["argv"]))


def _program(command: str, script: str, folder: str) -> tuple[list[str], str]:
    """(argv, the text of the script file): the shell runs a command, and a script that names no interpreter."""
    if len(command.encode(errors="surrogateescape")) > MAX_ARGUMENT_BYTES:
        command, script = "", command
    if command:
        return ["/bin/sh", "-c", command], script
    if script.startswith("#!"):
        return [folder + "/script"], script
    return ["/bin/sh", folder + "/script"], script


def _bind_to_numa_domain(order: TaskOrder, assignment: Assignment, domains: list[numa.Domain]) -> None:
    """Name the CPUs of the task's NUMA domain, and its memory where the kernel knows the domain."""
    number = assignment["numa_domain"]
    order["env"]["MUSTER_NUMA_DOMAIN"] = str(number)
    domain = next((one for one in domains if one.number == number), None)
    order["cpus"] = list(domain.cpus) if domain is not None else []
    if domain is not None and domain.real:
        order["memory_domain"], order["memory_mib"] = number, assignment["memory_mib"]
