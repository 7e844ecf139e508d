"""A folder that a person has sent, for jobs to begin with."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q


class FolderUploadState(models.TextChoices):
    """Where an upload is; only a ready one can be named by a job."""

    RECEIVING = "receiving", "on its way"
    READY = "ready", "ready"
    LEAVING = "leaving", "to be removed"
    REMOVED = "removed", "removed"


class FolderUpload(models.Model):
    """An uploaded folder: its manifest and its pieces are in the storage, under the id of the row.

    Jobs name it by its id (`JobRequest.upload`). The row stays while a job names it, also when the bytes have gone.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="uploads")
    #: The project of the token that sent it, where the token is held to one: others of its person see it as well.
    held_to = models.ForeignKey(
        "accounts.Project", on_delete=models.PROTECT, null=True, blank=True, related_name="+", db_index=False
    )
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=9, choices=FolderUploadState, default=FolderUploadState.RECEIVING)
    #: Why it was removed.
    text = models.CharField(max_length=300, blank=True)
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    created_at = models.DateTimeField()
    #: When the last piece came, when all had come, and when a job last named it.
    seen_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        verbose_name = "upload"
        indexes = [
            # What has bytes in the storage that somebody has to look after.
            models.Index(
                fields=["seen_at"],
                name="upload_to_watch",
                condition=Q(state__in=["receiving", "ready", "leaving"]),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="folder_upload_has_size", condition=Q(size_bytes__gte=0, files__gte=1)
            ),
            models.CheckConstraint(
                name="folder_upload_state_known", condition=Q(state__in=FolderUploadState.values)
            ),
            models.CheckConstraint(
                name="folder_upload_ready_is_whole",
                condition=~Q(state="ready") | Q(ready_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"
