"""Rows of notifications."""

from notifications.models.cursor import Cursor, Finding
from notifications.models.notification import Bundle, Mail, MailState, Notification
from notifications.models.preference import Preference
from notifications.models.webhook import Endpoint, Message, MessageState

__all__ = [
    "Bundle",
    "Cursor",
    "Endpoint",
    "Finding",
    "Mail",
    "MailState",
    "Message",
    "MessageState",
    "Notification",
    "Preference",
]
