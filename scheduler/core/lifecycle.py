"""States of jobs, attempts, tasks and nodes, and the moves allowed between them: the specification."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class PublicState(StrEnum):
    """The seven states people see."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    PREEMPTED = "preempted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobState(StrEnum):
    """The internal states; each maps onto one of the seven."""

    CREATED = "created"
    HELD = "held"
    BLOCKED = "blocked"  # waits for other jobs
    QUEUED = "queued"
    RESERVED = "reserved"  # a gang being assembled
    SCHEDULED = "scheduled"  # has nodes; its agents have not reported yet
    STARTING = "starting"  # an agent accepted it a while ago, and no process has begun
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    PREEMPTING = "preempting"
    STOPPING = "stopping"  # cancelled by somebody; its processes are asked to end
    PREEMPTED = "preempted"
    SUSPENDED = "suspended"
    MIGRATING = "migrating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


PUBLIC: Final[dict[JobState, PublicState]] = {
    JobState.CREATED: PublicState.QUEUED,
    JobState.HELD: PublicState.QUEUED,
    JobState.BLOCKED: PublicState.QUEUED,
    JobState.QUEUED: PublicState.QUEUED,
    JobState.RESERVED: PublicState.QUEUED,
    JobState.SCHEDULED: PublicState.SCHEDULED,
    JobState.STARTING: PublicState.SCHEDULED,
    JobState.RUNNING: PublicState.RUNNING,
    JobState.CHECKPOINTING: PublicState.RUNNING,
    JobState.PREEMPTING: PublicState.RUNNING,
    JobState.STOPPING: PublicState.RUNNING,
    JobState.MIGRATING: PublicState.RUNNING,
    JobState.PREEMPTED: PublicState.PREEMPTED,
    JobState.SUSPENDED: PublicState.PREEMPTED,
    JobState.COMPLETED: PublicState.COMPLETED,
    JobState.FAILED: PublicState.FAILED,
    JobState.CANCELLED: PublicState.CANCELLED,
}

_S = JobState

#: Waiting for the planner (QUEUED) or for something before it.
PENDING: Final = frozenset({_S.CREATED, _S.HELD, _S.BLOCKED, _S.QUEUED, _S.RESERVED})
#: Holds resources: exactly the states with one live attempt.
ACTIVE: Final = frozenset(
    {
        _S.SCHEDULED,
        _S.STARTING,
        _S.RUNNING,
        _S.CHECKPOINTING,
        _S.PREEMPTING,
        _S.SUSPENDED,
        _S.STOPPING,
        _S.MIGRATING,
    }
)
#: Over. Only a person who requeues the job has it wait again.
TERMINAL: Final = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
#: What a sentence says of a job that has ended, by its state.
HOW_ENDED: Final = {
    _S.COMPLETED.value: "has completed",
    _S.FAILED.value: "has failed",
    _S.CANCELLED.value: "was cancelled",
}
#: Between two attempts; holds nothing.
INTERRUPTED: Final = frozenset({_S.PREEMPTED})

_ENDS = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})

#: The allowed moves. An attempt that is lost or whose job may restart goes back to QUEUED.
MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    _S.CREATED: frozenset({_S.HELD, _S.BLOCKED, _S.QUEUED, _S.CANCELLED, _S.FAILED}),
    #: An operator's hold takes the place of the owner's.
    _S.HELD: frozenset({_S.HELD, _S.BLOCKED, _S.QUEUED, _S.CANCELLED, _S.FAILED}),
    _S.BLOCKED: frozenset({_S.HELD, _S.QUEUED, _S.CANCELLED, _S.FAILED}),
    _S.QUEUED: frozenset({_S.HELD, _S.BLOCKED, _S.RESERVED, _S.SCHEDULED, _S.CANCELLED, _S.FAILED}),
    _S.RESERVED: frozenset({_S.QUEUED, _S.SCHEDULED, _S.HELD, _S.CANCELLED, _S.FAILED}),
    _S.SCHEDULED: frozenset({_S.STARTING, _S.RUNNING, _S.STOPPING, _S.PREEMPTING, _S.QUEUED}) | _ENDS,
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.PREEMPTING, _S.QUEUED}) | _ENDS,
    _S.RUNNING: frozenset({_S.CHECKPOINTING, _S.PREEMPTING, _S.STOPPING, _S.MIGRATING, _S.QUEUED}) | _ENDS,
    _S.CHECKPOINTING: frozenset({_S.RUNNING, _S.PREEMPTING, _S.STOPPING, _S.MIGRATING, _S.QUEUED}) | _ENDS,
    _S.PREEMPTING: frozenset({_S.PREEMPTED, _S.SUSPENDED, _S.STOPPING, _S.QUEUED}) | _ENDS,
    _S.STOPPING: _ENDS,
    _S.MIGRATING: frozenset({_S.RUNNING, _S.STOPPING, _S.QUEUED}) | _ENDS,
    _S.PREEMPTED: frozenset({_S.QUEUED, _S.HELD, _S.CANCELLED, _S.FAILED}),
    #: It is suspended on its nodes: it goes on, or ends as any that holds something.
    _S.SUSPENDED: frozenset({_S.RUNNING, _S.PREEMPTING, _S.STOPPING, _S.QUEUED}) | _ENDS,
    _S.COMPLETED: frozenset({_S.QUEUED, _S.BLOCKED}),
    _S.FAILED: frozenset({_S.QUEUED, _S.BLOCKED}),
    _S.CANCELLED: frozenset({_S.QUEUED, _S.BLOCKED}),
}


class AttemptState(StrEnum):
    """One try of a job, as the backend sees it."""

    ASSIGNED = "assigned"  # written by the planner; its tasks say whether an agent has taken them
    STARTING = "starting"  # taken a while ago
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # ended because somebody or the planner asked
    LOST = "lost"  # its node stopped answering and the lease ran out


LIVE_ATTEMPT: Final = frozenset(
    {AttemptState.ASSIGNED, AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING}
)
ENDED_ATTEMPT: Final = frozenset(AttemptState) - LIVE_ATTEMPT


class TaskState(StrEnum):
    """One of an attempt's equal processes."""

    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


LIVE_TASK: Final = frozenset({TaskState.ASSIGNED, TaskState.STARTING, TaskState.RUNNING, TaskState.STOPPING})


class NodeState(StrEnum):
    """Whether a node answers; cordoned and draining are flags beside it."""

    UP = "up"
    UNKNOWN = "unknown"  # late, still within lease and grace: nothing new, nothing taken away
    DOWN = "down"  # its lease ran out: what it held is lost


class StopReason(StrEnum):
    """Why processes are asked to end."""

    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    DEADLINE = "deadline"  # its deadline has passed, and it asked to be ended then
    PREEMPTED = "preempted"
    DRAINED = "drained"
    EVICTED = "evicted"  # its node got a taint that it does not tolerate
    STALE_EPOCH = "stale_epoch"
    GANG_MEMBER_FAILED = "gang_member_failed"
    QUOTA_REFUSED = "quota_refused"


class RestartPolicy(StrEnum):
    """When a job is started again."""

    NEVER = "never"  # it runs at most once: never after an attempt that may have begun
    INTERRUPTED = "interrupted"  # after an attempt that was lost, or had to make way
    ON_FAILURE = "on_failure"  # and after one that failed
    ALWAYS = "always"


class FailureClass(StrEnum):
    """Why an attempt did not succeed, in few words that people filter by and rules name."""

    USER_ERROR = "user-error"  # its own processes failed
    OUT_OF_MEMORY = "out-of-memory"  # it held more memory than it may
    OUT_OF_STORAGE = "out-of-storage"  # it filled more of its node's disk than it may
    TIME_LIMIT = "time-limit"
    NODE_LOST = "node-lost"  # its node stopped answering, or was restarted
    PREEMPTED = "preempted"  # it made way: preempted, evicted or drained
    INFRASTRUCTURE = "infrastructure"  # Muster, its agent or a provider ended it, or could not start it
    UNHEALTHY = "unhealthy"  # its health check failed


class TaskFailure(StrEnum):
    """What the failure of one of its tasks means for a job of several."""

    FAIL = "fail"  # the others are stopped; the restart policy says what then
    REQUEUE = "requeue"  # the others are stopped, and the job waits to start again
    CONTINUE = "continue"  # the others go on while they are enough


class DeadlineAction(StrEnum):
    """What becomes of a job at its deadline."""

    NONE = "none"  # nothing: its owner is notified
    END = "end"  # removed when it can no longer end in time, stopped when it runs at the deadline


class ElementState(StrEnum):
    """How an element of an array ended, in a job that runs several of them."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # before it started


class PackLevel(StrEnum):
    """How near to each other the tasks of a job are to be."""

    NODE = "node"
    RACK = "rack"
    ZONE = "zone"
