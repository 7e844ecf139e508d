"""The environment of a task's processes, built from nothing so that no secret of the agent gets into it."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from scheduler.agent.protocol import CHECKPOINTS, RESTORE_VARIABLE, WORLD, Assignment

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: What CUDA_VISIBLE_DEVICES says, and the UUIDs.
GpuNames = tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a task runs: its node, its folder there, and the cores that it may count on."""

    node_name: str
    folder: str
    cores: str


def environment(
    assignment: Assignment, folder: str, *, node_name: str, gpu_names: GpuNames | None = None
) -> dict[str, str]:
    """All variables of a task; what the job sets itself replaces what we set."""
    place = _Place(node_name, folder, str(max(1, assignment["cpu_millis"] // 1000)))
    return {
        **_system(),
        **_muster(assignment, place),
        **_distributed(assignment),
        **_gpus(assignment, gpu_names),
        "OMP_NUM_THREADS": place.cores,
        **_slurm(assignment, place),
        **_array(assignment),
        **(_checkpoints(place) if "checkpoint" in assignment else {}),
        **assignment["env"],
    }


def _system() -> dict[str, str]:
    """The account that jobs run as, which is the agent's, and where programs are."""
    path = {
        "PATH": DEFAULT_PATH,
        "LANG": os.environ.get("LANG") or "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108  where programs look anyway
    }
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        number = str(os.geteuid())
        return {"HOME": "/", "USER": number, "LOGNAME": number, "SHELL": "/bin/sh", **path}
    return {
        "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": "/bin/sh", **path,
    }  # fmt: skip


def _muster(a: Assignment, place: _Place) -> dict[str, str]:
    return {
        "MUSTER": "1",
        "MUSTER_JOB_ID": a["job_id"],
        "MUSTER_JOB_NUMBER": str(a["job"]),
        "MUSTER_JOB_NAME": a["name"],
        "MUSTER_ATTEMPT": str(a["epoch"]),
        "MUSTER_TASK_RANK": str(a["rank"]),
        "MUSTER_TASK_COUNT": str(a["tasks"]),
        "MUSTER_TASK_COUNT_LEAST": str(a.get("least_tasks", a["tasks"])),
        "MUSTER_TASK_COUNT_MOST": str(a.get("most_tasks", a["tasks"])),
        "MUSTER_CHECKPOINT_FILE": f"{place.folder}/checkpoint",
        **({"MUSTER_WORLD_FILE": f"{place.folder}/{WORLD}"} if "least_tasks" in a else {}),
        "MUSTER_NODE": place.node_name,
        "MUSTER_NODE_LIST": ",".join(a["node_names"]),
        "MUSTER_CPUS": place.cores,
        "MUSTER_MEMORY_MIB": str(a["memory_mib"]),
        "MUSTER_CPU_LIMIT": str(a["cpu_limit_millis"] / 1000) if "cpu_limit_millis" in a else "",
        "MUSTER_MEMORY_LIMIT_MIB": str(a.get("memory_limit_mib", "")),
        "MUSTER_PROJECT": a["project"],
        "MUSTER_QUEUE": a["queue"],
        "MUSTER_USER": a["user"],
    }


def _distributed(a: Assignment) -> dict[str, str]:
    """What PyTorch, DeepSpeed and other launchers of distributed training read."""
    return {
        "RANK": str(a["rank"]),
        "WORLD_SIZE": str(a["tasks"]),
        "LOCAL_RANK": str(a["local_rank"]),
        "NODE_RANK": str(a["node_rank"]),
        "MASTER_ADDR": a["master_address"],
        "MASTER_PORT": str(a["master_port"]),
    }


def _gpus(a: Assignment, names: GpuNames | None) -> dict[str, str]:
    numbers = [str(device) for device in a["devices"]]
    visible, uuids = names or (numbers, [])
    if "device_names" in a:
        visible = uuids = a["device_names"]
    variables = {
        # Also when empty: a job that asked for no GPU sees none.
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        # As NVML counts; otherwise CUDA puts the fastest first, and a number would mean another GPU.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MUSTER_GPU_UUIDS": ",".join(uuids),
    }
    if numbers:
        # Of all tasks of the job on this node, as Slurm counts them.
        on_node = [str(device) for device in a.get("node_devices") or a["devices"]]
        variables["SLURM_JOB_GPUS"] = ",".join(a.get("device_names", on_node))
        variables["SLURM_GPUS_ON_NODE"] = str(len(on_node))
    return variables


def _slurm(a: Assignment, place: _Place) -> dict[str, str]:
    """What scripts written for Slurm read; what they asked for themselves is in the job's own environment."""
    ranks = a.get("node_ranks") or [a["rank"]]
    tasks = a.get("node_tasks") or [a["tasks"]]
    began = int(time.time())
    variables = {
        "SLURM_JOB_ID": str(a["job"]),
        "SLURM_JOBID": str(a["job"]),
        "SLURM_JOB_NAME": a["name"],
        "SLURM_JOB_USER": a["user"],
        "SLURM_JOB_UID": str(os.geteuid()),
        "SLURM_JOB_GID": str(os.getegid()),
        "SLURM_JOB_ACCOUNT": a["project"],
        "SLURM_JOB_PARTITION": a["queue"],
        "SLURM_JOB_QOS": "normal",
        "SLURM_JOB_START_TIME": str(began),
        "SLURM_JOB_NODELIST": ",".join(a["node_names"]),
        "SLURM_NODELIST": ",".join(a["node_names"]),
        "SLURM_JOB_NUM_NODES": str(a["nodes"]),
        "SLURM_NNODES": str(a["nodes"]),
        "SLURM_NODEID": str(a["node_rank"]),
        "SLURMD_NODENAME": place.node_name,
        "SLURM_NTASKS": str(a["tasks"]),
        "SLURM_NPROCS": str(a["tasks"]),
        "SLURM_PROCID": str(a["rank"]),
        "SLURM_LOCALID": str(a["local_rank"]),
        "SLURM_GTIDS": ",".join(map(str, ranks)),
        "SLURM_TASKS_PER_NODE": repeated(tasks),
        "SLURM_JOB_CPUS_PER_NODE": repeated([_cpus(a, count) for count in tasks]),
        "SLURM_CPUS_ON_NODE": str(_cpus(a, len(ranks))),
        "SLURM_RESTART_COUNT": str(a["epoch"] - 1),
        "SLURM_SUBMIT_DIR": a["working_dir"] or place.folder + "/work",
    }
    if a["limit_seconds"] is not None:
        variables["SLURM_JOB_END_TIME"] = str(began + a["limit_seconds"])
    if a.get("cluster"):
        variables["SLURM_CLUSTER_NAME"] = a["cluster"]
    if a.get("submit_host"):
        variables["SLURM_SUBMIT_HOST"] = a["submit_host"]
    if a["cpu_millis"] >= 2000 and "SLURM_CPUS_PER_GPU" not in a["env"]:
        # Slurm sets it where it was asked for; a job with one core may not have.
        variables["SLURM_CPUS_PER_TASK"] = place.cores
    if not {"SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"} & a["env"].keys():
        variables["SLURM_MEM_PER_NODE"] = str(a["memory_mib"] * len(ranks))
    return variables


def _cpus(a: Assignment, tasks: int) -> int:
    """Whole cores that this number of tasks of the job has."""
    return max(1, a["cpu_millis"] * tasks // 1000)


def repeated(counts: Sequence[int]) -> str:
    """Numbers of nodes as Slurm writes them: `2(x3),1`."""
    runs = ((count, len(list(same))) for count, same in groupby(counts))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _checkpoints(place: _Place) -> dict[str, str]:
    """Where a job puts its checkpoints; the one to go on from is filled in once it has been fetched."""
    return {"MUSTER_CHECKPOINT_DIR": f"{place.folder}/{CHECKPOINTS}", RESTORE_VARIABLE: ""}


def _array(a: Assignment) -> dict[str, str]:
    """The place of a job in its array, in Muster's words and in Slurm's."""
    if "array_id" not in a or "array_index" not in a:
        return {}
    return {
        "MUSTER_ARRAY_ID": a["array_id"],
        "MUSTER_ARRAY_INDEX": str(a["array_index"]),
        "SLURM_ARRAY_TASK_ID": str(a["array_index"]),
        "SLURM_ARRAY_JOB_ID": a["array_id"],
    }
