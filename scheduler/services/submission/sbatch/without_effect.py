"""Options of `sbatch` that have no effect here, and those that are refused since what they ask for does not exist."""

from __future__ import annotations

import re
from typing import Final

#: Without effect, and why. None of them narrows where a job runs, what it gets, or when.
IGNORED: Final[dict[str, str]] = {
    "acctg-freq": "Use is always measured; how often is the site's setting.",
    "contiguous": "Nodes have no order here; the field pack requests one rack or zone for the tasks of a job.",
    "core-spec": "Cores of a node are not reserved for the system by a job.",
    "cpu-freq": "The frequency of CPUs is the node's own.",
    "delay-boot": "Nodes are not booted for a job.",
    "distribution": "Tasks are placed by the planner; SLURM_NODEID and SLURM_LOCALID say where each runs.",
    "get-user-env": "A job begins with a clean environment; use --export=NAME=value.",
    "gpu-bind": "Each task sees its own GPUs alone.",
    "gpu-freq": "The frequency of GPUs is the node's own.",
    "hint": "CPUs are given as they are requested.",
    "network": "Networks are not configured by a job.",
    "no-kill": "A job that loses a node starts again or fails; the field on_task_failure changes that.",
    "ntasks-per-core": "CPUs are requested with --cpus-per-task.",
    "oversubscribe": "What a job requests is never shared with other jobs.",
    "parsable": "The answer is JSON.",
    "power": "The power of nodes is not managed by a job.",
    "profile": "Use is always measured, and shown with the job.",
    "propagate": "Limits are the node's own.",
    "quiet": "The answer is the same.",
    "spread-job": "The profile of the queue decides how tasks are spread.",
    "thread-spec": "Threads of a node are not reserved for the system by a job.",
    "use-min-nodes": "The profile of the queue decides how tasks are spread.",
    "verbose": "The answer is the same.",
    "wait": "The answer comes at once; the job says when it ended.",
    "wait-all-nodes": "All tasks of a job start together.",
}

#: Refused: what they ask for does not exist here, and the job would get less or run where it was not to.
ABSENT: Final[dict[str, str]] = {
    "batch": "the node of the first task cannot be chosen apart from the others; use --constraint",
    "bb": "there are no burst buffers here; leave the option out",
    "bbf": "there are no burst buffers here; leave the option out",
    "cluster-constraint": "clusters are not chosen by a script here; choose a queue with --partition",
    "container": "containers are not started by Slurm's option here; start one in the script",
    "cores-per-socket": "sockets and cores of nodes are not known here; use --constraint with a label of nodes",
    "export-file": "no files come with a script; write --export=NAME=value",
    "extra-node-info": "sockets and cores of nodes are not known here; use --constraint with a label of nodes",
    "gid": "a job runs as the account of its node; leave the option out",
    "gpus-per-socket": "sockets of nodes are not known here; use --gpus-per-node or --gpus-per-task",
    "help": "answers a question and submits no job; the options are in the documentation",
    "licenses": "licenses of the whole cluster do not exist here; the field extras requests countable things of nodes",
    "nodefile": "no files come with a script; use --nodelist",
    "ntasks-per-gpu": "tasks that share one GPU do not exist here; use --gpus-per-task, or the field gpu_share",
    "ntasks-per-socket": "sockets of nodes are not known here; use --ntasks-per-node",
    "overcommit": "several tasks on one CPU cannot be requested with this option; the field cpu_cores takes 0.5",
    "reboot": "nodes are not rebooted for a job; leave the option out",
    "sockets-per-node": "sockets of nodes are not known here; use --constraint with a label of nodes",
    "test-only": "answers a question and submits no job; POST /api/v1/jobs/preview answers it",
    "uid": "a job belongs to the person who submits it; leave the option out",
    "usage": "answers a question and submits no job; the options are in the documentation",
    "version": "answers a question and submits no job; /api/v1 names the version",
}

#: Of these, those that Slurm itself does not look at in a script.
ONLY_ON_THE_COMMAND_LINE: Final = frozenset(["help", "usage", "version"])

_PLACE: Final = r"(?:block|cyclic|fcyclic|plane=[0-9]{1,6}|arbitrary|\*)"
#: What the values of options without effect have to look like, so that a slip is found.
VALUES: Final[dict[str, re.Pattern[str]]] = {
    "distribution": re.compile(rf"{_PLACE}(?::{_PLACE}){{0,2}}(?:,(?:no)?pack)?", re.IGNORECASE),
    "hint": re.compile(r"compute_bound|memory_bound|(?:no)?multithread", re.IGNORECASE),
    "core-spec": re.compile(r"[0-9]{1,6}"),
    "thread-spec": re.compile(r"[0-9]{1,6}"),
    "ntasks-per-core": re.compile(r"[1-9][0-9]{0,6}"),
    "wait-all-nodes": re.compile(r"[01]"),
}
