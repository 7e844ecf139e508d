"""The names of output files, as sbatch writes them: `logs/%x-%j.out`."""

from __future__ import annotations

import re
from typing import Final

from scheduler.agent.protocol import Assignment, OutputFiles

#: A width, and a letter; Slurm fills numbers with zeros up to a width of ten.
_REPLACED: Final = re.compile(r"%(\d{0,2})([%AaJjNnstux])")
_MOST_WIDTH: Final = 10
#: What Slurm says for the index of a job that is no array.
_NO_INDEX: Final = "4294967294"


def output_files(assignment: Assignment, *, node_name: str) -> OutputFiles | None:
    """Where the task's output also goes, each name complete; None for a job that names no file."""
    asked = assignment.get("output")
    if asked is None:
        return None
    output = output_path(asked["stdout"], assignment, node_name=node_name) if asked["stdout"] else ""
    error = output_path(asked["stderr"], assignment, node_name=node_name) if asked["stderr"] else output
    # Tasks that share a working directory share the file: only the first one empties it.
    shared = bool(assignment["working_dir"]) and assignment["rank"] > 0
    return OutputFiles(stdout=output, stderr=error, append=asked["append"] or shared)


def output_path(pattern: str, assignment: Assignment, *, node_name: str) -> str:
    r"""A name with its `%` replaced as by sbatch; after a backslash at its beginning nothing is."""
    if pattern.startswith("\\"):
        return pattern.replace("\\", "")
    job = str(assignment["job"])
    values = {
        "%": "%",
        "A": str(assignment.get("array_id", job)),
        "a": str(assignment.get("array_index", _NO_INDEX)),
        "J": job,
        "j": job,
        "N": node_name.partition(".")[0],
        "n": str(assignment["node_rank"]),
        "s": "batch",
        "t": str(assignment["rank"]),
        "u": assignment["user"],
        "x": assignment["name"].replace("/", "_"),
    }

    def replaced(found: re.Match[str]) -> str:
        width, value = min(int(found[1] or 0), _MOST_WIDTH), values[found[2]]
        return value.zfill(width) if value.isdecimal() else value

    return _REPLACED.sub(replaced, pattern)
