"""Answers kept so that a repeated request does nothing twice."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class IdempotencyKey(models.Model):
    """One `Idempotency-Key` of one person: the hash of its request and the answer it got.

    Written in the same transaction as what the request made, so both are there or neither.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    #: What its caller might when it was answered (`permissions.standing`): who may less now is not answered again.
    rights = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="idempotency_key_once", fields=["user", "key"]),
        ]
        indexes = [models.Index(fields=["created_at"], name="idempotency_by_age")]

    def __str__(self) -> str:
        return self.key
