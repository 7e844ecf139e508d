"""Clusters, their partitions, and the tokens machines join with."""

from __future__ import annotations

import pghistory
from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models import Value


class BackendKind(models.TextChoices):
    """Where the attempts of a cluster really run."""

    AGENTS = "agents", "Muster node agents"
    KUBERNETES = "kubernetes", "Kubernetes"
    DOCKER = "docker", "Docker"
    CLOUD_VM = "cloud_vm", "cloud machines"
    BARE_METAL = "bare_metal", "bare metal"
    SERVERLESS = "serverless", "serverless"
    SLURM = "slurm", "Slurm"
    PBS = "pbs", "PBS"


def sane_overcommit(of: str) -> models.CheckConstraint:
    """A ratio from a tenth to ten times; below 100 something of each machine is kept back."""
    rows = [
        models.Q(**{name: None}) | models.Q(**{f"{name}__range": (10, 1000)})
        for name in ("cpu_overcommit_percent", "memory_overcommit_percent")
    ]
    return models.CheckConstraint(name=f"{of}_overcommit_sane", condition=rows[0] & rows[1])


@pghistory.track(exclude=["wakeups", "backend_key"])
class Cluster(models.Model):
    """Nodes behind one backend; one planner at a time plans it."""

    name = models.CharField(max_length=80, unique=True)
    slug = models.SlugField(max_length=80, unique=True)
    backend = models.CharField(max_length=16, choices=BackendKind, default=BackendKind.AGENTS)
    #: What the backend needs to know: where its hosts are. Empty for agents, which call Muster.
    backend_settings = models.JSONField(default=dict, db_default=Value({}, models.JSONField()), blank=True)
    #: Marks what Muster has made at the backend as this cluster's, whatever its name, and whichever portal asks.
    backend_key = models.UUIDField(db_default=RandomUUID(), editable=False, unique=True)
    #: While paused nothing new starts; what runs goes on.
    paused = models.BooleanField(default=False)
    paused_reason = models.CharField(max_length=200, blank=True)
    paused_by = models.CharField(max_length=150, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    profile = models.ForeignKey(
        "scheduler.SchedulerProfile", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    #: Percentage of capacity that counts when jobs are admitted, where neither the node nor one of its
    #: partitions says another ratio; GPUs are never overcommitted.
    cpu_overcommit_percent = models.PositiveSmallIntegerField(default=100)
    memory_overcommit_percent = models.PositiveSmallIntegerField(default=100)
    created_at = models.DateTimeField(auto_now_add=True)
    generation = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["id"]
        constraints = [sane_overcommit("cluster")]

    def __str__(self) -> str:
        return self.name


class PolicyFault(models.Model):
    """A plugin that failed, or a rule of a profile that cannot be followed, and is out of use until an operator says
    otherwise; a profile that cannot be followed; or cycles that fail.

    The planner goes on without the plugin or the rule, or with the default policy, and operators see it until the
    row is gone.
    """

    #: The subject of a profile; that of a plugin is its name with `PLUGIN` before it.
    PROFILE = "profile"
    PLUGIN = "plugin "
    #: Before the name of a rule and that of its profile.
    RULE = "rule "
    #: Every cycle fails, whatever the policy; the row goes with the next cycle that succeeds.
    CYCLE = "cycle"

    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="policy_faults", db_index=False
    )
    subject = models.CharField(max_length=150)
    reason = models.CharField(max_length=500)
    began_at = models.DateTimeField()

    class Meta:
        ordering = ["cluster_id", "subject"]
        constraints = [models.UniqueConstraint(name="policy_fault_once", fields=["cluster", "subject"])]

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


@pghistory.track()
class Partition(models.Model):
    """A named set of nodes with rules."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="partitions")
    name = models.CharField(max_length=80)
    max_wall_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: For its nodes instead of the cluster's; of a node's partitions the lowest counts.
    cpu_overcommit_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    memory_overcommit_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["cluster_id", "name"]
        constraints = [
            models.UniqueConstraint(name="partition_name_once", fields=["cluster", "name"]),
            sane_overcommit("partition"),
        ]

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets a node agent register in a cluster; kept as a digest."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="join_tokens")
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150, blank=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"muster_join_{self.prefix}_…"
