"""An upper bound on what a project may have in use at once."""

from __future__ import annotations

import pghistory
import pgtrigger
from django.db import models
from django.db.models import F, Q


class QuotaResource(models.TextChoices):
    """What a line limits; the names and units of `quotas.core.resources`, and a count of running jobs.

    GPUs are limited in thousandths of a device, so that shares of one count for what they are.
    """

    CPU_MILLIS = "cpu_millis", "CPU (thousandths of a core)"
    MEMORY_MIB = "memory_mib", "memory (MiB)"
    GPU_MILLIS = "gpu_millis", "GPU (thousandths of a device)"
    STORAGE_MIB = "storage_mib", "storage (MiB)"
    RUNNING_JOBS = "running_jobs", "running jobs"


class Provider(models.TextChoices):
    """Who enforces the line (V2)."""

    LOCAL = "local", "Muster"
    K8S = "k8s", "Kubernetes"
    SLURM = "slurm", "Slurm"


@pghistory.track(exclude=["used"])
class Quota(models.Model):
    """One line: one resource of one project.

    `nominal` is the share the project is entitled to, `soft` warns, `hard` blocks when `enforce` is set
    (C15); null means no bound of that kind. `used` is raised when a job starts and lowered when it ends,
    in the same transaction as its allocation; a limit cut below it only blocks new work.
    """

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="quotas")
    resource = models.CharField(max_length=16, choices=QuotaResource)
    nominal = models.BigIntegerField(null=True, blank=True)
    soft = models.BigIntegerField(null=True, blank=True)
    hard = models.BigIntegerField(null=True, blank=True)
    enforce = models.BooleanField(default=True)
    provider = models.CharField(max_length=8, choices=Provider, default=Provider.LOCAL)
    used = models.BigIntegerField(default=0, editable=False)
    synced_at = models.DateTimeField(null=True, blank=True, editable=False)
    generation = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        ordering = ["project_id", "resource"]
        constraints = [
            models.UniqueConstraint(name="quota_line_once", fields=["project", "resource"]),
            models.CheckConstraint(name="quota_used_not_negative", condition=Q(used__gte=0)),
            models.CheckConstraint(
                name="quota_bounds_not_negative",
                condition=(Q(nominal__isnull=True) | Q(nominal__gte=0))
                & (Q(soft__isnull=True) | Q(soft__gte=0))
                & (Q(hard__isnull=True) | Q(hard__gte=0)),
            ),
            models.CheckConstraint(
                name="quota_soft_below_hard",
                condition=Q(soft__isnull=True) | Q(hard__isnull=True) | Q(soft__lte=F("hard")),
            ),
            models.CheckConstraint(
                name="quota_resource_known", condition=Q(resource__in=QuotaResource.values)
            ),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="quota_never_passed",
                when=pgtrigger.Before,
                operation=pgtrigger.UpdateOf("used"),
                condition=pgtrigger.Condition("NEW.enforce AND NEW.used > OLD.used AND NEW.used > NEW.hard"),
                func="RAISE check_violation USING MESSAGE = 'quota passed: ' || NEW.resource"
                " || ' of project ' || NEW.project_id, CONSTRAINT = 'quota_never_passed';",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} of {self.project}"
