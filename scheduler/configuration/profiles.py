"""Scheduler profiles one by one: changed, rolled back to an earlier version, drafted; by the form of the admin page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from accounts import permissions
from accounts.models import User
from infra.errors import Conflict, FieldProblem, InvalidInput, NotFound
from scheduler.configuration import rows
from scheduler.configuration.kinds import PROFILES
from scheduler.models import ProfileVersion, SchedulerProfile, VersionOrigin
from scheduler.services.cluster.settings import refuse_stale
from scheduler.state.records.profile_versions import Origin, content_of, differences


def profile_by_ref(by: User, ref: str) -> SchedulerProfile:
    """The profile of this name or id, for operators and auditors."""
    require_reader(by)
    found = SchedulerProfile.objects.filter(name=ref).first() if "\x00" not in ref else None
    if found is None and ref.isascii() and ref.isdecimal() and len(ref) < 19:
        found = SchedulerProfile.objects.filter(pk=int(ref)).first()
    if found is None:
        raise NotFound(f"There is no profile {ref[:60]!r}.", way_out="GET /api/v1/profiles lists them.")
    return found


def require_reader(by: User) -> None:
    """Raise NotAllowed for people who are neither operators nor auditors."""
    if not permissions.may(by, "audit"):
        permissions.require(by, "operate")


def version_of(profile: SchedulerProfile, number: int) -> ProfileVersion:
    """One version; raises NotFound."""
    found = ProfileVersion.objects.filter(profile_id=profile.pk, number=number).first()
    if found is None:
        raise NotFound(
            f"The profile {profile.name} has no version {number}.",
            way_out="Read the list of versions.",
        )
    return found


def create_profile(*, given: Mapping[str, Any], by: User, reason: str) -> SchedulerProfile:
    """Make a profile; raises Conflict where the name is taken."""
    permissions.require(by, "administer")
    name = given.get("name")
    if isinstance(name, str) and SchedulerProfile.objects.filter(name=name).exists():
        raise rows.refuse_existing(PROFILES, name)
    if not isinstance(name, str):
        raise InvalidInput("Give the profile a name.")
    saved = rows.put(PROFILES, given, rows.blank(PROFILES, given, {}), by=by, reason=reason, scope={})
    assert isinstance(saved, SchedulerProfile)
    return saved


def change_profile(
    *,
    profile: SchedulerProfile,
    changes: Mapping[str, Any],
    by: User,
    reason: str,
    expected: int | None = None,
    origin: Origin | None = None,
) -> SchedulerProfile:
    """Change fields of a profile, as a new version; with `expected`, only of this version (412)."""
    permissions.require(by, "administer")
    with transaction.atomic():
        # Locked before anything is compared with it.
        row = SchedulerProfile.objects.select_for_update(of=("self",)).get(pk=profile.pk)
        refuse_stale(row, expected)
        saved = rows.put(PROFILES, changes, row, by=by, reason=reason, scope={}, origin=origin)
    assert isinstance(saved, SchedulerProfile)
    return saved


def rollback_profile(
    *, profile: SchedulerProfile, number: int, by: User, reason: str, expected: int | None = None
) -> SchedulerProfile:
    """Put the content of an earlier version in force again, as a new version.

    Raises InvalidInput where the old content is not valid any more: it names a class or a plugin that is gone, or sets
    what a queue now leaves to the profile of its cluster.
    """
    permissions.require(by, "administer")
    version = version_of(profile, number)
    if not differences(content_of(profile), version.content):
        raise Conflict(
            f"Version {number} of the profile {profile.name} is what the profile is now: nothing would change.",
            way_out="Choose another version.",
        )
    try:
        return change_profile(
            profile=profile, changes=version.content, by=by, reason=reason, expected=expected,
            origin=Origin(VersionOrigin.ROLLBACK, number),
        )  # fmt: skip
    except InvalidInput as refused:
        refused.message = (
            f"Version {number} of the profile {profile.name} is not valid any more: {refused.message}"
        )
        refused.way_out = "Nothing was changed. Create what the version names, or change the profile by hand."
        raise


def drafted(profile: SchedulerProfile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the profile with these changes, checked as a save would be; nothing is written."""
    rows.check_names(PROFILES, changes)
    if "name" in changes:
        message = "name: a draft keeps the name of its profile."
        raise InvalidInput(message, problems=[FieldProblem("name", message, "invalid")])
    draft = SchedulerProfile.objects.get(pk=profile.pk)
    names = rows.differing(PROFILES, changes, draft)
    if not names:
        raise InvalidInput(
            f"The draft is what the profile {profile.name} says now.",
            way_out="Give fields with other values.",
        )
    try:
        form = rows.filled_form(PROFILES, changes, draft, names, reason="draft", scope={})
    except rows.Refused as refused:
        raise rows.invalid(refused) from None
    assert isinstance(form.instance, SchedulerProfile)
    return content_of(form.instance)
