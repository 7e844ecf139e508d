"""Versions of profiles: each change of a profile adds one, in the transaction that changes it; none ever changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.utils import timezone

from scheduler.models import PROFILE_FIELDS, ProfileVersion, SchedulerProfile, VersionOrigin


class Origin(NamedTuple):
    """How a version came about; `number` is the version that was restored, or the shadow run that was published."""

    kind: VersionOrigin
    number: int | None = None


def content_of(profile: SchedulerProfile) -> dict[str, Any]:
    """What a version keeps of a profile."""
    return {name: getattr(profile, name) for name in PROFILE_FIELDS}


def keep_present(profile: SchedulerProfile) -> None:
    """Keep the state of a profile before it changes, where no version is there of it: rows that an earlier release has
    written, or that were there before versions were.
    """
    ProfileVersion.objects.bulk_create(
        [_version(profile, Origin(VersionOrigin.FOUND), by="", reason="")], ignore_conflicts=True
    )


def add(profile: SchedulerProfile, origin: Origin, *, by: str, reason: str) -> ProfileVersion:
    """Keep the state of a profile, which has been written with the number of its new version."""
    version = _version(profile, origin, by=by, reason=reason)
    version.save(force_insert=True)
    return version


def _version(profile: SchedulerProfile, origin: Origin, *, by: str, reason: str) -> ProfileVersion:
    return ProfileVersion(
        profile_id=profile.pk, profile_name=profile.name, number=profile.version, content=content_of(profile),
        origin=origin.kind, origin_number=origin.number, made_at=timezone.now(), made_by=by, reason=reason[:200],
    )  # fmt: skip


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By field, the value before and after, of the fields whose values differ, in the order of the profile's form."""
    return {
        name: (before.get(name), after.get(name))
        for name in PROFILE_FIELDS
        if before.get(name) != after.get(name)
    }
