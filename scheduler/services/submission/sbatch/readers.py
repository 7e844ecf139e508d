"""One reader for each option of `sbatch` that has an effect: what Slurm's words mean in ours.

A reader replaces what an earlier line said, as the last of equal options counts. It returns what the value leaves
without effect, if anything, and raises BadValue, or NotSupported for what does not exist here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings

from scheduler.core.mail_types import parse_mail_types
from scheduler.core.snapshot.relaxation import Relaxable
from scheduler.models import Node
from scheduler.models.results.checkpoint_policy import SIGNALS
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import read_array
from scheduler.services.submission.fields_placement import MAX_VALUE
from scheduler.services.submission.fields_relax import relax_from_text
from scheduler.services.submission.fields_restart import MAX_BEFORE, MAX_GRACE
from scheduler.services.submission.fields_task import secret_of_text
from scheduler.services.submission.sbatch.dependencies import read_dependency
from scheduler.services.submission.sbatch.directives import Directives, Gpus, NotSupported
from scheduler.services.submission.sbatch.places import feature_terms
from scheduler.services.submission.sbatch.values import count, mebibytes, minutes, moment, node_names

Reader = Callable[[Directives, str], str | None]


def _text_to(name: str) -> Reader:
    def read(found: Directives, value: str) -> None:
        found.fill(name, value)

    return read


def _tasks(found: Directives, value: str) -> None:
    found.shape.tasks = count(value)


def _cpus_per_node(found: Directives, value: str) -> None:
    found.amounts.cpus_per_node = count(value)


# ---------------------------------------------------------------- how large


def _nodes(found: Directives, value: str) -> None:
    """`4`, or `2-4`."""
    least, dash, most = value.partition("-")
    found.shape.nodes, found.shape.most_nodes = count(least), count(most) if dash else None
    if found.shape.most_nodes is not None and found.shape.most_nodes < found.shape.nodes:
        raise BadValue(f"{value[:40]!r} has its lower number second")


def _tasks_per_node(found: Directives, value: str) -> None:
    found.shape.tasks_per_node = count(value)
    found.variables["SLURM_NTASKS_PER_NODE"] = value


def _cpus_per_task(found: Directives, value: str) -> None:
    found.amounts.cpus_per_task = count(value)
    found.variables["SLURM_CPUS_PER_TASK"] = value


def _cpus_per_gpu(found: Directives, value: str) -> None:
    found.amounts.cpus_per_gpu = count(value)
    found.variables["SLURM_CPUS_PER_GPU"] = value


def _gpus(value: str, *, prefix: str = "") -> Gpus:
    """A count with or without a model: `2`, `a100`, `a100:2`."""
    if "," in value:
        raise NotSupported(f"{value[:40]!r} asks for several models; the GPUs of a job are of one model here")
    model, colon, number = value.rpartition(":")
    if not colon and not re.fullmatch(r"[0-9]{1,9}", value):
        model, number = value, "1"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.+-]{0,60}", model or "any"):
        raise BadValue(f"{prefix}{value[:40]!r} is not a number of GPUs; write for example 2, or a100:2")
    return Gpus(count(number, least=0), model)


def _gres(found: Directives, value: str) -> None:
    """`gpu`, `gpu:2`, `gpu:a100`, `gpu:a100:2`, per node; of equal names the last counts."""
    parts = value.split(",")
    kinds: list[Gpus] = []
    for part in parts:
        name, *rest = part.partition("(")[0].removeprefix("gres:").removeprefix("gres/").split(":")
        if name == "gpu":
            kinds.append(_gpus(":".join(rest) or "1", prefix="gpu:"))
        elif name != "none" or len(parts) > 1:
            raise BadValue(f"there is no generic resource {part[:40]!r} here; gpu is one")
    models = {kind.model for kind in kinds}
    if len(models) > 1:
        raise BadValue(
            f"{value[:60]!r} asks for several kinds of GPUs; the GPUs of a job are of one model here"
        )
    found.amounts.gres = kinds[-1] if kinds else None


def _gpus_to(name: str, variable: str) -> Reader:
    def read(found: Directives, value: str) -> None:
        setattr(found.amounts, name, _gpus(value))
        found.variables[variable] = value

    return read


def _memory_to(name: str, variable: str) -> Reader:
    def read(found: Directives, value: str) -> None:
        mib = mebibytes(value)
        if name != "memory_per_gpu_mib":
            found.shape.whole_memory = not mib
        setattr(found.amounts, name, mib or None)
        if mib:
            found.variables[variable] = str(mib)

    return read


def _disk(found: Directives, value: str) -> None:
    found.amounts.disk_per_node_mib = mebibytes(value)


def _exclusive(found: Directives, value: str) -> str | None:
    """Whole nodes; `user` and `mcs` share nodes among some, which does not exist here."""
    if value in ("user", "mcs"):
        raise NotSupported(
            f"nodes that only jobs of one {value} share do not exist here; leave it out, or =user"
        )
    if value:
        raise BadValue(f"{value[:40]!r} is unknown; write --exclusive")
    found.shape.whole_node = True
    return None


def _mcs(found: Directives, value: str) -> None:
    raise NotSupported("labels of multi-category security do not exist here")


# ---------------------------------------------------------------- when


def _time(found: Directives, value: str) -> None:
    seconds = minutes(value)
    found.times.no_time_limit = seconds is None
    found.fields.pop("time_limit", None)
    if seconds is not None:
        found.fill("time_limit", seconds)


def _time_min(found: Directives, value: str) -> None:
    found.times.time_min = minutes(value)


def _begin(found: Directives, value: str) -> None:
    found.fill("begin_at", moment(value).isoformat())


def _deadline(found: Directives, value: str) -> None:
    """As Slurm: a job that cannot end in time is removed, and one that runs then is stopped."""
    found.fill("deadline", moment(value).isoformat())
    found.fill("deadline_action", "end")


#: As `sbatch --signal=[{R|B}:]<sig_num>[@sig_time]`.
_SIGNAL: Final = re.compile(r"(?:([RB]{1,2}):)?([A-Za-z0-9]{1,8})(?:@([0-9]{1,5}))?")


def _signal(found: Directives, value: str) -> str | None:
    """The signal before the time limit, how long before, and whether the script alone gets it.

    Where the site stores checkpoints the signal asks for one, so that it also comes before preemption.
    """
    match = _SIGNAL.fullmatch(value)
    if match is None:
        raise BadValue(f"{value[:40]!r} is not a signal; write for example B:USR1@90")
    to, word, seconds = match[1] or "", _name_of_signal(match[2], value), int(match[3] or 0)
    if seconds > MAX_BEFORE:
        raise BadValue(f"{value[:40]!r}: the signal comes at most {MAX_BEFORE} s before the time limit")
    if word not in SIGNALS:
        return f"Jobs get {', '.join(SIGNALS)} before their time limit; SIGTERM comes with every stop."
    asked: dict[str, Any] = {"signal": word, "to": "shell" if "B" in to else "all"}
    if not (settings.MUSTER_STORAGE or settings.CHECKPOINT_PATH):
        found.fill("limit_signal", {**asked, **({"before": seconds} if seconds else {})})
        return None
    found.fill("checkpoint", {**asked, **({"grace": min(seconds, MAX_GRACE)} if seconds else {})})
    return f"The signal comes at most {MAX_GRACE} s before the limit." if seconds > MAX_GRACE else None


def _name_of_signal(text: str, value: str) -> str:
    """The name without SIG, or the number of one that jobs do not get; raises BadValue for what is no signal."""
    word = text.upper().removeprefix("SIG")
    if not word.isdecimal():
        known = hasattr(signal, f"SIG{word}")
    else:
        known = int(word) in range(1, 65)
        word = next((one for one in SIGNALS if int(getattr(signal, f"SIG{one}")) == int(word)), word)
    if not known:
        raise BadValue(f"{value[:40]!r} names no signal; write for example USR1@90")
    return word


# ---------------------------------------------------------------- whose turn


def _partition(found: Directives, value: str) -> None:
    found.places.partitions = value.split(",")


def _qos(found: Directives, value: str) -> None:
    found.qos = value
    found.variables["SLURM_JOB_QOS"] = value


def _priority(found: Directives, value: str) -> None:
    """A number, a name here, or TOP; what is above the person's ceiling becomes the ceiling."""
    found.fill("priority", int(value) if re.fullmatch(r"\d{1,10}", value, re.ASCII) else value)


#: As Slurm.
MAX_NICE: Final = 2_147_483_645


def _nice(found: Directives, value: str) -> str | None:
    """How much lower than others the job is put: Slurm's default of 100 is 10 here, of 100."""
    match = re.fullmatch(r"(-?)(\d{1,10})(?:\.\d*)?", value or "100", re.ASCII)
    if match is None:
        return f"{value[:40]!r} is not a number."
    if int(match[2]) > MAX_NICE:
        raise BadValue(f"{value[:40]!r} is out of range; write a number up to {MAX_NICE}")
    if match[1] and int(match[2]):
        raise BadValue("only operators raise a job with a negative number; use --priority")
    found.nice = int(match[2])
    return None


def _array(found: Directives, value: str) -> None:
    """`0-9`, `1,3`, `0-20:5`, with `%n` at once; in brackets too, and `%0` is no limit."""
    ranges, percent, limit = value.partition("%")
    ranges = ranges[1:-1] if ranges.startswith("[") and ranges.endswith("]") else ranges
    found.fields.pop("array", None)
    if not value:
        return
    if re.search(r"\s", value) or (limit and not limit.isdecimal()):
        raise BadValue(f"{value[:40]!r} is not an array; write for example 0-9, 1,3,5 or 0-99%10")
    if len(limit) > 9:
        raise BadValue(f"{limit[:40]!r} is not a number of elements that may run at once")
    at_once = f"%{int(limit)}" if percent and limit and int(limit) else ""
    read_array(f"{ranges}{at_once}", most=settings.MUSTER_MAX_ARRAY_SIZE)
    found.fill("array", f"{ranges}{at_once}")


def _hold(found: Directives, value: str) -> None:
    found.fill("hold", True)


def _restart(policy: str) -> Reader:
    def read(found: Directives, value: str) -> None:
        found.fill("restart_policy", policy)

    return read


def _kill_on_invalid_dep(found: Directives, value: str) -> str | None:
    if value not in ("yes", "no"):
        raise BadValue(f"{value[:40]!r} is unknown; write yes or no")
    return (
        "A job whose dependencies can no longer be satisfied stays pending here, and says so."
        if (value == "yes")
        else None
    )


# ---------------------------------------------------------------- where


def _constraint(found: Directives, value: str) -> None:
    found.places.features = feature_terms(value)


def _prefer(found: Directives, value: str) -> None:
    found.places.preferred = feature_terms(value)


#: How long Slurm waits for fewer switches where the script does not say (`max_switch_wait`).
_SWITCH_WAIT: Final = 300


def _switches(found: Directives, value: str) -> str | None:
    """`--switches=1@10:00`: one switch, which is a rack here, for as long as the job waits for one."""
    number, at, wait = value.partition("@")
    if not number.isdecimal() or len(number) > 9 or (at and not wait):
        raise BadValue(f"{value[:40]!r} is not a number of switches; write for example 1 or 1@10:00")
    seconds = minutes(wait) if at else _SWITCH_WAIT
    if int(number) == 0 or seconds == 0:
        return None
    if int(number) > 1:
        return "Only one switch can be requested, which is a rack; the field affinity bounds the number of racks."
    if not Node.objects.exclude(rack="").exists():
        return "No node names its rack, so nothing is known of switches."
    found.fill("pack", {"level": "rack", "required": True})
    if seconds is not None:
        others = [one for one in found.fields.get("relax", []) if one["constraint"] != Relaxable.PACK]
        found.fill("relax", [*others, {"constraint": Relaxable.PACK.value, "after": seconds}])
    return None


def _nodelist(found: Directives, value: str) -> None:
    found.places.nodelist = node_names(value)


def _exclude(found: Directives, value: str) -> None:
    found.places.excluded = node_names(value)


def _threads_per_core(found: Directives, value: str) -> str:
    if count(value) > 1:
        raise NotSupported("threads of cores cannot be requested here; request CPUs with --cpus-per-task")
    return "CPUs are requested as they are; nothing is said of threads."


def _gres_flags(found: Directives, value: str) -> str | None:
    """CPUs near the GPUs that a task is given, or it waits."""
    found.fields.pop("numa", None)
    said = []
    for flag in (part.strip().lower() for part in value.split(",")):
        if flag == "enforce-binding":
            found.fill("numa", "one")
        elif flag in ("disable-binding", "one-task-per-sharing", "multiple-tasks-per-sharing"):
            said.append(flag)
        else:
            raise BadValue(f"{flag[:40]!r} is unknown; write enforce-binding or disable-binding")
    return f"Has no effect here: {','.join(said)}." if said else None


def _mem_bind(found: Directives, value: str) -> str | None:
    """Memory of the domain that the task runs in; the other ways to divide it are not known here."""
    words = [word.strip().lower() for word in value.split(",")]
    found.fields.pop("numa", None)
    if "local" in words:
        found.fill("numa", "one")
    others = [word for word in words if word not in ("local", "quiet", "q", "verbose", "v", "none", "no")]
    return f"Only local is known here; not {','.join(others)[:60]}." if others else None


def _clusters(found: Directives, value: str) -> None:
    raise NotSupported("clusters are not chosen by a script here; choose a queue with --partition")


# ---------------------------------------------------------------- what runs, and what it says


def _export(found: Directives, value: str) -> str | None:
    """`ALL`, `NONE`, or `NAME=value` and `NAME`, whose value is that of the person's shell where it was sent."""
    found.fill("env", {})
    lost = []
    for part in re.split(r",(?=[A-Za-z_][A-Za-z0-9_]*(?:=|,|$))", value):
        name, equals, text = part.strip().partition("=")
        if equals:
            found.add("env", name, text.strip("'") if text[:1] == text[-1:] == "'" else text)
        elif name in found.submit_env:
            found.add("env", name, found.submit_env[name])
        elif name.upper() not in ("ALL", "NONE", "NIL", ""):
            lost.append(name)
    if not found.fields["env"]:
        del found.fields["env"]
    if lost:
        return f"There is no environment here to copy {', '.join(lost)[:100]} from; write NAME=value."
    return None


def _label(name: str) -> Reader:
    def read(found: Directives, value: str) -> None:
        if len(value) > MAX_VALUE:
            raise BadValue(f"has {len(value)} characters; the maximum is {MAX_VALUE}")
        found.add("labels", name, value)

    return read


def _chdir(found: Directives, value: str) -> None:
    """An absolute path; `.` is the folder that the job gets."""
    found.fields.pop("working_dir", None)
    if value in (".", "./"):
        return
    if not value.startswith("/"):
        raise BadValue(
            f"{value[:60]!r} is not absolute; begin it with /, or write . for the job's own folder"
        )
    found.fill("working_dir", value)


def _input(found: Directives, value: str) -> str:
    if value not in ("/dev/null", "none"):
        raise NotSupported(
            "the standard input of a job is empty here; write < FILE behind the command in the script"
        )
    return "The standard input of a job is empty."


def _mail_type(found: Directives, value: str) -> str | None:
    """Words of Slurm; what they mean here, `notifications` says."""
    words = [word for word in value.split(",") if word.strip().upper() != "STAGE_OUT"]
    try:
        found.fill("mail_type", parse_mail_types(",".join(words)))
    except ValueError as error:
        raise BadValue(str(error)) from None
    if not settings.MUSTER_ALERT_MAIL_FROM:
        return "This site sends no mail; notifications are in the portal and at webhooks."
    if len(words) < len(value.split(",")):
        return "There is no burst buffer here: STAGE_OUT has no effect."
    return None


def _mail_user(found: Directives, value: str) -> None:
    """Whose address that is, is asked once it is known who submits."""
    found.mail_user = value


def _open_mode(found: Directives, value: str) -> None:
    """`append` or `truncate`, or the first letters of one."""
    word = value.strip().lower()
    full = next((mode for mode in ("append", "truncate") if word and mode.startswith(word)), "")
    if not full:
        raise BadValue(f"{value[:40]!r} is no open mode; write append or truncate")
    found.fill("open_mode", full)


def _ignore_pbs(found: Directives, value: str) -> None:
    found.ignore_pbs = True


def _wrap(found: Directives, value: str) -> str | None:
    """On the command line it is the script (`parse_sbatch`); in a script it has no effect, as in Slurm."""
    return "The script itself runs." if found.said["wrap"].line else None


def _relax(found: Directives, value: str) -> None:
    """`--relax=gpu_type,after=10m`, once for each constraint; Slurm has no such option."""
    found.fill("relax", [*found.fields.get("relax", []), relax_from_text(value)])


def _secret(found: Directives, value: str) -> None:
    """`--secret=wandb,env=WANDB_API_KEY`, once for each secret; Slurm has no such option."""
    found.fill("secrets", [*found.fields.get("secrets", []), secret_of_text(value)])


def _reservation(found: Directives, value: str) -> None:
    """`--reservation=course`; one of several is not chosen."""
    if "," in value:
        raise BadValue("names several reservations; name one")
    found.fill("reservation", value)


READERS: Final[dict[str, Reader]] = {
    "account": _text_to("project"),
    "array": _array,
    "begin": _begin,
    "chdir": _chdir,
    "clusters": _clusters,
    "comment": _label("comment"),
    "constraint": _constraint,
    "cpus-per-gpu": _cpus_per_gpu,
    "cpus-per-task": _cpus_per_task,
    "deadline": _deadline,
    "dependency": read_dependency,
    "error": _text_to("standard_error"),
    "exclude": _exclude,
    "exclusive": _exclusive,
    "export": _export,
    "reservation": _reservation,
    "gpus": _gpus_to("gpus_total", "SLURM_GPUS"),
    "gpus-per-node": _gpus_to("gpus_per_node", "SLURM_GPUS_PER_NODE"),
    "gpus-per-task": _gpus_to("gpus_per_task", "SLURM_GPUS_PER_TASK"),
    "gres": _gres,
    "gres-flags": _gres_flags,
    "hold": _hold,
    "ignore-pbs": _ignore_pbs,
    "input": _input,
    "job-name": _text_to("name"),
    "kill-on-invalid-dep": _kill_on_invalid_dep,
    "mail-type": _mail_type,
    "mail-user": _mail_user,
    "mcs-label": _mcs,
    "mem": _memory_to("memory_per_node_mib", "SLURM_MEM_PER_NODE"),
    "mem-bind": _mem_bind,
    "mem-per-cpu": _memory_to("memory_per_cpu_mib", "SLURM_MEM_PER_CPU"),
    "mem-per-gpu": _memory_to("memory_per_gpu_mib", "SLURM_MEM_PER_GPU"),
    "mincpus": _cpus_per_node,
    "nice": _nice,
    "no-requeue": _restart("never"),
    "nodelist": _nodelist,
    "nodes": _nodes,
    "ntasks": _tasks,
    "ntasks-per-node": _tasks_per_node,
    "open-mode": _open_mode,
    "output": _text_to("standard_output"),
    "partition": _partition,
    "prefer": _prefer,
    "priority": _priority,
    "qos": _qos,
    # As without it: only a lost node and preemption requeue a job, as in Slurm.
    "requeue": _restart("interrupted"),
    "relax": _relax,
    "secret": _secret,
    "switches": _switches,
    "signal": _signal,
    "threads-per-core": _threads_per_core,
    "time": _time,
    "time-min": _time_min,
    "tmp": _disk,
    "upload": _text_to("upload"),
    "wckey": _label("wckey"),
    "wrap": _wrap,
}
