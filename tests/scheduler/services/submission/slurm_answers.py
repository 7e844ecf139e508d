"""What a real Slurm answered to scripts, and how this portal's answers are compared with that.

The scripts and Slurm's answers are data outside the repository (`sbatch-oracle` below MUSTER_DATA); its README says
what matters in which order. A case is of one of these ends:

`agrees`: the same answer, or one that a site's configuration decides (larger than the partition allows).
`absent`: Slurm takes it, and here it is refused with the reason that the feature does not exist.
`differs`: anything else; `about` names what.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import time_machine

from accounts.models import User
from infra.errors import MusterError
from scheduler.core.lifecycle import JobState
from scheduler.models import Cluster, Partition, PriorityClass, Queue
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.support.agent_messages import an_assignment
from tests.support.factories import JobFactory, NodeFactory, ProjectFactory, QueueFactory, UserFactory
from tests.support.traces import trace

MINUTE = 60
#: Answers that a site decides: larger than the partition is accepted and waits, or is refused.
_BY_CONFIGURATION = ("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig")
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def cases() -> list[dict[str, Any]]:
    """All cases; skips the test where the data are not there."""
    return _lines("cases.jsonl")


def environments() -> list[dict[str, Any]]:
    """The variables that Slurm set in the script and in each task of it."""
    return _lines("env.jsonl")


def _lines(name: str) -> list[dict[str, Any]]:
    with trace("sbatch-oracle", name).open(encoding="utf-8", newline="\n") as rows:
        return [json.loads(row) for row in rows]


@dataclass(slots=True)
class World:
    """The cluster that answered, as far as this portal has such things."""

    user: User
    cluster: Cluster


def a_world() -> World:
    """Four nodes, three queues, two projects, and the QOS as priority classes without limits."""
    user = UserFactory(username="labalice", email="labalice@example.org")
    physics = ProjectFactory(slug="physics", member=user)
    ProjectFactory(slug="chem", member=user)
    user.default_project = physics
    user.save()
    cluster = ensure_defaults()
    Queue.objects.filter(cluster=cluster).delete()
    Partition.objects.filter(cluster=cluster).delete()
    main, short, gpu = (
        Partition.objects.create(cluster=cluster, name=name) for name in ("main", "short", "gpu")
    )
    nodes = [
        ("node1", "haswell,ib,rack1", 0), ("node2", "haswell,rack1", 0),
        ("node3", "skylake,ib,rack2,a100", 4), ("node4", "skylake,rack2,a100", 4),
    ]  # fmt: skip
    for name, features, gpus in nodes:
        node = NodeFactory(
            cluster=cluster, name=name, partition=main, cpu_millis=8000, memory_mib=16_000, storage_mib=0, gpus=gpus,
            gpus__model="a100", labels=dict.fromkeys(features.split(","), ""),
        )  # fmt: skip
        node.partitions.add(gpu if gpus else short)
    day = 24 * 60 * MINUTE
    QueueFactory(cluster=cluster, slug="main", partition=main, is_default=True,
                 default_wall_seconds=10 * MINUTE, max_wall_seconds=day)  # fmt: skip
    QueueFactory(cluster=cluster, slug="short", partition=short,
                 default_wall_seconds=5 * MINUTE, max_wall_seconds=30 * MINUTE)  # fmt: skip
    QueueFactory(cluster=cluster, slug="gpu", partition=gpu,
                 default_wall_seconds=10 * MINUTE, max_wall_seconds=day)  # fmt: skip
    for name, value in (("capped", 48), ("soft", 46), ("vip", 90)):
        PriorityClass.objects.create(name=name, value=value)
    return World(user=user, cluster=cluster)


# ---------------------------------------------------------------- the answer here


@dataclass(slots=True)
class Answer:
    """What this portal said to a case."""

    spec: JobSpec | None = None
    codes: list[str] = field(default_factory=list)
    message: str = ""
    jobs: dict[str, list[int]] = field(default_factory=dict)


def answer(world: World, case: dict[str, Any]) -> Answer:
    """Hand the script of a case to the door, without writing a job."""
    found = Answer()
    for before in case.get("before", ()):
        found.jobs[before["name"]] = _job_before(world, before)
    try:
        if "script_b64" in case:
            script = base64.b64decode(case["script_b64"]).decode("utf-8")
        else:
            script = case.get("script", "")
    except UnicodeDecodeError:
        found.codes, found.message = ["bad-script"], "The script is not UTF-8."
        return found
    args = case.get("args", [])
    for name, numbers in found.jobs.items():
        script = script.replace(f"@{name}@", str(numbers[0]))
    try:
        payload, _ = parse_sbatch(
            script,
            by=world.user,
            args=args,
            script_args=case.get("script_args", []),
            submit_env=case.get("env", {}),
            file_name="sbatch" if case.get("stdin") else case.get("file", "job.sh"),
        )
        found.spec = parse_job(payload, by=world.user)
    except MusterError as error:
        found.codes = [problem.code for problem in error.problems] or [error.code]
        found.message = " | ".join(problem.message for problem in error.problems) or error.message
    return found


def _job_before(world: World, before: dict[str, Any]) -> list[int]:
    """A job that was submitted before, as it was when the script came."""
    state = {"running": JobState.RUNNING, "ended": JobState.COMPLETED}.get(
        before.get("wait", ""), JobState.QUEUED
    )
    if state == JobState.COMPLETED and "exit 1" in before["script"]:
        state = JobState.FAILED
    args = before.get("args", [])
    name = args[args.index("-J") + 1] if "-J" in args else "job.sh"
    array = {"array_id": uuid4()} if "SBATCH -a" in before["script"] else {}
    project = world.user.default_project
    return [
        JobFactory(
            user=world.user, project=project, name=name, state=state, queue=Queue.objects.get(slug="main"),
            **({"completed_at": datetime.now(UTC)} if state in (JobState.COMPLETED, JobState.FAILED) else {}),
            **(array | {"array_index": index} if array else {}),
        ).number
        for index in ((1, 2, 3) if array else (0,))
    ]  # fmt: skip


# ---------------------------------------------------------------- comparison


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the answers to one case compare; `less`: it was taken here and gets less than it asked Slurm for."""

    end: str
    about: tuple[str, ...] = ()
    less: bool = False
    said: str = ""


def compare(world: World, case: dict[str, Any]) -> Verdict:
    """Hand a case to the door at the time at which Slurm was given it, and compare."""
    outcome = case["outcome"]
    job = outcome.get("job") or (outcome.get("jobs") or [{}])[0]
    submitted = (
        (job.get("EligibleTime") or {}).get("submitted")
        if isinstance(job.get("EligibleTime"), dict)
        else None
    )
    if submitted:
        with time_machine.travel(datetime.fromisoformat(submitted).replace(tzinfo=UTC), tick=False):
            here = answer(world, case)
            return _verdict(case, outcome, job, here)
    return _verdict(case, outcome, job, answer(world, case))


def _verdict(case: dict[str, Any], outcome: dict[str, Any], job: dict[str, Any], here: Answer) -> Verdict:
    taken = outcome["accepted"] and (outcome["submitted"] or case["kind"] == "quiet")
    if here.spec is None:
        if not taken or job.get("Reason") in _BY_CONFIGURATION:
            return Verdict("agrees", said=here.message)
        absent = set(here.codes) <= {"not-supported"}
        return Verdict("absent" if absent else "differs", ("accepted",), said=here.message)
    if not taken:
        return Verdict("differs", ("accepted",))
    jobs = outcome.get("jobs") or [job]
    differences = [name for name, ours, theirs in _asked(case, job, jobs, here) if ours != theirs]
    less = any(
        ours < theirs
        for name, ours, theirs in _asked(case, job, jobs, here)
        if name in ("tasks", "cpus", "memory", "gpus")
    )
    return Verdict("differs" if differences else "agrees", tuple(differences), less)


def _asked(
    case: dict[str, Any], job: dict[str, Any], jobs: list[dict[str, Any]], here: Answer
) -> list[tuple[str, Any, Any]]:
    """What was asked for: its name, what it is here, and what it was there."""
    spec = here.spec
    assert spec is not None
    found: list[tuple[str, Any, Any]] = []
    if not job:
        return found
    tres = dict(part.partition("=")[::2] for part in _tres(case, job).split(",") if "=" in part)
    if job.get("NumTasks", "").isdigit():
        found.append(("tasks", spec.tasks, int(job["NumTasks"])))
    if "cpu" in tres:
        found.append(("cpus", spec.cpu_millis * spec.tasks, int(tres["cpu"]) * 1000))
    elif "CPUs/Task" in job and "-O" not in case.get("script", ""):
        found.append(("cpus", spec.cpu_millis, int(job["CPUs/Task"]) * 1000))
    if "mem" in tres and _asks_memory(job):
        # Each task is given whole MiB here, Slurm gives them to nodes.
        theirs = _mib(tres["mem"])
        ours = spec.memory_mib * spec.tasks
        found.append(("memory", theirs if theirs <= ours < theirs + spec.tasks else ours, theirs))
    found.append(("gpus", (spec.gpus or 0) * spec.tasks, int(tres.get("gres/gpu", 0) if tres else 0)) if tres else
                 ("gpus", 0, 0))  # fmt: skip
    if spec.nodes is not None and job.get("NumNodes", "").isdigit():
        # Of a range any number is right: how many are free decides there.
        span = re.search(r"-N (\d+)-(\d+)", case.get("script", ""))
        within = span is not None and int(span[1]) <= spec.nodes <= int(span[2])
        found.append(("nodes", int(job["NumNodes"]) if within else spec.nodes, int(job["NumNodes"])))
    if "TimeLimit" in job:
        found.append(("time", spec.time_limit_seconds, _seconds(job["TimeLimit"])))
    found.append(("queue", spec.queue.slug, job.get("Partition", "main")))
    found.append(("project", spec.project.slug, job.get("Account", "physics")))
    if "Requeue" in job:
        found.append(("requeue", spec.restart_policy != "never", job["Requeue"] == "1"))
    qos = PriorityClass.objects.get(name__iexact=job.get("QOS", "normal")).value
    if case["kind"] != "priority":
        found.append(("qos", spec.priority, qos))
    found.append(("nice", spec.priority < qos, int(job.get("Nice", 0)) > 0))
    found.append(("name", spec.name, job.get("JobName", "job.sh")))
    if "Comment" in job or case["kind"] == "comment":
        found.append(("comment", spec.labels.get("comment", ""), job.get("Comment", "")))
    found += _where(spec, job)
    found += _when(spec, job)
    found += _array(spec, jobs)
    if "Dependency" in job:
        theirs = _waits_there(job)
        ours = _waits_here(here, singleton=("singleton", "") in theirs)
        found.append(("dependency", ours, theirs))
    return found


def _tres(case: dict[str, Any], job: dict[str, Any]) -> str:
    """What was allocated, of the job as it ran or as it ended."""
    if "TRES" in job:
        return str(job["TRES"])
    ends = case["outcome"].get("end", {}).get("J") or [{}]
    return str(ends[0].get("TRES", "")) if isinstance(ends, list) else ""


def _asks_memory(job: dict[str, Any]) -> bool:
    return (
        job.get("MinMemoryCPU", "100M") != "100M" or job.get("MinMemoryNode", "0") != "0" or "MemPerTres" in job
        or (job.get("MinMemoryNode") == "0")
    )  # fmt: skip


def _mib(text: str) -> int:
    return int(float(text[:-1]) * _UNITS[text[-1]])


def _seconds(text: str) -> int | None:
    if text == "UNLIMITED":
        return None
    days, dash, clock = text.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return (int(days) if dash else 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


def _where(spec: JobSpec, job: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    terms = spec.affinity.get("required", []) + [
        p["requirements"] for p in spec.affinity.get("preferred", [])
    ]
    every = [one for term in terms for one in term]
    features = {one["key"] for one in every if one["key"] != "@node"}
    names = {
        operator: sorted(
            {
                v
                for one in every
                if one["key"] == "@node" and one["operator"] == operator
                for v in one["values"]
            }
        )
        for operator in ("In", "NotIn")
    }
    return [
        ("features", features, set(re.findall(r"[a-z0-9]+", job.get("Features", "")))),
        ("nodelist", names["In"], _nodes(job.get("ReqNodeList", ""))),
        ("exclude", names["NotIn"], _nodes(job.get("ExcNodeList", ""))),
        ("licenses", "", job.get("Licenses", "")),
        ("reservation", "", job.get("Reservation", "")),
    ]


def _nodes(text: str) -> list[str]:
    match = re.fullmatch(r"node\[([0-9,-]+)\]", text)
    if match is None:
        return sorted(text.split(",")) if text else []
    return sorted(f"node{n}" for n in _indices(match[1]))


def _indices(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split("%")[0].split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        found += range(int(first), int(last if dash else first) + 1, int(step or 1))
    return found


def _when(spec: JobSpec, job: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    now = datetime.now(UTC)
    if isinstance(job.get("EligibleTime"), dict) and not isinstance(job.get("Deadline"), dict):
        begin = max(0, int((spec.begin_at - now).total_seconds())) if spec.begin_at else 0
        found.append(("begin", begin, job["EligibleTime"]["after_s"]))
    if isinstance(job.get("Deadline"), dict):
        deadline = int((spec.deadline_at - now).total_seconds()) if spec.deadline_at else None
        found.append(("deadline", deadline, job["Deadline"]["after_s"]))
    return found


def _array(spec: JobSpec, jobs: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    said = [str(job["ArrayTaskId"]) for job in jobs if "ArrayTaskId" in job]
    indices = sorted({index for text in said for index in _indices(text)})
    at_once = {int(job["ArrayTaskThrottle"]) for job in jobs if job.get("ArrayTaskThrottle", "0") != "0"}
    return [
        ("array", sorted(spec.array.indices), indices),
        ("throttle", {spec.array.max_running} - {None}, at_once),
    ]


_WORDS = {"success": "afterok", "failure": "afternotok", "completion": "afterany"}


def _waits_here(here: Answer, *, singleton: bool = False) -> set[tuple[str, str]]:
    assert here.spec is not None
    names = {number: name for name, numbers in here.jobs.items() for number in numbers}
    waits: dict[tuple[str, str], set[int]] = {}
    for one in here.spec.depends_on:
        name = names[one.number]
        # The number of an array is that of its first job, and means all of them.
        numbers = here.jobs[name] if one.is_array else [one.number]
        waits.setdefault((_WORDS.get(str(one.kind), str(one.kind)), name), set()).update(numbers)
    # Of an array all elements have to be waited for.
    found = {key for key, numbers in waits.items() if numbers == set(here.jobs[key[1]])}
    return {("singleton", "")} if found == {("afterany", name) for name in here.jobs} and singleton else found


def _waits_there(job: dict[str, Any]) -> set[tuple[str, str]]:
    found = set()
    for part in re.split(r"[,?]", job["Dependency"]):
        kind, _, rest = part.partition(":")
        if kind.startswith("singleton"):
            found |= {("singleton", "")}
        else:
            found.add((kind, rest.strip("@")[:1]))
    return found


# ---------------------------------------------------------------- variables


def tasks_there(recorded: dict[str, Any]) -> list[dict[str, str]]:
    """The variables of each task there, with lists of nodes as commas join them; of an array those of its scripts."""
    if recorded.get("tasks"):
        tasks = [recorded["task_common"] | own for own in recorded["tasks"]]
    else:
        scripts = recorded["batch"]
        tasks = (
            list(scripts.values()) if all(isinstance(one, dict) for one in scripts.values()) else [scripts]
        )
    return [_with_names(task) for task in tasks if task]


def _with_names(task: dict[str, str]) -> dict[str, str]:
    lists = {
        name: ",".join(_nodes(task[name]))
        for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
        if name in task
    }
    return task | lists


def assignments(spec: JobSpec, theirs: list[dict[str, str]]) -> list[Any]:
    """The tasks of a job as the agents of the nodes that Slurm chose would be given them."""
    names = theirs[0]["SLURM_JOB_NODELIST"].split(",")
    is_array = bool(spec.array.indices)
    on_node = [0] * len(theirs) if is_array else [int(task["SLURM_NODEID"]) for task in theirs]
    found = []
    for rank, node in enumerate(on_node):
        here = [0] if is_array else [other for other, place in enumerate(on_node) if place == node]
        gpus = spec.gpus or 0
        first = (0 if is_array else here.index(rank)) * gpus
        place = 0 if is_array else here.index(rank)
        more: dict[str, Any] = {"array_id": "41", "array_index": spec.array.indices[rank]} if is_array else {}
        found.append(
            an_assignment(
                name=spec.name, project=spec.project.slug, queue=spec.queue.slug, rank=0 if is_array else rank,
                tasks=1 if is_array else len(theirs), local_rank=place, node_rank=node, nodes=len(names),
                node_names=names, env=spec.env, cpu_millis=spec.cpu_millis, memory_mib=spec.memory_mib,
                devices=list(range(first, first + gpus)), node_devices=list(range(gpus * len(here))), node_ranks=here,
                node_tasks=[1] if is_array else [on_node.count(place) for place in range(len(names))], cluster="lab",
                limit_seconds=spec.time_limit_seconds, **more,
            )
        )  # fmt: skip
    return found
