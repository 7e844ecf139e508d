"""Webhooks: made, changed, rotated, disabled and deleted by the people who manage them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from infra.plain_text import line_problem
from notifications.core import signing
from notifications.core.addresses import BadTarget
from notifications.core.kinds import KINDS, SENT, SENT_OF_PROJECTS, Kind
from notifications.models import Endpoint, Message, MessageState
from notifications.services.circuits import circuit_of
from notifications.services.guarded_http import check_url
from notifications.services.preferences import require_whole_person

#: Of one person or one project.
MOST_ENDPOINTS: Final = 20
#: Both secrets sign for so long after a rotation, so that receivers can change over.
ROTATION: Final = timedelta(hours=24)


# ---------------------------------------------------------------- secrets


def keys() -> list[str]:
    """The keys that secrets are derived from: the present one first, then those that were replaced."""
    present = settings.MUSTER_WEBHOOK_KEY or settings.SECRET_KEY
    return [present, *settings.MUSTER_WEBHOOK_OLD_KEYS]


def secrets_of(endpoint: Endpoint, *, now: datetime) -> list[str]:
    """The secrets that sign a message now, the newest first; none where its key is no longer configured."""
    key = next((key for key in keys() if signing.fingerprint(key) == endpoint.key_fingerprint), None)
    if key is None:
        return []
    found = [signing.secret_of(key, endpoint.uuid.hex, endpoint.secret_version)]
    if endpoint.old_secret_until is not None and endpoint.old_secret_until > now:
        found.append(signing.secret_of(key, endpoint.uuid.hex, endpoint.secret_version - 1))
    return found


# ---------------------------------------------------------------- verbs


def create_endpoint(
    *, by: User, name: str, url: str, kinds: Collection[str], project: Project | None = None
) -> tuple[Endpoint, str]:
    """A webhook of a person, or of a project; answers it and its secret, which is shown this once."""
    _require(by, project)
    checked = _checked({"name": name, "url": url, "kinds": kinds}, project, by)
    with transaction.atomic():
        owner: dict[str, Any] = {"project": project} if project is not None else {"user": by}
        # Two at once would both be under the limit: the owner's row says who comes first.
        if project is not None:
            Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        else:
            User.objects.select_for_update(no_key=True).get(pk=by.pk)
        if Endpoint.objects.filter(**owner).count() >= MOST_ENDPOINTS:
            raise Conflict(
                f"There are {MOST_ENDPOINTS} webhooks already, which is the maximum.",
                way_out="Delete one that is no longer needed.",
            )
        endpoint = Endpoint.objects.create(
            uuid=uuid.uuid4(),
            created_by=by,
            key_fingerprint=signing.fingerprint(keys()[0]),
            **owner,
            **checked,
        )
        audit.record(by=by, action="webhook.create", thing=endpoint, after=checked, project=project)
    return endpoint, secrets_of(endpoint, now=timezone.now())[0]


def change_endpoint(*, endpoint: Endpoint, by: User, changes: Mapping[str, Any]) -> Endpoint:
    """Change name, address or kinds. Messages that wait go to the new address."""
    _require(by, endpoint.project)
    checked = _checked(changes, endpoint.project, by)
    with transaction.atomic():
        row = Endpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        before, after = audit.changed({name: getattr(row, name) for name in checked}, checked)
        if after:
            for name, value in after.items():
                setattr(row, name, value)
            row.save(update_fields=list(after))
            audit.record(
                by=by, action="webhook.change", thing=row, before=before, after=after, project=row.project
            )
    return row


def rotate_secret(*, endpoint: Endpoint, by: User) -> tuple[Endpoint, str]:
    """A new secret, shown this once; for a day both sign, so that no receiver misses a message.

    A second rotation within the day ends the first secret at once. With a key that has been replaced, the new
    secret comes from the present key, and the old one ends now.
    """
    _require(by, endpoint.project)
    now = timezone.now()
    with transaction.atomic():
        row = Endpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        present = signing.fingerprint(keys()[0])
        row.old_secret_until = now + ROTATION if row.key_fingerprint == present else None
        row.key_fingerprint = present
        row.secret_version += 1
        row.save(update_fields=["secret_version", "old_secret_until", "key_fingerprint"])
        audit.record(
            by=by,
            action="webhook.rotate",
            thing=row,
            after={"secret": row.secret_version},
            project=row.project,
        )
    return row, secrets_of(row, now=now)[0]


def set_enabled(*, endpoint: Endpoint, by: User, enabled: bool) -> Endpoint:
    """Stop deliveries, or begin them again; doing it twice changes nothing."""
    _require(by, endpoint.project)
    with transaction.atomic():
        row = Endpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
        if row.enabled == enabled:
            return row
        row.disabled_at = None if enabled else timezone.now()
        row.disabled_reason = "" if enabled else f"disabled by {by.username}"
        row.failing_since = None
        row.save(update_fields=["disabled_at", "disabled_reason", "failing_since"])
        circuit_of(row).answered()
        audit.record(
            by=by, action="webhook.enable" if enabled else "webhook.disable", thing=row, project=row.project
        )
    return row


def delete_endpoint(*, endpoint: Endpoint, by: User) -> None:
    """Delete a webhook with the log of its messages."""
    _require(by, endpoint.project)
    with transaction.atomic():
        audit.record(
            by=by,
            action="webhook.delete",
            thing=endpoint,
            before={"url": endpoint.url},
            project=endpoint.project,
        )
        circuit_of(endpoint).answered()
        endpoint.delete()


def redeliver(*, endpoint: Endpoint, message: Message, by: User) -> Message:
    """Send a message again, with the same id and body; its schedule of tries begins anew."""
    _require(by, endpoint.project)
    with transaction.atomic():
        row = Message.objects.select_for_update(of=("self",)).get(pk=message.pk, endpoint=endpoint)
        if not endpoint.enabled:
            raise Conflict(f"The webhook {endpoint.name} is disabled.", way_out="Enable it first.")
        row.state, row.due_at, row.tries_of_round = MessageState.PENDING, timezone.now(), 0
        row.save(update_fields=["state", "due_at", "tries_of_round"])
        audit.record(
            by=by, action="webhook.redeliver", thing=endpoint, after={"message": row.message_id},
            project=endpoint.project,
        )  # fmt: skip
    return row


def send_test(*, endpoint: Endpoint, by: User) -> Message:
    """A message of the kind `webhook.test`, to see whether the receiver takes it."""
    _require(by, endpoint.project)
    if not endpoint.enabled:
        raise Conflict(f"The webhook {endpoint.name} is disabled.", way_out="Enable it first.")
    now = timezone.now()
    number = int(now.timestamp() * 1_000_000)
    return Message.objects.create(
        endpoint=endpoint, kind=Kind.TEST, group_key="test", source="test", first_event=number, last_event=number,
        first_at=now, last_at=now, due_at=now, user=by, text=f"Sent by {by.username} to test this webhook.",
    )  # fmt: skip


# ---------------------------------------------------------------- checks


def _require(by: User, project: Project | None) -> None:
    if project is None:
        require_whole_person(by)
    else:
        permissions.require(by, "manage", project)


def _checked(values: Mapping[str, Any], project: Project | None, by: User) -> dict[str, Any]:
    """Name, address and kinds as they are stored; raises InvalidInput that names everything wrong."""
    problems: list[FieldProblem] = []
    checked: dict[str, Any] = {}
    if "name" in values:
        checked["name"] = _name(values["name"], problems)
    if "url" in values:
        checked["url"] = _url(values["url"], problems)
    if "kinds" in values:
        checked["kinds"] = _kinds(values["kinds"], project, by, problems)
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    return checked


def _name(value: Any, problems: list[FieldProblem]) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= 80:
        problems.append(FieldProblem("name", "Give the webhook a name of 1 to 80 characters."))
    elif trouble := line_problem(text):
        problems.append(FieldProblem("name", trouble, "bad-text"))
    return text


def _url(value: Any, problems: list[FieldProblem]) -> str:
    text = value.strip() if isinstance(value, str) else ""
    try:
        check_url(text)
    except BadTarget as error:
        problems.append(FieldProblem("url", f"The address {error}.", "bad-url"))
    return text


def _kinds(value: Any, project: Project | None, by: User, problems: list[FieldProblem]) -> list[str]:
    offered = [kind for kind, _ in kinds_offered(project, by)]
    given = list(value) if isinstance(value, (list, tuple, set)) else []
    unknown = [str(one)[:40] for one in given if one not in offered]
    if not given or unknown:
        wrong = f"There is no kind {unknown[0]!r} here." if unknown else "Choose at least one kind."
        problems.append(FieldProblem("kinds", f"{wrong} Kinds are {', '.join(offered)}.", "unknown"))
    return [kind for kind in offered if kind in given]


def kinds_offered(project: Project | None, by: User) -> list[tuple[str, str]]:
    """Kinds that a webhook may choose, with their words."""
    kinds = SENT if project is None else SENT_OF_PROJECTS
    return [(kind.value, KINDS[kind].label) for kind in kinds if by.is_operator or not KINDS[kind].operators]
