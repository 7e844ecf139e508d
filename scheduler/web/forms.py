"""The submit form as the request that API and `sbatch` send too: a field means the same at every door."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from infra.errors import FieldProblem, InvalidInput
from quotas.core.resources import BadAmount, cores_to_millis, show_cpus, show_mib
from scheduler.core.lifecycle import RestartPolicy, TaskFailure
from scheduler.core.snapshot.request_classes import NUMA_WORDS
from scheduler.models import Job
from scheduler.services.submission.fields import BadValue, read_seconds

#: Fields that go into the request as they were typed; an empty one is left out and takes its default.
PLAIN: Final = (
    "name", "project", "queue", "cpu_cores", "memory", "gpu_count", "gpu_type", "gpu_share", "tasks", "nodes",
    "tasks_per_node", "time_limit", "priority", "working_dir", "array", "restart_policy",
    "depends_timeout", "on_depends_timeout", "min_tasks", "on_task_failure", "assembly_timeout",
    "cpu_limit", "memory_limit", "gpu_slice", "numa",
)  # fmt: skip
#: Fields of the request that the form shows under another name.
SHOWN_AT: Final = {"command": "what", "script": "what", "memory_gb": "memory", "memory_bytes": "memory"}
#: In the part that is folded away: opened when one of them is wrong or set.
ADVANCED: Final = (
    "tasks", "nodes", "tasks_per_node", "gpu_share", "env", "working_dir", "array", "depends_on", "begin_at",
    "depends_data", "depends_timeout", "min_tasks", "pack", "on_task_failure", "assembly_timeout",
    "restart_policy", "node_selector", "hold", "cpu_limit", "memory_limit", "gpu_slice",
    "numa",
)  # fmt: skip

#: What the form offers for `pack`; ! is a must.
PACKS: Final = (
    ("node", "one node, if possible"), ("rack", "one rack, if possible"), ("zone", "one zone, if possible"),
    ("node!", "one node, required"), ("rack!", "one rack, required"), ("zone!", "one zone, required"),
)  # fmt: skip

_RESTART_FLAGS: Final = {"never": "no-requeue", "on_failure": "requeue"}
_SBATCH_LINE = re.compile(r"^#SBATCH\b", re.MULTILINE)

EXAMPLES: Final[dict[str, dict[str, str]]] = {
    "cpu": {
        "name": "first job",
        "what": "echo hello from $(hostname)\nsleep 2\necho bye",
        "cpu_cores": "1",
        "memory": "256Mi",
        "time_limit": "10m",
    },
    "gpu": {
        "name": "first GPU job",
        "what": 'echo "my GPUs: $CUDA_VISIBLE_DEVICES"\nsleep 5\necho done',
        "cpu_cores": "1",
        "memory": "512Mi",
        "gpu_count": "1",
        "time_limit": "10m",
    },
}


def is_sbatch(text: str) -> bool:
    """Whether somebody pasted a batch script of Slurm's."""
    return _SBATCH_LINE.search(text) is not None


def payload_of(form: Mapping[str, str], *, time_zone: str) -> dict[str, Any]:
    """The request of a form, without what runs when that is an `sbatch` script.

    Raises InvalidInput for what only the form can read: lines of the environment, a local time.
    """
    problems: list[FieldProblem] = []
    payload: dict[str, Any] = {name: form[name].strip() for name in PLAIN if form.get(name, "").strip()}
    what = form.get("what", "").replace("\r\n", "\n")
    if what.strip() and not is_sbatch(what):
        payload["script" if what.startswith("#!") else "command"] = what
    if form.get("env", "").strip():
        payload["env"] = _pairs("env", form["env"], problems)
    if form.get("node_selector", "").strip():
        payload["node_selector"] = _pairs("node_selector", form["node_selector"], problems)
    if pack := form.get("pack", "").strip():
        payload["pack"] = {"level": pack.rstrip("!"), "required": pack.endswith("!")}
    if waits := _dependencies(form):
        payload["depends_on"] = waits
    if form.get("begin_at", "").strip():
        payload["begin_at"] = _local_time(form["begin_at"].strip(), time_zone, problems)
    if form.get("hold"):
        payload["hold"] = True
    if problems:
        raise InvalidInput("Some fields cannot be read.", problems=problems)
    return payload


def _pairs(field: str, text: str, problems: list[FieldProblem]) -> dict[str, str]:
    pairs = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            problems.append(FieldProblem(field, f"Line {number} has no =; write NAME=value, one per line."))
        else:
            pairs[name.strip()] = value
    return pairs


def _dependencies(form: Mapping[str, str]) -> list[dict[str, Any]]:
    """Dependencies on jobs (all, or a number of them) and on data."""
    kind, need = form.get("depends_kind", "success"), form.get("depends_need", "").strip()
    jobs: list[dict[str, Any]] = [
        {"job": int(part) if part.isdecimal() and len(part) < 19 else part, "type": kind}
        for part in _words(form.get("depends_on", ""))
    ]
    if jobs and need:
        jobs = [{"any": need, "of": jobs}]
    return jobs + [{"data": name} for name in _words(form.get("depends_data", ""))]


def _words(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text.strip()) if part]


def _local_time(text: str, time_zone: str, problems: list[FieldProblem]) -> str:
    """A moment without an offset is in the person's own zone: it is what their pages show."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(time_zone))
    except (ValueError, ZoneInfoNotFoundError):
        problems.append(
            FieldProblem("begin_at", "Is not a date and time; write for example 2027-01-31T18:00.")
        )
        return ""
    return moment.isoformat()


def by_form_field(error_problems: list[FieldProblem]) -> dict[str, list[str]]:
    """Problems of a request at the fields that show them; "" takes those of no field."""
    found: dict[str, list[str]] = {}
    for problem in error_problems:
        head, _, rest = problem.field.partition("/")
        name = SHOWN_AT.get(head, head)
        known = name in PLAIN or name in ("what", *ADVANCED)
        message = f"{rest}: {problem.message}" if rest and known else problem.message
        found.setdefault(name if known else "", []).append(
            message if known or not head else f"{head}: {message}"
        )
    return found


#: What the form calls its fields.
_NAMES: Final = {
    "what": "Command or script", "cpu_cores": "CPU cores", "gpu_count": "GPUs", "gpu_type": "GPU model",
    "gpu_share": "GPU share", "env": "Environment", "node_selector": "Node labels",
    "depends_on": "Start after jobs", "depends_data": "Data dependencies",
    "min_tasks": "Minimum tasks", "pack": "Topology", "on_task_failure": "On task failure",
    "assembly_timeout": "Assembly timeout", "depends_timeout": "Dependency timeout",
    "on_depends_timeout": "After the timeout",
    "begin_at": "Begin time", "restart_policy": "Restart", "cpu_limit": "CPU limit",
    "memory_limit": "Memory limit", "gpu_slice": "GPU slice", "numa": "NUMA domains",
}  # fmt: skip


def at_field(field: str) -> str:
    """The form's own name of a field of the request: `env/PATH` -> `Environment PATH`."""
    head, _, rest = field.partition("/")
    head = SHOWN_AT.get(head, head)
    name = _NAMES.get(head, head.replace("_", " ").capitalize())
    return f"{name} {rest}".strip() if head in ("env", "node_selector") else name


def form_of(job: Job) -> dict[str, str]:
    """The form that submits this job once more."""
    form = {
        "name": job.name,
        "what": job.command or job.script,
        "project": job.project.slug,
        "queue": job.queue.slug,
        "cpu_cores": show_cpus(job.cpu_millis),
        "memory": _typed_mib(job.memory_mib),
        "cpu_limit": show_cpus(job.cpu_limit_millis) if job.cpu_limit_millis else "",
        "memory_limit": _typed_mib(job.memory_limit_mib) if job.memory_limit_mib else "",
        "gpu_count": str(job.gpus) if job.gpus else "",
        "gpu_type": job.gpu_model,
        "gpu_slice": job.gpu_slice,
        "numa": job.numa if job.numa != NUMA_WORDS[0] else "",
        "gpu_share": show_cpus(job.gpu_millis) if job.gpu_millis and not job.gpu_slice else "",
        "tasks": str(job.tasks) if job.tasks > 1 else "",
        "nodes": str(job.nodes or ""),
        "tasks_per_node": str(job.tasks_per_node or ""),
        "min_tasks": str(job.min_tasks or ""),
        "pack": job.pack + "!" * job.pack_required,
        "on_task_failure": job.on_task_failure if job.on_task_failure != TaskFailure.FAIL else "",
        "assembly_timeout": str(job.assembly_timeout_seconds or ""),
        "time_limit": str(job.time_limit_seconds or ""),
        "priority": str(job.priority),
        "env": "\n".join(f"{name}={value}" for name, value in job.env.items()),
        "node_selector": "\n".join(f"{name}={value}" for name, value in job.node_selector.items()),
        "working_dir": job.working_dir,
        "restart_policy": job.restart_policy if job.restart_policy != RestartPolicy.INTERRUPTED else "",
    }
    return {name: value for name, value in form.items() if value}


def _typed_mib(amount: int) -> str:
    """As a person would type it."""
    return show_mib(amount).replace(" ", "") if amount % 1024 == 0 else f"{amount}Mi"


def as_sbatch(form: Mapping[str, str]) -> str:
    """The same request as a batch script, for those who keep such scripts."""
    what = form.get("what", "").replace("\r\n", "\n")
    if is_sbatch(what):
        return what
    lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in _directives(form)]
    if flag := _RESTART_FLAGS.get(form.get("restart_policy", "")):
        lines.append(f"#SBATCH --{flag}")
    shebang, body = "#!/bin/sh", what
    if what.startswith("#!"):
        shebang, _, body = what.partition("\n")
    return "\n".join([shebang, *lines, "", body]).rstrip() + "\n"


def _directives(form: Mapping[str, str]) -> list[tuple[str, str]]:
    gpus, model = form.get("gpu_count", "").strip(), form.get("gpu_type", "").strip()
    pairs = [
        ("job-name", form.get("name", "")),
        ("account", form.get("project", "")),
        ("partition", form.get("queue", "")),
        ("cpus-per-task", _whole_cores(form.get("cpu_cores", ""))),
        (
            "mem",
            form.get("memory", "").replace("iB", "").replace("i", ""),
        ),  # Slurm's M is 2**20, as is our Mi
        ("gres", f"gpu:{model}:{gpus}" if gpus and model else f"gpu:{gpus}" if gpus else ""),
        ("ntasks", form.get("tasks", "")),
        ("nodes", form.get("nodes", "")),
        ("ntasks-per-node", form.get("tasks_per_node", "")),
        ("time", _slurm_time(form.get("time_limit", ""))),
        ("array", form.get("array", "")),
        ("chdir", form.get("working_dir", "")),
    ]
    return [(name, value.strip()) for name, value in pairs if value.strip() and value.strip() != "0"]


def _slurm_time(text: str) -> str:
    """Slurm reads a bare number as minutes, we as seconds: so it is always written out."""
    try:
        minutes, seconds = divmod(read_seconds(text.strip()), 60)
    except BadValue:
        return ""
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"


def _whole_cores(text: str) -> str:
    try:
        return str(-(-cores_to_millis(text) // 1000)) if text.strip() else ""
    except BadAmount:
        return ""
