"""Words, icons and colours of states and reasons: the one table that pages, admin and API show them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scheduler.core.lifecycle import PENDING, AttemptState, JobState, NodeState, PublicState, StopReason
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.deadlines import DeadlineState

if TYPE_CHECKING:
    from scheduler.models import Job, Node


@dataclass(frozen=True, slots=True)
class Label:
    """How a state looks: a word, an icon of the sprite, a tone of the palette, and what it means."""

    word: str
    icon: str
    tone: str
    help: str = ""


#: The palette of tones, (light, dark), as text and icon colour; `muster.css` repeats it and a test compares.
TONES: Final[dict[str, tuple[str, str]]] = {
    "pending": ("#8a5a00", "#e3b341"),
    "blocked": ("#b3420f", "#f0883e"),
    "starting": ("#0b6b7a", "#39c5d8"),
    "running": ("#1558c0", "#6cb0ff"),
    "completed": ("#1a7340", "#4ac26b"),
    "failed": ("#c0202c", "#ff7b72"),
    "cancelled": ("#57606a", "#9ea7b3"),
    "preempted": ("#7a3fc4", "#c297ff"),
}

#: The seven states people see.
PUBLIC_STATES: Final[dict[PublicState, Label]] = {
    PublicState.QUEUED: Label("queued", "hourglass", "pending", "waiting in the queue"),
    PublicState.SCHEDULED: Label("scheduled", "dots", "starting", "nodes are assigned"),
    PublicState.RUNNING: Label("running", "play", "running", "running on its nodes"),
    PublicState.PREEMPTED: Label(
        "preempted", "swap", "preempted", "stopped for other jobs; will be requeued"
    ),
    PublicState.COMPLETED: Label("completed", "check", "completed", "ended with exit code 0"),
    PublicState.FAILED: Label("failed", "cross", "failed", "ended with an error"),
    PublicState.CANCELLED: Label("cancelled", "slash", "cancelled", "cancelled by a person"),
}

#: The finer states, where they say more than the public one.
JOB_STATES: Final[dict[JobState, Label]] = {
    JobState.CREATED: Label("queued", "hourglass", "pending", "just submitted"),
    JobState.HELD: Label("held", "pause", "cancelled", "waiting until released"),
    JobState.BLOCKED: Label("waiting for jobs", "hourglass", "pending", "waiting for other jobs to end"),
    JobState.QUEUED: PUBLIC_STATES[PublicState.QUEUED],
    JobState.RESERVED: Label("assembling", "hourglass", "pending", "nodes are being reserved"),
    JobState.SCHEDULED: PUBLIC_STATES[PublicState.SCHEDULED],
    JobState.STARTING: Label("starting", "dots", "starting", "the processes are being started"),
    JobState.RUNNING: PUBLIC_STATES[PublicState.RUNNING],
    JobState.CHECKPOINTING: Label("saving", "play", "running", "writing a checkpoint"),
    JobState.PREEMPTING: Label("being preempted", "swap", "preempted", "being stopped for other jobs"),
    JobState.STOPPING: Label("stopping", "slash", "cancelled", "the processes are being stopped"),
    JobState.PREEMPTED: PUBLIC_STATES[PublicState.PREEMPTED],
    JobState.SUSPENDED: Label("suspended", "pause", "preempted", "suspended for another job"),
    JobState.MIGRATING: Label("moving", "swap", "running", "moving to another node"),
    JobState.COMPLETED: PUBLIC_STATES[PublicState.COMPLETED],
    JobState.FAILED: PUBLIC_STATES[PublicState.FAILED],
    JobState.CANCELLED: PUBLIC_STATES[PublicState.CANCELLED],
}

CATEGORIES: Final[dict[ReasonCategory, Label]] = {
    ReasonCategory.FIX: Label(
        "cannot start", "flag", "blocked", "The job can never start as written; change the request."
    ),
    ReasonCategory.ASK: Label(
        "blocked", "flag", "blocked", "An owner, lead or operator has to act before the job can start."
    ),
    ReasonCategory.WAIT: Label(
        "waiting", "hourglass", "pending", "Normal: the job starts when its turn comes."
    ),
    ReasonCategory.SYSTEM: Label(
        "scheduler", "clock", "pending", "The scheduler has not evaluated the job yet."
    ),
}

REASONS: Final[dict[ReasonCode, str]] = {
    ReasonCode.INVALID_SPEC: "Invalid request",
    ReasonCode.NO_MATCHING_NODE: "No matching node",
    ReasonCode.EXCEEDS_MAX_QUOTA: "Exceeds the hard limit",
    ReasonCode.EXCEEDS_MAX_WALLTIME: "Exceeds the queue's time limit",
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: "A dependency finished with the wrong result",
    ReasonCode.IMAGE_NOT_FOUND: "Image not found",
    ReasonCode.QUEUE_STOPPED: "Queue paused",
    ReasonCode.HELD_BY_ADMIN: "Held by an operator",
    ReasonCode.HELD_BY_USER: "Held by the owner",
    ReasonCode.ACCOUNT_EXPIRED: "Account or project closed",
    ReasonCode.QUOTA_ZERO: "No quota for this resource",
    ReasonCode.BUDGET_SPENT: "Budget used up",
    ReasonCode.EXCEEDS_BUDGET: "Exceeds the whole budget",
    ReasonCode.QUOTA_PROVIDER_AWAY: "The quota provider is unreachable",
    ReasonCode.QUOTA_PROVIDER_REFUSES: "The quota provider refuses",
    ReasonCode.NODES_UNAVAILABLE: "Nodes unavailable",
    ReasonCode.APPROVAL_PENDING: "Waiting for approval",
    ReasonCode.BEGIN_TIME: "Begin time not reached",
    ReasonCode.DEPENDENCY: "Waiting for a dependency",
    ReasonCode.BACKOFF: "Waiting before the next attempt",
    ReasonCode.RATE_LIMITED: "Running-job limit reached",
    ReasonCode.WAITING_FOR_QUOTA: "Quota in use",
    ReasonCode.FAIR_SHARE_BEHIND: "Projects with less usage go first",
    ReasonCode.WAITING_FOR_PREEMPTION: "Waiting for preempted jobs to stop",
    ReasonCode.RESERVATION: "Nodes are reserved",
    ReasonCode.JOB_AFFINITY: "Excluded by affinity or spread rules",
    ReasonCode.TOPOLOGY_FRAGMENTED: "Free resources are fragmented",
    ReasonCode.WAITING_FOR_RESOURCES: "Not enough free resources",
    ReasonCode.PRIORITY: "Other jobs are ahead",
    ReasonCode.NOT_EVALUATED_YET: "Not evaluated yet",
    ReasonCode.SCHEDULER_BEHIND: "The scheduler is behind",
    ReasonCode.AGENT_UNREACHABLE: "Node not responding",
    ReasonCode.DATA_STALE: "Cluster data out of date",
}

ATTEMPT_STATES: Final[dict[AttemptState, Label]] = {
    AttemptState.ASSIGNED: Label("assigned", "dots", "starting", "not yet accepted by the agent"),
    AttemptState.STARTING: Label("starting", "dots", "starting"),
    AttemptState.RUNNING: Label("running", "play", "running"),
    AttemptState.STOPPING: Label("stopping", "slash", "cancelled"),
    AttemptState.SUCCEEDED: Label("succeeded", "check", "completed"),
    AttemptState.FAILED: Label("failed", "cross", "failed"),
    AttemptState.STOPPED: Label("stopped", "slash", "cancelled", "stopped on request"),
    AttemptState.LOST: Label("lost", "cross", "failed", "the node stopped responding"),
}

STOP_REASONS: Final[dict[StopReason, str]] = {
    StopReason.CANCELLED: "cancelled",
    StopReason.TIME_LIMIT: "time limit reached",
    StopReason.DEADLINE: "deadline reached",
    StopReason.PREEMPTED: "preempted",
    StopReason.DRAINED: "node drained",
    StopReason.EVICTED: "untolerated taint on the node",
    StopReason.STALE_EPOCH: "replaced by a newer attempt",
    StopReason.GANG_MEMBER_FAILED: "another task failed",
    StopReason.QUOTA_REFUSED: "refused by the quota provider",
}

DEADLINES: Final[dict[DeadlineState, Label]] = {
    DeadlineState.ON_TIME: Label("on time", "clock", "completed"),
    DeadlineState.LATE: Label("deadline at risk", "clock", "pending"),
    DeadlineState.MET: Label("deadline met", "check", "completed"),
    DeadlineState.MISSED: Label("deadline missed", "warn", "failed"),
}

NODE_STATES: Final[dict[NodeState, Label]] = {
    NodeState.UP: Label("up", "check", "completed", "responding and schedulable"),
    NodeState.UNKNOWN: Label("unknown", "clock", "pending", "heartbeat is late; no new job starts here"),
    NodeState.DOWN: Label("down", "cross", "failed", "stopped responding; its jobs are lost"),
}
DECLARED: Final = Label("declared", "clock", "pending", "no agent has registered yet; no job starts here")
CORDONED: Final = Label("cordoned", "slash", "cancelled", "accepts no new jobs; running jobs continue")
QUARANTINED: Final = Label(
    "quarantined", "warn", "failed", "accepts no new jobs, since jobs of several people failed here"
)
DRAINING: Final = Label(
    "draining", "pause", "blocked", "accepts no new jobs; running jobs continue to their end"
)


def job_label(job: Job) -> Label:
    """The chip of one job: its finer state, and a flag where waiting alone will not help."""
    state = JobState(job.state)
    if state is JobState.HELD or state not in PENDING:
        return JOB_STATES[state]
    if job.reason_category in (ReasonCategory.FIX, ReasonCategory.ASK):
        return CATEGORIES[ReasonCategory(job.reason_category)]
    return JOB_STATES[state]


def node_label(node: Node) -> Label:
    """The chip of one node: not answering says more than being drained, and that more than being up."""
    state = NodeState(node.state)
    if state is NodeState.DOWN and node.registered_at is None:
        return DECLARED
    if state is not NodeState.UP:
        return NODE_STATES[state]
    if node.draining:
        return QUARANTINED if node.in_quarantine else DRAINING
    if node.cordoned:
        return CORDONED
    return NODE_STATES[state]


def reason_title(code: str) -> str:
    """A short title of a reason; an unknown code is shown as it is."""
    try:
        return REASONS[ReasonCode(code)]
    except ValueError:
        return code
