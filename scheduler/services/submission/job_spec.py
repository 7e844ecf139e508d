"""The job request, declared once, and how a payload is read and checked; every problem is named at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.conf import settings

from accounts.models import Project
from quotas.core.gpu_models import sliced
from quotas.core.resources import Resources, cores_to_millis, parse_mib
from scheduler.core.lifecycle import DeadlineAction, PackLevel, RestartPolicy, TaskFailure
from scheduler.core.snapshot.agent_features import needed
from scheduler.core.snapshot.constraints import NUMA_WORDS
from scheduler.core.snapshot.relaxation import Relaxable
from scheduler.models import Queue, WaitEnd
from scheduler.models.job_request import OPEN_MODES
from scheduler.services.submission.declaration import (
    Form,
    Kind,
    NotOnForm,
    Schema,
    Spelling,
    Widget,
    amount,
    choice,
    declared,
    duration,
    flag,
    integer,
    moment,
    text,
)
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.fields_dependencies import (
    ENTRY,
    MAX_ARRAY_TEXT,
    MAX_DEPENDENCIES,
    DependsOn,
    read_array,
    read_dependencies,
)
from scheduler.services.submission.fields_placement import (
    AFFINITY,
    MAX_LABELS,
    PACK,
    TOLERATION,
    Pack,
    read_affinity,
    read_labels,
    read_pack,
    read_tolerations,
)
from scheduler.services.submission.fields_relax import RELAX, read_relax
from scheduler.services.submission.fields_reservation import MAX_RESERVATION, read_reservation
from scheduler.services.submission.fields_restart import (
    CHECKPOINT,
    LIMIT_SIGNAL,
    MAX_PROBES,
    MAX_RULES,
    PROBE,
    RESTART_RULE,
    read_checkpoint,
    read_limit_signal,
    read_probes,
    read_restart_rules,
)
from scheduler.services.submission.fields_task import (
    MAX_ARTIFACTS,
    MAX_ENV_ENTRIES,
    MAX_EXTRA,
    MAX_EXTRAS,
    MAX_IMAGE,
    MAX_MAIL_TYPES,
    MAX_PATH,
    MAX_SECRETS,
    MAX_UPLOAD,
    SECRET,
    read_artifacts,
    read_cpu_cores,
    read_env,
    read_extras,
    read_gpu_share,
    read_gpu_slice,
    read_image,
    read_job_type,
    read_mail_types,
    read_memory,
    read_ref,
    read_secrets,
    read_upload,
    read_working_dir,
)
from scheduler.services.submission.rules import MAX_ELEMENTS, MAX_TASKS, RULES
from scheduler.services.submission.submitter import MAX_PRIORITY, Bound, Catalogue

if TYPE_CHECKING:
    from scheduler.services.submission.parse_request import JobKind

MAX_NAME: Final = 200
MAX_COMMAND: Final = 65_536
MAX_SCRIPT: Final = 1_048_576
MAX_GPUS: Final = 1_000_000
MAX_GPU_MODEL: Final = 80
#: Nodes that wait for the rest of a gang are idle: a job gathers them for a day at most.
MAX_ASSEMBLY_SECONDS: Final = 86_400

#: So often that a job with the longest wait between restarts goes on for most of a year.
MAX_RESTARTS: Final = 32_767
MAX_RESTART_DELAY: Final = 7 * 86_400

_LISTS: Final = NotOnForm("A list of objects has no place in a form of single lines.")
_RARE: Final = NotOnForm("Rarely needed; for programs and scripts.")


class Array(NamedTuple):
    """The elements of an array, empty for a single job, and how many may run at once."""

    indices: tuple[int, ...] = ()
    max_running: int | None = None


class RequestInputs(Inputs):
    """The fields of one job request, who sends it, and what was read of it so far."""

    def __init__(
        self, payload: Mapping[str, Any], *, draft: JobSpec, catalogue: Catalogue, under: str, in_batch: bool
    ) -> None:
        super().__init__(payload, under=under)
        self.draft = draft
        self.catalogue = catalogue
        self.in_batch = in_batch
        #: None until they are found.
        self.project: Project | None = None
        self.queue: Queue | None = None


def _project(inputs: RequestInputs, name: str) -> Project | None:
    inputs.project = inputs.catalogue.project(inputs)
    return inputs.project


def _queue(inputs: RequestInputs, name: str) -> Queue | None:
    inputs.queue = inputs.catalogue.queue(inputs, inputs.project)
    return inputs.queue


def _limit(convert: Any) -> Any:
    """The same conversion, where 0 means no limit."""
    return lambda value: convert(value) or None


def _array(inputs: Inputs, name: str) -> Array:
    most = settings.MUSTER_MAX_ARRAY_SIZE
    found: Array = inputs.read(
        name, lambda v: Array(*read_array(v, most=most)), default=Array(), most=MAX_ARRAY_TEXT
    )
    return found


@dataclass(kw_only=True)
class JobSpec:
    """A job as it is asked for; amounts are per task.

    Each attribute is declared as one field of a request: from here come parsing, the API's schema, the submit form,
    the reference page and the columns of the job's row. `parse_job` alone makes one; until it returns, `project` and
    `queue` may be missing. A class of many attributes, since a job has as many things to say.
    """

    # What runs.
    command: str = text(
        "command", most=MAX_COMMAND, lines=True, help="The command, run by /bin/sh -c.",
        example="python train.py --epochs 3", elsewhere=("cmd", "args"), columns={"command": ""},
        form=Form(
            label="Command or script", group="what", widget=Widget.LINES, rows=8, code=True,
            placeholder="python train.py --epochs 3",
            hint="A command, a script that begins with #!, or a whole sbatch script with its #SBATCH lines.",
        ),
    )  # fmt: skip
    script: str = text(
        "script", most=MAX_SCRIPT, lines=True, example="#!/bin/bash\nsrun hostname\n", columns={"script": ""},
        help="The script, instead of a command; begins with #! and an interpreter.",
        form=NotOnForm("Typed into the field of the command."),
    )  # fmt: skip

    # Who for, and where it waits.
    project: Project = declared(
        "project", kind=Kind.NAME_OR_NUMBER, read=_project, always=True, help="Name, slug or id.",
        left_out="the person's default or only project", example="vision", elsewhere=("account",),
        columns={"project_id": "project.pk"}, form=Form(label="Project", group="naming", place=1, widget=Widget.OWN),
    )  # fmt: skip
    queue: Queue = declared(
        "queue", kind=Kind.NAME_OR_NUMBER, read=_queue, always=True, help="Name, slug or id.",
        left_out="the default queue", example="default", elsewhere=("partition",),
        columns={"queue_id": "queue.pk"}, form=Form(label="Queue", group="naming", place=1, widget=Widget.OWN),
    )  # fmt: skip

    # How many tasks, and how they start and end together.
    tasks: int = integer(
        "tasks", least=1, most=MAX_TASKS, help="Processes of the job; they start together.", example=4,
        left_out="nodes times tasks_per_node", elsewhere=("ntasks", "replicas"), columns={"tasks": ""},
        form=Form(label="Tasks", group="tasks", placeholder="1", mode="numeric",
                  hint="All tasks start together.", omits="1"),
    )  # fmt: skip
    nodes: int | None = integer(
        "nodes", least=1, most=MAX_TASKS, help="The number of nodes, exactly.", left_out="any number", example=2,
        columns={"nodes": ""}, form=Form(label="Nodes", group="tasks", placeholder="any", mode="numeric"),
    )  # fmt: skip
    tasks_per_node: int | None = integer(
        "tasks_per_node", least=1, most=MAX_TASKS, help="Maximum number of tasks on each node.",
        left_out="any number", example=2, columns={"tasks_per_node": ""},
        form=Form(label="Tasks per node", group="tasks", placeholder="any", mode="numeric"),
    )  # fmt: skip
    pack: Pack = declared(
        "pack", kind=Kind.CHOICE_OR_OBJECT, read=read_pack, schema=PACK, choices=tuple(PackLevel), default=Pack(),
        example="rack",
        help='"rack": preferred; {"level": "rack", "required": true}: required. Also node, zone.',
        left_out="no preference", columns={"pack": "pack.level", "pack_required": "pack.required"},
        form=Form(
            label="Topology", group="tasks", place=1, widget=Widget.SELECT,
            words=(
                ("", "no preference"), ("node", "one node, if possible"), ("rack", "one rack, if possible"),
                ("zone", "one zone, if possible"), ("node!", "one node, required"), ("rack!", "one rack, required"),
                ("zone!", "one zone, required"),
            ),
        ),
    )  # fmt: skip
    min_tasks: int | None = integer(
        "min_tasks", least=1, most=MAX_TASKS, within=lambda inputs: inputs.draft.tasks,
        help="Starts with as many tasks as fit, from this number to tasks.", left_out="all tasks", example=2,
        columns={"min_tasks": ""},
        form=Form(label="Minimum tasks", group="tasks", placeholder="all", mode="numeric",
                  hint="Starts with as many as fit."),
    )  # fmt: skip
    elastic: bool = flag(
        "elastic", default=False, help="With min_tasks: the size may be changed while the job runs.",
        columns={"elastic": ""}, form=_RARE,
    )  # fmt: skip
    on_task_failure: str = choice(
        "on_task_failure", TaskFailure, default=TaskFailure.FAIL,
        help="When one of several tasks fails. fail: the others are stopped. requeue: the others are stopped and the "
        "job is requeued. continue: the others continue while there are min_tasks.",
        columns={"on_task_failure": ""},
        form=Form(
            label="On task failure", group="tasks", place=2, widget=Widget.SELECT,
            words=(("", "stop the job"), ("requeue", "restart the job"), ("continue", "continue with the others")),
        ),
    )  # fmt: skip
    assembly_timeout_seconds: int | None = duration(
        "assembly_timeout", most=MAX_ASSEMBLY_SECONDS, least=0,
        help="How long nodes stay reserved while the job gathers more; 0: no node is reserved.",
        left_out="the queue's default, else no node is reserved", example="1h",
        columns={"assembly_timeout_seconds": ""},
        form=Form(label="Assembly timeout", group="tasks", place=2, placeholder="the queue's default",
                  hint="Nodes are reserved as they become free. 0: none is."),
    )  # fmt: skip

    # How much, per task.
    cpu_limit_millis: int | None = amount(
        "cpu_limit", _limit(cores_to_millis), unit="cpu_millis",
        help="CPU cores that a task may use at most, as cpu_cores; not below what is requested.",
        left_out="none (may burst)", example=8, columns={"cpu_limit_millis": ""},
        form=Form(label="CPU limit", group="tasks", place=5, placeholder="none (may burst)", mode="decimal"),
    )  # fmt: skip
    memory_limit_mib: int | None = amount(
        "memory_limit", _limit(parse_mib), unit="memory_mib",
        help="Memory that ends a task which holds more, as memory; not below what is requested.",
        left_out="none (may burst)", example="32Gi", columns={"memory_limit_mib": ""},
        form=Form(label="Memory limit", group="tasks", place=5, placeholder="none (may burst)",
                  hint="A task that uses more is ended."),
    )  # fmt: skip
    gpu_slice: str = declared(
        "gpu_slice", kind=Kind.TEXT, read=read_gpu_slice, always=True, default="", most=24,
        help="A slice of one GPU instead of a whole one; gpu_type may name it too.", example="1g.10gb",
        columns={"gpu_slice": ""},
        form=Form(label="GPU slice", group="tasks", place=4, placeholder="1g.10gb",
                  hint="Instead of a whole GPU."),
    )  # fmt: skip
    numa: str = choice(
        "numa", NUMA_WORDS, default=NUMA_WORDS[0],
        help="one: CPUs, memory and GPUs of each task must be of one NUMA domain; the job waits for one.",
        columns={"numa": ""},
        elsewhere=("mem_bind", "gpu_bind", "cpu_bind", "topology_policy", "numa_policy", "numa_node",
                   "single_numa_node"),
        form=Form(label="NUMA domains", group="tasks", place=4, widget=Widget.SELECT,
                  words=(("", "as few as possible"), ("one", "one per task, required"))),
    )  # fmt: skip
    cpu_millis: int = declared(
        "cpu_cores", kind=Kind.AMOUNT, read=read_cpu_cores, always=True, unit="cpu_millis",
        help='CPU cores: 2, 0.5 or "500m".', left_out="1, or cpu_limit", example=0.5,
        elsewhere=("cpus", "cpu", "cores", "cpus_per_task"),
        columns={"cpu_millis": ""}, form=Form(label="CPU cores", group="amounts", placeholder="1", mode="decimal"),
    )  # fmt: skip
    memory_mib: int = declared(
        "memory", kind=Kind.AMOUNT, read=read_memory, always=True, unit="memory_mib",
        help='"16Gi" (binary), "500M" (decimal) or bytes.', left_out="256 MiB, or memory_limit", example="16Gi",
        spellings=(
            Spelling("memory_bytes", "The same as memory."),
            Spelling("memory_gb", "The same; a number counts 10⁹ bytes."),
        ),
        elsewhere=("mem", "ram", "memory_mib"), columns={"memory_mib": ""},
        form=Form(label="Memory", group="amounts", placeholder="256Mi"),
    )  # fmt: skip
    gpus: int = integer(
        "gpu_count", least=0, most=MAX_GPUS, help="Whole GPUs.", left_out="0", example=2,
        elsewhere=("gpus", "gpu", "num_gpus", "gres"), columns={"gpus": ""},
        form=Form(label="GPUs", group="amounts", placeholder="0", mode="numeric", omits="0"),
    )  # fmt: skip
    gpu_millis: int = declared(
        "gpu_share", kind=Kind.AMOUNT, read=read_gpu_share, default=0, unit="gpu_millis",
        help='Part of one GPU: 0.25 or "25%".', example="25%", columns={"gpu_millis": ""},
        form=Form(label="GPU share", group="tasks", place=3, placeholder="0.5 or 50%"),
    )  # fmt: skip
    gpu_model: str = text(
        "gpu_type", most=MAX_GPU_MODEL, help="The model of the GPUs, or the beginning of its name.",
        left_out="any model", example="A100", elsewhere=("gpu_model",), columns={"gpu_model": ""},
        form=Form(label="GPU model", group="amounts", widget=Widget.OWN),
    )  # fmt: skip
    storage_mib: int = amount(
        "storage_bytes", parse_mib, unit="storage_mib", unreadable=0, default=0,
        help="Local storage of each task, as memory. A task that fills more of its node's disk is ended.",
        example="2Gi", elsewhere=("disk",), columns={"storage_mib": ""}, form=_RARE,
    )  # fmt: skip
    extras: dict[str, int] = declared(
        "extras", kind=Kind.COUNTS, read=read_extras, default={}, least=0, most=MAX_EXTRAS,
        help=f"Named countable things, such as licences: at most {MAX_EXTRAS}, each from 0 to {MAX_EXTRA}.",
        example={"matlab": 2}, columns={"extras": ""}, form=_RARE,
    )  # fmt: skip

    # When.
    begin_at: datetime | None = moment(
        "begin_at", help="The job does not start before this time; without an offset the time is UTC.",
        left_out="at once",
        example="2027-01-31T18:00:00Z", columns={"begin_at": ""},
        form=Form(label="Begin time", group="place", place=1, widget=Widget.MOMENT, copied=False),
    )  # fmt: skip
    deadline_at: datetime | None = moment(
        "deadline", lasting=False, help="The job has to be over by this moment; without an offset it is UTC.",
        left_out="none", example="2027-02-28T18:00:00Z", columns={"deadline_at": ""},
        form=Form(label="Deadline", group="place", place=2, widget=Widget.MOMENT, copied=False,
                  hint="You are notified if the job is likely to miss it."),
    )  # fmt: skip
    reservation_id: int | None = declared(
        "reservation", kind=Kind.TEXT, read=read_reservation, default=None, most=MAX_RESERVATION, lasting=False,
        help="The name or id of a reservation: the job runs inside it, on what it holds, and is over before it ends.",
        left_out="outside all reservations but those that let jobs of the project in unnamed", example="course",
        elsewhere=("reservation_id", "reservation_name"), columns={"reservation_id": ""},
        form=Form(label="Reservation", group="place", place=2, placeholder="none", copied=False),
    )  # fmt: skip
    deadline_action: str = choice(
        "deadline_action", DeadlineAction, default=DeadlineAction.NONE, columns={"deadline_action": ""},
        help="end: the job is removed as soon as it can no longer end before its deadline, by its time limit, and is "
        "stopped if it runs at the deadline. none: it goes on.",
        form=Form(label="At the deadline", group="place", place=2, widget=Widget.SELECT, copied=False,
                  words=(("", "go on"), ("end", "end the job"))),
    )  # fmt: skip
    wait_limit_seconds: int | None = duration(
        "wait_limit", help="How long the job may wait in its queue for its first start, as time_limit; after that it "
        "fails. Time on hold, before begin_at or for dependencies does not count.",
        left_out="the queue's default, else none", example="12h", columns={"wait_limit_seconds": ""},
        elsewhere=("timeout_seconds", "queue_timeout", "schedule_timeout", "scheduling_timeout"),
        form=Form(label="Wait limit", group="place", place=3, placeholder="the queue's default",
                  hint="The job fails if it has not started by then."),
    )  # fmt: skip
    array: Array = declared(
        "array", kind=Kind.TEXT, read=_array, default=Array(), most=MAX_ARRAY_TEXT,
        help='Makes a job for each index: "0-9", "1,3,5", "0-20:5" or "0-99%10" (ten at once).', example="0-99%10",
        left_out="a single job", columns={"array_max_running": "array.max_running"},
        form=Form(label="Array", group="tasks", place=6, placeholder="0-9%4", hint="Creates one job per index.",
                  copied=False),
    )  # fmt: skip
    elements_per_job: int | None = integer(
        "elements_per_job", least=2, most=MAX_ELEMENTS,
        help="Of an array of short commands: the number of indices that share a job, which runs them in turn. "
        "time_limit is of each.",
        left_out="a job for each index", example=100, means="The indices of each job, in a table of their own.",
        form=_RARE,
    )  # fmt: skip
    time_limit_seconds: int | None = duration(
        "time_limit", help='Seconds, "HH:MM:SS", "D-HH:MM:SS" or "1h30m".', left_out="the queue's default",
        example="1h30m", elsewhere=("walltime", "timeout", "wall_seconds"), columns={"time_limit_seconds": ""},
        form=Form(label="Time limit", group="amounts", placeholder="the queue's default",
                  hint="For example 1h30m. Shorter jobs fit into gaps."),
    )  # fmt: skip

    # What it is called, and what it finds.
    name: str = text(
        "name", most=MAX_NAME, help="Shown in lists.", left_out="the first line of what runs", example="train",
        columns={"name": ""}, form=Form(label="Name", group="naming", placeholder="from the first line"),
    )  # fmt: skip
    env: dict[str, str] = declared(
        "env", kind=Kind.TEXTS, read=read_env, default={}, most=MAX_ENV_ENTRIES,
        help="Variables of the environment.", example={"LEARNING_RATE": "0.001"}, elsewhere=("environment",),
        columns={"env": ""},
        form=Form(label="Environment", group="lines", widget=Widget.LINES, rows=3, code=True,
                  placeholder="LEARNING_RATE=0.001", hint="One NAME=value a line."),
    )  # fmt: skip
    secrets: list[dict[str, str]] = declared(
        "secrets", kind=Kind.OBJECTS, read=read_secrets, schema=SECRET, default=[], most=MAX_SECRETS,
        help="Secrets of yours or of the project by name, each as a variable (env) or as a file in MUSTER_SECRETS_DIR.",
        example=[{"name": "wandb", "env": "WANDB_API_KEY"}, {"name": "ssh", "file": "id_rsa"}],
        elsewhere=("secret", "env_from", "secret_refs"), columns={"secrets": ""},
        form=Form(label="Secrets", group="lines", widget=Widget.LINES, rows=2, code=True,
                  placeholder="wandb,env=WANDB_API_KEY",
                  hint="One a line: NAME,env=VARIABLE or NAME,file=FILE. Only the name is part of the job."),
    )  # fmt: skip
    upload: UUID | None = declared(
        "upload", kind=Kind.TEXT, read=read_upload, default=None, most=MAX_UPLOAD,
        help="The id of a folder that you have uploaded (/uploads): its files are in the working folder of each task "
        "when the job starts, and in a fresh copy when it starts again.",
        left_out="an empty working folder", example="4b1f3c1e-6c1d-4f0e-9d5e-2f6f8d1f7a10",
        elsewhere=("files", "input_files", "folder"), columns={"upload": ""},
        form=Form(label="Folder", group="what", place=1, widget=Widget.OWN),
    )  # fmt: skip
    image: str | None = declared(
        "image", kind=Kind.TEXT, read=read_image, always=True, default=None, most=MAX_IMAGE,
        help="The container image that each task runs in, in queues whose backend runs images. The command runs with "
        "the image's /bin/sh, its variables and its account.",
        left_out="none: the task runs on the node itself", example="ghcr.io/acme/train:2.1",
        elsewhere=("container", "container_image", "docker_image", "docker"), columns={"image": ""},
        form=Form(label="Container image", group="place", placeholder="none", code=True,
                  hint="For queues that run containers."),
    )  # fmt: skip
    working_dir: str = declared(
        "working_dir", kind=Kind.TEXT, read=read_working_dir, default="", most=MAX_PATH,
        help="The directory where the command runs, an absolute path.", left_out="a fresh directory per job",
        example="/data/vision",
        elsewhere=("workdir", "cwd"), columns={"working_dir": ""},
        form=Form(label="Working directory", group="place", placeholder="a fresh directory per job", code=True),
    )  # fmt: skip
    job_type: str = declared(
        "job_type", kind=Kind.TEXT, read=read_job_type, default="batch", most=32,
        help="One short word of a-z, 0-9, - and _; limits may count jobs of a type.", example="training",
        columns={"job_type": ""}, form=_RARE,
    )  # fmt: skip

    # Where.
    node_selector: dict[str, str] = declared(
        "node_selector", kind=Kind.TEXTS, read=read_labels, default={}, most=MAX_LABELS,
        help="Only nodes with these labels.", example={"arch": "amd64"}, columns={"node_selector": ""},
        form=Form(label="Node labels", group="lines", widget=Widget.LINES, rows=3, code=True,
                  placeholder="arch=amd64", hint="One name=value a line."),
    )  # fmt: skip
    tolerations: list[dict[str, Any]] = declared(
        "tolerations", kind=Kind.OBJECTS, read=read_tolerations, schema=TOLERATION, default=[], most=MAX_LABELS,
        help="Taints that the job tolerates.", example=[{"key": "gpu", "operator": "Exists"}],
        columns={"tolerations": ""}, form=_LISTS,
    )  # fmt: skip
    affinity: dict[str, Any] = declared(
        "affinity", kind=Kind.OBJECT, read=read_affinity, schema=AFFINITY, default={},
        help="Placement rules: labels of nodes, other jobs, and the job's own tasks.",
        example={"regions": "same"}, columns={"affinity": ""}, form=_LISTS,
    )  # fmt: skip
    relax: list[dict[str, Any]] = declared(
        "relax", kind=Kind.OBJECTS, read=read_relax, schema=RELAX, default=[], most=len(Relaxable),
        help="Constraints that are required until the job has waited or failed, and preferred from then on. A "
        "preference that is named here is waited for.",
        left_out="preferences, for as long as the queue says; else none",
        example=[{"constraint": "pack", "after": "10m"}, {"constraint": "gpu_type", "after_failures": 2}],
        elsewhere=("switches", "locality_wait", "relax_locality"), columns={"relax": ""},
        form=Form(label="Relax", group="lines", widget=Widget.LINES, rows=2, code=True,
                  placeholder="pack,after=10m",
                  hint="One constraint a line: required until then, preferred afterwards. "
                  f"{', '.join(Relaxable)}; after=TIME or after_failures=NUMBER."),
    )  # fmt: skip
    labels: dict[str, str] = declared(
        "labels", kind=Kind.TEXTS, read=read_labels, default={}, most=MAX_LABELS,
        help="Labels of the job itself, to find it by.", example={"team": "vision"}, columns={"labels": ""},
        form=_RARE,
    )  # fmt: skip

    # What becomes of what it writes.
    artifacts: list[str] = declared(
        "artifacts", kind=Kind.TEXT_LIST, read=read_artifacts, default=[], most=MAX_ARTIFACTS,
        help="Files of the working folder that are stored outside the node when the job ends: patterns with *, ?, "
        "[a-z] and **; a folder means all files in it.",
        example=["model.pt", "out/*.csv"], left_out="none: files stay on the node for a time",
        elsewhere=("artefacts", "outputs"), columns={"artifacts": ""},
        form=Form(label="Artefacts", group="lines", widget=Widget.LINES, rows=2, code=True,
                  placeholder="out/*.csv", hint="Files to store when the job ends, one pattern a line."),
    )  # fmt: skip

    output_path: str = text(
        "standard_output", most=MAX_PATH, example="logs/%x-%j.out", left_out="none: the log alone",
        help="A file that the output also goes to, as sbatch --output names it: with %j, %x, %A, %a, %u, %N, %n, %t "
        "and %%; in the working folder, or an absolute path where jobs may write on the node. The log stays.",
        elsewhere=("output", "stdout"), columns={"output_path": ""},
        form=Form(label="Output file", group="place", placeholder="the log alone", code=True),
    )  # fmt: skip
    error_path: str = text(
        "standard_error", most=MAX_PATH, example="logs/%x-%j.err", left_out="as standard_output",
        help="The same for what is printed on standard error.",
        elsewhere=("error", "stderr"), columns={"error_path": ""}, form=_RARE,
    )  # fmt: skip
    open_mode: str = choice(
        "open_mode", OPEN_MODES, default=OPEN_MODES[0], columns={"open_mode": ""}, form=_RARE,
        help="append: the output files keep what they have when the job starts or starts again.",
    )  # fmt: skip

    mail_types: str | None = declared(
        "mail_type", kind=Kind.TEXT, read=read_mail_types, default=None, most=MAX_MAIL_TYPES,
        help="When its owner is mailed, as in sbatch: BEGIN, END, FAIL, REQUEUE, TIME_LIMIT_80, ARRAY_TASKS, ALL, NONE "
        "and others, joined by commas. Mail goes to the address of the account.",
        left_out="as the owner's preferences say", example="END,FAIL", elsewhere=("mail", "notify", "email"),
        columns={"mail_types": ""},
        form=Form(
            label="Mail", group="naming", place=2, widget=Widget.SELECT,
            words=(("", "as in my preferences"), ("END,FAIL", "when it ends or fails"), ("FAIL", "when it fails"),
                   ("BEGIN,END,FAIL,INVALID_DEPEND,REQUEUE", "at every change"), ("NONE", "never")),
        ),
    )  # fmt: skip

    # Its rank, and what becomes of it when it is interrupted.
    priority: int = declared(
        "priority", kind=Kind.NAME_OR_NUMBER, always=True, least=0, most=MAX_PRIORITY,
        read=lambda inputs, name: inputs.catalogue.priority(inputs),
        help=f"0 to {MAX_PRIORITY}, or the name of a class; at most the person's ceiling.", left_out="50",
        example="HIGH", columns={"priority": ""},
        form=Form(label="Priority", group="amounts", widget=Widget.OWN,
                  hint="Applies in queues ordered by priority."),
    )  # fmt: skip
    restart_policy: str = choice(
        "restart_policy", RestartPolicy, default=RestartPolicy.INTERRUPTED,
        help="never: runs at most once, even if the node is lost. interrupted (when left out): restarted after a "
        "lost node or preemption. on_failure: also after a failure. always: also after success.",
        columns={"restart_policy": ""},
        form=Form(
            label="Restart", group="tasks", place=6, widget=Widget.SELECT,
            words=(("", "when interrupted"), ("never", "never: runs at most once"),
                   ("on_failure", "on failure"), ("always", "always")),
            note="Never: the job runs at most once and is never preempted. If the node is lost or an operator stops "
            "the job, the job fails.",
        ),
    )  # fmt: skip
    max_restarts: int = integer(
        "max_restarts", least=0, most=MAX_RESTARTS, default=3, help="Maximum number of restarts.",
        columns={"max_restarts": ""}, form=_RARE,
    )  # fmt: skip
    restart_rules: list[dict[str, Any]] = declared(
        "restart_rules", kind=Kind.OBJECTS, read=read_restart_rules, schema=RESTART_RULE, default=[], most=MAX_RULES,
        help="Whether the job starts again, by exit code or failure class. The first rule that applies decides; "
        "without one, restart_policy does. A job that lost its node or was preempted starts again in any case.",
        example=[{"on": [75, "out-of-memory"], "action": "restart"}, {"on": ["1-255"], "action": "fail"}],
        columns={"restart_rules": ""}, form=_LISTS,
    )  # fmt: skip
    probes: list[dict[str, Any]] = declared(
        "probes", kind=Kind.OBJECTS, read=read_probes, schema=PROBE, default=[], most=MAX_PROBES,
        help="What the node of each task checks while it runs. If a probe fails too often, the task is stopped, "
        "and the failure class of the job is unhealthy.",
        example=[{"kind": "file", "path": "heartbeat", "limit": "10m"}, {"kind": "http", "port": 8000, "path": "/up"}],
        columns={"probes": ""}, form=_LISTS,
    )  # fmt: skip
    restart_delay_seconds: int | None = duration(
        "restart_delay", most=MAX_RESTART_DELAY, help="The wait before the first restart; doubles with each restart.",
        left_out="5 seconds", example="30s", columns={"restart_delay_seconds": ""}, form=_RARE,
    )  # fmt: skip
    restart_delay_max_seconds: int | None = duration(
        "restart_delay_max", most=MAX_RESTART_DELAY, help="The longest wait before a restart.",
        left_out="15 minutes", example="1h", columns={"restart_delay_max_seconds": ""}, form=_RARE,
    )  # fmt: skip
    checkpoint: dict[str, Any] = declared(
        "checkpoint", kind=Kind.OBJECT, read=read_checkpoint, schema=CHECKPOINT, default={},
        help="The job makes checkpoints: one is requested before preemption, before the time limit and periodically; "
        "the next attempt continues from the newest one, on any node. {} takes all defaults.",
        left_out="none are made or kept", example={"signal": "USR1", "every": "1h"},
        elsewhere=("checkpoint_interval", "checkpointing"), columns={"checkpoint": ""}, form=_RARE,
    )  # fmt: skip
    limit_signal: dict[str, Any] = declared(
        "limit_signal", kind=Kind.OBJECT, read=read_limit_signal, schema=LIMIT_SIGNAL, default={},
        help="The job gets a signal before its time limit. {} takes all defaults.",
        left_out="none", example={"signal": "USR1", "before": "2m"}, columns={"limit_signal": ""}, form=_RARE,
    )  # fmt: skip
    preemptible: bool = flag(
        "preemptible", default=True, help="Whether the job may be preempted.", columns={"preemptible": ""},
        form=_RARE,
    )  # fmt: skip
    held: bool = flag(
        "hold", default=False, help="Submitted on hold: the job does not start until it is released.",
        means="The job begins in the state held.",
        form=Form(label="Hold: do not start until released", title="Hold", group="hold",
                  widget=Widget.CHECK, copied=False),
    )  # fmt: skip

    # What it waits for.
    depends_on: tuple[DependsOn, ...] = declared(
        "depends_on", kind=Kind.ENTRIES, schema=ENTRY, lasting=False, default=(), most=MAX_DEPENDENCIES,
        read=lambda inputs, name: read_dependencies(inputs, name, by=inputs.catalogue.user),
        help='[17, {"job": 18, "type": "checkpoint"}, {"any": 2, "of": [3, 4, 5]}, {"data": "faces"}]',
        example=[17], elsewhere=("dependency",), means="A row for each dependency.",
        form=Form(label="Start after jobs", group="waits", widget=Widget.OWN, copied=False),
    )  # fmt: skip
    depends_timeout_seconds: int | None = duration(
        "depends_timeout", help="How long the job waits for its dependencies, from its submission; as time_limit.",
        left_out="none", example="2h", means="With the time of submission it becomes `depends_until_at`.",
        form=Form(label="Dependency timeout", group="waits", widget=Widget.OWN, copied=False),
    )  # fmt: skip
    depends_on_timeout: str = choice(
        "on_depends_timeout", WaitEnd.values, default=WaitEnd.FAIL, columns={"depends_on_timeout": ""},
        help="After the timeout the job fails, or starts anyway.",
        form=Form(label="After the timeout", group="", widget=Widget.OWN, copied=False),  # beside depends_timeout
    )  # fmt: skip
    ref: str = declared(
        "ref", kind=Kind.TEXT, read=read_ref, default="", most=MAX_NAME,
        help='A name for others of the same bulk request: {"ref": "prepare"}.', example="prepare",
        means="Valid within one request only.", form=NotOnForm("A form sends one job."),
    )  # fmt: skip

    #: Of each element of a job that runs several; `time_limit_seconds` is of the job.
    element_limit_seconds: int | None = None
    #: Lines that bound how many jobs may wait, and count this one.
    waits_on: tuple[Bound, ...] = ()
    #: What it has in common with other requests.
    kind: JobKind = field(default=None, compare=False, repr=False)  # type: ignore[assignment]  # by `parse_job`

    @property
    def per_task(self) -> Resources:
        """What each task holds."""
        return Resources(
            cpu_millis=self.cpu_millis,
            memory_mib=self.memory_mib,
            gpus=self.gpus,
            gpu_millis=self.gpu_millis,
            storage_mib=self.storage_mib,
            extras=tuple(self.extras.items()),
        )

    @property
    def gpu_models(self) -> str:
        """The model of its GPUs, with the name of the slice where one is asked for."""
        return sliced(self.gpu_model, self.gpu_slice)

    @property
    def least_tasks(self) -> int:
        """As few as it may start with."""
        return self.min_tasks or self.tasks

    @property
    def total(self) -> Resources:
        """What all its tasks hold together."""
        return self.per_task * self.tasks

    @property
    def size(self) -> int:
        """How many jobs it becomes."""
        return len(self.indices_of_jobs)

    @property
    def indices_of_jobs(self) -> list[tuple[int, ...]]:
        """The indices of the array that each of its jobs runs; a single job has none."""
        indices, each = self.array.indices, self.elements_per_job or 1
        return [indices[at : at + each] for at in range(0, len(indices), each)] or [()]

    def of_class(self) -> dict[str, Any]:
        """Limits and NUMA policy as a request class has them."""
        return {
            "cpu_limit_millis": self.cpu_limit_millis or 0,
            "memory_limit_mib": self.memory_limit_mib or 0,
            "one_domain": self.numa == "one",
            "features": features_of(self),
        }


def features_of(job: Any) -> int:
    """What the agent of its node has to know, of a request or of a job's row: bits of `agent_features.FEATURES`."""
    return needed(
        secrets=job.secrets, checkpoint=job.checkpoint, probes=job.probes, upload=job.upload, artifacts=job.artifacts,
        output=job.output_path or job.error_path, signals=job.limit_signal,
    )  # fmt: skip


JOB: Final = Schema(JobSpec, RULES)
#: Every field that a job may be sent with.
FIELDS: Final = JOB.names
CALLED_ELSEWHERE: Final = JOB.called_elsewhere()
