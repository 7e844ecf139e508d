"""Why a job is pending: the closed list, what each asks of the person, and its sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ReasonCategory(StrEnum):
    """What the person can do about it."""

    FIX = "fix"
    ASK = "ask"
    WAIT = "wait"
    SYSTEM = "system"


class ReasonCode(StrEnum):
    """The closed list, in order of precedence: the first that applies is the headline."""

    INVALID_SPEC = "InvalidSpec"
    NO_MATCHING_NODE = "NoMatchingNode"
    NODES_UNAVAILABLE = "NodesUnavailable"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    EXCEEDS_BUDGET = "ExceedsBudget"
    EXCEEDS_MAX_WALLTIME = "ExceedsMaxWalltime"
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
    IMAGE_NOT_FOUND = "ImageNotFound"
    QUEUE_STOPPED = "QueueStopped"
    HELD_BY_ADMIN = "HeldByAdmin"
    HELD_BY_USER = "HeldByUser"
    ACCOUNT_EXPIRED = "AccountExpired"
    QUOTA_ZERO = "QuotaZero"
    BUDGET_SPENT = "BudgetSpent"
    QUOTA_PROVIDER_AWAY = "QuotaProviderAway"
    APPROVAL_PENDING = "ApprovalPending"
    BEGIN_TIME = "BeginTime"
    DEPENDENCY = "Dependency"
    BACKOFF = "Backoff"
    QUOTA_PROVIDER_REFUSES = "QuotaProviderRefuses"
    RATE_LIMITED = "RateLimited"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    FAIR_SHARE_BEHIND = "FairShareBehind"
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    RESERVATION = "Reservation"
    JOB_AFFINITY = "JobAffinity"
    TOPOLOGY_FRAGMENTED = "TopologyFragmented"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    PRIORITY = "Priority"
    NOT_EVALUATED_YET = "NotEvaluatedYet"
    SCHEDULER_BEHIND = "SchedulerBehind"
    AGENT_UNREACHABLE = "AgentUnreachable"
    DATA_STALE = "DataStale"


_R = ReasonCode
_FIX = (_R.INVALID_SPEC, _R.NO_MATCHING_NODE, _R.EXCEEDS_MAX_QUOTA, _R.EXCEEDS_BUDGET, _R.EXCEEDS_MAX_WALLTIME,
        _R.DEPENDENCY_NEVER_SATISFIED, _R.IMAGE_NOT_FOUND)  # fmt: skip
_ASK = (_R.QUEUE_STOPPED, _R.HELD_BY_ADMIN, _R.HELD_BY_USER, _R.ACCOUNT_EXPIRED, _R.QUOTA_ZERO, _R.BUDGET_SPENT,
        _R.QUOTA_PROVIDER_AWAY, _R.QUOTA_PROVIDER_REFUSES, _R.APPROVAL_PENDING, _R.NODES_UNAVAILABLE)  # fmt: skip
_SYSTEM = (_R.NOT_EVALUATED_YET, _R.SCHEDULER_BEHIND, _R.AGENT_UNREACHABLE, _R.DATA_STALE)

CATEGORY: Final[dict[ReasonCode, ReasonCategory]] = {
    code: (
        ReasonCategory.FIX
        if code in _FIX
        else ReasonCategory.ASK
        if code in _ASK
        else ReasonCategory.SYSTEM
        if code in _SYSTEM
        else ReasonCategory.WAIT
    )
    for code in ReasonCode
}

#: 0 is the strongest; ties between gates are broken by it.
PRECEDENCE: Final[dict[ReasonCode, int]] = {code: rank for rank, code in enumerate(ReasonCode)}
