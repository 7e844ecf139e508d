"""Tasks that nodes run and the database does not know, since it was restored from an older state."""

from __future__ import annotations

from django.db import models


class UnknownTask(models.Model):
    """One such task, while its node says that it is there; what else is known of it, the agent has described."""

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
