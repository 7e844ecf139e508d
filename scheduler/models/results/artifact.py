"""Files of jobs that are kept in the storage, and the uploads that bring them there."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q


class UploadState(models.TextChoices):
    """What has become of the artefacts of one task."""

    WAITING = "waiting", "waiting"
    STORED = "stored", "stored"
    FAILED = "failed", "failed"
    SKIPPED = "skipped", "skipped: a later attempt continues in the folder"


class ArtifactUpload(models.Model):
    """One task whose job asks for artefacts and that has left files: they are to be stored, or were.

    A worker that takes it raises `tries` and moves `next_try_at` ahead for as long as it may be silent; another then
    takes over, and what the first one says with its old number counts no more.
    """

    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="artifact_uploads", db_index=False
    )
    epoch = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=UploadState, default=UploadState.WAITING)
    tries = models.PositiveIntegerField(default=0)
    #: Null once it is over.
    next_try_at = models.DateTimeField(null=True, blank=True)
    #: Why not all was stored, or why it is tried again; a sentence for people.
    message = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job_id", "-epoch", "rank"]
        indexes = [
            models.Index(fields=["next_try_at"], name="upload_waits", condition=Q(state="waiting")),
        ]
        constraints = [
            models.UniqueConstraint(name="artifact_upload_once", fields=["job", "epoch", "rank"]),
            models.CheckConstraint(
                name="artifact_upload_waits_or_ended",
                condition=Q(state="waiting", next_try_at__isnull=False, ended_at=None)
                | (~Q(state="waiting") & Q(next_try_at=None, ended_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"artefacts of task {self.rank} of job {self.job_id}, attempt {self.epoch}"


class ArtifactQuerySet(models.QuerySet["Artifact"]):
    """Artefacts; those that leave are no longer there for people, from the moment on that is written down."""

    def present(self, now: datetime) -> ArtifactQuerySet:
        """Those that nobody has removed and whose time is not over."""
        return self.filter(Q(leaves_at=None) | Q(leaves_at__gt=now))


class Artifact(models.Model):
    """One file in the storage. Its row is written before its object, so that no object is without a row for long."""

    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="stored_artifacts", db_index=False
    )
    epoch = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    #: As the list of files writes it: bytes that are no UTF-8 as \xNN.
    path = models.TextField()
    #: Where it is in the storage.
    key = models.CharField(max_length=200, unique=True)
    size_bytes = models.BigIntegerField()
    #: Of all its bytes; empty while these are on their way.
    sha256 = models.CharField(max_length=64, blank=True)
    stored_at = models.DateTimeField(null=True, blank=True)
    #: From then on it is removed; null = not before somebody says so.
    leaves_at = models.DateTimeField(null=True, blank=True)

    objects = ArtifactQuerySet.as_manager()

    class Meta:
        ordering = ["job_id", "-epoch", "rank", "path"]
        indexes = [
            models.Index(fields=["leaves_at"], name="artifact_leaves", condition=Q(leaves_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(name="artifact_once", fields=["job", "epoch", "rank", "path"]),
            models.CheckConstraint(name="artifact_has_size", condition=Q(size_bytes__gte=0)),
            models.CheckConstraint(
                name="artifact_stored_with_its_sum",
                condition=Q(sha256="", stored_at=None) | (~Q(sha256="") & Q(stored_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.path} of job {self.job_id}"
