"""Reads `sbatch` scripts: what their directives ask for as fields of a job, and which have no effect.

A script runs as it is, by its own first line. As in Slurm, options of the command line win over variables of the
shell (`SBATCH_*`), and these over the script's own lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from accounts.models import User
from infra.errors import FieldProblem, InvalidInput, MusterError
from quotas.core.resources import BadAmount
from scheduler.models import Queue
from scheduler.selectors import visible_queues
from scheduler.services.submission.fields import MAX_SECONDS, BadValue
from scheduler.services.submission.job_spec import MAX_SCRIPT
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.dependencies import fill_dependencies
from scheduler.services.submission.sbatch.directives import (
    NOT_SUPPORTED,
    Directives,
    NotSupported,
    Said,
    Unhonoured,
)
from scheduler.services.submission.sbatch.geometry import request_whole_nodes, translate
from scheduler.services.submission.sbatch.options import FLAGS, VARIABLES, Option, read_options, split_words
from scheduler.services.submission.sbatch.places import (
    check_names,
    fill_affinity,
    find_queue,
    fit_nodelist,
    lacking,
    machines_of,
)
from scheduler.services.submission.sbatch.readers import READERS
from scheduler.services.submission.sbatch.turns import fill_priority
from scheduler.services.submission.sbatch.variables import with_variables
from scheduler.services.submission.sbatch.without_effect import (
    ABSENT,
    IGNORED,
    ONLY_ON_THE_COMMAND_LINE,
    VALUES,
)

MAX_DIRECTIVES: Final = 500
#: Of one #SBATCH line. What is read word by word costs more than its length, so that no line may be long.
MAX_LINE: Final = 4096

#: The field of a job that an option fills: one that is sent beside the script is not read in the script.
FIELD_OF: Final = {
    "account": "project", "array": "array", "begin": "begin_at", "chdir": "working_dir", "constraint": "affinity",
    "deadline": "deadline", "dependency": "depends_on", "error": "standard_error", "exclude": "affinity",
    "hold": "hold", "job-name": "name", "mail-type": "mail_type", "nice": "priority", "no-requeue": "restart_policy",
    "nodelist": "affinity", "open-mode": "open_mode", "output": "standard_output", "partition": "queue",
    "prefer": "affinity", "priority": "priority", "qos": "priority", "requeue": "restart_policy",
    "reservation": "reservation", "signal": "checkpoint", "time": "time_limit",
}  # fmt: skip
_MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")


def parse_sbatch(
    script: str,
    *,
    by: User | None = None,
    overrides: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    submit_env: Mapping[str, str] | None = None,
    script_args: Sequence[str] = (),
    file_name: str = "",
) -> tuple[dict[str, Any], list[Unhonoured]]:
    """The payload of a native job, and the directives that have no effect.

    A partition is looked for among the queues that `by` may see; without a person, among those open to all.
    `overrides` are fields of a job that win over the script; `args` are options of sbatch's command line, and
    `submit_env` variables of the person's shell; `script_args` are refused. `file_name` names a
    job that has no --job-name. An empty script is that of --wrap. Raises InvalidInput that names every line it could
    not read.
    """
    overrides = overrides or {}
    script, file_name = _script(script, args, script_args, file_name)
    found = read_directives(script, args=args, submit_env=submit_env, overrides=overrides)
    if file_name and "name" not in found.fields:
        found.fill("name", file_name)
    queues = find_queue(found, by)
    _check_mail_user(found, by)
    fit_nodelist(found)
    fill_affinity(found)
    fill_dependencies(found, by, name=str(overrides.get("name") or found.fields.get("name", "")))
    fill_priority(found, by)
    if not found.problems:
        translate(found)
    usable = _choose(found, queues, by, overrides) if not found.problems else []
    if found.problems:
        raise _broken(found.problems)
    if queues:
        found.fill("queue", usable[0].slug)
    payload = with_variables({**found.fields, **overrides, "script": script}, found.variables)
    if len(queues) > 1 and by is not None:
        payload["queue"] = _first_that_fits(payload, usable, by)
        found.note("partition", f"A job has one queue here: {payload['queue']}, the first that fits.")
    return payload, found.unhonoured


def _script(script: str, args: Sequence[str], script_args: Sequence[str], file_name: str) -> tuple[str, str]:
    """The script and its name, those of --wrap where there is no script."""
    if script_args:
        message = "arguments of the script do not exist here; write them into the script, or use --export."
        raise _broken([FieldProblem("script_args", message, NOT_SUPPORTED)])
    command = _wrapped_command(args)
    if command is None:
        return script, file_name
    if script:
        raise _broken([Said(0, "").problem("--wrap: there is a script already; give one of them.", "one-of")])
    return wrapped(command), "wrap"


def read_directives(
    script: str,
    *,
    args: Sequence[str] = (),
    submit_env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Directives:
    """The options of a script, each read by itself; raises InvalidInput for those that cannot be read."""
    lines = _lines(script)
    found = Directives(submit_env=dict(submit_env or {}))
    directives = _directive_lines(found, lines)
    if len(directives) > MAX_DIRECTIVES:
        number = directives[MAX_DIRECTIVES][0]
        message = f"Is one #SBATCH line more than the {MAX_DIRECTIVES} that are read."
        raise _broken([Said(number, "").problem(message, "too-many")])
    given: list[tuple[Said, Option]] = []
    for number, text in directives:
        said = Said(number, f"#SBATCH {text}"[:300])
        if len(text) > MAX_LINE:
            message = f"Has {len(text)} characters; a #SBATCH line has at most {MAX_LINE}."
            found.problems.append(said.problem(message, "too-long"))
            continue
        given += _options(found, said, partial(split_words, text))
    in_script = {option.name for _, option in given}
    given += _from_variables(found.submit_env, in_script)
    given += _options(found, Said(0, " ".join(args)[:300]), lambda: list(args))
    for said, option in given:
        _read_option(found, said, option, overrides or {})
    _refuse_pbs(found, lines)
    if found.problems:
        raise _broken(found.problems)
    return found


# ---------------------------------------------------------------- lines


def _lines(script: str) -> list[str]:
    """The lines of a script; raises InvalidInput for a text that is no script."""
    if len(script) > MAX_SCRIPT:
        message = f"Has {len(script)} characters; the maximum is {MAX_SCRIPT}."
        raise _broken([FieldProblem("script", message, "bad-text")])
    lines = script.split("\n")
    if script.startswith("\ufeff"):
        message = (
            "Line 1 begins with a byte order mark (U+FEFF), which editors do not show, and the kernel finds no #! "
            "there. Save the script as UTF-8 without it."
        )
        raise _broken([FieldProblem("script", message, "no-shebang")])
    if not lines[0].startswith("#!") or not lines[0][2:].strip():
        message = "Line 1 must be #! and an interpreter, as in #!/bin/bash."
        raise _broken([FieldProblem("script", message, "no-shebang")])
    broken = next(
        (n for n, line in enumerate(lines, 1) if line.endswith("\r") or (n == 1 and "\r" in line)), None
    )
    if broken is not None:
        message = (
            f"Line {broken}: ends with a carriage return, as files from Windows do, and the shell would take it for "
            "a part of the line. Save the script with line feeds alone (dos2unix)."
        )
        raise _broken([FieldProblem("script", message, "carriage-return")])
    return lines


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


def _directive_lines(found: Directives, lines: Iterable[str]) -> list[tuple[int, str]]:
    """Lines beginning with #SBATCH, up to the first that is neither a comment nor empty (as Slurm stops).

    Later ones and those that are almost directives have no effect, and are listed as such.
    """
    directives = []
    command = 0
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not command and text and not text.startswith("#"):
            command = number
        if line.startswith("#SBATCH"):
            if not command:
                directives.append((number, line[len("#SBATCH") :].strip()))
            elif len(found.unhonoured) < MAX_DIRECTIVES:
                reason = f"Comes after the first command, which is in line {command}; move it above."
                found.unhonoured.append(Unhonoured(number, line[:300], reason))
        elif (why := _almost(line)) and len(found.unhonoured) < MAX_DIRECTIVES:
            found.unhonoured.append(Unhonoured(number, text[:300], why))
    return directives


_ALMOST: Final = re.compile(r"(\s{0,200})(#{1,9})(\s{0,9})([A-Za-z]{4,9})\s{1,9}-", re.ASCII)


def _almost(line: str) -> str:
    """Why a line that looks like a directive is none; "" for other lines."""
    match = _ALMOST.match(line)
    if match is None:
        return ""
    word = match[4].upper()
    if sorted(word) != sorted("SBATCH") and word not in (
        "SBATH",
        "SBACH",
        "SBTCH",
        "SABTCH",
        "SBATCHH",
        "SBBATCH",
    ):
        return ""
    if word != "SBATCH":
        return f"#{match[4]} is not #SBATCH; correct the word if the line is meant."
    if match[1]:
        return "A directive begins at the beginning of its line; remove the blanks before # if it is meant."
    if match[2] == "#" and not match[3]:
        return "A directive begins with #SBATCH in capital letters; write it so if it is meant."
    return "Is a comment and no directive; write #SBATCH if it is meant."


def _refuse_pbs(found: Directives, lines: Iterable[str]) -> None:
    """Slurm reads directives of PBS and LSF too; a script that has them would get less than it asks for."""
    if found.ignore_pbs:
        return
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if line.startswith(("#PBS", "#BSUB")):
            message = (
                f"directives of {line[1:].split()[0]} do not exist here; write them as #SBATCH, "
                "or add #SBATCH --ignore-pbs if they are not meant."
            )
            found.problems.append(Said(number, line[:300]).problem(message, NOT_SUPPORTED))
            return


# ---------------------------------------------------------------- options


def _options(found: Directives, said: Said, words: Any) -> list[tuple[Said, Option]]:
    given = []
    try:
        for option in read_options(words()):
            given.append((said, option))
    except BadValue as broken:
        code = NOT_SUPPORTED if "do not exist here" in str(broken) else "unreadable"
        found.problems.append(said.problem(f"{broken}.".replace("?.", "?"), code))
    return given


def _from_variables(variables: Mapping[str, str], in_script: set[str]) -> list[tuple[Said, Option]]:
    """Options that variables of the shell give; one for memory does not count beside another in the script."""
    given = []
    for variable, name in VARIABLES.items():
        if variable not in variables or (name in _MEMORY and in_script & set(_MEMORY) - {name}):
            continue
        value = None if name in FLAGS else variables[variable]
        given.append((Said(0, f"{variable}={variables[variable]}"[:300], variable), Option(name, value)))
    return given


def _read_option(found: Directives, said: Said, option: Option, overrides: Mapping[str, Any]) -> None:
    name, value = option.name, option.value or ""
    if FIELD_OF.get(name, "") in overrides:
        return
    if said.line and name in ONLY_ON_THE_COMMAND_LINE:
        found.unhonoured.append(Unhonoured(said.line, said.text, "Has a meaning on the command line only."))
        return
    if name in ABSENT:
        found.problems.append(said.problem(f"--{name}: {ABSENT[name]}.", NOT_SUPPORTED))
        return
    if name in IGNORED:
        if name in VALUES and not VALUES[name].fullmatch(value):
            found.problems.append(
                said.problem(f"--{name}: {value[:40]!r} is not a value of it.", "unreadable")
            )
        else:
            found.unhonoured.append(Unhonoured(said.line, said.text, IGNORED[name]))
        return
    found.said.pop(name, None)
    found.said[name] = said
    try:
        reason = READERS[name](found, value)
    except (BadValue, BadAmount) as broken:
        code = NOT_SUPPORTED if isinstance(broken, NotSupported) else "unreadable"
        found.problems.append(said.problem(f"--{name}: {broken}.", code))
        return
    if reason:
        found.unhonoured.append(Unhonoured(said.line, said.text, reason))


# ---------------------------------------------------------------- all options together


def _own_queue(by: User | None, overrides: Mapping[str, Any]) -> list[Queue]:
    """The queue of a script that names none: that beside the script, or the default queue."""
    queues = Queue.objects.filter(project__isnull=True) if by is None else visible_queues(by)
    wanted = overrides.get("queue")
    return list(queues.filter(slug=str(wanted)) if wanted else queues.filter(is_default=True))[:1]


def _choose(
    found: Directives, named: Sequence[Queue], by: User | None, overrides: Mapping[str, Any]
) -> list[Queue]:
    """Those of the queues that have the nodes for the job; where none has, the first says what it lacks.

    Queues and nodes are read only for a script that asks for something of them.
    """
    asks = {"constraint", "nodelist", "exclude", "prefer"} & found.said.keys() or "gpu_count" in found.fields
    whole = found.shape.whole_node or found.shape.whole_memory or found.times.no_time_limit
    if not (asks or whole):
        return list(named)
    queues = named or _own_queue(by, overrides)
    if not queues:
        return []
    check_names(found, queues[0])
    if found.problems:
        return []
    machines = {queue.pk: machines_of(found, queue) for queue in queues}
    lacks = {queue.pk: lacking(found, queue, machines[queue.pk]) for queue in queues}
    usable = [queue for queue in queues if lacks[queue.pk] == ("", "")]
    if not usable:
        found.wrong(*lacks[queues[0].pk], "can-never-fit")
    elif whole:
        request_whole_nodes(found, machines[usable[0].pk])
        _no_limit(found, usable[0])
        return usable[:1]  # what is requested is of this queue
    return usable


def _no_limit(found: Directives, queue: Queue) -> None:
    """`--time=0` requests no limit: what the queue does not allow is refused, and its default is not taken for it."""
    if not found.times.no_time_limit:
        return
    if queue.max_wall_seconds is not None:
        found.wrong(
            "time",
            f"--time: requests no time limit; queue {queue.slug} allows {queue.max_wall_seconds} seconds.",
            "exceeds-wall-time",
        )
    elif queue.default_wall_seconds is not None:
        found.fill("time_limit", MAX_SECONDS)


def _first_that_fits(payload: Mapping[str, Any], queues: Sequence[Queue], by: User) -> str:
    """The first of several queues that takes the job; the first of all where none does, which then says why."""
    for queue in queues:
        try:
            parse_job({**payload, "queue": queue.slug}, by=by)
        except MusterError:
            continue
        return queue.slug
    return queues[0].slug


def _check_mail_user(found: Directives, by: User | None) -> None:
    """Mail goes to the submitter alone: an address of somebody else would let anybody have strangers mailed."""
    wanted = found.mail_user
    if not wanted or by is None or wanted.casefold() in (by.email.casefold(), by.username.casefold()):
        return
    own = f"your address, {by.email}" if by.email else "you, and your account has no address"
    found.wrong(
        "mail-user",
        f"--mail-user: mail goes to {own}; {wanted[:60]!r} is somebody else's. Leave the option out, or use a "
        "webhook of the project.",
        "not-allowed",
    )


def _wrapped_command(args: Sequence[str]) -> str | None:
    """The command of --wrap on the command line."""
    try:
        return next((option.value for option in read_options(args) if option.name == "wrap"), None)
    except BadValue:
        return None  # said when all options are read


def wrapped(command: str) -> str:
    """The script that `sbatch --wrap=COMMAND` submits."""
    return f"#!/bin/sh\n# This script was made by sbatch --wrap.\n\n{command}\n"
