"""Causes: what to change so that a job goes on, as a code and a subject that a program can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from scheduler.core.plan import Fact
from scheduler.core.reason_codes import ReasonCode

Facts = Mapping[str, int | str]


class CauseCode(StrEnum):
    """The closed list of what a headline may name; beside each, its subject."""

    TAINT = "taint"  # key=value:effect, several with commas
    LABEL = "label"  # key=value, several with commas
    NODE_AFFINITY = "node_affinity"  # the conditions that are not met
    PARTITION = "partition"  # a node outside the job's partitions
    NODE_TIME_LIMIT = "node_time_limit"  # a node whose partitions allow less time
    ISOLATION = "isolation"  # the level that is required
    AGENT = "agent"  # a node whose agent is too old
    CORDON = "cordon"  # a node
    DRAIN = "drain"  # a node
    FAULT = "fault"  # a node
    GPU_HEALTH = "gpu_health"  # a node
    UNREACHABLE = "unreachable"  # a node
    RESERVATION = "reservation"  # its name, or nothing where that is another's
    OTHER_JOBS = "other_jobs"  # the kind of affinity rule: near, apart, kept_away, spread
    PLUGIN = "plugin"  # a plugin that turns nodes away
    NO_NODES = "no_nodes"
    REQUEST = "request"  # the amount or attribute that no node has
    TOPOLOGY = "topology"  # rack, zone, region or node that is too small
    AMOUNT = "amount"  # the resource of which too little is free
    NUMA = "numa"  # free resources that are in several NUMA domains
    QUOTA = "quota"  # owner and resource
    BUDGET = "budget"  # its name
    FAIR_SHARE = "fair_share"  # the owner of the share
    QUEUE = "queue"  # the queue that is paused
    QUEUE_TIME_LIMIT = "queue_time_limit"  # the queue
    RUNNING_JOBS = "running_jobs"  # the queue or array that runs as many jobs as it may
    HOLD = "hold"  # user or admin
    DEPENDENCY = "dependency"
    BEGIN_TIME = "begin_time"
    BACKOFF = "backoff"
    TURN = "turn"  # the job ahead, or the queue that keeps its order
    PREEMPTION = "preemption"  # jobs that make way
    GATHERING = "gathering"  # nodes that a gang gathers
    ACCOUNT = "account"
    APPROVAL = "approval"
    IMAGE = "image"
    QUOTA_PROVIDER = "quota_provider"
    SCHEDULER = "scheduler"  # Muster itself


class Cause(NamedTuple):
    """What to change: a code and what it is about."""

    code: CauseCode
    subject: str = ""


def cause_of(reason: ReasonCode, facts: Iterable[Fact] | Facts) -> Cause:
    """What a decision names, from its facts; of several filters that close nodes, the first."""
    return _CAUSES[reason](dict(facts))


#: By filter: the code, and the fact that is its subject.
_GATES: Final[Mapping[str, tuple[CauseCode, str]]] = {
    "taints": (CauseCode.TAINT, "taints"),
    "labels": (CauseCode.LABEL, "labels"),
    "affinity": (CauseCode.NODE_AFFINITY, "affinity"),
    "partition": (CauseCode.PARTITION, "node"),
    "wall": (CauseCode.NODE_TIME_LIMIT, "node"),
    "isolation": (CauseCode.ISOLATION, "isolation"),
    "agent": (CauseCode.AGENT, "node"),
    "cordoned": (CauseCode.CORDON, "node"),
    "draining": (CauseCode.DRAIN, "node"),
    "fault": (CauseCode.FAULT, "node"),
    "gpu_health": (CauseCode.GPU_HEALTH, "node"),
    "state": (CauseCode.UNREACHABLE, "node"),
    "reserved": (CauseCode.RESERVATION, "reservation"),
    "jobs": (CauseCode.OTHER_JOBS, "node"),
}


def _nodes_unavailable(facts: Facts) -> Cause:
    gate = str(facts.get("gates", "")).split(", ")[0]
    code, subject = _GATES.get(gate, (CauseCode.PLUGIN, ""))
    return Cause(code, str(facts.get(subject, gate if code is CauseCode.PLUGIN else "")))


def _no_matching_node(facts: Facts) -> Cause:
    gate = str(facts.get("gate", ""))
    return Cause(CauseCode.NO_NODES) if gate == "none" else Cause(CauseCode.REQUEST, gate)


def _invalid_spec(facts: Facts) -> Cause:
    kind, resource = str(facts.get("kind", "")), str(facts.get("resource", ""))
    if kind in ("rack", "zone", "spread") or (kind == "node" and resource == "tasks"):
        return Cause(CauseCode.TOPOLOGY, str(facts.get("topology", kind)))
    return Cause(CauseCode.REQUEST, kind if kind in ("numa", "shape") else resource)


def _quota(facts: Facts) -> Cause:
    words = (facts.get("owner", ""), facts.get("gpu_model", ""), facts.get("resource", ""))
    return Cause(CauseCode.QUOTA, " ".join(str(word) for word in words if word))


def _fragmented(facts: Facts) -> Cause:
    if "numa" in facts:
        return Cause(CauseCode.NUMA, str(facts.get("node", "")))
    if "pack" in facts:
        return Cause(CauseCode.TOPOLOGY, str(facts["pack"]))
    return Cause(CauseCode.AMOUNT, str(facts.get("resource", "")))


def _resources(facts: Facts) -> Cause:
    if "gates" in facts:
        return _nodes_unavailable(facts)
    if "gathering" in facts:
        return Cause(CauseCode.GATHERING)
    return Cause(CauseCode.AMOUNT, str(facts.get("resource", "")))


def _subject(code: CauseCode, *names: str) -> Callable[[Facts], Cause]:
    """This code with the first of these facts that there is."""
    return lambda facts: Cause(code, next((str(facts[name]) for name in names if name in facts), ""))


def _always(code: CauseCode, subject: str = "") -> Callable[[Facts], Cause]:
    return lambda _: Cause(code, subject)


_R, _C = ReasonCode, CauseCode
_CAUSES: Final[Mapping[ReasonCode, Callable[[Facts], Cause]]] = {
    _R.INVALID_SPEC: _invalid_spec,
    _R.NO_MATCHING_NODE: _no_matching_node,
    _R.EXCEEDS_MAX_QUOTA: _quota,
    _R.EXCEEDS_BUDGET: _subject(_C.BUDGET, "budget"),
    _R.EXCEEDS_MAX_WALLTIME: _subject(_C.QUEUE_TIME_LIMIT, "queue"),
    _R.DEPENDENCY_NEVER_SATISFIED: _subject(_C.DEPENDENCY, "job"),
    _R.IMAGE_NOT_FOUND: _always(_C.IMAGE),
    _R.QUEUE_STOPPED: _subject(_C.QUEUE, "queue"),
    _R.HELD_BY_ADMIN: _always(_C.HOLD, "admin"),
    _R.HELD_BY_USER: _always(_C.HOLD, "user"),
    _R.ACCOUNT_EXPIRED: _always(_C.ACCOUNT),
    _R.QUOTA_ZERO: _quota,
    _R.BUDGET_SPENT: _subject(_C.BUDGET, "budget"),
    _R.QUOTA_PROVIDER_AWAY: _always(_C.QUOTA_PROVIDER),
    _R.QUOTA_PROVIDER_REFUSES: _always(_C.QUOTA_PROVIDER, "refuses"),
    _R.APPROVAL_PENDING: _always(_C.APPROVAL),
    _R.NODES_UNAVAILABLE: _nodes_unavailable,
    _R.BEGIN_TIME: _always(_C.BEGIN_TIME),
    _R.DEPENDENCY: _always(_C.DEPENDENCY),
    _R.BACKOFF: _always(_C.BACKOFF),
    _R.RATE_LIMITED: _subject(_C.RUNNING_JOBS, "queue", "array"),
    _R.WAITING_FOR_QUOTA: _quota,
    _R.FAIR_SHARE_BEHIND: _subject(_C.FAIR_SHARE, "owner"),
    _R.WAITING_FOR_PREEMPTION: _subject(_C.PREEMPTION, "numbers"),
    _R.RESERVATION: _subject(_C.RESERVATION, "reservation"),
    _R.JOB_AFFINITY: _subject(_C.OTHER_JOBS, "kind"),
    _R.TOPOLOGY_FRAGMENTED: _fragmented,
    _R.WAITING_FOR_RESOURCES: _resources,
    _R.PRIORITY: _subject(_C.TURN, "job", "queue"),
    _R.NOT_EVALUATED_YET: _always(_C.SCHEDULER),
    _R.SCHEDULER_BEHIND: _always(_C.SCHEDULER),
    _R.AGENT_UNREACHABLE: _subject(_C.UNREACHABLE, "node"),
    _R.DATA_STALE: _always(_C.SCHEDULER),
}
