"""From an assignment to a container, and from a container to a report."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from scheduler.agent.protocol import OUT_OF_MEMORY, Assignment, Report
from scheduler.agent.tasks.environment import environment
from scheduler.agent.tasks.orders import PROCESS_LIMIT
from scheduler.backends.docker.hosts import DockerSettings
from scheduler.core.lifecycle import StopReason

#: The folder in the container with the script of the job; it is its working folder where the job names none.
FOLDER: Final = "/muster"
#: Labels of a container: the cluster (`Cluster.backend_key`), and the task with its epoch.
CLUSTER_LABEL: Final = "io.muster.cluster"
TASK_LABEL: Final = "io.muster.task"
EPOCH_LABEL: Final = "io.muster.epoch"
LIMIT_LABEL: Final = "io.muster.limit-seconds"
GRACE_LABEL: Final = "io.muster.grace-seconds"
JOB_LABEL: Final = "io.muster.job"
#: Docker refuses less.
LEAST_MEMORY_MIB: Final = 6
#: What an image says better than the server does.
_OF_THE_SERVER: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "TMPDIR",
    "SLURM_JOB_UID",
    "SLURM_JOB_GID",
)
#: A program that ends by a signal ends its container with 128 and the number of the signal.
_SIGNALS: Final = range(129, 129 + 64)
_NEVER: Final = "0001-01-01"


def container_name(cluster_key: str, task: int, epoch: int) -> str:
    """One name for one try of a task: a second `create` of the same is refused by Docker."""
    return f"muster-{cluster_key[:8]}-{task}-{epoch}"


def container_options(
    assignment: Assignment, cluster_key: str, settings: DockerSettings, *, node_name: str
) -> dict[str, Any]:
    """The body of Docker's `POST /containers/create` for this task."""
    limit = assignment["limit_seconds"]
    return {
        "Image": assignment["image"],
        "Cmd": None if assignment["script"] else ["-c", assignment["command"]],
        "Entrypoint": [f"{FOLDER}/script"] if assignment["script"] else ["/bin/sh"],
        "WorkingDir": assignment["working_dir"] or f"{FOLDER}/work",
        "Env": [f"{name}={value}" for name, value in _environment(assignment, node_name).items()],
        "Labels": {
            CLUSTER_LABEL: cluster_key,
            TASK_LABEL: str(assignment["task"]),
            EPOCH_LABEL: str(assignment["epoch"]),
            JOB_LABEL: str(assignment["job"]),
            LIMIT_LABEL: "" if limit is None else str(limit),
            GRACE_LABEL: str(assignment["grace_seconds"]),
        },
        "NetworkDisabled": settings.network == "none",
        "HostConfig": {
            "NetworkMode": settings.network,
            "Binds": [":".join(mount) for mount in settings.mounts],
            "Memory": max(LEAST_MEMORY_MIB, assignment.get("memory_limit_mib", assignment["memory_mib"])) * 2**20,
            "NanoCpus": assignment.get("cpu_limit_millis", 0) * 10**6,
            "CpuShares": max(2, assignment["cpu_millis"] * 1024 // 1000),
            "PidsLimit": PROCESS_LIMIT,
            # A process in the container gets no more rights than it began with.
            "SecurityOpt": ["no-new-privileges"],
            "DeviceRequests": _gpus(assignment),
            # Ends zombies, and passes signals on to a shell's child.
            "Init": True,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }  # fmt: skip


def _environment(assignment: Assignment, node_name: str) -> dict[str, str]:
    values = environment(assignment, FOLDER, node_name=node_name)
    kept = {name: value for name, value in values.items() if name not in _OF_THE_SERVER}
    return kept | assignment["env"]


def _gpus(assignment: Assignment) -> list[dict[str, Any]]:
    """The devices of the task, by number, for the NVIDIA runtime; none is asked for where it has none."""
    if not assignment["devices"]:
        return []
    numbers = [str(number) for number in assignment["devices"]]
    return [{"Driver": "nvidia", "DeviceIDs": numbers, "Capabilities": [["gpu"]]}]


def folder_archive(assignment: Assignment) -> bytes:
    """A tar archive of the container's `/muster`: the working folder, and the script where the job has one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("muster", "muster/work"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(folder)
        if assignment["script"]:
            text = assignment["script"].encode(errors="surrogateescape")
            script = tarfile.TarInfo("muster/script")
            script.size, script.mode = len(text), 0o755
            archive.addfile(script, io.BytesIO(text))
    return data.getvalue()


# ---------------------------------------------------------------- from a container


def task_of(labels: Mapping[str, str]) -> tuple[int, int] | None:
    """The (task, epoch) of a container; None where its labels are not ours."""
    try:
        return int(labels[TASK_LABEL]), int(labels[EPOCH_LABEL])
    except (KeyError, ValueError):
        return None


def moment(text: str) -> datetime | None:
    """A time of Docker's API, which has nanoseconds; None for what has not happened."""
    if not text or text.startswith(_NEVER):
        return None
    shortened = re.sub(r"(\.\d{1,6})\d*", r"\1", text)
    return datetime.fromisoformat(shortened).astimezone(UTC)


def report_of(found: Mapping[str, Any], *, host_time: datetime, stop_reason: str, text: str) -> Report | None:
    """What to report of a container (`GET /containers/ID/json`); None while it has not started.

    `host_time` is the clock of its host. `stop_reason` is why it was asked to end, and `text` says more of its end.
    """
    key = task_of(found["Config"]["Labels"])
    state = found["State"]
    began = moment(state["StartedAt"])
    if key is None or (began is None and state["Status"] in ("created", "running")):
        return None
    report = Report(task=key[0], epoch=key[1], state="running")
    if began is not None:
        report["started_ago_ms"] = _age_ms(began, host_time)
    if state["Status"] in ("running", "paused", "restarting", "created"):
        report["suspended"] = state["Status"] == "paused"
        return report
    report["ended_ago_ms"] = _age_ms(moment(state["FinishedAt"]) or host_time, host_time)
    code = int(state["ExitCode"])
    if code in _SIGNALS:
        report["exit_signal"] = code - 128
    elif began is not None:
        report["exit_code"] = code
    report["state"] = "succeeded" if code == 0 and began is not None else "failed"
    if state.get("OOMKilled"):
        report["failure"] = OUT_OF_MEMORY
        report["text"] = "The container used more memory than it may, and was ended."
    elif stop_reason:
        report["state"], report["stop_reason"] = "stopped", stop_reason
    elif error := state.get("Error"):
        report["text"] = f"The container could not be started: {error}"[:300]
    if text:
        report["text"] = text[:300]
    return report


def _age_ms(at: datetime, now: datetime) -> int:
    return max(0, int((now - at).total_seconds() * 1000))


def past_limit(labels: Mapping[str, str], ran_seconds: float) -> bool:
    """Whether a task has run for longer than its time limit."""
    limit = labels.get(LIMIT_LABEL) or ""
    return limit != "" and ran_seconds > int(limit)


TIME_LIMIT: Final = StopReason.TIME_LIMIT.value
