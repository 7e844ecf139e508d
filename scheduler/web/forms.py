"""The submit form as the request that API and `sbatch` send too: a field means the same at every door."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from infra.errors import FieldProblem, InvalidInput
from quotas.core.resources import BadAmount, cores_to_millis, parse_mib, show_cpus, show_mib
from scheduler.models import Job
from scheduler.services.submission.declaration import Declared, Form, Kind
from scheduler.services.submission.fields import BadValue, read_integer, read_seconds
from scheduler.services.submission.fields_relax import relax_as_text, relax_from_text
from scheduler.services.submission.fields_task import secret_as_text, secret_of_text
from scheduler.services.submission.job_spec import JOB

#: The declared fields that the form shows, by name.
ON_FORM: Final[dict[str, Declared]] = {
    field.name: field for field in JOB.fields if isinstance(field.form, Form)
}


def form_of_field(field: Declared) -> Form:
    """How the form shows one of the fields in `ON_FORM`."""
    assert isinstance(field.form, Form)
    return field.form


def fields_of(group: str) -> list[Declared]:
    """The fields of one part of the form, as they follow each other there."""
    found = [field for field in ON_FORM.values() if form_of_field(field).group == group]
    return sorted(found, key=lambda field: form_of_field(field).place)


#: Fields that the form's own text stands for, which `payload_of` takes apart.
_TAKEN_APART: Final = frozenset(
    {
        "command",
        "env",
        "secrets",
        "node_selector",
        "pack",
        "depends_on",
        "begin_at",
        "deadline",
        "hold",
        "artifacts",
        "relax",
    }
)
#: Fields that go into the request as they were typed; an empty one is left out and takes its default.
PLAIN: Final = tuple(name for name in ON_FORM if name not in _TAKEN_APART)
#: Fields of the request that the form shows under another name.
SHOWN_AT: Final = {
    "command": "what",
    "script": "what",
    **{spelling.name: field.name for field in ON_FORM.values() for spelling in field.spellings},
}
#: Groups in the part of the page that is folded away.
ADVANCED_GROUPS: Final = ("tasks", "lines", "place", "waits", "hold")
#: In the part that is folded away: opened when one of them is wrong or set.
ADVANCED: Final = (*(field.name for group in ADVANCED_GROUPS for field in fields_of(group)), "depends_data")

_RESTART_FLAGS: Final = {"never": "no-requeue", "interrupted": "requeue"}
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
    if form.get("secrets", "").strip():
        payload["secrets"] = _by_line("secrets", form["secrets"], secret_of_text, problems)
    if form.get("relax", "").strip():
        payload["relax"] = _by_line("relax", form["relax"], relax_from_text, problems)
    if form.get("node_selector", "").strip():
        payload["node_selector"] = _pairs("node_selector", form["node_selector"], problems)
    if pack := form.get("pack", "").strip():
        payload["pack"] = {"level": pack.rstrip("!"), "required": pack.endswith("!")}
    if waits := _dependencies(form):
        payload["depends_on"] = waits
    payload |= _moments(form, time_zone, problems)
    if patterns := [line.strip() for line in form.get("artifacts", "").splitlines() if line.strip()]:
        payload["artifacts"] = patterns
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


def _by_line(
    field: str, text: str, read: Callable[[str], dict[str, Any]], problems: list[FieldProblem]
) -> list[dict[str, Any]]:
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            found.append(read(line))
        except BadValue as error:
            problems.append(FieldProblem(field, f"{error}."))
    return found


def _dependencies(form: Mapping[str, str]) -> list[dict[str, Any]]:
    """Jobs, all of them or a number of them, and data."""
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


def _moments(form: Mapping[str, str], time_zone: str, problems: list[FieldProblem]) -> dict[str, str]:
    """The times that are filled in."""
    return {
        name: _local_time(name, form[name].strip(), time_zone, problems)
        for name in ("begin_at", "deadline")
        if form.get(name, "").strip()
    }


def _local_time(field: str, text: str, time_zone: str, problems: list[FieldProblem]) -> str:
    """A moment without an offset is in the person's own zone: it is what their pages show."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(time_zone))
    except (ValueError, ZoneInfoNotFoundError):
        problems.append(FieldProblem(field, "Is not a date and time; write for example 2027-01-31T18:00."))
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


#: What sentences call the fields of the form.
_NAMES: Final = {
    name: form_of_field(field).title or form_of_field(field).label for name, field in ON_FORM.items()
} | {
    "what": "Command or script",
    "depends_data": "Data dependencies",
}


def at_field(field: str) -> str:
    """The form's own name of a field of the request: `env/PATH` -> `Environment PATH`."""
    head, _, rest = field.partition("/")
    head = SHOWN_AT.get(head, head)
    name = _NAMES.get(head, head.replace("_", " ").capitalize())
    return f"{name} {rest}".strip() if head in ("env", "node_selector") else name


def form_of(job: Job) -> dict[str, str]:
    """The form that submits this job once more."""
    form = {
        SHOWN_AT.get(name, name): typed(field, job)
        for name, field in ON_FORM.items()
        if form_of_field(field).copied
    }
    return {name: value for name, value in form.items() if value}


def typed(field: Declared, job: Job) -> str:
    """What a person would type to ask for what the job has; "" where it has the default."""
    own = _TYPED.get(field.name)
    if own is not None:
        return own(job)
    value = getattr(job, next(iter(field.columns)))
    if value is None or value == field.default:
        return ""
    match field.unit:
        case "cpu_millis" | "gpu_millis":
            text = show_cpus(value)
        case "memory_mib":
            text = _typed_mib(value)
        case _:
            text = _lines_of(value) if isinstance(value, dict) else str(value)
    return "" if text == form_of_field(field).omits else text


def _lines_of(pairs: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in pairs.items())


#: Fields that are typed otherwise than their column reads.
_TYPED: Final[dict[str, Callable[[Job], str]]] = {
    "command": lambda job: job.command or job.script,
    "project": lambda job: job.project.slug,
    "queue": lambda job: job.queue.slug,
    "pack": lambda job: job.pack + "!" * job.pack_required,
    "artifacts": lambda job: "\n".join(job.artifacts),
    "secrets": lambda job: "\n".join(map(secret_as_text, job.secrets)),
    "relax": lambda job: "\n".join(map(relax_as_text, job.relax)),
    "gpu_share": lambda job: show_cpus(job.gpu_millis) if job.gpu_millis and not job.gpu_slice else "",
}


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
        *_amounts(form, f"{model}:{gpus}" if gpus and model else gpus),
        ("nodes", form.get("nodes", "")),
        ("ntasks-per-node", form.get("tasks_per_node", "")),
        ("time", _slurm_time(form.get("time_limit", ""))),
        ("array", form.get("array", "")),
        ("chdir", form.get("working_dir", "")),
        ("output", form.get("standard_output", "")),
        ("mail-type", form.get("mail_type", "")),
        ("upload", form.get("upload", "")),
        *(("secret", line) for line in form.get("secrets", "").splitlines()),
        *(("relax", line) for line in form.get("relax", "").splitlines()),
    ]
    return [(name, value.strip()) for name, value in pairs if value.strip() and value.strip() != "0"]


def _amounts(form: Mapping[str, str], gpus: str) -> list[tuple[str, str]]:
    """Memory, GPUs and the number of tasks: ours are of a task, and --mem and --gres of a node."""
    # Slurm's M is 2**20, as is our Mi.
    memory = form.get("memory", "").replace("iB", "").replace("i", "")
    tasks = _tasks(form)
    if tasks < 2:
        return [("mem", memory), ("gres", f"gpu:{gpus}" if gpus else ""), ("ntasks", form.get("tasks", ""))]
    cores = int(_whole_cores(form.get("cpu_cores", "")) or 1)
    try:
        per_cpu = f"{-(-parse_mib(form.get('memory', '').strip()) // cores)}M" if memory.strip() else ""
    except BadAmount:
        per_cpu = ""
    return [("mem-per-cpu", per_cpu), ("gpus-per-task", "" if gpus == "0" else gpus), ("ntasks", str(tasks))]


def _tasks(form: Mapping[str, str]) -> int:
    """How many tasks the form asks for; 1 where it cannot be read."""
    given = {name: read_integer(form.get(name, "")) for name in ("tasks", "nodes", "tasks_per_node")}
    return given["tasks"] or (given["nodes"] or 1) * (given["tasks_per_node"] or 1)


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


# ---------------------------------------------------------------- what the page shows


def shown(field: Declared) -> dict[str, Any]:
    """One field as `scheduler/field.html` shows it."""
    form = form_of_field(field)
    return {
        "name": SHOWN_AT.get(field.name, field.name),
        "label": form.label,
        "widget": form.widget.value,
        "own": f"scheduler/fields/{field.name}.html",
        "placeholder": form.placeholder,
        "hint": form.hint,
        "note": form.note,
        "mode": form.mode,
        "rows": form.rows,
        "code": form.code,
        "words": form.words,
        "help": _help_of(field),
        "most_characters": _most_characters(field),
        "whole": field.kind is Kind.INTEGER,
        "least": field.least,
        "most": field.most,
    }


def _help_of(field: Declared) -> str:
    if field.kind is Kind.INTEGER:
        return f"{field.help} From {field.least} to {field.most}."
    return field.help


def _most_characters(field: Declared) -> int | None:
    """No browser cuts what runs: its end would be missing without a word."""
    if field.kind is Kind.TEXT:
        return field.most
    return len(str(field.most)) if field.kind is Kind.INTEGER else None


def groups() -> dict[str, list[dict[str, Any]]]:
    """The parts of the page, each with its fields."""
    return {
        group: [shown(field) for field in fields_of(group)]
        for group in ("what", "naming", "amounts", *ADVANCED_GROUPS)
    }
