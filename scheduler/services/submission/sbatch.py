"""Reads `sbatch` scripts: what their directives ask for as fields of a job, and which have no effect.

A script runs as it is, by its own first line. Slurm counts memory and GPUs per node where we count per task,
so both are divided by the tasks that a node gets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import F, Q

from accounts.models import User
from infra.errors import FieldProblem, InvalidInput
from quotas.core.resources import BadAmount
from scheduler.models import Partition, Queue
from scheduler.selectors import visible_queues
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.job_spec import MAX_SCRIPT
from scheduler.services.submission.sbatch_options import (
    FLAGS,
    IGNORED,
    READERS,
    SHORT,
    Directives,
    Unhonoured,
)

MAX_DIRECTIVES: Final = 500
#: Of one #SBATCH line. What is read word by word costs more than its length, so that no line may be long.
MAX_LINE: Final = 4096


def parse_sbatch(
    script: str, *, by: User | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Unhonoured]]:
    """The payload of a native job, and the directives that have no effect.

    A partition is looked for among the queues that `by` may see; without a person, among those open to all.
    `overrides` are fields of a job that win over the script, as options on sbatch's command line do. Raises
    InvalidInput that names every line it could not read.
    """
    found = read_directives(script)
    _place(found, by)
    _check_mail_user(found, by)
    translate(found)
    if found.problems:
        raise _broken(found.problems)
    return {**found.fields, **(overrides or {}), "script": script}, found.unhonoured


def read_directives(script: str) -> Directives:
    """The #SBATCH lines of a script, each read by itself; raises InvalidInput for those that cannot be read."""
    if len(script) > MAX_SCRIPT:
        message = f"Has {len(script)} characters; the maximum is {MAX_SCRIPT}."
        raise _broken([FieldProblem("script", message, "bad-text")])
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!") or not lines[0][2:].strip():
        raise _broken(
            [FieldProblem("script", "Line 1 must be #! and an interpreter, as in #!/bin/bash.", "no-shebang")]
        )
    found = Directives()
    directives = _directive_lines(lines)
    if len(directives) > MAX_DIRECTIVES:
        number = directives[MAX_DIRECTIVES][0]
        raise _broken(
            [_at(number, f"Is one #SBATCH line more than the {MAX_DIRECTIVES} that are read.", "too-many")]
        )
    for number, text in directives:
        if len(text) > MAX_LINE:
            message = f"Has {len(text)} characters; a #SBATCH line has at most {MAX_LINE}."
            found.problems.append(_at(number, message, "too-long"))
        else:
            _read_line(found, number, text)
    if found.problems:
        raise _broken(found.problems)
    return found


def _broken(problems: list[FieldProblem]) -> InvalidInput:
    first = (
        problems[0].message if len(problems) == 1 else f"{len(problems)} lines of the script cannot be read."
    )
    return InvalidInput(
        message=first,
        code="bad-script",
        problems=problems,
        way_out="Correct the lines named in errors and send the script again; nothing was submitted.",
    )


def _directive_lines(lines: list[str]) -> list[tuple[int, str]]:
    """Lines beginning with #SBATCH, up to the first that is neither a comment nor empty (as Slurm stops)."""
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if re.match(r"#SBATCH(\s|$)", line):
            found.append((number, line[len("#SBATCH") :].strip()))
    return found


def _read_line(found: Directives, number: int, text: str) -> None:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as broken:
        found.problems.append(_at(number, f"{text[:80]!r} cannot be read: {broken}", "unreadable"))
        return
    if not words:
        found.problems.append(_at(number, "#SBATCH without an option.", "unreadable"))
        return
    while words:
        name, value, words = _option(words)
        if name is None:
            found.problems.append(
                _at(number, f"{words[0][:80]!r} is not an option; options begin with -.", "unreadable")
            )
            return
        _read_option(found, number, name, value, text)


def _option(words: list[str]) -> tuple[str | None, str | None, list[str]]:
    """The long name and value of the first option, and the words that are left."""
    first, rest = words[0], words[1:]
    if first.startswith("--") and len(first) > 2:
        name, equals, value = first[2:].partition("=")
        if equals:
            return name, value, rest
        if name in FLAGS or not rest or rest[0].startswith("-"):
            return name, None, rest
        return name, rest[0], rest[1:]
    if re.match(r"-[A-Za-z]", first):
        name = SHORT.get(first[1], f"-{first[1]}")
        if len(first) > 2:
            return name, first[2:].removeprefix("="), rest
        if name in FLAGS or not rest or rest[0].startswith("-"):
            return name, None, rest
        return name, rest[0], rest[1:]
    return None, None, words


def _read_option(found: Directives, number: int, name: str, value: str | None, text: str) -> None:
    if name in IGNORED:
        found.unhonoured.append(Unhonoured(number, f"#SBATCH {text}"[:300], IGNORED[name]))
        return
    reader = READERS.get(name)
    if reader is None:
        found.unhonoured.append(
            Unhonoured(
                number,
                f"#SBATCH {text}"[:300],
                f"There is no option {'--' if len(name) > 2 else ''}{name} here.",
            )
        )
        return
    if value is None and name not in FLAGS:
        found.problems.append(_at(number, f"--{name} needs a value.", "required"))
        return
    try:
        said = reader(found, (value or "").strip())
    except (BadValue, BadAmount) as broken:
        found.problems.append(_at(number, f"--{name}: {broken}.", "unreadable"))
        return
    found.lines[name] = number
    if said:
        found.unhonoured.append(Unhonoured(number, f"#SBATCH {text}"[:300], said))


def _at(number: int, message: str, code: str) -> FieldProblem:
    return FieldProblem("script", f"Line {number}: {message}", code)


# ---------------------------------------------------------------- all options together


def _place(found: Directives, by: User | None) -> None:
    """A Slurm partition is a queue here, or a partition that some queue feeds; others' queues are no names here."""
    wanted = found.partition
    if not wanted:
        return
    queues = Queue.objects.filter(project__isnull=True) if by is None else visible_queues(by)
    if queues.filter(Q(slug=wanted) | Q(name=wanted)).exists():
        found.fill("queue", wanted)
        return
    feeding = queues.filter(partitions__name=wanted).order_by(
        F("project").asc(nulls_first=True), "-is_default", "-priority", "pk"
    )
    queue = feeding.first()
    if queue is None:
        known = sorted(
            {
                *queues.order_by().values_list("slug", flat=True),
                *Partition.objects.filter(queues__in=queues.order_by()).values_list("name", flat=True),
            }
        )
        there = f"there are {', '.join(known[:20])}." if known else "there is none that you may use."
        found.problems.append(
            _at(
                found.lines["partition"],
                f"there is no queue or partition {wanted[:60]!r}; {there}",
                "not-found",
            )
        )
        return
    found.fill("queue", queue.slug)


def _check_mail_user(found: Directives, by: User | None) -> None:
    """Mail goes to the submitter alone: an address of somebody else would let anybody have strangers mailed."""
    wanted = found.mail_user
    if not wanted or by is None or wanted.casefold() in (by.email.casefold(), by.username.casefold()):
        return
    own = f"your address, {by.email}" if by.email else "you, and your account has no address"
    found.problems.append(
        _at(
            found.lines["mail-user"],
            f"--mail-user: mail goes to {own}; {wanted[:60]!r} is somebody else's. Leave the option out, or use a "
            "webhook of the project.",
            "not-allowed",
        )
    )


def translate(found: Directives) -> None:
    """Amounts per node, per GPU and per CPU become amounts per task."""
    fields = found.fields
    nodes, tasks = fields.get("nodes"), fields.get("tasks")
    per_node = fields.get("tasks_per_node")
    if tasks is None:
        tasks = (nodes or 1) * (per_node or 1)
    if per_node is None and nodes:
        per_node = -(-tasks // nodes)
    on_a_node = min(per_node or tasks, tasks)
    gpus = _gpus_per_task(found, tasks, on_a_node, nodes) or 0
    if gpus:
        found.fill("gpu_count", gpus)
    cpus = found.cpus_per_task or (found.cpus_per_gpu or 0) * gpus or 1
    found.fill("cpu_cores", cpus)
    if memory_mib := _memory_per_task(found, on_a_node, cpus=cpus, gpus=gpus):
        found.fill("memory", f"{memory_mib}Mi")


def _memory_per_task(found: Directives, on_a_node: int, *, cpus: int, gpus: int) -> int:
    """MiB; 0 where the script does not say."""
    if found.memory_per_cpu_mib is not None:
        return found.memory_per_cpu_mib * cpus
    if found.memory_per_gpu_mib is not None:
        return found.memory_per_gpu_mib * gpus
    return -(-(found.memory_per_node_mib or 0) // on_a_node)


def _gpus_per_task(found: Directives, tasks: int, on_a_node: int, nodes: int | None) -> int | None:
    if found.gpus_per_task is not None:
        return found.gpus_per_task
    if found.gpus_per_node is not None:
        return _share_out(found, found.gpus_per_node, on_a_node, "gres", "on each node")
    if found.gpus_total is not None:
        return _share_out(found, found.gpus_total, tasks, "gpus", "in all")
    return None


def _share_out(found: Directives, gpus: int, tasks: int, option: str, where: str) -> int:
    """GPUs that several tasks have together are divided among them, as each task is given its own here."""
    if gpus % tasks:
        line = found.lines.get(option) or found.lines.get("gpus-per-node") or 0
        found.problems.append(
            _at(
                line,
                f"{gpus} GPUs cannot be divided among {tasks} tasks {where}; each has its own GPUs here. "
                "Use --gpus-per-task, or another --ntasks.",
                "inconsistent",
            )
        )
        return 0
    return gpus // tasks
