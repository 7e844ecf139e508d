"""From an assignment to what the keeper starts: the folder, the arguments and the whole environment."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

from scheduler.agent import numa
from scheduler.agent.protocol import Assignment, TaskOrder, task_key

#: One argument may be this long on Linux (MAX_ARG_STRLEN); longer commands go through a file.
MAX_ARGUMENT_BYTES: Final = 100_000
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


#: Processes, not threads: a task with more has most likely gone wrong, and would take the node along.
PROCESS_LIMIT: Final = 1024

#: What CUDA_VISIBLE_DEVICES says, and the UUIDs.
GpuNames = tuple[list[str], list[str]]


def task_order(
    assignment: Assignment,
    state: Path,
    *,
    node_name: str,
    gpu_names: GpuNames | None = None,
    numa_domains: int | None = None,
    process_limit: int = PROCESS_LIMIT,
) -> TaskOrder:
    """`numa_domains` are as many as the command line lays out; None = those of the machine."""
    key = task_key(assignment["task"], assignment["epoch"])
    folder = str(state / "tasks" / f"{assignment['job']}-{assignment['epoch']}-{assignment['rank']}-{key}")
    command, script = assignment["command"], assignment["script"]
    if len(command.encode(errors="surrogateescape")) > MAX_ARGUMENT_BYTES:
        command, script = "", command
    if command:
        argv = ["/bin/sh", "-c", command]
    elif script.startswith("#!"):
        argv = [folder + "/script"]
    else:
        argv = ["/bin/sh", folder + "/script"]
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
            "devices": assignment["devices"],
        },
        process_limit=process_limit,
    )
    if "memory_limit_mib" in assignment:
        order["memory_limit_mib"] = assignment["memory_limit_mib"]
    if "cpu_limit_millis" in assignment:
        order["cpu_limit_millis"] = assignment["cpu_limit_millis"]
    if "numa_domain" in assignment:
        number = assignment["numa_domain"]
        order["env"]["MUSTER_NUMA_DOMAIN"] = str(number)
        found = next((one for one in numa.domains(numa_domains) if one.number == number), None)
        order["cpus"] = list(found.cpus) if found is not None else []
        if found is not None and found.real:
            order["memory_domain"], order["memory_mib"] = number, assignment["memory_mib"]
    return order


def environment(
    assignment: Assignment, folder: str, *, node_name: str, gpu_names: GpuNames | None = None
) -> dict[str, str]:
    """Built from nothing, so that no secret of the agent gets in; what the job sets itself comes last."""
    a = assignment
    numbers = [str(device) for device in a["devices"]]
    visible, uuids = gpu_names or (numbers, [])
    if "device_names" in a:
        visible = uuids = a["device_names"]
    cpus = max(1, a["cpu_millis"] // 1000)
    result = {
        **_account(),
        "PATH": DEFAULT_PATH,
        "LANG": os.environ.get("LANG") or "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108  where programs look anyway
        "MUSTER": "1",
        "MUSTER_JOB_ID": a["job_id"],
        "MUSTER_JOB_NUMBER": str(a["job"]),
        "MUSTER_JOB_NAME": a["name"],
        "MUSTER_ATTEMPT": str(a["epoch"]),
        "MUSTER_TASK_RANK": str(a["rank"]),
        "MUSTER_TASK_COUNT": str(a["tasks"]),
        "MUSTER_TASK_COUNT_LEAST": str(a.get("least_tasks", a["tasks"])),
        "MUSTER_TASK_COUNT_MOST": str(a.get("most_tasks", a["tasks"])),
        "MUSTER_CHECKPOINT_FILE": f"{folder}/checkpoint",
        "MUSTER_NODE": node_name,
        "MUSTER_NODE_LIST": ",".join(a["node_names"]),
        "MUSTER_CPUS": str(cpus),
        "MUSTER_MEMORY_MIB": str(a["memory_mib"]),
        "MUSTER_CPU_LIMIT": str(a["cpu_limit_millis"] / 1000) if "cpu_limit_millis" in a else "",
        "MUSTER_MEMORY_LIMIT_MIB": str(a.get("memory_limit_mib", "")),
        "MUSTER_PROJECT": a["project"],
        "MUSTER_QUEUE": a["queue"],
        "MUSTER_USER": a["user"],
        # What PyTorch, DeepSpeed and others look for.
        "RANK": str(a["rank"]),
        "WORLD_SIZE": str(a["tasks"]),
        "LOCAL_RANK": str(a["local_rank"]),
        "NODE_RANK": str(a["node_rank"]),
        "MASTER_ADDR": a["master_address"],
        "MASTER_PORT": str(a["master_port"]),
        # Also when empty: a job that asked for no GPU sees none.
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        # As NVML counts; otherwise CUDA puts the fastest first, and a number would mean another GPU.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MUSTER_GPU_UUIDS": ",".join(uuids),
        "OMP_NUM_THREADS": str(cpus),
        # What scripts written for Slurm look for.
        "SLURM_JOB_ID": str(a["job"]),
        "SLURM_JOBID": str(a["job"]),
        "SLURM_JOB_NAME": a["name"],
        "SLURM_JOB_USER": a["user"],
        "SLURM_JOB_ACCOUNT": a["project"],
        "SLURM_JOB_PARTITION": a["queue"],
        "SLURM_JOB_NODELIST": ",".join(a["node_names"]),
        "SLURM_NODELIST": ",".join(a["node_names"]),
        "SLURM_JOB_NUM_NODES": str(a["nodes"]),
        "SLURM_NNODES": str(a["nodes"]),
        "SLURM_NODEID": str(a["node_rank"]),
        "SLURMD_NODENAME": node_name,
        "SLURM_NTASKS": str(a["tasks"]),
        "SLURM_NPROCS": str(a["tasks"]),
        "SLURM_PROCID": str(a["rank"]),
        "SLURM_LOCALID": str(a["local_rank"]),
        "SLURM_CPUS_PER_TASK": str(cpus),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_MEM_PER_NODE": str(a["memory_mib"]),
        "SLURM_RESTART_COUNT": str(a["epoch"] - 1),
        "SLURM_SUBMIT_DIR": a["working_dir"] or folder + "/work",
    }
    if numbers:
        result |= {
            "SLURM_JOB_GPUS": ",".join(a.get("device_names", numbers)),
            "SLURM_GPUS_ON_NODE": str(len(a["devices"])),
        }
    if "array_id" in a and "array_index" in a:
        result |= {
            "MUSTER_ARRAY_ID": a["array_id"],
            "MUSTER_ARRAY_INDEX": str(a["array_index"]),
            "SLURM_ARRAY_TASK_ID": str(a["array_index"]),
            "SLURM_ARRAY_JOB_ID": a["array_id"],
        }
    return result | a["env"]


def _account() -> dict[str, str]:
    """Jobs run as the account that the agent runs as."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {"HOME": "/", "USER": str(os.geteuid()), "LOGNAME": str(os.geteuid()), "SHELL": "/bin/sh"}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": "/bin/sh"}
