"""Words, icons and colours of states and reasons: the one table that pages, admin and API show them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scheduler.core.lifecycle import PENDING, AttemptState, JobState, NodeState, PublicState, StopReason
from scheduler.core.reason_codes import ReasonCategory, ReasonCode

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
    PublicState.QUEUED: Label("queued", "hourglass", "pending", "waits for its turn"),
    PublicState.SCHEDULED: Label("scheduled", "dots", "starting", "has its nodes and is being started"),
    PublicState.RUNNING: Label("running", "play", "running", "its processes run"),
    PublicState.PREEMPTED: Label("preempted", "swap", "preempted", "was stopped for others and will go on"),
    PublicState.COMPLETED: Label("completed", "check", "completed", "ended with exit code 0"),
    PublicState.FAILED: Label("failed", "cross", "failed", "ended with an error"),
    PublicState.CANCELLED: Label("cancelled", "slash", "cancelled", "was stopped by a person"),
}

#: The finer states, where they say more than the public one.
JOB_STATES: Final[dict[JobState, Label]] = {
    JobState.CREATED: Label("queued", "hourglass", "pending", "was just submitted"),
    JobState.HELD: Label("held", "pause", "cancelled", "waits until somebody releases it"),
    JobState.BLOCKED: Label("waiting for jobs", "hourglass", "pending", "waits for other jobs to end"),
    JobState.QUEUED: PUBLIC_STATES[PublicState.QUEUED],
    JobState.RESERVED: Label("gathering", "hourglass", "pending", "its nodes are being gathered"),
    JobState.SCHEDULED: PUBLIC_STATES[PublicState.SCHEDULED],
    JobState.STARTING: Label("starting", "dots", "starting", "its processes are being started"),
    JobState.RUNNING: PUBLIC_STATES[PublicState.RUNNING],
    JobState.CHECKPOINTING: Label("saving", "play", "running", "writes a checkpoint"),
    JobState.PREEMPTING: Label("being preempted", "swap", "preempted", "is told to stop for others"),
    JobState.STOPPING: Label("stopping", "slash", "cancelled", "its processes are told to end"),
    JobState.PREEMPTED: PUBLIC_STATES[PublicState.PREEMPTED],
    JobState.SUSPENDED: Label("suspended", "pause", "preempted", "stands still for another job"),
    JobState.MIGRATING: Label("moving", "swap", "running", "moves to another node"),
    JobState.COMPLETED: PUBLIC_STATES[PublicState.COMPLETED],
    JobState.FAILED: PUBLIC_STATES[PublicState.FAILED],
    JobState.CANCELLED: PUBLIC_STATES[PublicState.CANCELLED],
}

CATEGORIES: Final[dict[ReasonCategory, Label]] = {
    ReasonCategory.FIX: Label("fix it", "flag", "blocked", "It can never start as written: change the job."),
    ReasonCategory.ASK: Label("ask someone", "flag", "blocked", "Somebody has to act before it can start."),
    ReasonCategory.WAIT: Label("wait", "hourglass", "pending", "Normal: it starts when its turn comes."),
    ReasonCategory.SYSTEM: Label("system", "clock", "pending", "Muster itself has not got to it yet."),
}

REASONS: Final[dict[ReasonCode, str]] = {
    ReasonCode.INVALID_SPEC: "The request is not valid",
    ReasonCode.NO_MATCHING_NODE: "No node can ever hold it",
    ReasonCode.EXCEEDS_MAX_QUOTA: "More than the project's hard limit",
    ReasonCode.EXCEEDS_MAX_WALLTIME: "Longer than the queue allows",
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: "A job it waits for ended the other way",
    ReasonCode.IMAGE_NOT_FOUND: "Its image does not exist",
    ReasonCode.QUEUE_STOPPED: "Its queue is paused",
    ReasonCode.HELD_BY_ADMIN: "Held by an operator",
    ReasonCode.HELD_BY_USER: "Held by its owner",
    ReasonCode.ACCOUNT_EXPIRED: "The account or project is closed",
    ReasonCode.QUOTA_ZERO: "The project has none of this resource",
    ReasonCode.BUDGET_SPENT: "Its budget is spent for now",
    ReasonCode.EXCEEDS_BUDGET: "It needs more than its whole budget",
    ReasonCode.QUOTA_PROVIDER_AWAY: "The keeper of its quota is away",
    ReasonCode.APPROVAL_PENDING: "Waits for approval",
    ReasonCode.BEGIN_TIME: "Its begin time is in the future",
    ReasonCode.DEPENDENCY: "Waits for another job",
    ReasonCode.BACKOFF: "Waits before the next try",
    ReasonCode.RATE_LIMITED: "A limit on running jobs is reached",
    ReasonCode.WAITING_FOR_QUOTA: "The project's quota is in use",
    ReasonCode.FAIR_SHARE_BEHIND: "Projects with less use go first",
    ReasonCode.WAITING_FOR_PREEMPTION: "Others are being stopped for it",
    ReasonCode.RESERVATION: "Nodes are reserved",
    ReasonCode.JOB_AFFINITY: "Other jobs, or its own spread, keep it from nodes",
    ReasonCode.TOPOLOGY_FRAGMENTED: "Enough is free, but not in one place",
    ReasonCode.WAITING_FOR_RESOURCES: "Not enough is free",
    ReasonCode.PRIORITY: "Others go first",
    ReasonCode.NOT_EVALUATED_YET: "Not looked at yet",
    ReasonCode.SCHEDULER_BEHIND: "The scheduler is behind",
    ReasonCode.AGENT_UNREACHABLE: "A node does not answer",
    ReasonCode.DATA_STALE: "What we know is too old",
}

ATTEMPT_STATES: Final[dict[AttemptState, Label]] = {
    AttemptState.ASSIGNED: Label("assigned", "dots", "starting", "no agent has taken it yet"),
    AttemptState.STARTING: Label("starting", "dots", "starting"),
    AttemptState.RUNNING: Label("running", "play", "running"),
    AttemptState.STOPPING: Label("stopping", "slash", "cancelled"),
    AttemptState.SUCCEEDED: Label("succeeded", "check", "completed"),
    AttemptState.FAILED: Label("failed", "cross", "failed"),
    AttemptState.STOPPED: Label("stopped", "slash", "cancelled", "somebody or the planner asked"),
    AttemptState.LOST: Label("lost", "cross", "failed", "its node stopped answering"),
}

STOP_REASONS: Final[dict[StopReason, str]] = {
    StopReason.CANCELLED: "somebody cancelled it",
    StopReason.TIME_LIMIT: "its time limit was reached",
    StopReason.PREEMPTED: "it was preempted",
    StopReason.DRAINED: "its node was drained",
    StopReason.EVICTED: "its node got a taint that it does not tolerate",
    StopReason.STALE_EPOCH: "a newer attempt replaced it",
    StopReason.GANG_MEMBER_FAILED: "another task of it failed",
    StopReason.QUOTA_REFUSED: "the keeper of its quota refused it",
}

NODE_STATES: Final[dict[NodeState, Label]] = {
    NodeState.UP: Label("up", "check", "completed", "answers and takes jobs"),
    NodeState.UNKNOWN: Label("late", "clock", "pending", "is late to answer; nothing new starts on it"),
    NodeState.DOWN: Label("down", "cross", "failed", "stopped answering; what it ran is lost"),
}
CORDONED: Final = Label("cordoned", "slash", "cancelled", "takes no new jobs; those there go on")
DRAINING: Final = Label(
    "draining", "pause", "blocked", "takes no new jobs; what runs there goes on to its end"
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
    if state is not NodeState.UP:
        return NODE_STATES[state]
    if node.draining:
        return DRAINING
    if node.cordoned:
        return CORDONED
    return NODE_STATES[state]


def reason_title(code: str) -> str:
    """A short title of a reason; an unknown code is shown as it is."""
    try:
        return REASONS[ReasonCode(code)]
    except ValueError:
        return code
