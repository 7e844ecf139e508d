"""Planning runs, kept so that they can be explained and replayed, and the lease that lets one planner run."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Cycle(models.Model):
    """One planning run: what was seen, what was decided, what the applier refused."""

    cluster = models.ForeignKey("scheduler.Cluster", on_delete=models.CASCADE, related_name="cycles")
    fencing_token = models.BigIntegerField()
    trigger = models.CharField(max_length=32)
    started_at = models.DateTimeField()
    load_us = models.BigIntegerField(default=0)
    plan_us = models.BigIntegerField(default=0)
    apply_us = models.BigIntegerField(default=0)
    pending_count = models.IntegerField(default=0)
    started_count = models.IntegerField(default=0)
    refused_count = models.IntegerField(default=0)
    #: [{"job", "code", "message"}]: decisions that no longer held when they were written.
    refused = models.JSONField(default=list, blank=True)
    #: [{"queue": id or 0 for the cluster, "profile", "rule", "since_ms"}]: of profiles with rules, which was in force.
    rules = models.JSONField(default=list, db_default=[], blank=True)
    #: [{"queue": id or 0 for the cluster, "profile", "version"}]: profiles that were followed.
    profiles = models.JSONField(default=list, db_default=[], blank=True)
    snapshot_digest = models.CharField(max_length=64)
    plan_digest = models.CharField(max_length=64)
    #: The cycle on whose snapshot this one's is a delta; null where it is whole.
    base_id = models.BigIntegerField(null=True, blank=True, editable=False)
    #: Canonical bytes (scheduler.core.snapshot.codec); null once retention has dropped them.
    snapshot = models.BinaryField(null=True)
    policy = models.BinaryField(null=True)
    plan = models.BinaryField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["cluster", "-id"], name="cycle_by_cluster")]

    def __str__(self) -> str:
        return f"cycle {self.pk}"


class Lease(models.Model):
    """The right to plan a scope for a while; `token` rises with each new holder and fences late writers.

    Only the database's clock decides expiry.
    """

    scope = models.CharField(max_length=120, unique=True)
    holder = models.CharField(max_length=120, blank=True)
    token = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="lease_token_not_negative", condition=Q(token__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.scope} held by {self.holder or 'nobody'}"


class FairQueueTurn(models.Model):
    """Where the next job of a tenant starts in the virtual time of a cluster's policy, or of a queue's own.

    Written with the starts that move it, in one transaction (`scheduler.core.ordering.fair_queue`). Tenant 0 is the
    virtual time itself.
    """

    cluster = models.ForeignKey(
        "scheduler.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    #: Of which queue's own policy; 0 is the cluster's.
    queue_id = models.BigIntegerField(default=0)
    #: Tenants are people, else projects.
    by_user = models.BooleanField()
    tenant_id = models.BigIntegerField()
    virtual = models.BigIntegerField()
    #: The tenant had a job left that could start when this was written.
    waiting = models.BooleanField()

    class Meta:
        ordering = ["cluster_id", "queue_id", "by_user", "tenant_id"]
        constraints = [
            models.UniqueConstraint(
                name="fair_queue_turn_once", fields=["cluster", "queue_id", "by_user", "tenant_id"]
            ),
            models.CheckConstraint(name="fair_queue_turn_forward", condition=models.Q(virtual__gte=0)),
        ]

    def __str__(self) -> str:
        who = (
            "virtual time"
            if not self.tenant_id
            else f"{'person' if self.by_user else 'project'} {self.tenant_id}"
        )
        return f"{who} at {self.virtual}"


class PolicyChoice(models.Model):
    """Which rule of a profile is in force in a cluster, or for a queue's own profile, and since when.

    Written with the cycle that chose, read into the next snapshot (`scheduler.core.ordering.choice`).
    """

    cluster = models.ForeignKey(
        "scheduler.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    #: Of which queue's own profile; 0 is the cluster's.
    queue_id = models.BigIntegerField(default=0)
    #: "" = none: the profile's own settings.
    rule = models.CharField(max_length=40, blank=True)
    since_ms = models.BigIntegerField()
    #: What the jobs are ordered and placed by since then.
    policy = models.CharField(max_length=16)
    placement = models.CharField(max_length=16)

    class Meta:
        ordering = ["cluster_id", "queue_id"]
        constraints = [
            models.UniqueConstraint(name="policy_choice_once", fields=["cluster", "queue_id"]),
        ]

    def __str__(self) -> str:
        return f"{self.rule or 'no rule'} for queue {self.queue_id} of cluster {self.cluster_id}"
