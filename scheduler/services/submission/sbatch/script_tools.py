"""Programs of Slurm and of clusters that a script calls and that jobs here do not have."""

from __future__ import annotations

import re
from typing import Final

#: The program, and what to do instead.
_TOOLS: Final = {
    "srun": "each task runs the script already: write the command alone",
    "sbcast": "files are shared by uploads, or by a folder of all nodes",
    "sattach": "the log of a job is in the portal and at /api/v1/jobs/NUMBER/logs",
    "salloc": "submit a job",
    "sbatch": "POST /api/v1/slurm/sbatch submits a script",
    "squeue": "GET /api/v1/slurm/squeue lists jobs",
    "scancel": "DELETE /api/v1/jobs/NUMBER cancels a job",
    "scontrol": "SLURM_JOB_NODELIST is a list with commas",
    "sacct": "GET /api/v1/jobs/NUMBER answers for a job that has ended",
    "sinfo": "GET /api/v1/nodes lists nodes",
}
#: Programs that a site may have installed.
_PERHAPS: Final = {
    "module": "environment modules are of a site: the node has them or not",
    "ml": "environment modules are of a site: the node has them or not",
    "mpirun": "started in each task, it would start all ranks once for each; MASTER_ADDR, RANK and WORLD_SIZE are set",
    "mpiexec": "started in each task, it would start all ranks once for each; MASTER_ADDR, RANK and WORLD_SIZE are set",
}
#: Where a command begins: at the beginning of a line, after ; & | ( ` and $(, or after a word of the shell.
_CALL: Final = re.compile(
    r"(?:^|[;&|(`]|\b(?:then|do|else|exec|time|if|while|!)[ \t])[ \t]{0,80}"
    rf"({'|'.join([*_TOOLS, *_PERHAPS])})(?=[ \t;&|)\n]|$)",
    re.MULTILINE,
)


def notes_on_tools(script: str) -> list[str]:
    """A sentence for each program that the script calls and that a node does not have, or need not have."""
    called: dict[str, int] = {}
    for number, line in enumerate(script.split("\n"), start=1):
        if line.lstrip().startswith("#"):
            continue
        for match in _CALL.finditer(line[:4096]):
            called.setdefault(match[1], number)
    return [
        f"Line {number} calls {tool}, which jobs here do not have: {_TOOLS[tool]}."
        if tool in _TOOLS
        else f"Line {number} calls {tool}: {_PERHAPS[tool]}."
        for tool, number in called.items()
    ]
