"""What of notifications grows old."""

from __future__ import annotations

from typing import Final

from infra.retention import Rule, delete_from

_DAYS: Final = "MUSTER_KEEP_NOTIFICATIONS_DAYS"


def rules() -> tuple[Rule, ...]:
    """Rules of these tables; `scheduler.services.retention` carries them out with all others."""
    return (
        Rule(
            "notifications",
            "Notifications of people, with their mails",
            "SELECT id FROM notifications_notification WHERE last_at < %(before)s ORDER BY id LIMIT %(batch)s",
            setting=_DAYS,
            statement="""
            WITH doomed AS MATERIALIZED ({which}),
            mails AS (DELETE FROM notifications_mail WHERE notification_id IN (SELECT id FROM doomed)),
            gone AS (DELETE FROM notifications_notification WHERE id IN (SELECT id FROM doomed) RETURNING 1)
            SELECT count(*) FROM gone
            """,
        ),
        Rule(
            "webhook_messages",
            "Messages to webhooks, with the log of their tries",
            "SELECT id FROM notifications_message WHERE created_at < %(before)s ORDER BY id LIMIT %(batch)s",
            setting=_DAYS,
            statement=delete_from("notifications_message"),
        ),
        Rule(
            "findings",
            "Findings, so that nobody is notified twice",
            "SELECT id FROM notifications_finding WHERE at < %(before)s ORDER BY id LIMIT %(batch)s",
            setting=_DAYS,
            at_least_days=30,
            why="a job that waits or runs for long would be notified again",
            statement=delete_from("notifications_finding"),
        ),
    )
