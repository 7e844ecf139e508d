"""Where this portal answers a script other than a real Slurm did, and why, by the id of the case."""

from __future__ import annotations

from typing import Final

_OF_ONE_NODE: Final = "named nodes and others together cannot be written as a requirement"
_SHARED_GPU: Final = "tasks that share one GPU do not exist"
_NODES_OF_ONE: Final = "nodes that jobs of one person or label share do not exist"
_SOCKETS: Final = "sockets of nodes are not known"
_LICENSES: Final = "licenses of a cluster do not exist"
_AFTER: Final = "waiting for the start of a job does not exist"
_CORRESPONDING: Final = "waiting for the same index of another array does not exist"
_SHAPES: Final = "jobs of several shapes do not exist"
_INPUT: Final = "the standard input of a job is empty"
_ARGUMENTS: Final = "arguments of a script do not exist"

#: Slurm takes it; here it is refused, and the refusal says that the feature does not exist.
ABSENT: Final[dict[str, str]] = {
    "dependency-after-pending": _AFTER,
    "dependency-after-plus-1": _AFTER,
    "dependency-after-running": _AFTER,
    "dependency-aftercorr": _CORRESPONDING,
    "dependency-aftercorr-not-array": _CORRESPONDING,
    "dependency-array-after": _AFTER,
    "dependency-burst": "burst buffers do not exist",
    "env-licenses": _LICENSES,
    "env-ntasks-per-gpu": _SHARED_GPU,
    "env-overcommit": "several tasks on one CPU are requested by cpu_cores",
    "environment-args-after-script-are-for-the-script": _ARGUMENTS,
    "exclusive-mcs": _NODES_OF_ONE,
    "exclusive-user": _NODES_OF_ONE,
    "geometry-per-gpu": _SHARED_GPU,
    "geometry-per-socket": _SOCKETS,
    "geometry-sockets-cores": _SOCKETS,
    "gpus-per-socket": _SOCKETS,
    "gpus-total-more-tasks": _SHARED_GPU,
    "gres-more-tasks": _SHARED_GPU,
    "het-colon": _SHAPES,
    "het-hetjob": _SHAPES,
    "het-one-bad": _SHAPES,
    "licenses-one": _LICENSES,
    "licenses-several": _LICENSES,
    "licenses-two": _LICENSES,
    "nodelist-one-N2": _OF_ONE_NODE,
    "output-input": _INPUT,
    "output-input-missing": _INPUT,
    "placement-pbs": "directives of PBS and LSF are not read",
    "placement-shebang-crlf-none": _ARGUMENTS,
    "spelling-repeated-flag-and-value": _NODES_OF_ONE,
}

_PER_NODE: Final = "--ntasks counts, as the manual says; Slurm makes it a multiple of --ntasks-per-node"
_MAIL: Final = "mail goes to the submitter alone"

#: Another answer, and why.
DIFFERENT: Final[dict[str, str]] = {
    "reservation-known": "the reservation of that cluster is not made here",
    "array-index-2000": "a site's MaxArraySize bounds the index there, the number of elements here",
    "begin-zone": "an offset of a moment is read; the job begins when it says",
    "deadline-shorter-than-limit": "refused at once; there the job is taken and never runs",
    "dependency-already-failed": "refused at once; there the job is taken and never runs",
    "dependency-unknown-id": "a job that does not exist is refused; there it counts as satisfied",
    "geometry-n-smaller-than-per-node": _PER_NODE,
    "geometry-per-node-larger-than-n": _PER_NODE,
    "geometry-per-node-odd": _PER_NODE,
    "gpus-five": "a task has its GPUs on one node; there one script has them on several",
    "gres-upper-type": "models of GPUs are read in any case",
    "mail-all": _MAIL,
    "mail-user-odd": _MAIL,
    "name-long": "a name has at most 200 characters",
    "partition-list-gpu": "the time limit is the default of the queue that the job goes to, not of the first named",
    "placement-cr-only": "refused at once; there the script fails",
    "placement-latin1": "scripts are UTF-8",
    "qos-capped-cpus": "a QOS is a priority class, and has no limits of its own",
}

_ASKS_NO_MEMORY: Final = "(?!env-mem$|env-mem-per-cpu$|env-mem-per-gpu$|env-args$).*"
#: Recorded without srun.
_SCRIPT_ALONE: Final = "env-array|env-array-one|env-export-none"
_AS_SRUN: Final = "the script runs as srun runs a task, so it has the number of tasks"

#: Variables of a task that differ, by patterns of cases.
VARIABLES: Final[dict[str, dict[str, str]]] = {
    "CUDA_VISIBLE_DEVICES": {
        "env-gres-two-nodes": "each task sees its own GPUs alone",
        "(?!env-g|env-cpus-per-gpu$|env-mem-per-gpu$|env-args$).*": "empty and not unset: a job without GPUs sees none",
    },
    "SLURM_CPUS_PER_TASK": {"env-exclusive": "whole nodes are requested by the CPUs of each task"},
    "SLURM_MEM_PER_CPU": {_ASKS_NO_MEMORY: "memory that nobody asked for: a site's default"},
    "SLURM_MEM_PER_NODE": {_ASKS_NO_MEMORY: "memory that nobody asked for: a site's default"},
    "SLURM_NTASKS": {_SCRIPT_ALONE: _AS_SRUN},
    "SLURM_NPROCS": {_SCRIPT_ALONE: _AS_SRUN},
    "SLURM_TASKS_PER_NODE": {
        "env-exclusive|env-cpus-per-gpu": "CPUs of a node that no task asked for; one task runs"
    },
}
