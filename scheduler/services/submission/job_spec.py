"""From what a person sent to a job that can be written: read, check, and name every problem at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from accounts.models import Project, User
from infra.plain_text import without_hidden
from quotas.core.gpu_models import read_slice, slice_share
from quotas.core.limits import PENDING_JOBS
from quotas.core.resources import Resources, cores_to_millis, parse_mib
from scheduler.core.lifecycle import RestartPolicy, TaskFailure
from scheduler.models import Queue, WaitEnd
from scheduler.services.submission import fields_gang, fields_resources
from scheduler.services.submission.admission import asked_of, check_fit
from scheduler.services.submission.fields import (
    BadValue,
    Inputs,
    read_decimal,
    read_integer,
    read_moment,
    read_seconds,
    text_trouble,
)
from scheduler.services.submission.fields_dependencies import (
    DATA_NAME,
    MAX_ARRAY_TEXT,
    DependsOn,
    read_array,
    read_dependencies,
)
from scheduler.services.submission.fields_gang import GangTerms, read_gang
from scheduler.services.submission.fields_placement import read_affinity, read_labels, read_tolerations
from scheduler.services.submission.fields_resources import ResourceTerms, check_limits, read_terms
from scheduler.services.submission.submitter import Bound, Catalogue

MAX_NAME: Final = 200
MAX_COMMAND: Final = 65_536
MAX_SCRIPT: Final = 1_048_576
MAX_ENV_ENTRIES: Final = 512
#: The kernel gives a process about 2 MiB for arguments and environment together.
MAX_ENV_CHARACTERS: Final = 262_144
MAX_ENV_VALUE: Final = 32_768
#: One task row and one process each.
MAX_TASKS: Final = 10_000
MAX_GPUS: Final = 1_000_000
#: What a task gets when its job says nothing; small, so that forgetting it costs little.
DEFAULT_MEMORY_MIB: Final = 256
DEFAULT_CPU_MILLIS: Final = 1000
DEFAULT_PRIORITY: Final = 50

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Muster and the drivers set these for each task.
ENV_OURS: Final = ("MUSTER_", "CUDA_VISIBLE_DEVICES")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

#: The same amount in three ways; one of them at most.
MEMORY_FIELDS: Final = ("memory", "memory_bytes", "memory_gb")

#: Every field that a job may be sent with.
FIELDS: Final = frozenset(
    {
        "name", "command", "script", "queue", "project", "job_type", "priority", "labels", "env",
        "working_dir", "tasks", "nodes", "tasks_per_node", "cpu_cores", "memory", "memory_bytes",
        "memory_gb", "storage_bytes", "gpu_count", "gpu_type", "gpu_share", "extras", "time_limit",
        "node_selector", "tolerations", "affinity", "depends_on", "begin_at", "deadline", "array",
        "restart_policy", "max_restarts", "preemptible", "hold", "ref", "depends_timeout",
        "on_depends_timeout", *fields_gang.FIELDS, *fields_resources.FIELDS,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A request that was read and checked; amounts are per task."""

    name: str
    project: Project
    queue: Queue
    command: str
    script: str
    env: dict[str, str]
    working_dir: str
    job_type: str
    tasks: int
    nodes: int | None
    tasks_per_node: int | None
    gang: GangTerms
    per_task: Resources
    terms: ResourceTerms
    gpu_model: str
    time_limit_seconds: int | None
    node_selector: dict[str, str]
    tolerations: list[dict[str, Any]]
    affinity: dict[str, Any]
    labels: dict[str, str]
    priority: int
    begin_at: datetime | None
    deadline_at: datetime | None
    restart_policy: str
    max_restarts: int
    preemptible: bool
    held: bool
    depends_on: tuple[DependsOn, ...]
    depends_timeout_seconds: int | None
    depends_on_timeout: str
    #: Its name among the jobs of one request.
    ref: str
    #: The indices of an array; empty for a single job.
    array: tuple[int, ...]
    array_max_running: int | None
    #: Lines that bound how many jobs may wait, and count this one.
    waits_on: tuple[Bound, ...] = ()

    @property
    def least_tasks(self) -> int:
        """As few as it may start with."""
        return self.gang.min_tasks or self.tasks

    @property
    def total(self) -> Resources:
        """What all its tasks hold together."""
        return self.per_task * self.tasks

    @property
    def size(self) -> int:
        """How many jobs it becomes."""
        return len(self.array) or 1

    def columns(self) -> dict[str, Any]:
        """The columns of a job row that the request itself decides."""
        return {
            "name": self.name,
            "project_id": self.project.pk,
            "queue_id": self.queue.pk,
            "job_type": self.job_type,
            "command": self.command,
            "script": self.script,
            "env": self.env,
            "working_dir": self.working_dir,
            "tasks": self.tasks,
            "nodes": self.nodes,
            "tasks_per_node": self.tasks_per_node,
            "cpu_millis": self.per_task.cpu_millis,
            "memory_mib": self.per_task.memory_mib,
            "storage_mib": self.per_task.storage_mib,
            "gpus": self.per_task.gpus,
            "gpu_millis": self.per_task.gpu_millis,
            "gpu_model": self.gpu_model,
            "extras": dict(self.per_task.extras),
            **self.terms.columns(),
            "time_limit_seconds": self.time_limit_seconds,
            "node_selector": self.node_selector,
            "tolerations": self.tolerations,
            "affinity": self.affinity,
            "labels": self.labels,
            "priority": self.priority,
            "begin_at": self.begin_at,
            "deadline_at": self.deadline_at,
            "restart_policy": self.restart_policy,
            "max_restarts": self.max_restarts,
            "preemptible": self.preemptible,
            **self.gang.columns(),
            "depends_on_timeout": self.depends_on_timeout,
        }


def parse_job(
    payload: Mapping[str, Any],
    *,
    by: User,
    catalogue: Catalogue | None = None,
    under: str = "",
    in_batch: bool = False,
) -> JobSpec:
    """Read a request of `by`; raises InvalidInput or NotAllowed naming every problem, and writes nothing.

    `catalogue` is what many requests of one person share; `under` stands before each field in problems.
    Only jobs that are sent together (`in_batch`) may name each other by `ref`.
    """
    catalogue = catalogue or Catalogue(by)
    inputs = Inputs(payload, under=under)
    inputs.refuse_unknown(FIELDS)

    command, script = _what_runs(inputs)
    project = catalogue.project(inputs)
    queue = catalogue.queue(inputs, project)
    tasks, nodes, tasks_per_node = _layout(inputs)
    gang = read_gang(inputs, tasks=tasks, nodes=nodes, per_node=tasks_per_node)
    terms = read_terms(inputs)
    per_task, gpu_model = _amounts(inputs, terms)
    check_limits(inputs, terms, per_task)
    begin_at, deadline_at = _window(inputs)
    array, array_max_running = inputs.read(
        "array",
        lambda v: read_array(v, most=settings.MUSTER_MAX_ARRAY_SIZE),
        default=((), None),
        most=MAX_ARRAY_TEXT,
    )
    time_limit_seconds = _time_limit(inputs, queue)
    fields: dict[str, Any] = {
        "name": inputs.text("name", most=MAX_NAME) or _name_of(command, script),
        "command": command,
        "script": script,
        "env": _env(inputs),
        "working_dir": _working_dir(inputs),
        "job_type": inputs.read("job_type", _job_type, default="batch"),
        "tasks": tasks,
        "nodes": nodes,
        "tasks_per_node": tasks_per_node,
        "gang": gang,
        "per_task": per_task,
        "terms": terms,
        "gpu_model": gpu_model,
        "time_limit_seconds": time_limit_seconds,
        "node_selector": read_labels(inputs, "node_selector"),
        "tolerations": read_tolerations(inputs),
        "affinity": read_affinity(inputs),
        "labels": read_labels(inputs, "labels"),
        "priority": _priority(inputs, catalogue),
        "begin_at": begin_at,
        "deadline_at": deadline_at,
        "restart_policy": _restart_policy(inputs, gang),
        "max_restarts": inputs.integer("max_restarts", least=0, most=100, default=3),
        "preemptible": inputs.flag("preemptible", default=True),
        "held": inputs.flag("hold", default=False),
        "depends_on": read_dependencies(inputs, by=by),
        "depends_timeout_seconds": inputs.read("depends_timeout", read_seconds),
        "depends_on_timeout": inputs.choice("on_depends_timeout", WaitEnd, default=WaitEnd.FAIL),
        "ref": inputs.read("ref", _ref, default=""),
        "array": array,
        "array_max_running": array_max_running,
    }
    stranger = next((d.ref for d in fields["depends_on"] if d.ref), "")
    if stranger and not in_batch:
        inputs.wrong(
            "depends_on",
            f"Names {stranger!r} by ref, but the request has no other job; give the job's number.",
            code="not-found",
        )
    _check_spread(inputs, fields["affinity"].get("tasks"), tasks, nodes, tasks_per_node)
    if project is not None and queue is not None and not inputs.problems:
        # Jobs of a batch often ask the same: what was found to fit once is not looked at again.
        size = (per_task, gpu_model, terms, tasks, gang, nodes, tasks_per_node, project.pk, queue.cluster_id,
                fields["job_type"])  # fmt: skip
        if size not in catalogue.fitting:
            check_fit(
                inputs,
                asked_of(
                    per_task, terms, gang, gpu_model=gpu_model, tasks=tasks, nodes=nodes,
                    tasks_per_node=tasks_per_node,
                ),
                job_type=fields["job_type"],
                bounds=catalogue.bounds(project),
                cluster_id=queue.cluster_id,
            )  # fmt: skip
            if not inputs.problems:
                catalogue.fitting.add(size)
    inputs.finish("The job is invalid")
    assert project is not None  # otherwise there was a problem
    assert queue is not None
    waits_on = tuple(
        bound
        for bound in catalogue.bounds(project)
        if bound.resource == PENDING_JOBS and bound.job_type in ("", fields["job_type"])
    )
    return JobSpec(project=project, queue=queue, waits_on=waits_on, **fields)


def _restart_policy(inputs: Inputs, gang: GangTerms) -> RestartPolicy:
    """`never` is a promise, so what would start the job again is refused beside it."""
    policy: RestartPolicy = inputs.choice("restart_policy", RestartPolicy, default=RestartPolicy.INTERRUPTED)
    if policy != RestartPolicy.NEVER:
        return policy
    says = "A job with restart_policy never runs at most once, and this setting would restart it; "
    if gang.on_task_failure == TaskFailure.REQUEUE:
        inputs.wrong(
            "on_task_failure", says + "use fail or continue, or another restart_policy.", code="inconsistent"
        )
    if gang.elastic:
        inputs.wrong(
            "elastic", says + "leave elastic out, or use another restart_policy.", code="inconsistent"
        )
    return policy


def _what_runs(inputs: Inputs) -> tuple[str, str]:
    command = inputs.text("command", most=MAX_COMMAND, lines=True)
    script = inputs.text("script", most=MAX_SCRIPT, lines=True)
    if inputs.given("command") is None and inputs.given("script") is None:
        inputs.wrong("command", "Nothing to run; give command (for /bin/sh -c) or script.", code="required")
    elif command and script:
        inputs.wrong("script", "Has both command and script; give one of them.", code="one-of")
    elif script and not script.startswith("#!"):
        inputs.wrong("script", "Must begin with #! and its interpreter, as in #!/bin/sh.", code="no-shebang")
    return command, script


def _name_of(command: str, script: str) -> str:
    """A name for a job that has none: the first line of what it runs that says something."""
    for line in map(str.strip, (command or script).splitlines()):
        if line and not line.startswith("#"):
            return without_hidden(line[:60]).strip() or "job"
    return "job"


def _layout(inputs: Inputs) -> tuple[int, int | None, int | None]:
    """Tasks, nodes and tasks per node, in the one form where `tasks` is always known."""
    tasks = inputs.integer("tasks", least=1, most=MAX_TASKS)
    nodes = inputs.integer("nodes", least=1, most=MAX_TASKS)
    per_node = inputs.integer("tasks_per_node", least=1, most=MAX_TASKS)
    if tasks is None:
        tasks = (nodes or 1) * (per_node or 1)
        if tasks > MAX_TASKS:
            inputs.wrong(
                "tasks_per_node", f"Makes {tasks} tasks; the maximum is {MAX_TASKS}.", code="out-of-range"
            )
            tasks = 1
    elif nodes is not None and nodes > tasks:
        inputs.wrong(
            "nodes", f"Requests {nodes} nodes but has only {tasks} tasks; lower nodes.", code="inconsistent"
        )
    elif nodes is not None and per_node is not None and tasks > nodes * per_node:
        inputs.wrong(
            "tasks",
            f"Has {tasks} tasks, but {nodes} nodes with {per_node} each hold {nodes * per_node}.",
            code="inconsistent",
        )
    return tasks, nodes, per_node


def _check_spread(
    inputs: Inputs, term: dict[str, Any] | None, tasks: int, nodes: int | None, tasks_per_node: int | None
) -> None:
    """A rule about the job's own tasks has to be one that so many tasks can keep."""
    if not term:
        return
    if nodes is not None or tasks_per_node is not None or inputs.given("pack") is not None:
        inputs.wrong(
            "affinity/tasks",
            "Cannot be combined with nodes, tasks_per_node or pack; leave those out and give tasks.",
            code="inconsistent",
        )
    elif term.get("least", 1) > tasks:
        inputs.wrong(
            "affinity/tasks",
            f"Requests {term['least']} of a kind, but has {tasks} task{'s' if tasks > 1 else ''}; raise tasks.",
            code="inconsistent",
        )
    elif term.get("per_domain", tasks) * term.get("most", tasks) < tasks:
        inputs.wrong(
            "affinity/tasks",
            f"Allows {term['per_domain'] * term['most']} tasks in all, but has {tasks}.",
            code="inconsistent",
        )


def _amounts(inputs: Inputs, terms: ResourceTerms) -> tuple[Resources, str]:
    """Who sets a limit and requests nothing requests as much as the limit."""
    cpu_millis = inputs.read(
        "cpu_cores", cores_to_millis, default=terms.cpu_limit_millis or DEFAULT_CPU_MILLIS
    )
    memory_mib = _memory(inputs, terms)
    if (cpu_millis < 1) != (memory_mib < 1):
        inputs.wrong(
            "cpu_cores"
            if cpu_millis < 1
            else next(name for name in MEMORY_FIELDS if inputs.given(name) is not None),
            "Must be more than 0; 0 is allowed only for both CPU and memory.",
            code="out-of-range",
        )
    gpus, gpu_millis = _gpus(inputs) if not terms.gpu_slice else _a_slice(inputs, terms.gpu_slice)
    gpu_model = inputs.text("gpu_type", most=80)
    if terms.gpu_slice:
        gpu_model = (read_slice(gpu_model) or (gpu_model, ""))[0]
    if gpu_model and not gpus and inputs.given("gpu_count") is None:
        inputs.wrong("gpu_type", "Names a GPU model but no count; add gpu_count.", code="inconsistent")
    resources = Resources(
        cpu_millis=cpu_millis,
        memory_mib=memory_mib,
        gpus=gpus,
        gpu_millis=gpu_millis,
        storage_mib=inputs.read("storage_bytes", parse_mib, default=0),
        extras=_extras(inputs),
    )
    return resources, gpu_model if gpus else ""


def _memory(inputs: Inputs, terms: ResourceTerms) -> int:
    given = [name for name in MEMORY_FIELDS if inputs.given(name) is not None]
    if len(given) > 1:
        inputs.wrong(given[1], f"Repeats the memory of {given[0]}; give one of them.", code="one-of")
    if not given:
        return terms.memory_limit_mib or DEFAULT_MEMORY_MIB
    unit = "g" if given[0] == "memory_gb" else ""
    memory_mib: int = inputs.read(
        given[0], lambda v: parse_mib(v, bare_unit=unit), default=DEFAULT_MEMORY_MIB
    )
    return memory_mib


def _a_slice(inputs: Inputs, name: str) -> tuple[int, int]:
    """One slice a task: programs see only one, however many they are given."""
    if inputs.given("gpu_share") is not None:
        inputs.wrong("gpu_share", "Cannot be combined with a slice; leave one of them out.", code="one-of")
    if inputs.integer("gpu_count", least=0, most=MAX_GPUS) not in (None, 1):
        inputs.wrong("gpu_count", "Must be 1 with a slice: each task gets one of them.", code="inconsistent")
    share = slice_share(name)
    return 1, share if share < 1000 else 0


def _gpus(inputs: Inputs) -> tuple[int, int]:
    count = inputs.integer("gpu_count", least=0, most=MAX_GPUS)
    millis = inputs.read("gpu_share", _share, default=0)
    if not millis:
        return count or 0, 0
    if count not in (None, 1):
        inputs.wrong(
            "gpu_share",
            f"Requests a share of one GPU, but gpu_count is {count}; make it 1.",
            code="inconsistent",
        )
    return 1, millis if millis < 1000 else 0


def _share(value: Any) -> int:
    """Thousandths of one GPU from `0.25` or `"25%"`."""
    if isinstance(value, str) and value.strip().endswith("%"):
        part = read_decimal(value.strip()[:-1]) / 100
    else:
        part = read_decimal(value)
    if not 0 < part <= 1:
        raise BadValue("Must be more than 0 and at most 1, the part of one GPU; for example 0.25")
    millis = part * 1000
    if millis != int(millis):
        raise BadValue("Is finer than a thousandth of a GPU")
    return int(millis)


def _extras(inputs: Inputs) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for name, value in inputs.mapping("extras", most=32).items():
        amount = read_integer(value)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", str(name)):
            inputs.wrong(f"extras/{str(name)[:60]}", "Not a name of a countable resource.", code="bad-name")
        elif amount is None or not 0 <= amount <= 2**31:
            inputs.wrong(f"extras/{name}", "Must be a whole number, 0 or more.", code="not-a-number")
        elif amount:
            found[str(name)] = amount
    return tuple(sorted(found.items()))


def _time_limit(inputs: Inputs, queue: Queue | None) -> int | None:
    seconds: int | None = inputs.read("time_limit", read_seconds)
    if queue is None:
        return seconds
    most = queue.max_wall_seconds  # and no more than the longest of its partitions allows (`Catalogue`)
    if seconds is None:
        seconds = queue.default_wall_seconds
        return seconds if most is None else min(seconds or most, most)
    if most is not None and seconds > most:
        inputs.wrong(
            "time_limit",
            f"Requests {seconds} seconds; queue {queue.slug} allows {most}. "
            "Request less, or use another queue.",
            code="exceeds-wall-time",
        )
    return seconds


def _priority(inputs: Inputs, catalogue: Catalogue) -> int:
    value = inputs.given("priority")
    if value is None:
        return min(DEFAULT_PRIORITY, catalogue.user.priority_ceiling)
    number = read_integer(value)
    if number is None:
        number = catalogue.priority_named(value)
    if number is None:
        names = ", ".join(catalogue.priority_names())
        inputs.wrong("priority", f"Must be 0 to 100 or one of {names}.", code="unknown-choice")
        return DEFAULT_PRIORITY
    if not 0 <= number <= 100:
        inputs.wrong("priority", f"Must be from 0 to 100; {number} is not.", code="out-of-range")
        return DEFAULT_PRIORITY
    ceiling = catalogue.user.priority_ceiling
    if number > ceiling:
        inputs.wrong(
            "priority",
            f"Requests priority {number}; your maximum is {ceiling}. Ask an operator to raise it.",
            code="above-priority-ceiling",
            denied=True,
        )
    return number


def _env(inputs: Inputs) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in inputs.mapping("env", most=MAX_ENV_ENTRIES).items():
        at = f"env/{str(name)[:60]}"
        if not isinstance(name, str) or not ENV_NAME.fullmatch(name):
            inputs.wrong(at, "Not a variable name: letters, digits and _, no digit first.", code="bad-name")
        elif name.startswith(ENV_OURS[0]) or name in ENV_OURS:
            inputs.wrong(at, "Is set by Muster for each task; choose another name.", code="reserved")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            inputs.wrong(at, "Must be text or a number.", code="not-text")
        elif trouble := text_trouble(str(value), most=MAX_ENV_VALUE):
            inputs.wrong(at, trouble, code="bad-text")
        else:
            found[name] = str(value)
    if sum(len(name) + len(value) for name, value in found.items()) > MAX_ENV_CHARACTERS:
        inputs.wrong(
            "env", f"Is longer than {MAX_ENV_CHARACTERS} characters in all; use a file.", code="too-long"
        )
    return found


def _working_dir(inputs: Inputs) -> str:
    path = inputs.text("working_dir", most=1024)
    if path and not path.startswith("/"):
        inputs.wrong("working_dir", "Must be an absolute path, beginning with /.", code="not-absolute")
    return path


def _job_type(value: Any) -> str:
    word = str(value).strip().lower()
    if not _WORD.fullmatch(word):
        raise BadValue("Must be one short word of a-z, 0-9, - and _, such as batch or training")
    return word


def _ref(value: Any) -> str:
    word = str(value).strip()
    if not DATA_NAME.fullmatch(word):
        raise BadValue("Must be a short name without blanks, such as prepare")
    return word


def _window(inputs: Inputs) -> tuple[datetime | None, datetime | None]:
    begin_at: datetime | None = inputs.read("begin_at", read_moment)
    deadline_at: datetime | None = inputs.read("deadline", read_moment)
    if deadline_at is not None:
        if deadline_at <= timezone.now():
            inputs.wrong("deadline", "Is in the past.", code="in-the-past")
        elif begin_at is not None and deadline_at <= begin_at:
            inputs.wrong("deadline", "Is before begin_at.", code="inconsistent")
    return begin_at, deadline_at
