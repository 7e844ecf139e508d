"""Sends the mails that are due: plain text and simple HTML, one for a whole burst.

A mail is leased before it is sent and marked after it: who dies between the two leaves one that is sent again, with
the same Message-ID, by which mail programs know it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parseaddr
from smtplib import SMTPRecipientsRefused, SMTPResponseException
from typing import Final

import structlog
from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.text import capfirst

from infra.circuits.shared import Look, SharedCircuit
from infra.models import System
from infra.times_in_text import in_zone, zone_named
from notifications.core.backoff import wait_seconds
from notifications.models import Mail, MailState, Notification
from notifications.services.links import jobs_of, link_of, title_of
from notifications.services.occurrences import mail_is_on

log = structlog.get_logger(__name__)

LEASE: Final = timedelta(seconds=120)
AT_ONCE: Final = 50
RUN_SECONDS: Final = 10.0
#: A mail that could not be sent for about a day is no longer news.
MAX_TRIES: Final = 9


def send_mails(*, now: datetime | None = None) -> int:
    """Send what is due; answers how many. Where the server does not answer, all of it waits for another run."""
    if not mail_is_on():
        return 0
    circuit = mail_circuit()
    look = circuit.look()
    if look.open_until is not None:  # nothing is taken, so that no mail uses up its tries
        return 0
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < RUN_SECONDS:
        taken = _take(now or timezone.now(), 1 if look.troubled else AT_ONCE)
        if not taken:
            break
        count, fault = _send(taken, now or timezone.now())
        sent += count
        if fault:
            circuit.failed(fault)
            break
        if look.troubled:
            circuit.answered()
            look = Look()
    return sent


def mail_circuit() -> SharedCircuit:
    """The circuit of the mail server: while it is open, mails wait and keep their tries."""
    return SharedCircuit(System.MAIL, label=f"{settings.EMAIL_HOST}:{settings.EMAIL_PORT}")


def _take(now: datetime, most: int) -> list[Mail]:
    with transaction.atomic():
        due = list(
            Mail.objects.select_for_update(of=("self",), skip_locked=True)
            .filter(state=MailState.PENDING, due_at__lte=now)
            .select_related("notification", "notification__user", "notification__project")
            .order_by("due_at", "notification_id")[:most]
        )
        for mail in due:
            mail.due_at = now + LEASE
            mail.tries += 1
        Mail.objects.bulk_update(due, ["due_at", "tries"])
    return due


def _send(taken: Sequence[Mail], now: datetime) -> tuple[int, str]:
    """How many were sent, and why the server does not answer (empty: it does); the rest of the mails then wait."""
    connection = get_connection()
    sent = 0
    try:
        connection.open()
        for mail in taken:
            user = mail.notification.user
            if not user.is_active or not user.email or mail.notification.count <= mail.count_sent:
                _mark(mail, state=MailState.SENT, sent_at=mail.sent_at)
                continue
            try:
                message_of(mail.notification, connection=connection).send()
            except (SMTPRecipientsRefused, SMTPResponseException) as error:
                _failed(mail, error, now)
                continue
            _mark(mail, state=MailState.SENT, sent_at=now, count_sent=mail.notification.count, last_error="")
            sent += 1
    except OSError as error:  # nobody answers, or the connection broke
        log.warning("mail_server_unavailable", error=str(error))
        for mail in taken:
            if mail.state == MailState.PENDING:
                _failed(mail, error, now)
        return sent, str(error) or type(error).__name__
    finally:
        with suppress(OSError):
            connection.close()
    return sent, ""


def _mark(mail: Mail, **changes: object) -> None:
    for name, value in changes.items():
        setattr(mail, name, value)
    mail.save(update_fields=list(changes))


def _failed(mail: Mail, error: Exception, now: datetime) -> None:
    wait = wait_seconds(mail.tries, 0.5)
    if wait is None or mail.tries >= MAX_TRIES:
        _mark(mail, state=MailState.FAILED, last_error=str(error)[:300])
    else:
        _mark(mail, due_at=now + timedelta(seconds=wait), last_error=str(error)[:300])


def _as_sentence(text: str) -> str:
    """The words of an event with a capital and a full stop."""
    return capfirst(text if text.endswith((".", "!", "?")) else f"{text}.")


def message_of(row: Notification, *, connection: object = None) -> EmailMultiAlternatives:
    """The mail: its subject is the headline, its text what happened, with a way to the page.

    Times are in the zone of the person who gets the mail.
    """
    zone = zone_named(row.user.time_zone)
    title = in_zone(title_of(row), zone)
    texts = [in_zone(text, zone) for text in (row.lines if len(row.lines) > 1 else [row.text])]
    link = link_of(row)
    words = {
        "title": title,
        #: What the headline does not say already.
        "texts": [_as_sentence(text) for text in texts if text.rstrip(".") != title],
        "row": row,
        "jobs": [str(number) for number in jobs_of(row)],
        "more": row.count - len(row.jobs) if row.count > 1 else 0,
        "url": settings.MUSTER_PUBLIC_URL.rstrip("/") + link if settings.MUSTER_PUBLIC_URL and link else "",
        "settings_url": settings.MUSTER_PUBLIC_URL.rstrip("/") + "/notifications/preferences/"
        if settings.MUSTER_PUBLIC_URL
        else "",
    }
    sender = settings.MUSTER_ALERT_MAIL_FROM
    host = parseaddr(sender)[1].rpartition("@")[2] or "localhost"
    message = EmailMultiAlternatives(
        subject=f"Muster: {' '.join(title.split())[:150]}",
        body=render_to_string("notifications/mail.txt", words),
        from_email=sender,
        to=[row.user.email],
        headers={
            "Message-ID": f"<notification-{row.pk}-{row.count}@{host}>",
            "Auto-Submitted": "auto-generated",
        },
        connection=connection,
    )
    message.attach_alternative(render_to_string("notifications/mail.html", words), "text/html")
    return message
