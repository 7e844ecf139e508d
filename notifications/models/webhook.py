"""Webhooks: where signed messages go, and the messages themselves, which are the outbox and the log at once."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from notifications.core.kinds import SENT
from notifications.models.notification import Bundle


class Endpoint(models.Model):
    """One address that gets messages, of a person or of a project. Its secret is derived and never stored."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks"
    )
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks"
    )
    name = models.CharField(max_length=80)
    url = models.CharField(max_length=500)
    kinds = ArrayField(models.CharField(max_length=24, choices=[(kind.value, kind.value) for kind in SENT]))
    #: The secret is derived from these; rotation raises the version, and both are valid until the moment named.
    secret_version = models.PositiveIntegerField(default=1)
    key_fingerprint = models.CharField(max_length=16)
    old_secret_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    #: Since when nothing was delivered, though it was tried; null after each delivery.
    failing_since = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["id"]
        verbose_name = "webhook"
        constraints = [
            models.CheckConstraint(
                name="endpoint_has_one_owner",
                condition=Q(user__isnull=False, project__isnull=True)
                | Q(user__isnull=True, project__isnull=False),
            ),
            models.CheckConstraint(name="endpoint_has_kinds", condition=Q(kinds__len__gt=0)),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def enabled(self) -> bool:
        return self.disabled_at is None


class MessageState(models.TextChoices):
    PENDING = "pending", "to be delivered"
    DELIVERED = "delivered", "delivered"
    FAILED = "failed", "given up"


class Message(Bundle):
    """One message to one endpoint: its body is fixed with the first try, and its id never changes."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="messages", db_index=False)
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    #: Whose jobs, for messages of projects.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    body = models.TextField(blank=True)
    state = models.CharField(max_length=9, choices=MessageState, default=MessageState.PENDING)
    created_at = models.DateTimeField(auto_now_add=True)
    #: When it is tried, or tried again; while it is on its way, when another process may take it up.
    due_at = models.DateTimeField()
    tries = models.PositiveSmallIntegerField(default=0)
    #: Tries since it was last asked for: a redelivery begins the schedule anew.
    tries_of_round = models.PositiveSmallIntegerField(default=0)
    delivered_at = models.DateTimeField(null=True, blank=True)
    #: The latest tries, newest last: when, which status, how long it took, what went wrong.
    log = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                name="message_once", fields=["endpoint", "kind", "source", "group_key", "first_event"]
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], name="message_due", condition=Q(state="pending")),
            models.Index(fields=["endpoint", "-id"], name="message_by_endpoint"),
            models.Index(fields=["created_at"], name="message_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.endpoint_id}"

    @property
    def message_id(self) -> str:
        """The `webhook-id`: the same with each try."""
        return f"msg_{self.uuid.hex}"
