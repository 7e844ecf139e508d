"""The options of `sbatch`, one reader each: what Slurm's words mean in ours, and what has no effect here."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from infra.errors import FieldProblem
from quotas.core.resources import parse_mib
from scheduler.core.mail_types import parse_mail_types
from scheduler.models.results.checkpoint_policy import SIGNALS
from scheduler.services.submission.fields import BadValue, read_moment
from scheduler.services.submission.fields_placement import MAX_VALUE
from scheduler.services.submission.fields_restart import MAX_GRACE
from scheduler.services.submission.fields_task import secret_of_text
from scheduler.services.submission.job_spec import FIELDS


@dataclass(frozen=True, slots=True)
class Unhonoured:
    """A directive that has no effect here: its line, what it says, and why."""

    line: int
    text: str
    reason: str


@dataclass(slots=True)
class Directives:
    """What was read: fields of a job, and what Slurm counts by node until the layout is known."""

    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unhonoured: list[Unhonoured] = field(default_factory=list)
    problems: list[FieldProblem] = field(default_factory=list)
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    gpus_total: int | None = None
    memory_per_node_mib: int | None = None
    memory_per_cpu_mib: int | None = None
    memory_per_gpu_mib: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    partition: str = ""
    mail_user: str = ""
    nice: int = 0

    def fill(self, name: str, value: Any) -> None:
        """Set a field of the job; KeyError for one that no job has."""
        if name not in FIELDS:
            raise KeyError(name)
        self.fields[name] = value

    def add(self, name: str, key: str, value: str) -> None:
        """Set one entry of a field that is an object of text; KeyError for a field that no job has."""
        self.fill(name, self.fields.get(name, {}))
        self.fields[name][key] = value


def minutes(text: str) -> int:
    """Seconds from Slurm's times: `minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,2}))?", text, re.ASCII)
    if match is None:
        raise BadValue(f"{text[:40]!r} is not a time; write minutes, HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        return days * 86_400 + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    if match[3] is not None:
        return first * 60 + second
    return first * 60


def _time(found: Directives, value: str) -> str | None:
    if value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return "The queue's time limit applies."
    found.fill("time_limit", minutes(value))
    if not found.fields["time_limit"]:
        raise BadValue("0 is no time")
    return None


def _count(value: str) -> int:
    """A whole number, with Slurm's k and m."""
    match = re.fullmatch(r"(\d{1,9})([kKmM]?)", value, re.ASCII)
    if match is None or not int(match[1]):
        raise BadValue(f"{value[:40]!r} is not a number of at least 1")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()]


def _number_to(name: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        found.fill(name, _count(value))

    return read


def _text_to(name: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        found.fill(name, value)

    return read


def _nodes(found: Directives, value: str) -> str | None:
    """`4`, or `2-4`: a gang has one size, so the least is taken."""
    least, dash, most = value.partition("-")
    found.fill("nodes", _count(least))
    if dash and _count(most) < found.fields["nodes"]:
        raise BadValue(f"{value[:40]!r} has its lower number second")
    return f"A job has one size; this one requests {least} nodes." if dash and most != least else None


def _gres(found: Directives, value: str) -> str | None:
    """`gpu`, `gpu:2`, `gpu:a100`, `gpu:a100:2`, per node; other things become named extras."""
    said = []
    for part in value.split(","):
        name, *rest = part.partition("(")[0].strip().split(":")  # (S:0-1) after it names sockets
        if name == "gpu" or (name == "gres/gpu"):
            found.gpus_per_node = (found.gpus_per_node or 0) + _gpus(found, ":".join(rest) or "1")
        elif name in ("none", ""):
            continue
        else:
            said.append(f"There is no generic resource {name[:40]!r} here.")
    return " ".join(said)[:1000] or None


def _gpus(found: Directives, value: str) -> int:
    """A count with or without a model: `2`, `a100`, `a100:2`."""
    if "," in value:
        raise BadValue("asks for several models; a job has one")
    model, colon, count = value.rpartition(":")
    if not colon and not re.fullmatch(r"\d+[kKmM]?", value):
        model, count = value, "1"
    number = 0 if count == "0" else _count(count)
    if model:
        if found.fields.get("gpu_type", model) != model:
            raise BadValue(f"asks for {model} beside {found.fields['gpu_type']}; a job has one model")
        found.fill("gpu_type", model)
    return number


def _gpus_to(name: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        setattr(found, name, _gpus(found, value))

    return read


def _memory_to(name: str) -> Callable[[Directives, str], str | None]:
    def read(found: Directives, value: str) -> str | None:
        if name == "memory_per_node_mib" and value == "0":
            return "All memory of a node cannot be requested; give an amount."
        # Slurm's K, M, G and T are binary, and a bare number counts MiB.
        binary = (
            re.sub(r"([KMGT])B?$", r"\1i", value.upper()) if re.search(r"[KMGTkmgt][Bb]?$", value) else value
        )
        setattr(found, name, parse_mib(binary, bare_unit="mi"))
        return None

    return read


def _cpus(name: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        setattr(found, name, _count(value))

    return read


def _partition(found: Directives, value: str) -> str | None:
    first, comma, _ = value.partition(",")
    found.partition = first.strip()
    return f"One queue is used here: {first}." if comma else None


def _priority(found: Directives, value: str) -> None:
    """A name or 0-100; Slurm's own large numbers have no meaning here."""
    found.fill("priority", int(value) if re.fullmatch(r"\d{1,10}", value, re.ASCII) else value)


def _nice(found: Directives, value: str) -> str:
    return "Priorities are 0 to 100 here; use --priority."


def _dependency(found: Directives, value: str) -> str | None:
    """`afterok:12:13,afterany:14`: all of them; `afterok:12?afterok:13`: any of them."""
    if "?" in value and "," in value:
        raise BadValue("mixes , (all of them) and ? (any of them); Slurm takes one of the two")
    wanted, said = [], []
    for part in re.split(r"[,?]", value):
        kind, *jobs = part.strip().split(":")
        if kind == "singleton":
            said.append("singleton is not known here.")
        elif kind not in ("afterok", "afterany", "afternotok") or not jobs:
            raise BadValue(f"{part[:40]!r} is no dependency; write for example afterok:123")
        else:
            wanted += [{"job": job.partition("+")[0].partition("_")[0], "type": kind} for job in jobs]
    if wanted:
        any_of = "?" in value and len(wanted) > 1
        found.fill("depends_on", [{"any": 1, "of": wanted}] if any_of else wanted)
    return " ".join(said) or None


_BEGIN_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def _begin(found: Directives, value: str) -> None:
    found.fill("begin_at", _moment(value).isoformat())


def _deadline(found: Directives, value: str) -> None:
    """As Slurm: a job that cannot end in time is removed, and one that runs then is stopped."""
    found.fill("deadline", _moment(value).isoformat())
    found.fill("deadline_action", "end")


def _moment(value: str) -> datetime:
    """`now+1hour`, `now+60`, `16:00`, `tomorrow`, `2027-01-31T18:00:00`; times of day are UTC."""
    now, text = timezone.now(), value.strip().lower()
    match = re.fullmatch(r"now(?:\s*\+\s*(\d{1,9})\s*([a-z]*?)s?)?", text)
    if match:
        unit = match[2] or "second"
        if unit not in _BEGIN_UNITS:
            raise BadValue(f"{value[:40]!r} counts in {unit!r}; write seconds, minutes, hours, days or weeks")
        seconds = int(match[1] or 0) * _BEGIN_UNITS[unit]
        if seconds > 10 * 366 * 86_400:
            raise BadValue(f"{value[:40]!r} is too far in the future")
        return now + timedelta(seconds=seconds)
    words = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", words.get(text, text))
    if clock and int(clock[1]) < 24 and int(clock[2]) < 60 and int(clock[3] or 0) < 60:
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        moment = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return moment if moment > now else moment + timedelta(days=1)
    if text in ("today", "tomorrow"):
        return now if text == "today" else now + timedelta(days=1)
    return read_moment(value.strip())


def _export(found: Directives, value: str) -> str | None:
    """`ALL`, `NONE`, or `NAME=value,…`: nothing of the submitter's own environment is here to pass on."""
    found.fill("env", found.fields.get("env", {}))
    copied = []
    for part in re.split(r",(?=[A-Za-z_][A-Za-z0-9_]*(?:=|,|$))", value):
        name, equals, text = part.strip().partition("=")
        if equals:
            found.add("env", name, text)
        elif name.upper() not in ("ALL", "NONE", "NIL", ""):
            copied.append(name)
    if copied:
        return f"There is no environment here to copy {', '.join(copied)[:100]} from; write NAME=value."
    return None


def _constraint(found: Directives, value: str) -> None:
    """`intel&gpu` asks for labels: a feature is a label that is there."""
    terms = []
    for term in value.split("|"):
        features = [feature.strip() for feature in re.split(r"[&,]", term.strip("[]() "))]
        if any(not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*(=[A-Za-z0-9._-]+)?", f) for f in features):
            raise BadValue(f"{value[:60]!r} cannot be read; write features joined by & or |")
        terms.append([_feature(feature) for feature in features])
    found.fill("affinity", {"required": terms})


def _feature(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if equals:
        return {"key": key, "operator": "In", "values": [value]}
    return {"key": key, "operator": "Exists"}


def _restart(policy: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        found.fill("restart_policy", policy)

    return read


def _hold(found: Directives, value: str) -> None:
    found.fill("hold", True)


def _label(name: str) -> Callable[[Directives, str], None]:
    def read(found: Directives, value: str) -> None:
        found.add("labels", name, value[:MAX_VALUE])

    return read


def _chdir(found: Directives, value: str) -> None:
    if not value.startswith("/"):
        raise BadValue(f"{value[:60]!r} is not absolute; begin it with /")
    found.fill("working_dir", value)


def _mail_type(found: Directives, value: str) -> str | None:
    """Words of Slurm; what they mean here, `notifications` says."""
    words = [word for word in value.split(",") if word.strip().upper() != "STAGE_OUT"]
    try:
        found.fill("mail_type", parse_mail_types(",".join(words)))
    except ValueError as error:
        raise BadValue(str(error)) from None
    if not settings.MUSTER_ALERT_MAIL_FROM:
        return "This site sends no mail; notifications are in the portal and at webhooks."
    return (
        "There is no burst buffer here: STAGE_OUT has no effect."
        if len(words) < len(value.split(","))
        else None
    )


def _open_mode(found: Directives, value: str) -> None:
    """`append` or `truncate`, or the first letters of one."""
    word = value.strip().lower()
    full = next((mode for mode in ("append", "truncate") if word and mode.startswith(word)), "")
    if not full:
        raise BadValue(f"{value[:40]!r} is no open mode; write append or truncate")
    found.fill("open_mode", full)


def _mail_user(found: Directives, value: str) -> None:
    """Whose address that is, is asked once it is known who submits."""
    found.mail_user = value


#: As `sbatch --signal=[{R|B}:]<sig_num>[@sig_time]`.
_SIGNAL: Final = re.compile(r"(?:([RB]{1,2}):)?([A-Za-z0-9]{1,8})(?:@([0-9]{1,5}))?")


def _signal(found: Directives, value: str) -> str | None:
    """The signal that asks for a checkpoint, how long before the time limit, and whether the script alone gets it."""
    match = _SIGNAL.fullmatch(value)
    if match is None:
        raise BadValue("Write it as --signal=B:USR1@90.")
    to, word, seconds = match.groups()
    word = word.upper().removeprefix("SIG")
    if word.isdecimal():
        word = next((one for one in SIGNALS if int(getattr(signal, f"SIG{one}")) == int(word)), word)
    if word not in SIGNALS:
        return f"Jobs are asked for checkpoints by {', '.join(SIGNALS)}; SIGTERM comes with every stop."
    if not (settings.MUSTER_STORAGE or settings.CHECKPOINT_PATH):
        return "This site has no storage for checkpoints; a job gets SIGTERM, and SIGKILL after the grace period."
    asked: dict[str, Any] = {"signal": word, "to": "shell" if to and "B" in to else "all"}
    if seconds is not None and int(seconds):
        asked["grace"] = min(int(seconds), MAX_GRACE)
    found.fill("checkpoint", asked)
    return None


def _secret(found: Directives, value: str) -> None:
    """`--secret=wandb,env=WANDB_API_KEY`, once for each secret; Slurm has no such option."""
    found.fill("secrets", [*found.fields.get("secrets", []), secret_of_text(value)])


def _upload(found: Directives, value: str) -> None:
    """`--upload=ID`: the folder that the job begins with; Slurm has no such option."""
    found.fill("upload", value)


def _gres_flags(found: Directives, value: str) -> str | None:
    """CPUs near the GPUs that a task is given, or it waits."""
    others = [flag for flag in value.split(",") if flag.strip().lower() != "enforce-binding"]
    if len(others) < len(value.split(",")):
        found.fill("numa", "one")
    return f"Has no effect here: {','.join(others)[:60]}." if others else None


def _mem_bind(found: Directives, value: str) -> str | None:
    """Memory of the domain that the task runs in; the other ways to divide it are not known here."""
    words = [word.strip().lower() for word in value.split(",")]
    if "local" in words:
        found.fill("numa", "one")
    others = [word for word in words if word not in ("local", "quiet", "q", "verbose", "v", "none", "no")]
    return f"Only local is known here; not {','.join(others)[:60]}." if others else None


SHORT: Final = {
    "J": "job-name", "t": "time", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "p": "partition",
    "A": "account", "a": "array", "d": "dependency", "o": "output", "e": "error", "D": "chdir",
    "C": "constraint", "G": "gpus", "H": "hold", "b": "begin", "q": "qos", "w": "nodelist", "x": "exclude",
    "i": "input", "L": "licenses", "m": "distribution", "k": "no-kill", "s": "oversubscribe",
    "v": "verbose", "Q": "quiet", "W": "wait",
}  # fmt: skip

READERS: Final[dict[str, Callable[[Directives, str], Any]]] = {
    "job-name": _text_to("name"),
    "time": _time,
    "nodes": _nodes,
    "ntasks": _number_to("tasks"),
    "ntasks-per-node": _number_to("tasks_per_node"),
    "tasks-per-node": _number_to("tasks_per_node"),
    "cpus-per-task": _cpus("cpus_per_task"),
    "cpus-per-gpu": _cpus("cpus_per_gpu"),
    "gres": _gres,
    "gpus": _gpus_to("gpus_total"),
    "gpus-per-node": _gpus_to("gpus_per_node"),
    "gpus-per-task": _gpus_to("gpus_per_task"),
    "mem": _memory_to("memory_per_node_mib"),
    "mem-per-cpu": _memory_to("memory_per_cpu_mib"),
    "mem-per-gpu": _memory_to("memory_per_gpu_mib"),
    "partition": _partition,
    "account": _text_to("project"),
    "priority": _priority,
    "nice": _nice,
    "array": _text_to("array"),
    "dependency": _dependency,
    "begin": _begin,
    "deadline": _deadline,
    "export": _export,
    "chdir": _chdir,
    "workdir": _chdir,
    "constraint": _constraint,
    "gres-flags": _gres_flags,
    "mem-bind": _mem_bind,
    "requeue": _restart("on_failure"),
    "no-requeue": _restart("never"),
    "hold": _hold,
    "comment": _label("comment"),
    "wckey": _label("wckey"),
    "output": _text_to("standard_output"),
    "error": _text_to("standard_error"),
    "open-mode": _open_mode,
    "mail-type": _mail_type,
    "mail-user": _mail_user,
    "signal": _signal,
    "secret": _secret,
    "upload": _upload,
}

#: Known and without effect here, and why.
IGNORED: Final[dict[str, str]] = {
    "input": "A job's standard input is empty.",
    "exclusive": "Whole nodes cannot be requested; request all CPUs of a node.",
    "oversubscribe": "Resources are never shared between jobs.",
    "qos": "There are no QOS here; use --priority or --partition.",
    "nodelist": "Single nodes cannot be requested; use --constraint with a label.",
    "exclude": "Single nodes cannot be excluded; use --constraint with a label.",
    "distribution": "Tasks are placed by the planner.",
    "verbose": "Has no effect here.",
    "quiet": "Has no effect here.",
    "parsable": "Answers are JSON.",
    "export-file": "There is no file here to read; use --export.",
    "get-user-env": "A job begins with a clean environment; use --export.",
    "propagate": "Limits are the node's own.",
}

#: Options that stand alone; a value after them is the next word.
FLAGS: Final = frozenset(
    [
        "requeue",
        "no-requeue",
        "hold",
        "exclusive",
        "verbose",
        "quiet",
        "parsable",
        "nice",
        "oversubscribe",
        "get-user-env",
        "no-kill",
        "wait",
        "contiguous",
        "ignore-pbs",
        "overcommit",
        "spread-job",
        "use-min-nodes",
        "test-only",
    ]
)
