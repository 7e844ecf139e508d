"""What notifications, preferences and webhooks look like over HTTP."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.api.serializers import StrictSerializer
from infra.api.fields import ChoiceField
from notifications.core.grouping import array_number_of
from notifications.core.kinds import KINDS, SENT
from notifications.models import Endpoint, Message, Notification
from notifications.selectors import Choice
from notifications.services.links import link_of, title_of

KIND_CHOICES = [(kind.value, about.label) for kind, about in KINDS.items()]
SENT_CHOICES = [(kind.value, KINDS[kind].label) for kind in SENT]


class NotificationSerializer(serializers.Serializer[Notification]):
    """One notification; several jobs of one burst or array are counted in one."""

    id = serializers.IntegerField(source="pk")
    kind = serializers.ChoiceField(choices=KIND_CHOICES)
    title = serializers.SerializerMethodField()
    text = serializers.CharField(help_text="What happened last.")
    lines = serializers.ListField(
        child=serializers.CharField(), help_text="Texts of the first 20 objects that are not jobs."
    )
    count = serializers.IntegerField(help_text="Number of jobs or objects.")
    jobs = serializers.ListField(child=serializers.IntegerField(), help_text="Numbers of the first 20 jobs.")
    project = serializers.CharField(source="project.slug", allow_null=True, default=None)
    array_id = serializers.SerializerMethodField()
    path = serializers.SerializerMethodField()
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)

    def get_title(self, row: Notification) -> str:
        return title_of(row)

    def get_array_id(self, row: Notification) -> int | None:
        return array_number_of(row.group_key)

    def get_path(self, row: Notification) -> str:
        return link_of(row)


class ReadSerializer(serializers.Serializer[Any]):
    read = serializers.IntegerField(help_text="How many were marked as read.")


class ReadRequestSerializer(StrictSerializer):
    kind = ChoiceField(choices=KIND_CHOICES, required=False, help_text="Only those of this kind.")


class PreferenceSerializer(serializers.Serializer[Choice]):
    """One kind, and its channels."""

    kind = serializers.CharField()
    title = serializers.CharField(source="about.label")
    description = serializers.CharField(source="about.help")
    portal = serializers.BooleanField()
    mail = serializers.BooleanField()


class PreferencesSerializer(serializers.Serializer[Any]):
    mail_address = serializers.CharField(
        allow_null=True, help_text="Where mail goes; null: nothing is mailed."
    )
    preferences = PreferenceSerializer(many=True)


class ChannelsSerializer(StrictSerializer):
    portal = serializers.BooleanField(required=False)
    mail = serializers.BooleanField(required=False)


class PreferenceChangesSerializer(StrictSerializer):
    changes = serializers.DictField(
        child=ChannelsSerializer(), help_text='{"job.ended": {"portal": true, "mail": false}}'
    )


class WebhookSerializer(serializers.Serializer[Endpoint]):
    """A webhook; its secret is shown only when created and when rotated."""

    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    url = serializers.CharField()
    kinds = serializers.ListField(child=serializers.ChoiceField(choices=SENT_CHOICES))
    project = serializers.CharField(source="project.slug", allow_null=True, default=None)
    user = serializers.CharField(source="user.username", allow_null=True, default=None)
    enabled = serializers.BooleanField()
    disabled_at = serializers.DateTimeField(allow_null=True)
    disabled_reason = serializers.CharField()
    failing_since = serializers.DateTimeField(allow_null=True)
    old_secret_until = serializers.DateTimeField(
        allow_null=True,
        help_text="Until then messages are signed with the secret before the present one too.",
    )
    created_at = serializers.DateTimeField()


class MadeWebhookSerializer(WebhookSerializer):
    secret = serializers.CharField(help_text="whsec_ and base64; shown once.")


class NewWebhookSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80)
    url = serializers.CharField(max_length=500)
    kinds = serializers.ListField(child=ChoiceField(choices=SENT_CHOICES), max_length=50)
    project = serializers.CharField(
        max_length=120,
        required=False,
        help_text="For all jobs of this project, which you lead; else for your own.",
    )


class WebhookChangesSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80, required=False)
    url = serializers.CharField(max_length=500, required=False)
    kinds = serializers.ListField(child=ChoiceField(choices=SENT_CHOICES), max_length=50, required=False)
    enabled = serializers.BooleanField(required=False)


class TrySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    status = serializers.IntegerField(help_text="HTTP status; 0: no answer.")
    milliseconds = serializers.IntegerField()
    error = serializers.CharField()


class MessageSerializer(serializers.Serializer[Message]):
    """A message to a webhook, with its latest tries."""

    id = serializers.IntegerField(source="pk")
    message_id = serializers.CharField(help_text="The header webhook-id, the same with each try.")
    kind = serializers.CharField()
    state = serializers.CharField(help_text="pending, delivered or failed.")
    tries = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    due_at = serializers.DateTimeField()
    delivered_at = serializers.DateTimeField(allow_null=True)
    body = serializers.CharField(help_text="As sent; empty until the first attempt.")
    log = TrySerializer(many=True)
