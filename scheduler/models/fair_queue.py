"""The memory of fair queueing: how far each tenant is in virtual time."""

from __future__ import annotations

from django.db import models


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
