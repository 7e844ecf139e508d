"""An upper bound on what a project, a person or a whole organization may have in use at once."""

from __future__ import annotations

import pghistory
import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from quotas.core.amounts import RESOURCE_WORDS


class QuotaResource(models.TextChoices):
    """What a line limits; the names and units of `quotas.core.resources`, and counts of jobs.

    GPUs are limited in thousandths of a device, so that shares of one count for what they are.
    """

    CPU_MILLIS = "cpu_millis", "CPU (thousandths of a core)"
    MEMORY_MIB = "memory_mib", "memory (MiB)"
    GPU_MILLIS = "gpu_millis", "GPU (thousandths of a device)"
    STORAGE_MIB = "storage_mib", "storage (MiB)"
    RUNNING_JOBS = "running_jobs", "running jobs"
    PENDING_JOBS = "pending_jobs", "pending jobs"

    @classmethod
    def counted(cls) -> tuple[QuotaResource, ...]:
        """Those that a row counts as jobs start and end; pending jobs are counted when somebody asks."""
        return tuple(resource for resource in cls if resource is not cls.PENDING_JOBS)


class Provider(models.TextChoices):
    """Who enforces the line."""

    LOCAL = "local", "Muster"
    K8S = "k8s", "Kubernetes"
    SLURM = "slurm", "Slurm"


def provider_choices() -> list[tuple[str, str]]:
    """The providers that come with Muster, and those that QUOTA_PROVIDERS names."""
    return [*Provider.choices, *((name, name) for name in named_providers())]


def named_providers() -> dict[str, str]:
    """`module:Class` of each provider of QUOTA_PROVIDERS, by its name."""
    pairs = (item.partition("=") for item in settings.QUOTA_PROVIDERS)
    return {name.strip(): path.strip() for name, _, path in pairs}


def provider_label(name: str) -> str:
    """The name of a provider for people; of one that is no longer installed its own name."""
    return str(Provider(name).label) if name in Provider.values else name


class QuotaQuerySet(models.QuerySet["Quota"]):
    def plain(self) -> QuotaQuerySet:
        """Lines that count everything of a whole project: all its people, GPU models and job types."""
        return self.filter(project__isnull=False, user__isnull=True, gpu_model="", job_type="")


def _bound() -> models.BigIntegerField[int | None, int | None]:
    return models.BigIntegerField(null=True, blank=True)


@pghistory.track(exclude=["used"])
class Quota(models.Model):
    """One line: one resource of one subject.

    The subject is an organization with all below it, a project, one person in a project, or one person
    everywhere. A job counts on every line of its path that matches it: the person's in the project, the
    project's, those of the organizations up to the root, and the person's own. A line for one GPU model
    counts the devices that a job was given, whatever it asked for; a line for one job type only such jobs.

    `nominal` is the share that the subject is entitled to. Above it idle quota of the line above is borrowed:
    at most `borrowing_limit` of it; below it all is lent to others while it is idle, but for what
    `lending_limit` keeps back. `soft` warns, `hard` blocks; both only report where `enforce` is off.
    Null means no bound of that kind. `used` is raised when a job starts and lowered when it ends, in the same
    transaction as its allocation; a limit cut below it only blocks new work, unless `converge_after_seconds`
    says when jobs are stopped until it is kept again. Pending jobs are counted whenever somebody asks.
    """

    organization = models.ForeignKey(
        "accounts.Organization", null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    resource = models.CharField(max_length=16, choices=QuotaResource)
    gpu_model = models.CharField(max_length=80, blank=True, default="")
    job_type = models.CharField(max_length=32, blank=True, default="")
    nominal = _bound()
    borrowing_limit = _bound()
    lending_limit = _bound()
    soft = _bound()
    hard = _bound()
    enforce = models.BooleanField(default=True)
    converge_after_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: Since when more is in use than a cut of the bound allows.
    over_since = models.DateTimeField(null=True, blank=True, editable=False)
    provider = models.CharField(max_length=16, choices=provider_choices, default=Provider.LOCAL)
    used = models.BigIntegerField(default=0, editable=False)
    synced_at = models.DateTimeField(null=True, blank=True, editable=False)
    generation = models.PositiveIntegerField(default=1, editable=False)

    objects = QuotaQuerySet.as_manager()

    class Meta:
        ordering = ["organization_id", "project_id", "user_id", "resource", "gpu_model", "job_type"]
        constraints = [
            models.UniqueConstraint(
                name="quota_line_once",
                fields=["project", "organization", "user", "resource", "gpu_model", "job_type"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="quota_one_subject",
                condition=Q(organization__isnull=False, project__isnull=True, user__isnull=True)
                | Q(organization__isnull=True, project__isnull=False)
                | Q(organization__isnull=True, user__isnull=False),
            ),
            models.CheckConstraint(
                name="quota_model_of_gpus", condition=Q(gpu_model="") | Q(resource="gpu_millis")
            ),
            models.CheckConstraint(name="quota_used_not_negative", condition=Q(used__gte=0)),
            models.CheckConstraint(
                name="quota_bounds_not_negative",
                condition=(Q(nominal__isnull=True) | Q(nominal__gte=0))
                & (Q(borrowing_limit__isnull=True) | Q(borrowing_limit__gte=0))
                & (Q(lending_limit__isnull=True) | Q(lending_limit__gte=0))
                & (Q(soft__isnull=True) | Q(soft__gte=0))
                & (Q(hard__isnull=True) | Q(hard__gte=0)),
            ),
            models.CheckConstraint(
                name="quota_borrows_above_nominal",
                condition=Q(nominal__isnull=False)
                | Q(borrowing_limit__isnull=True, lending_limit__isnull=True),
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
                # Null is no bound: LEAST leaves it out, and a sum with it is null.
                condition=pgtrigger.Condition(
                    "NEW.enforce AND NEW.used > OLD.used"
                    " AND NEW.used > LEAST(NEW.hard, NEW.nominal + NEW.borrowing_limit)"
                ),
                func="RAISE check_violation USING MESSAGE = concat('quota passed: ', NEW.resource,"
                " ' ' || nullif(NEW.gpu_model, ''), ' ' || nullif(NEW.job_type, ''),"
                " ' of organization ' || NEW.organization_id, ' of project ' || NEW.project_id,"
                " ' of user ' || NEW.user_id), CONSTRAINT = 'quota_never_passed';",
            ),
        ]

    def __str__(self) -> str:
        word = RESOURCE_WORDS.get(self.resource, self.resource)
        what = " ".join(part for part in (self.gpu_model, word, self.job_type) if part)
        return f"{what} of {self.owner}"

    @property
    def owner(self) -> str:
        """Whose line it is: "project vision", "mia in project vision"."""
        if self.organization is not None:
            return f"organization {self.organization.slug}"
        if self.project is None:
            return f"user {self.user}"
        return (
            f"project {self.project.slug}"
            if self.user is None
            else f"{self.user} in project {self.project.slug}"
        )

    @property
    def is_plain(self) -> bool:
        """Whether it counts everything of its subject, as the sheet of a project shows it."""
        return not self.gpu_model and not self.job_type and self.user_id is None
