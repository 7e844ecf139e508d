"""Queues, priority classes and scheduler profiles."""

from __future__ import annotations

import pghistory
from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduler.core.adaptive.reading import read_rules
from scheduler.core.adaptive.rules import HOLD_SECONDS
from scheduler.core.policy import ISOLATION
from scheduler.core.snapshot.node_isolation import NEEDED, IsolationLevel

#: What a person chooses from for a queue.
ISOLATION_CHOICES = [
    (IsolationLevel.ANY.value, "any node"),
    (IsolationLevel.PARTIAL.value, "partial or strict: people's files and processes are apart"),
    (IsolationLevel.STRICT.value, "strict: as partial, and the kernel bounds what a job uses and starts"),
]


@pghistory.track()
class PriorityClass(models.Model):
    """A name for a priority; `preempts` lists the classes it may stop."""

    name = models.CharField(max_length=32, unique=True)
    value = models.PositiveSmallIntegerField(unique=True)
    aliases = models.JSONField(default=list, blank=True)
    preempts = models.ManyToManyField("self", symmetrical=False, blank=True, related_name="+")
    boost_per_hour = models.DecimalField(max_digits=6, decimal_places=3, default=0)
    description = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-value"]
        verbose_name_plural = "priority classes"
        constraints = [
            models.CheckConstraint(name="priority_class_range", condition=Q(value__lte=100)),
        ]

    def __str__(self) -> str:
        return self.name


class PlacementStrategy(models.TextChoices):
    BEST_FIT = "best_fit", "best fit: tightest node first"
    SPREAD = "spread", "spread: emptiest node first"
    FRAG = "frag", "frag: keep idle GPUs usable for common requests"
    LEAST_LOADED = "least_loaded", "least loaded: the most idle node"
    RESOURCE_BALANCE = "resource_balance", "resource balance: even use of CPU, memory and GPUs"
    ROUND_ROBIN = "round_robin", "round robin: the node with the fewest tasks"
    BALANCED = "balanced", "balanced: fit 30, affinity 20, load 20, data locality 20, cost 10"
    K8S = "k8s", "k8s: fit 40, load 30, affinity 20, network 10"
    MULTI_CRITERIA = "multi-criteria", "multi-criteria: performance, cost, reliability, network equally"
    QUALITY = "quality", "quality: GPUs in one NUMA domain, then the tightest node"


class SchedulingPolicy(models.TextChoices):
    FIFO = "fifo", "first in, first out"
    PRIORITY = "priority", "priority"
    FAIRSHARE = "fairshare", "fair share: lowest usage first"
    SJF = "sjf", "shortest time limit first"
    EDF = "edf", "earliest deadline first"
    FAIR_QUEUE = "fair_queue", "fair queueing: projects or people take turns"


class BackfillMode(models.TextChoices):
    NONE = "none", "none: any job that fits starts"
    EASY = "easy", "easy: never delay the first pending job"
    CONSERVATIVE = "conservative", "conservative: never delay the first n pending jobs"
    AGGRESSIVE = "aggressive", "aggressive: may delay the first pending job by a bounded time"
    DEADLINE = "deadline", "deadline: never delay the first pending job or a job with a deadline"


@pghistory.track()
class SchedulerProfile(models.Model):
    """How a planner decides: policy, tie-breakers, placement, weights, plugins (02 decision 7)."""

    name = models.CharField(max_length=80, unique=True)
    policy = models.CharField(max_length=16, choices=SchedulingPolicy, default=SchedulingPolicy.FIFO)
    tie_breakers = models.JSONField(default=list, blank=True)
    #: Later jobs wait until every earlier one has started.
    strict_order = models.BooleanField(default=False)
    placement = models.CharField(max_length=16, choices=PlacementStrategy, default=PlacementStrategy.BEST_FIT)
    backfill = models.CharField(max_length=16, choices=BackfillMode, default=BackfillMode.EASY)
    #: Further knobs of `core.policy.Policy` by name: "factors", "age_cap_seconds", "backfill_promises", ...
    options = models.JSONField(default=dict, blank=True)
    #: {"sub-score name": weight}; empty takes the built-in weights of the strategy.
    score_weights = models.JSONField(default=dict, blank=True)
    #: Plugin names of the entry point group `muster.plugins`, in order.
    plugins = models.JSONField(default=list, blank=True)
    #: Whether jobs may be stopped for others, and the settings of `Preemption` that differ from its defaults.
    preemption_enabled = models.BooleanField(default=False)
    preemption = models.JSONField(default=dict, blank=True)
    #: Rules that choose order, placement and weights by time and by what waits (`core.adaptive.reading`).
    rules = models.JSONField(default=list, db_default=[], blank=True)
    #: How long the choice of a rule is kept at least, and by which clock rules read the time of day.
    rule_hold_seconds = models.PositiveIntegerField(default=HOLD_SECONDS, db_default=HOLD_SECONDS)
    rule_time_zone = models.CharField(max_length=64, default="UTC", db_default="UTC")
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


@pghistory.track(exclude=["generation"])
class Queue(models.Model):
    """Where pending jobs wait: an order, allowed partitions, limits."""

    cluster = models.ForeignKey("scheduler.Cluster", on_delete=models.CASCADE, related_name="queues")
    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=80, unique=True)
    #: Only this project's members may use it; null is open to all projects.
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="queues"
    )
    #: Where its jobs may run; none named is every node of the cluster.
    partitions = models.ManyToManyField("scheduler.Partition", related_name="queues", blank=True)
    #: Jobs that name no queue go to the cluster's default one.
    is_default = models.BooleanField(default=False)
    #: Orders queues among each other; not a job's priority.
    priority = models.PositiveSmallIntegerField(default=50)
    profile = models.ForeignKey(
        SchedulerProfile, null=True, blank=True, on_delete=models.SET_NULL, related_name="queues"
    )
    paused = models.BooleanField(default=False)
    paused_reason = models.CharField(max_length=200, blank=True)
    paused_by = models.CharField(max_length=150, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    max_concurrent_jobs = models.PositiveIntegerField(null=True, blank=True)
    max_pending_jobs = models.PositiveIntegerField(null=True, blank=True)
    default_wall_seconds = models.PositiveIntegerField(null=True, blank=True)
    max_wall_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: How long its jobs may wait for their first start, where they do not say; null is for ever.
    default_wait_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: How long its gangs gather nodes, where they do not say; null is not at all.
    default_assembly_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: How long its jobs wait for a place that they prefer, where they do not say; null is not at all.
    preference_wait_seconds = models.PositiveIntegerField(null=True, blank=True)
    # What its jobs leave in their working folders: for how long, how much, and whether only until it was downloaded.
    # null takes the site's; 0 is without limit.
    results_days = models.PositiveIntegerField(null=True, blank=True)
    results_job_mib = models.PositiveIntegerField(null=True, blank=True)
    results_until_fetched = models.BooleanField(null=True, blank=True)
    #: How much of a node's disk a task may fill whose job asks for no storage; null takes the site's, 0 is unlimited.
    scratch_mib = models.PositiveIntegerField(null=True, blank=True)
    #: The least isolation of the nodes that its jobs run on; its profile may ask for more.
    isolation = models.CharField(
        max_length=8, choices=ISOLATION_CHOICES, default="", db_default="", blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
    generation = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["-priority", "name"]
        constraints = [
            models.UniqueConstraint(
                name="queue_one_default", fields=["cluster"], condition=Q(is_default=True)
            ),
            models.CheckConstraint(name="queue_priority_range", condition=Q(priority__lte=100)),
            models.CheckConstraint(
                name="queue_isolation_known",
                condition=Q(isolation__in=[level.value for level in IsolationLevel]),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def policy(self) -> SchedulingPolicy:
        """By what the jobs of this queue take turns."""
        rules = self.profile or self.cluster.profile
        return SchedulingPolicy(rules.policy if rules else settings.SCHEDULING_POLICY)

    @property
    def required_isolation(self) -> IsolationLevel:
        """The least isolation of a node for its jobs: its own, or that of its profile where this is more."""
        rules = self.profile or self.cluster.profile
        own, of_profile = self.isolation, (rules.options.get(ISOLATION, "") if rules else "")
        return max(IsolationLevel(own), IsolationLevel(of_profile), key=lambda level: NEEDED[level])

    @property
    def counts_priority(self) -> bool:
        """Whether the priority of a job says whose turn it is among those of this queue, or may by a rule."""
        profile = self.profile or self.cluster.profile
        if self.policy == SchedulingPolicy.PRIORITY or bool(profile and "priority" in profile.tie_breakers):
            return True
        return any(
            rule.policy == SchedulingPolicy.PRIORITY or "priority" in (rule.tie_breakers or ())
            for rule in (read_rules(profile.rules)[0] if profile else ())
        )
