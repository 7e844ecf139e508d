"""The messages between agent and server, and between agent and shim, as JSON has them.

An agent, a server and a shim of different versions may meet: fields are added, and never renamed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NotRequired, TypedDict

#: The most output in one chunk, and in all chunks of a log message.
CHUNK_BYTES: Final = 256 * 1024
LOG_BATCH_BYTES: Final = 2 * 1024 * 1024
#: Where an agent opens its stream: a websocket for all its calls.
STREAM_PATH: Final = "/api/v1/agent/stream"
#: A larger message goes by itself, as POST: websockets of the portal have a limit for all.
STREAM_BYTES: Final = 512 * 1024
#: Names the task in the environment of its processes, unless they clear it.
KEY_VARIABLE: Final = "MUSTER_TASK_KEY"
#: The end of a task whose agent was asked to stop: not the job's fault, however often it happens.
SHUT_DOWN: Final = "Muster was stopped on this node."
#: The end of a task whose guard on the node was killed.
GUARD_KILLED: Final = "The supervisor process of the task was killed on the node, and the task was ended."
#: The class of a task that was ended for its memory (`Report.failure`).
OUT_OF_MEMORY: Final = "out-of-memory"
#: The same for the disk that it filled.
OUT_OF_STORAGE: Final = "out-of-storage"
#: The same of a task that was ended since one of its probes failed; also the reason of that stop on its node.
UNHEALTHY: Final = "unhealthy"
#: The longest text of a probe's result.
PROBE_TEXT_BYTES: Final = 200
#: The end of a task that, as the node knows for certain, was never started.
NEVER_BEGAN: Final = "The task never started: the node was stopped first."
#: How the end of a task begins whose checkpoint did not reach its node: not the job's fault.
NOT_RESTORED: Final = "The checkpoint could not be fetched to the node"
#: The same of an uploaded folder that the job begins with.
NOT_UPLOADED: Final = "The uploaded folder could not be fetched to the node"
#: The bytes of checkpoints and uploads travel and are stored in pieces of this size; only the last is smaller.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: Folders within a task's: of the checkpoints that it makes, and with the one that it goes on from.
CHECKPOINTS: Final = "checkpoints"
#: The file in a task's folder that says how many tasks are left of its job, once that has changed.
WORLD: Final = "world.json"
RESTORED: Final = "restore"
#: The folder within a task's with its secrets as files, and the variable that names it.
SECRETS: Final = "secrets"
SECRETS_VARIABLE: Final = "MUSTER_SECRETS_DIR"
#: Names the checkpoint that a task goes on from, in its environment.
RESTORE_VARIABLE: Final = "MUSTER_RESTORE_FROM"


class CheckpointTerms(TypedDict):
    """How a job is asked for a checkpoint: the number of the signal, who gets it ("all" or "shell"), and when."""

    signal: int
    to: str
    #: How long before its time limit it is asked, and how long others wait for it then.
    grace_seconds: int
    #: From one request to the next; None = only when there is a reason.
    every_seconds: int | None


class LimitSignal(TypedDict):
    """A signal before the time limit: its number, who gets it ("all" or "shell"), and how long before."""

    signal: int
    to: str
    before_seconds: int


#: The end of a task that was not started, because its node cannot isolate tasks now.
NOT_ISOLATED: Final = "The task never started: the node cannot isolate tasks at the moment."


class Assignment(TypedDict):
    """One task that this node is to run; it may be assigned twice."""

    task: int
    epoch: int
    job: int
    job_id: str
    name: str
    user: str
    project: str
    queue: str
    rank: int
    tasks: int
    local_rank: int
    node_rank: int
    nodes: int
    node_names: list[str]
    master_address: str
    master_port: int
    command: str
    script: str
    env: dict[str, str]
    working_dir: str
    devices: list[int]
    #: The UUIDs of the devices, where the driver has no numbers: slices.
    device_names: NotRequired[list[str]]
    cpu_millis: int
    memory_mib: int
    limit_seconds: int | None
    grace_seconds: int
    #: The most that the task may use, where its job has limits.
    cpu_limit_millis: NotRequired[int]
    memory_limit_mib: NotRequired[int]
    #: The most of the disk that its working folder, output and private /tmp may fill; left out = no limit.
    scratch_limit_mib: NotRequired[int]
    #: What is checked while it runs, as the job's row keeps it.
    probes: NotRequired[list[dict[str, Any]]]
    #: The NUMA domain of the node that its CPUs and its memory have to come from.
    numa_domain: NotRequired[int]
    #: Of an elastic job: the least and the most tasks that it may have.
    least_tasks: NotRequired[int]
    most_tasks: NotRequired[int]
    #: The number of the array, which is that of its first job.
    array_id: NotRequired[str]
    array_index: NotRequired[int]
    #: The cluster, and the machine of the portal that took the job.
    cluster: NotRequired[str]
    submit_host: NotRequired[str]
    #: The number of tasks on each node of `node_names`, and the ranks and devices of the job's tasks on this one.
    node_tasks: NotRequired[list[int]]
    node_ranks: NotRequired[list[int]]
    node_devices: NotRequired[list[int]]
    #: Of a job that runs several elements of its array; `command` then says that the agent is too old to know this.
    elements: NotRequired[ElementsToRun]
    #: Of a job that makes checkpoints; `restore`: an earlier attempt may have made one.
    checkpoint: NotRequired[CheckpointTerms]
    restore: NotRequired[bool]
    #: Of a job that gets a signal before its time limit.
    limit_signal: NotRequired[LimitSignal]
    #: Files of the job that its output also goes to, as sbatch names these.
    output: NotRequired[OutputFiles]
    #: Of a later attempt: the lowest number of a task that the job has had. A folder of a lower one is of another job
    #: that had this number before the database was restored.
    first_task: NotRequired[int]
    #: Of a job that names secrets; what runs then says that the agent is too old to know this.
    secrets: NotRequired[SecretsToGive]
    #: The id of the uploaded folder that its working folder begins with.
    upload: NotRequired[str]
    #: The container image that it runs in, where its backend runs images.
    image: NotRequired[str]


class SecretsToGive(TypedDict):
    """Values of secrets by variable and by file name, and what runs with them, in the place of what the rest says."""

    env: dict[str, str]
    files: dict[str, str]
    command: str
    script: str


class OutputFiles(TypedDict):
    """Where the output of a task also goes; empty for nowhere. What the files have is kept with `append`."""

    stdout: str
    stderr: str
    append: bool


class ProbeResult(TypedDict):
    """The last result of a probe, by its place in the job's list; `failures` are those in a row.

    Between shim and agent `boot_ms` says when it changed; the server gets `ago_ms`.
    """

    number: int
    ok: bool
    failures: int
    text: str
    boot_ms: NotRequired[int]
    ago_ms: NotRequired[int]


class ElementsToRun(TypedDict):
    """Which elements a task runs one after another, what each runs, and for how long; `limit_seconds` None = no limit.

    `worst_exit_code` is the highest of the elements that ended before.
    """

    indices: list[int]
    command: str
    script: str
    limit_seconds: int | None
    worst_exit_code: int


class Stop(TypedDict):
    """End this task; `stale` means that the server needs no report on it any more."""

    task: int
    epoch: int
    reason: str
    grace_seconds: int
    stale: bool


class Report(TypedDict):
    """What has become of one task; the same report twice changes nothing.

    Times are ages, so that no clock has to agree with another.
    """

    task: int
    epoch: int
    state: str
    pid: NotRequired[int]
    started_ago_ms: NotRequired[int]
    ended_ago_ms: NotRequired[int]
    exit_code: NotRequired[int]
    exit_signal: NotRequired[int]
    stop_reason: NotRequired[str]
    text: NotRequired[str]
    #: Why it failed, where the node knows more than its exit says: a class such as "out-of-memory".
    failure: NotRequired[str]
    peak_memory_mib: NotRequired[int]
    cpu_time_ms: NotRequired[int]
    #: Over all its GPUs: the time in which their use was measured, and the part in which they worked for this task.
    gpu_watched_ms: NotRequired[int]
    gpu_busy_ms: NotRequired[int]
    peak_gpu_memory_mib: NotRequired[int]
    stdout_bytes: NotRequired[int]
    stderr_bytes: NotRequired[int]
    #: When the job last wrote its checkpoint file, and the path in it.
    saved_ago_ms: NotRequired[int]
    saved_path: NotRequired[str]
    #: Of a running task: whether its processes are suspended.
    suspended: NotRequired[bool]
    #: Of a task with probes: their last results.
    probes: NotRequired[list[ProbeResult]]
    #: Elements that have ended, as `scheduler.agent.elements` writes them, with ages in the place of times.
    elements: NotRequired[list[list[Any]]]


class Described(TypedDict):
    """Whose a task is, as its assignment said; an agent of an earlier version did not note `job_id` and `user`."""

    task: int
    epoch: int
    job: int
    job_id: NotRequired[str]
    user: NotRequired[str]


class SyncRequest(TypedDict):
    """`known` are the tasks the agent answers for, as [task, epoch]; `wait_seconds` 0 answers at once."""

    protocol: int
    session: str
    wait_seconds: float
    known: list[list[int]]
    reports: list[Report]
    boot_id: str
    agent_version: str
    clock_ms: int
    inventory: NotRequired[dict[str, Any]]
    #: The tasks that the server asked about with `describe`.
    described: NotRequired[list[Described]]
    #: Tasks whose world file says that their job has become smaller, and the size in it: [task, epoch, size].
    worlds: NotRequired[list[list[int]]]
    #: Tasks whose time limit was changed while they ran, and that limit in seconds: [task, epoch, limit]; 0 = none.
    limits: NotRequired[list[list[int]]]


class SyncAnswer(TypedDict):
    """`verify` are tasks that the server believes to be on the node; the agent reports the ones it does not know.

    `pauses` are tasks to suspend (1) or to resume (0), as [task, epoch, 0 or 1].
    """

    node_id: int
    assignments: list[Assignment]
    stops: list[Stop]
    verify: list[list[int]]
    pauses: NotRequired[list[list[int]]]
    hold_seconds: float
    fence_seconds: float
    log_cap_bytes: int
    inventory_wanted: bool
    #: Somebody wants to see or to fetch files of a job on this node: the agent makes a `files` call.
    files_wanted: NotRequired[bool]
    #: Tasks that somebody wants a checkpoint of now, as [task, epoch, number of the request].
    checkpoints: NotRequired[list[list[int]]]
    #: Tasks whose job has become smaller, as [task, epoch, size, ranks that are left]: their world file says so.
    worlds: NotRequired[list[list[Any]]]
    #: Tasks with another time limit than they were given, in seconds from their start: [task, epoch, limit]; 0 = none.
    limits: NotRequired[list[list[int]]]
    #: Tasks that the server does not know, as [task, epoch]: the next call says whose they are.
    describe: NotRequired[list[list[int]]]


class Chunk(TypedDict):
    """Bytes of one stream at their offset, in base64."""

    task: int
    epoch: int
    stream: str
    offset: int
    data: str


class StreamEnd(TypedDict):
    """How many bytes of a stream the server has: where the next chunk begins."""

    task: int
    stream: str
    next_offset: int


class LogAnswer(TypedDict):
    streams: list[StreamEnd]
    gone: list[int]


class UsageSamples(TypedDict):
    """What running tasks have used since their samples before.

    Each is [task, epoch, CPU (1/1000 cores), memory (MiB, the most), percent of its GPUs, their memory (MiB)]; the
    last two are null where no GPU was measured.
    """

    samples: list[list[int | None]]


class KeptFolder(TypedDict):
    """A task's folder that was kept, since it holds something; not `whole`: there is more than was counted.

    `task` is the number of the task; 0 where the folder's name does not say it.
    """

    job: int
    epoch: int
    rank: int
    task: NotRequired[int]
    files: int
    size: int
    whole: bool


class KeptFolders(TypedDict):
    """All kept folders of jobs from one number to another, both included."""

    first: int
    last: int
    kept: list[KeptFolder]


class KeptAnswer(TypedDict):
    """`discard` are folders to remove, as [job, epoch, rank, task]; without the task where the agent names none."""

    discard: list[list[int]]


class FileAnswer(TypedDict):
    """The answer to one request about files: entries of the list, pieces of files, or `code` and why there are none."""

    id: str
    entries: NotRequired[list[list[Any]]]
    more: NotRequired[bool]
    pieces: NotRequired[list[list[Any]]]
    code: NotRequired[str]
    text: NotRequired[str]


class FileCall(TypedDict):
    """Answers to requests, and for how long to wait for further ones."""

    answers: list[FileAnswer]
    wait_seconds: float


class FileRequests(TypedDict):
    requests: list[dict[str, Any]]


class CheckpointFile(TypedDict):
    """One file of a checkpoint; the path as `results.names` writes it, beginning with the checkpoint's name."""

    path: str
    size: int
    sha256: str


class Manifest(TypedDict):
    """What is in a checkpoint. Its pieces are cut from its files one after another, in this order."""

    name: str
    size: int
    files: list[CheckpointFile]
    #: Folders, also those without a file.
    folders: list[str]


class UploadFile(TypedDict):
    """One file of an uploaded folder; the path as `results.names` writes it, below that folder."""

    path: str
    size: int
    executable: bool


class UploadManifest(TypedDict):
    """What is in an uploaded folder. Its pieces are cut from its files one after another, in this order."""

    name: str
    size: int
    files: list[UploadFile]
    #: All folders, parents before what is in them.
    folders: list[str]
    #: SHA-256 of each piece.
    pieces: list[str]


class UploadAnswer(TypedDict):
    """What a task's working folder begins with."""

    id: str
    manifest: UploadManifest


class RestoreAnswer(TypedDict):
    """What an attempt begins with: a checkpoint, or nothing; `wait`: one is still on its way to the server."""

    wait: NotRequired[bool]
    id: NotRequired[str]
    manifest: NotRequired[Manifest]


class TaskOrder(TypedDict):
    """A task for the shim to start; `meta` comes back with every record of the task."""

    key: str
    folder: str
    cwd: str
    script: str
    argv: list[str]
    env: dict[str, str]
    limit_seconds: int | None
    grace_seconds: int
    meta: dict[str, Any]
    #: The task is ended when its processes together hold more; left out = no limit.
    memory_limit_mib: NotRequired[int]
    #: The task is ended when it has more processes at a time; left out = no limit.
    process_limit: NotRequired[int]
    #: The task is ended when it fills more of the disk; left out = no limit.
    scratch_limit_mib: NotRequired[int]
    #: The task runs on no more CPUs than these; left out = on all.
    cpu_limit_millis: NotRequired[int]
    #: The CPUs of its NUMA domain, the domain where memory can be bound to it, and the memory that the task needs.
    cpus: NotRequired[list[int]]
    memory_domain: NotRequired[int]
    memory_mib: NotRequired[int]
    #: Whose job it is, what it asked for, its devices' files, and the variables that the job sets itself.
    user: NotRequired[str]
    cpu_millis: NotRequired[int]
    device_files: NotRequired[list[str]]
    own_variables: NotRequired[list[str]]
    #: It makes checkpoints; and the folder, made by the agent, that becomes its `restore`.
    checkpoints: NotRequired[bool]
    restore: NotRequired[str]
    #: The folder, made by the agent, that becomes its `work`.
    upload: NotRequired[str]
    #: Complete names, relative ones to `cwd`.
    output: NotRequired[OutputFiles]
    #: What its guard checks while it runs.
    probes: NotRequired[list[dict[str, Any]]]
    #: As in the assignment.
    first_task: NotRequired[int]
    #: The values of its secrets that become files, by name, and all that are masked in its output.
    secrets: NotRequired[SecretsOfTask]
    #: Where the shim has written those that become files; left out = its guard does, in a view of its own.
    secrets_folder: NotRequired[str]


class SecretsOfTask(TypedDict):
    """Kept in memory only, but for the files: an order is never written down."""

    files: dict[str, str]
    masked: list[str]


class TaskRecord(TypedDict):
    """What the shim knows of one task: `starting`, `running` or `ended`; times are on the boot clock."""

    key: str
    state: str
    boot_id: str
    folder: str
    meta: dict[str, Any]
    pid: int
    start_ticks: int
    started_boot_ms: int
    ended_boot_ms: int
    exit_code: int | None
    exit_signal: int | None
    #: Why the shim stopped it, when it did: a StopReason, or `fenced`, `shutdown`.
    stop_reason: str
    #: The end was not seen: the exit code is unknown.
    lost: bool
    text: str
    peak_memory_mib: int | None
    cpu_time_ms: int | None
    #: Why it failed, where the node knows more than its exit says (`Report.failure`).
    failure: NotRequired[str]
    #: The last results of its probes.
    probes: NotRequired[list[ProbeResult]]
    #: Since when its processes are suspended (0 = not now), and for how long they were before; the time limit waits.
    suspended_boot_ms: NotRequired[int]
    suspended_ms: NotRequired[int]
    #: The time limit that it was given while it ran, in seconds; 0 = none.
    changed_limit: NotRequired[int]
    #: The time limit before which it has got its signal, in seconds.
    signalled_limit: NotRequired[int]


def task_key(task: int, epoch: int) -> str:
    return f"{task}-{epoch}"


class TaskFolder(NamedTuple):
    """Whose a task's folder is, as its name says; `task` is 0 where the name ends before it."""

    job: int
    epoch: int
    rank: int
    task: int = 0


def folder_name(whose: TaskFolder, key: str) -> str:
    """`<job>-<epoch>-<rank>-<task>-<epoch>`: to be read by people, and by agents of other versions."""
    return f"{whose.job}-{whose.epoch}-{whose.rank}-{key}"


def read_folder_name(name: str) -> TaskFolder | None:
    """None for a name that is not that of a task's folder."""
    parts = name.split("-")
    if len(parts) < 3 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        return None
    return TaskFolder(*map(int, parts[:4]))
