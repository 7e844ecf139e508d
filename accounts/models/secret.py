"""Secrets of people and projects: named values that jobs are given, encrypted, and shown to nobody again."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

#: What a secret may be called: as a file, and in a line of a script.
SECRET_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # noqa: S105  a pattern of names


class Secret(models.Model):
    """A value of one person or of one project; `sealed` is opened only to start a task (`infra.storage.sealed`)."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    name = models.CharField(max_length=63)
    sealed = models.BinaryField()
    #: Rises with each new value.
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()
    set_at = models.DateTimeField()
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.CheckConstraint(
                name="secret_of_one",
                condition=Q(user__isnull=False, project=None) | Q(user=None, project__isnull=False),
            ),
            models.UniqueConstraint(
                name="secret_once_a_person", fields=["user", "name"], condition=Q(user__isnull=False)
            ),
            models.UniqueConstraint(
                name="secret_once_a_project", fields=["project", "name"], condition=Q(project__isnull=False)
            ),
            models.CheckConstraint(name="secret_name_plain", condition=Q(name__regex=SECRET_NAME)),
            models.CheckConstraint(name="secret_set_since", condition=Q(set_at__gte=F("created_at"))),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def about(self) -> str:
        """What its value is sealed about: whose it is, and its name."""
        return (
            f"project:{self.project_id}:{self.name}"
            if self.project_id
            else f"user:{self.user_id}:{self.name}"
        )
