"""The rows of machines, queues, jobs and cycles."""

from scheduler.models.allocation import Allocation
from scheduler.models.attempt import USAGE_POINTS, Attempt, AttemptUsage, LogChunk, Suspension, Task
from scheduler.models.changed_job import ChangedJob
from scheduler.models.cluster import Cluster, JoinToken, Partition, PolicyFault
from scheduler.models.cycle import Cycle, FairQueueTurn, Lease, PolicyChoice
from scheduler.models.element import ElementEnd, JobElements
from scheduler.models.event import JobEvent, MetricCount, MetricCursor
from scheduler.models.forecast import (
    ForecastOutcome,
    ForecastRun,
    PredictionAccuracy,
    RuntimePrediction,
    StartForecast,
)
from scheduler.models.idempotency import IdempotencyKey
from scheduler.models.job import Dataset, DependencyKind, Job, JobDependency, UnfinishedJob
from scheduler.models.job_request import JobName, JobRequest, WaitEnd
from scheduler.models.moves.job_move import OPEN_MOVES, JobMove, MoveCause, MoveState
from scheduler.models.node import (
    DRAINED_BY_HEALTH_CHECK,
    DRAINED_BY_MUSTER,
    DRAINED_BY_QUARANTINE,
    DRAINED_BY_UNKNOWN_TASKS,
    Device,
    Node,
    NodeHeartbeat,
    NodeOutage,
    NodeScore,
    UnknownTask,
)
from scheduler.models.policies.profile_version import PROFILE_FIELDS, ProfileVersion, VersionOrigin
from scheduler.models.policies.shadow_run import ShadowCycle, ShadowJob, ShadowRun, ShadowState
from scheduler.models.queue import PriorityClass, Queue, SchedulerProfile
from scheduler.models.reservation import Reservation, ReservationPart, ReservationStatus
from scheduler.models.results.artifact import Artifact, ArtifactUpload, UploadState
from scheduler.models.results.checkpoint import Checkpoint, CheckpointReason, CheckpointState
from scheduler.models.results.kept_result import KeptResult, LeaveReason
from scheduler.models.retention import RetentionRun
from scheduler.models.uploads.folder_upload import FolderUpload, FolderUploadState

__all__ = [
    "Allocation",
    "DRAINED_BY_HEALTH_CHECK",
    "DRAINED_BY_MUSTER",
    "DRAINED_BY_QUARANTINE",
    "DRAINED_BY_UNKNOWN_TASKS",
    "OPEN_MOVES",
    "PROFILE_FIELDS",
    "PredictionAccuracy",
    "USAGE_POINTS",
    "Artifact",
    "ArtifactUpload",
    "Attempt",
    "AttemptUsage",
    "ChangedJob",
    "Checkpoint",
    "CheckpointReason",
    "CheckpointState",
    "Cluster",
    "Cycle",
    "Dataset",
    "DependencyKind",
    "Device",
    "ElementEnd",
    "FairQueueTurn",
    "FolderUpload",
    "FolderUploadState",
    "ForecastOutcome",
    "ForecastRun",
    "IdempotencyKey",
    "Job",
    "JobDependency",
    "JobElements",
    "JobEvent",
    "MetricCount",
    "MetricCursor",
    "JobMove",
    "JobName",
    "JobRequest",
    "JoinToken",
    "KeptResult",
    "Lease",
    "LeaveReason",
    "LogChunk",
    "MoveCause",
    "MoveState",
    "Node",
    "NodeHeartbeat",
    "NodeOutage",
    "NodeScore",
    "Partition",
    "PolicyChoice",
    "PolicyFault",
    "PriorityClass",
    "ProfileVersion",
    "Queue",
    "Reservation",
    "ReservationPart",
    "ReservationStatus",
    "RetentionRun",
    "RuntimePrediction",
    "SchedulerProfile",
    "ShadowCycle",
    "ShadowJob",
    "ShadowRun",
    "ShadowState",
    "StartForecast",
    "Suspension",
    "Task",
    "UnfinishedJob",
    "UnknownTask",
    "UploadState",
    "VersionOrigin",
    "WaitEnd",
]
