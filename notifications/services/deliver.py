"""Delivers what is due: messages to webhooks, each try leased, so that a process that dies loses none.

A message is taken by moving its next try behind the lease; the answer is written after the call. Who dies between
the two leaves a message that is tried again with the same `webhook-id`, by which the receiver knows it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.models import ProjectRole
from accounts.permissions import current_memberships
from accounts.services import audit
from infra.models import Circuit, System
from notifications.core import signing
from notifications.core.backoff import MAX_TRIES, wait_seconds
from notifications.core.grouping import array_number_of
from notifications.core.kinds import Kind
from notifications.models import Endpoint, Message, MessageState
from notifications.services import guarded_http
from notifications.services.circuits import circuit_of
from notifications.services.endpoints import secrets_of
from notifications.services.guarded_http import Answer
from notifications.services.links import link_of, title_of
from notifications.services.occurrences import Occurrence, take_in

log = structlog.get_logger(__name__)

#: Longer than one try can take.
LEASE: Final = timedelta(seconds=60)
AT_ONCE: Final = 8
#: Of one run and one endpoint, so that one that is slow does not hold up the others.
OF_ENDPOINT: Final = 4
#: A run ends after so long; the next goes on.
RUN_SECONDS: Final = 10.0
#: An endpoint that took nothing for so long is disabled.
FAILING: Final = timedelta(days=5)
#: Tries that the log of a message keeps.
LOGGED: Final = 20
#: The receiver says that it is gone for good.
GONE: Final = 410


def deliver_messages(*, now: datetime | None = None) -> int:
    """Deliver what is due; answers how many tries were made."""
    began, tried = time.monotonic(), 0
    while time.monotonic() - began < RUN_SECONDS:
        taken = _take(now or timezone.now())
        if not taken:
            break
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="webhooks") as pool:
            answers = list(pool.map(lambda one: _post(*one), taken))  # threads call, and touch no database
        for (message, _, _, _), answer in zip(taken, answers, strict=True):
            settle_try(message, answer, now=now or timezone.now())
        tried += len(taken)
    return tried


#: A message with what is sent: the address, the body and the headers.
Taken = tuple[Message, str, bytes, dict[str, str]]


def _take(now: datetime) -> list[Taken]:
    """Lease some messages that are due; those of disabled endpoints wait until they are enabled.

    Those of an endpoint whose circuit is open wait as well, and keep their tries; after the pause one of them is the
    try. A test is sent all the same: a person waits for what comes of it.
    """
    left_alone, tried_first = _circuits(now)
    with transaction.atomic():
        due = (
            Message.objects.select_for_update(of=("self",), skip_locked=True)
            .filter(state=MessageState.PENDING, due_at__lte=now, endpoint__disabled_at__isnull=True)
            .exclude(~Q(kind=Kind.TEST), endpoint__in=left_alone)
            .select_related("endpoint", "endpoint__project", "endpoint__user", "project", "user")
            .order_by("due_at", "id")[: 8 * AT_ONCE]
        )
        taken: list[Taken] = []
        per_endpoint: dict[int, int] = {}
        for message in due:
            count = per_endpoint.get(message.endpoint_id, 0)
            if count >= (1 if message.endpoint_id in tried_first else OF_ENDPOINT):
                continue
            prepared = _prepare(message, now)
            if prepared is None:
                _disable(message.endpoint, "Its key is no longer configured; rotate the secret.", now=now)
                continue
            per_endpoint[message.endpoint_id] = count + 1
            message.due_at = now + LEASE
            message.tries += 1
            message.tries_of_round += 1
            message.save(update_fields=["due_at", "tries", "tries_of_round", "body"])
            taken.append(prepared)
        return taken


def _circuits(now: datetime) -> tuple[list[int], set[int]]:
    """Endpoints to leave alone, and those that failed lately, of which one message at a time is sent."""
    left_alone, tried_first = [], set()
    for row in Circuit.objects.filter(system=System.WEBHOOK):
        number = int(row.name.partition(":")[2])
        if row.open_until is not None and row.open_until > now:
            left_alone.append(number)
        else:
            tried_first.add(number)
    return left_alone, tried_first


def _prepare(message: Message, now: datetime) -> Taken | None:
    secrets = secrets_of(message.endpoint, now=now)
    if not secrets:
        return None
    if not message.body:
        message.body = json.dumps(payload(message), ensure_ascii=False, separators=(",", ":"))
    body = message.body.encode()
    sent = signing.headers(message.message_id, int(now.timestamp()), body, secrets)
    return message, message.endpoint.url, body, sent


def payload(message: Message) -> dict[str, Any]:
    """The body: `type`, `timestamp` and `data`, as Standard Webhooks advises (docs/reference/webhooks.md)."""
    return {
        "type": message.kind,
        "timestamp": message.last_at.astimezone(UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "data": {
            "title": title_of(message),
            "text": message.text,
            "lines": message.lines,
            "count": message.count,
            "jobs": message.jobs,
            "name": message.name,
            "project": message.project.slug if message.project else None,
            "user": message.user.username if message.user else None,
            "array_id": array_number_of(message.group_key),
            "first_at": message.first_at.astimezone(UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "path": link_of(message),
        },
    }


def _post(message: Message, url: str, body: bytes, sent: dict[str, str]) -> Answer:
    return guarded_http.post(url, body, sent)


def settle_try(message: Message, answer: Answer, *, now: datetime) -> None:
    """Write what became of a try, and when the next one is."""
    entry = {
        "at": now.astimezone(UTC).isoformat(timespec="seconds"), "status": answer.status,
        "milliseconds": answer.milliseconds, "error": answer.error,
    }  # fmt: skip
    with transaction.atomic():
        row = Message.objects.select_for_update(of=("self",)).filter(pk=message.pk).first()
        if row is None:
            return  # deleted with its endpoint meanwhile
        row.log = [*row.log, entry][-LOGGED:]
        if answer.delivered:
            row.state, row.delivered_at = MessageState.DELIVERED, now
        else:
            wait = wait_seconds(min(row.tries_of_round, MAX_TRIES), random.random())
            if wait is None or row.kind == Kind.TEST or answer.refused:
                row.state = MessageState.FAILED
            else:
                row.due_at = now + timedelta(seconds=wait)
        row.save(update_fields=["log", "state", "delivered_at", "due_at"])
        _mark_endpoint(message.endpoint, answer, now=now)
    if answer.is_away:
        circuit_of(message.endpoint).failed(answer.error)
    elif not answer.refused:
        circuit_of(message.endpoint).answered()
    log.info(
        "webhook_tried", endpoint=message.endpoint_id, message=message.message_id, status=answer.status,
        error=answer.error, milliseconds=answer.milliseconds,
    )  # fmt: skip


def _mark_endpoint(endpoint: Endpoint, answer: Answer, *, now: datetime) -> None:
    rows = Endpoint.objects.filter(pk=endpoint.pk)
    if answer.delivered:
        rows.filter(failing_since__isnull=False).update(failing_since=None)
    elif answer.status == GONE:
        _disable(endpoint, "The receiver answered 410 Gone.", now=now)
    elif not rows.filter(failing_since__isnull=True).update(failing_since=now):
        since = rows.values_list("failing_since", flat=True).first()
        if since is not None and now - since >= FAILING:
            _disable(endpoint, f"Nothing was delivered for {FAILING.days} days: {answer.error}", now=now)


def _disable(endpoint: Endpoint, reason: str, *, now: datetime) -> None:
    """Stop an endpoint, and notify who manages it; a second call changes nothing."""
    reason = reason[:300]
    rows = Endpoint.objects.filter(pk=endpoint.pk, disabled_at__isnull=True)
    if not rows.update(disabled_at=now, disabled_reason=reason):
        return
    audit.record(by=None, action="webhook.disable", thing=endpoint, reason=reason, project=endpoint.project)
    take_in(
        [
            Occurrence(
                kind=Kind.WEBHOOK_DISABLED, source="webhooks", event=int(now.timestamp()), at=now, user_id=person,
                group=f"endpoint:{endpoint.pk}", text=reason, name=endpoint.name, thing=f"endpoint:{endpoint.pk}",
                project_id=endpoint.project_id, sent=False,
            )
            for person in _managers(endpoint)
        ],
        now=now,
    )  # fmt: skip


def _managers(endpoint: Endpoint) -> Sequence[int]:
    if endpoint.user_id is not None:
        return [endpoint.user_id]
    leads = current_memberships().filter(project=endpoint.project_id, role=ProjectRole.LEAD)
    return sorted(leads.values_list("user_id", flat=True))
