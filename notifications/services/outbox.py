"""What waits to be delivered: for the clock, for metrics and for the health page."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from django.db import connection
from django.utils import timezone

from infra.db.advisory_lock import try_lock
from notifications.models import Mail, MailState, Message, MessageState
from notifications.services.deliver import deliver_messages
from notifications.services.mail import send_mails
from notifications.services.occurrences import mail_is_on

#: One delivers at a time, of all processes: receivers that are slow take up one thread of a worker and no more.
DELIVERY_LOCK: Final = 0x6E6F7469


def deliver_due() -> int:
    """Send mails and messages that are due; answers how many. Does nothing while another run is under way."""
    with try_lock(DELIVERY_LOCK) as ours:
        return send_mails() + deliver_messages() if ours else 0


def anything_due(*, now: datetime | None = None) -> bool:
    """Whether a mail or a message should be sent now; two looks at small indexes."""
    now = now or timezone.now()
    messages = Message.objects.filter(
        state=MessageState.PENDING, due_at__lte=now, endpoint__disabled_at__isnull=True
    )
    if messages.exists():
        return True
    return mail_is_on() and Mail.objects.filter(state=MailState.PENDING, due_at__lte=now).exists()


class Backlog(NamedTuple):
    """What is behind in one channel: how many wait beyond their time, and for how long the oldest does."""

    channel: str
    overdue: int
    seconds: float


def backlogs() -> list[Backlog]:
    """The backlog of events that were not read yet, of mails and of messages."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT 'mail', count(*), coalesce(extract(epoch FROM now() - min(due_at)), 0)
                FROM notifications_mail WHERE state = 'pending' AND due_at < now()
            UNION ALL
            SELECT 'webhook', count(*), coalesce(extract(epoch FROM now() - min(message.due_at)), 0)
                FROM notifications_message message JOIN notifications_endpoint endpoint ON endpoint.id = endpoint_id
                WHERE message.state = 'pending' AND message.due_at < now() AND endpoint.disabled_at IS NULL
            UNION ALL
            SELECT 'events', count(*), coalesce(extract(epoch FROM now() - min(at)), 0) FROM (
                SELECT at FROM scheduler_jobevent
                WHERE id > (SELECT position FROM notifications_cursor WHERE source = 'jobs') ORDER BY id LIMIT 10000
            ) unread
            """
        )
        return [Backlog(channel, count, float(seconds)) for channel, count, seconds in cursor.fetchall()]
