"""API tokens: shown once, kept as a digest, scoped and expiring."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models


class ApiToken(models.Model):
    """A person's key for programs; the secret itself is never stored.

    The plain token reads `muster_pat_<prefix>_<secret>`: the prefix finds the row, the digest proves the secret.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=32))
    #: When set, the token works only for this project.
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    last_used_address = models.GenericIPAddressField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name = "API token"
        constraints = [
            models.CheckConstraint(name="token_has_scopes", condition=models.Q(scopes__len__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.name} (muster_pat_{self.prefix}_…)"
