"""Publish: the draft of a shadow run becomes a version of its profile."""

from __future__ import annotations

from django.db import transaction

from accounts import permissions
from accounts.models import User
from infra.errors import Conflict
from scheduler.configuration.profiles import change_profile
from scheduler.models import SchedulerProfile, ShadowRun, VersionOrigin
from scheduler.services.cluster.settings import refuse_stale
from scheduler.services.shadows.runs import mark_published
from scheduler.state.records.profile_versions import Origin


@transaction.atomic
def publish_run(*, run: ShadowRun, by: User, reason: str, force: bool = False) -> SchedulerProfile:
    """Put a draft in force, as a new version of the profile that it was made from; a run under way ends.

    Raises Conflict (412) where the profile has changed since the draft was made, unless with `force`.
    """
    permissions.require(by, "administer")
    profile = SchedulerProfile.objects.select_for_update(of=("self",)).get(pk=run.profile_id)
    if not force:
        try:
            refuse_stale(profile, run.profile_version)
        except Conflict as stale:
            stale.message = (
                f"The draft was made from version {run.profile_version} of the profile {profile.name}, "
                f"which is now version {profile.version}."
            )
            stale.way_out = (
                "Read what has changed since, then start another shadow run, or publish with force."
            )
            raise
    saved = change_profile(
        profile=profile,
        changes=run.content,
        by=by,
        reason=reason,
        origin=Origin(VersionOrigin.PUBLISH, run.pk),
    )
    saved.refresh_from_db()
    mark_published(run, by, saved.version)
    return saved
