"""Celery's functions: each calls a few services and is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from notifications.services.findings import look as look_once
from notifications.services.follow import follow as follow_once
from notifications.services.outbox import anything_due, deliver_due


@shared_task
def follow() -> None:
    """Read what has happened; deliver beside it what is due, for receivers may be slow."""
    follow_once()
    if anything_due():
        deliver.delay()


@shared_task
def look() -> None:
    """Look for what has no event of its own."""
    look_once()


@shared_task
def deliver() -> None:
    """Send mails and messages that are due."""
    deliver_due()
