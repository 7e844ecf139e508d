"""Machines and their devices, with counters of what is in use that the database keeps within capacity."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import pghistory
from django.db import models
from django.db.models import F, Q

from scheduler.core.lifecycle import NodeState
from scheduler.models.cluster import sane_overcommit

#: `Node.drained_by` where Muster itself drained the node; no account has such a name.
DRAINED_BY_QUARANTINE: Final = "muster:quarantine"
DRAINED_BY_HEALTH_CHECK: Final = "muster:health-check"
DRAINED_BY_UNKNOWN_TASKS: Final = "muster:unknown-tasks"
DRAINED_BY_MUSTER: Final = (DRAINED_BY_QUARANTINE, DRAINED_BY_HEALTH_CHECK, DRAINED_BY_UNKNOWN_TASKS)


class NodeQuerySet(models.QuerySet["Node"]):
    def schedulable(self) -> NodeQuerySet:
        """Nodes that may take new jobs."""
        return self.filter(state=NodeState.UP, cordoned=False, draining=False)


@pghistory.track(
    fields=["name", "cordoned", "draining", "drain_reason", "drained_by", "labels", "taints", "cpu_millis",
            "memory_mib", "storage_mib"]
)  # fmt: skip
class Node(models.Model):
    """A machine, or a virtual one: several agents may share a real machine.

    `*_capacity` is what jobs may be given, overcommit included; `used_*` is raised by apply and lowered by
    settle only, and the CHECK constraints hold it within capacity whatever the code does.
    """

    cluster = models.ForeignKey("scheduler.Cluster", on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=120)
    partitions = models.ManyToManyField("scheduler.Partition", related_name="nodes", blank=True)
    state = models.CharField(
        max_length=8, choices=[(s.value, s.value) for s in NodeState], default=NodeState.UP
    )
    cordoned = models.BooleanField(default=False)
    draining = models.BooleanField(default=False)
    drain_reason = models.CharField(max_length=200, blank=True)
    drained_by = models.CharField(max_length=150, blank=True)
    drained_at = models.DateTimeField(null=True, blank=True)
    #: Until then jobs that make checkpoints are moved to other nodes; what still runs then is requeued. null = no
    #: limit: running jobs continue to their end.
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    #: [{"key", "value", "effect"}], effects as in Kubernetes (N4).
    taints = models.JSONField(default=list, blank=True)
    rack = models.CharField(max_length=80, blank=True)
    zone = models.CharField(max_length=80, blank=True)
    region = models.CharField(max_length=80, blank=True)

    # What the machine has, as its agent reports it.
    cpu_millis = models.BigIntegerField(default=0)
    memory_mib = models.BigIntegerField(default=0)
    storage_mib = models.BigIntegerField(default=0)
    numa_domains = models.PositiveSmallIntegerField(default=1)
    #: [[number, CPU thousandths, memory MiB]] of each NUMA domain, where it has several and says so.
    domains = models.JSONField(default=list, blank=True)
    #: Named countable extras: {"licence/matlab": 5}.
    extras = models.JSONField(default=dict, blank=True)
    #: Its own overcommit instead of its partitions' or the cluster's.
    cpu_overcommit_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    memory_overcommit_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    # What may be given away: the above times its overcommit.
    cpu_millis_capacity = models.BigIntegerField(default=0)
    memory_mib_capacity = models.BigIntegerField(default=0)
    # What is given away.
    used_cpu_millis = models.BigIntegerField(default=0)
    used_memory_mib = models.BigIntegerField(default=0)
    used_storage_mib = models.BigIntegerField(default=0)
    used_gpu_millis = models.BigIntegerField(default=0)
    gpu_millis = models.BigIntegerField(default=0)

    # The agent.
    address = models.CharField(max_length=64, blank=True)
    agent_version = models.CharField(max_length=32, blank=True)
    #: Of its messages (`scheduler.agent.PROTOCOL`); None until it has sent one.
    agent_protocol = models.PositiveSmallIntegerField(null=True, blank=True)
    agent_key_prefix = models.CharField(max_length=16, blank=True, db_index=True)
    agent_key_digest = models.CharField(max_length=64, blank=True)
    #: Identifies one start of the machine: processes do not outlive it.
    boot_id = models.CharField(max_length=64, blank=True)
    registered_at = models.DateTimeField(null=True, blank=True)
    #: What keeps jobs apart there and bounds them, as its agent says: see `services.cluster.isolation`.
    isolation = models.JSONField(default=dict, blank=True)
    #: What is wrong with it, in words, when something is.
    trouble = models.CharField(max_length=200, blank=True)

    created_at = models.DateTimeField(auto_now_add=True)
    generation = models.PositiveIntegerField(default=1)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["cluster_id", "name"]
        constraints = [
            models.UniqueConstraint(name="node_name_once", fields=["cluster", "name"]),
            models.CheckConstraint(
                name="node_state_known", condition=Q(state__in=[s.value for s in NodeState])
            ),
            sane_overcommit("node"),
            models.CheckConstraint(
                name="node_deadline_is_of_a_drain", condition=Q(draining=True) | Q(drain_deadline_at=None)
            ),
            models.CheckConstraint(
                name="node_cpu_not_overcommitted",
                condition=Q(used_cpu_millis__gte=0) & Q(used_cpu_millis__lte=F("cpu_millis_capacity")),
            ),
            models.CheckConstraint(
                name="node_memory_not_overcommitted",
                condition=Q(used_memory_mib__gte=0) & Q(used_memory_mib__lte=F("memory_mib_capacity")),
            ),
            models.CheckConstraint(
                name="node_storage_not_overcommitted",
                condition=Q(used_storage_mib__gte=0) & Q(used_storage_mib__lte=F("storage_mib")),
            ),
            models.CheckConstraint(
                name="node_gpu_not_overcommitted",
                condition=Q(used_gpu_millis__gte=0) & Q(used_gpu_millis__lte=F("gpu_millis")),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def schedulable(self) -> bool:
        return self.state == NodeState.UP and not self.cordoned and not self.draining

    @property
    def in_quarantine(self) -> bool:
        return self.draining and self.drained_by == DRAINED_BY_QUARANTINE

    @property
    def runs_unknown_tasks(self) -> bool:
        """It drains until tasks that the database does not know have ended."""
        return self.draining and self.drained_by == DRAINED_BY_UNKNOWN_TASKS

    @property
    def failed_health_check(self) -> bool:
        """Whether it drains for its own health check, and comes back with it."""
        return self.draining and self.drained_by == DRAINED_BY_HEALTH_CHECK

    @property
    def drained_by_words(self) -> str:
        """Who drained it, for people."""
        return "Muster" if self.drained_by in DRAINED_BY_MUSTER else self.drained_by

    @property
    def last_seen_at(self) -> datetime | None:
        """When its agent was last in contact; None for a node without an agent."""
        heartbeat: NodeHeartbeat | None = getattr(self, "heartbeat", None)
        return heartbeat.last_seen_at if heartbeat else None

    @property
    def clock_skew_ms(self) -> int:
        """How far the clock of the machine was ahead of the server's at the last contact."""
        heartbeat: NodeHeartbeat | None = getattr(self, "heartbeat", None)
        return heartbeat.clock_skew_ms if heartbeat else 0


class NodeHeartbeat(models.Model):
    """The last contact with a node's agent; a node without an agent has none.

    Apart from the node, because apply and settle lock that row for the length of their transactions. No other
    transaction locks this one: a heartbeat waits for nothing.
    """

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="heartbeat")
    last_seen_at = models.DateTimeField()
    #: Until when its silence means nothing; each contact moves it on, and so does the server's own return.
    lease_expires_at = models.DateTimeField()
    clock_skew_ms = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.node_id}: {self.last_seen_at}"


class NodeScore(models.Model):
    """How reliable and how fast a node is, from what ended there lately: `scheduler.core.forecast.node_scores`.

    Apart from the node, whose row apply and settle lock. A node of which nothing is known has none.
    """

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="score")
    #: 0 to 100, as the planner counts with them; null = unknown.
    reliability = models.PositiveSmallIntegerField(null=True)
    performance = models.PositiveSmallIntegerField(null=True)
    #: What `reliability` is from: attempts that ended there, and those of them that failed for the node's sake.
    attempts = models.PositiveIntegerField(default=0)
    failed_starts = models.PositiveIntegerField(default=0)
    lost = models.PositiveIntegerField(default=0)
    infrastructure = models.PositiveIntegerField(default=0)
    #: Failures by the job's own processes that succeeded on another node afterwards.
    succeeded_elsewhere = models.PositiveIntegerField(default=0)
    outages = models.PositiveIntegerField(default=0)
    #: What `performance` is from: 100 = comparable jobs run as fast as on the other nodes of its type.
    speed_percent = models.PositiveIntegerField(null=True)
    compared_runs = models.PositiveIntegerField(default=0)
    #: When any of these changed last.
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="node_scores_are_points",
                condition=(Q(reliability=None) | Q(reliability__lte=100))
                & (Q(performance=None) | Q(performance__lte=100)),
            )
        ]

    def __str__(self) -> str:
        return f"scores of {self.node_id}"


class NodeOutage(models.Model):
    """A moment from which a node in service counted as lost: it had stopped responding."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="outages")
    began_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.node_id} down since {self.began_at}"


class Device(models.Model):
    """One GPU (or other countable thing) on a node."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    kind = models.CharField(max_length=16, default="gpu")
    #: Its number on the node, as CUDA_VISIBLE_DEVICES counts.
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=80, blank=True)
    model = models.CharField(max_length=80, blank=True)
    memory_mib = models.BigIntegerField(default=0)
    numa_domain = models.PositiveSmallIntegerField(default=0)
    healthy = models.BooleanField(default=True)
    #: Why it is not, or what else its agent saw: who uses it without having been given it.
    trouble = models.CharField(max_length=200, blank=True, db_default="")
    #: A pretended device of a demo node: computes nothing.
    fake = models.BooleanField(default=False)
    #: No longer reported by its agent; kept for history.
    gone = models.BooleanField(default=False)
    used_millis = models.PositiveSmallIntegerField(default=0)
    #: What it is of a whole GPU: less for a slice of one, which is a device of its own.
    share_millis = models.PositiveSmallIntegerField(default=1000)
    #: The latest sample, for the map.
    utilisation_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    memory_used_mib = models.BigIntegerField(null=True, blank=True)
    temperature_c = models.SmallIntegerField(null=True, blank=True)
    power_watts = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(name="device_index_once", fields=["node", "kind", "index"]),
            models.CheckConstraint(
                name="device_not_overcommitted",
                condition=Q(used_millis__gte=0)
                & Q(used_millis__lte=F("share_millis"))
                & Q(share_millis__range=(1, 1000)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node} GPU {self.index}"


class UnknownTask(models.Model):
    """A task that a node has and the database does not, since it was restored from an older state.

    The row is there while its node says that the task is; what else is known of it, the agent has described.
    """

    node = models.ForeignKey(
        "scheduler.Node", on_delete=models.CASCADE, related_name="unknown_tasks", db_index=False
    )
    task = models.BigIntegerField()
    epoch = models.PositiveIntegerField()
    #: The job, its identity and its person, as the agent was given them; null and empty before it has described them.
    job = models.BigIntegerField(null=True, blank=True)
    job_uuid = models.UUIDField(null=True, blank=True)
    username = models.CharField(max_length=150, blank=True)
    found_at = models.DateTimeField()
    #: When it was decided that it ends, and why.
    stop_asked_at = models.DateTimeField(null=True, blank=True)
    stopped_because = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["node_id", "task"]
        constraints = [models.UniqueConstraint(name="unknown_task_once", fields=["node", "task", "epoch"])]

    def __str__(self) -> str:
        return f"task {self.task} on {self.node}"
