"""Notifications of people, and the mails that go out for some of them."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from notifications.core.kinds import Kind


class Bundle(models.Model):
    """Things of one kind that came together: the elements of an array, the jobs of a burst."""

    kind = models.CharField(max_length=24, choices=[(kind.value, kind.value) for kind in Kind])
    #: What belongs together; `notifications.core.grouping` makes it.
    group_key = models.CharField(max_length=80)
    project = models.ForeignKey(
        "accounts.Project", null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    count = models.PositiveIntegerField(default=1)
    #: Numbers of the first jobs.
    jobs = ArrayField(models.BigIntegerField(), default=list, blank=True)
    #: Of the first job, or of the node, reservation or webhook that it is about.
    name = models.CharField(max_length=200, blank=True)
    #: What it is about where that is no job: `node:12`, `quota`, `endpoint:3`.
    thing = models.CharField(max_length=40, blank=True)
    #: What happened last, in words.
    text = models.CharField(max_length=300, blank=True)
    #: The same of the first things that are no jobs, so that none of a digest is lost.
    lines = ArrayField(models.CharField(max_length=300), default=list, blank=True)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    #: The table of the events and the first and last of them that are counted here.
    source = models.CharField(max_length=32)
    first_event = models.BigIntegerField()
    last_event = models.BigIntegerField()

    class Meta:
        abstract = True


class Notification(Bundle):
    """What one person is notified of; it counts on until it was read or its burst is over."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications", db_index=False
    )
    #: False where it is mailed only.
    in_portal = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                name="notification_once", fields=["user", "kind", "source", "group_key", "first_event"]
            ),
            models.CheckConstraint(name="notification_counts", condition=Q(count__gte=1)),
            models.CheckConstraint(
                name="notification_events_in_order", condition=Q(first_event__lte=F("last_event"))
            ),
        ]
        indexes = [
            models.Index(fields=["user", "-id"], name="notification_by_user", condition=Q(in_portal=True)),
            models.Index(
                fields=["user"], name="notification_unread", condition=Q(in_portal=True, read_at__isnull=True)
            ),
            models.Index(fields=["last_at"], name="notification_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.user_id}"


class MailState(models.TextChoices):
    PENDING = "pending", "to be sent"
    SENT = "sent", "sent"
    FAILED = "failed", "given up"


class Mail(models.Model):
    """The mail of a notification: one, sent again with the new count once more has happened meanwhile."""

    notification = models.OneToOneField(
        Notification, primary_key=True, on_delete=models.CASCADE, related_name="mail"
    )
    state = models.CharField(max_length=8, choices=MailState, default=MailState.PENDING)
    #: When it is sent, or tried again; while one is on its way, when another process may take it up.
    due_at = models.DateTimeField()
    tries = models.PositiveSmallIntegerField(default=0)
    #: What the latest one said, so that nothing is mailed again that has not changed.
    count_sent = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes = [models.Index(fields=["due_at"], name="mail_due", condition=Q(state="pending"))]

    def __str__(self) -> str:
        return f"mail of {self.notification_id}"
