"""Slows down those who guess passwords: by name, by address and by both, with a delay that grows.

A try is counted before its password is looked at, and taken back when it was right, so that a hundred at once
are a hundred. Nobody is locked out by others: what is failed elsewhere delays a name by a minute at most, and
not at all for a browser or an address that this person has signed in from.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import AuditEvent, AuditOutcome, SignInCount, User
from accounts.services.signin_delays import Bound
from infra import client_address

#: A browser that somebody signed in with is known for so long, and an address.
DEVICE_SECONDS: Final = 180 * 24 * 3600
ADDRESS_SECONDS: Final = 90 * 24 * 3600
_SALT: Final = "accounts.device"
#: Of an IPv6 address, for a household or a machine has that many.
_IPV6_PREFIX: Final = 64


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try that has been let through: where it is counted, and until when each was closed before and since."""

    counted: tuple[tuple[str, datetime, datetime], ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A try that is not looked at yet."""

    seconds: float


def bounds() -> Mapping[str, Bound]:
    """By the kind of key; the numbers are settings, and in docs/guides/running.md."""
    first, most = settings.MUSTER_SIGN_IN_DELAY_SECONDS, settings.MUSTER_SIGN_IN_MOST_DELAY_SECONDS
    both = Bound(settings.MUSTER_SIGN_IN_TRIES, first, most)
    return {
        "both": both,
        "device": both,
        "address": Bound(settings.MUSTER_SIGN_IN_TRIES_OF_ADDRESS, first, most),
        "name": Bound(
            settings.MUSTER_SIGN_IN_TRIES_OF_NAME, first, settings.MUSTER_SIGN_IN_MOST_DELAY_OF_NAME_SECONDS
        ),
    }


def begin(*, username: str, address: str, device: str = "") -> Attempt | Wait:
    """Count a try and let it through, or say how long to wait; a try that has to wait is not counted."""
    now = timezone.now()
    keys = _keys(username, address, device)
    for_ever = timedelta(seconds=settings.MUSTER_SIGN_IN_FORGET_SECONDS)
    with transaction.atomic():
        blank = [SignInCount(key=key, last_at=now, open_at=now) for key in keys]
        SignInCount.objects.bulk_create(blank, ignore_conflicts=True)
        rows = list(SignInCount.objects.filter(key__in=keys).order_by("key").select_for_update())
        for row in rows:
            if now - row.last_at > for_ever:
                row.failures, row.open_at = 0, now
        closed = [row for row in rows if row.open_at > now]
        if any(row.key.startswith("name:") for row in closed) and _known_address(username, address, now):
            closed = [row for row in closed if not row.key.startswith("name:")]
        if closed:
            return Wait(max((row.open_at - now).total_seconds() for row in closed))
        known, counted = bounds(), []
        for row in rows:
            before, row.failures, row.last_at = row.open_at, row.failures + 1, now
            seconds = known[row.key.partition(":")[0]].delay(row.failures)
            row.open_at = max(before, now + timedelta(seconds=seconds))
            counted.append((row.key, before, row.open_at))
        SignInCount.objects.bulk_update(rows, ["failures", "last_at", "open_at"])
    return Attempt(tuple(counted))


def succeeded(attempt: Attempt) -> None:
    """It was the right password: what was counted for this try is taken back, and a name at an address is clean.

    An address stays as slow as it was, or one account of an attacker's own would make all other tries free.
    """
    with transaction.atomic():
        keys = [key for key, _, _ in attempt.counted]
        list(SignInCount.objects.filter(key__in=keys).order_by("key").select_for_update())
        for key, before, since in attempt.counted:
            row = SignInCount.objects.filter(key=key)
            if key.startswith(("both:", "device:")):
                row.delete()
                continue
            row.filter(failures__gt=0).update(failures=F("failures") - 1)
            row.filter(open_at=since).update(open_at=before)  # unless another try has closed it meanwhile


def device_of(user: User) -> str:
    """What a browser keeps, to be known as one that this person has signed in with."""
    return signing.dumps([user.pk, secrets.token_urlsafe(12)], salt=_SALT)


def _keys(username: str, address: str, device: str) -> list[str]:
    """Where a try is counted, in the order in which rows are locked."""
    if (own := _device_key(username, device)) is not None:
        return [own]
    name, place = _digest(username.casefold()), _place(address)
    return sorted([f"name:{name}", f"address:{place}", f"both:{_digest(f'{name} {place}')}"])


def _device_key(username: str, device: str) -> str | None:
    """The key of a browser that has signed this person in before; None for any other."""
    if not device:
        return None
    try:
        user_id, number = signing.loads(device, salt=_SALT, max_age=DEVICE_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    if not User.objects.filter(pk=user_id, username=username).exists():
        return None
    return f"device:{_digest(f'{user_id} {number}')}"


def _known_address(username: str, address: str, now: datetime) -> bool:
    """Whether this person has signed in from there lately."""
    since = now - timedelta(seconds=ADDRESS_SECONDS)
    user = User.objects.filter(username=username).only("pk").first()
    return (
        user is not None
        and AuditEvent.objects.filter(
            actor=user, action="session.sign_in", outcome=AuditOutcome.DONE, address=address, at__gte=since
        ).exists()
    )


def _place(address: str) -> str:
    if not client_address.is_address(address):
        return "unknown"
    parsed = ipaddress.ip_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
