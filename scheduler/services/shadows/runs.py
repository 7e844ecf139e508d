"""Shadow runs as people start and end them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from infra.plain_text import check_line
from scheduler import outbox
from scheduler.core.policy import every_policy
from scheduler.models import Cluster, Cycle, Queue, SchedulerProfile, ShadowRun, ShadowState
from scheduler.services.planning.profiles import policy_of_row
from scheduler.state.records import profile_versions

LONGEST: Final = timedelta(days=14)
MOST_EVERY: Final = 1000


def profile_of(cluster: Cluster, queue: Queue | None) -> SchedulerProfile:
    """The profile that a draft is of; raises Conflict where there is none of its own."""
    if queue is not None:
        if queue.cluster_id != cluster.pk:
            raise InvalidInput(f"The queue {queue.slug} is not of the cluster {cluster.slug}.")
        if queue.profile is None or queue.profile_id == cluster.profile_id:
            raise Conflict(
                f"The queue {queue.slug} has no profile of its own: it follows that of the cluster {cluster.slug}.",
                way_out="Give the queue a profile first, or draft the profile of the cluster.",
            )
        return queue.profile
    if cluster.profile is None:
        raise Conflict(
            f"The cluster {cluster.slug} has no profile.", way_out="Give the cluster a profile first."
        )
    return cluster.profile


def start_run(
    *,
    cluster: Cluster,
    queue: Queue | None,
    content: Mapping[str, Any],
    until: datetime,
    every: int,
    by: User,
    reason: str,
) -> ShadowRun:
    """Plan a draft on the cycles that this cluster records from now on, until a time; one at a time a cluster.

    `content` is checked already (`configuration.profiles.drafted`). Raises InvalidInput and Conflict.
    """
    permissions.require(by, "operate")
    profile, now, reason = profile_of(cluster, queue), timezone.now(), " ".join(reason.split())
    check_line(reason, "reason")
    problems = []
    if not reason:
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if not now < until <= now + LONGEST:
        problems.append(
            FieldProblem("until", f"Must be a time in the next {LONGEST.days} days.", "out-of-range")
        )
    if not 1 <= every <= MOST_EVERY:
        problems.append(FieldProblem("every", f"Must be from 1 to {MOST_EVERY}.", "out-of-range"))
    if problems:
        raise InvalidInput(f"{problems[0].field}: {problems[0].message}", problems=problems)
    _refuse_turns(profile, content)
    newest = Cycle.objects.filter(cluster=cluster).order_by("-id").values_list("id", flat=True).first()
    try:
        with transaction.atomic():
            profile_versions.keep_present(profile)
            run = ShadowRun.objects.create(
                cluster=cluster, queue=queue, profile=profile, profile_version=profile.version, content=dict(content),
                every=every, until=until, made_at=now, made_by=by.username, reason=reason[:200],
                last_cycle=newest or 0,
            )  # fmt: skip
            audit.record(
                by=by, action="shadowrun.start", thing=run, reason=reason,
                after={"cluster": cluster.slug, "queue": queue.slug if queue else None, "profile": profile.name,
                       "version": profile.version, "until": audit.plain(until), "every": every},
            )  # fmt: skip
    except IntegrityError as error:
        if "shadow_one_running" not in str(error):
            raise
        other = ShadowRun.objects.filter(cluster=cluster, state=ShadowState.RUNNING).first()
        raise Conflict(
            f"{other or 'A shadow run'} of the cluster {cluster.slug} is under way; there is one at a time.",
            way_out="Stop it first, or wait until it ends.",
        ) from None
    return run


def _refuse_turns(profile: SchedulerProfile, content: Mapping[str, Any]) -> None:
    """Fair queueing goes by turns that starts move; a draft starts nothing, so its turns would stand still."""
    draft = policy_of_row(SchedulerProfile(name=profile.name, **content))
    real = policy_of_row(profile)
    takes = {(one.name, one.tenant) for _, one in every_policy(draft) if one.name == "fair_queue"}
    if takes - {(one.name, one.tenant) for _, one in every_policy(real)}:
        message = (
            "policy: a shadow run cannot follow fair queueing that the profile in force does not follow: turns move "
            "with starts, and a draft starts nothing."
        )
        raise InvalidInput(
            message,
            way_out="Compare with manage.py simulate instead.",
            problems=[FieldProblem("policy", message, "not-supported")],
        )


def stop_run(*, run: ShadowRun, by: User, reason: str = "") -> ShadowRun:
    """End a shadow run before its time; what it compared stays."""
    permissions.require(by, "operate")
    return end_run(run, ShadowState.STOPPED, f"Stopped by {by.username}.", by=by, reason=reason)


@transaction.atomic
def end_run(
    run: ShadowRun, state: ShadowState, cause: str, *, by: User | None = None, reason: str = ""
) -> ShadowRun:
    """End a run; one that has ended stays as it is."""
    row = ShadowRun.objects.select_for_update(of=("self",)).get(pk=run.pk)
    if row.state != ShadowState.RUNNING:
        return row
    row.state, row.cause, row.ended_at = state, cause.replace("\0", "")[:500], timezone.now()
    row.save(update_fields=["state", "cause", "ended_at"])
    outbox.announce(outbox.CLUSTER_TOPIC)
    if by is not None:
        audit.record(by=by, action="shadowrun.stop", thing=row, after={"state": state.value}, reason=reason)
    return row


@transaction.atomic
def mark_published(run: ShadowRun, by: User, version: int) -> ShadowRun:
    """Say of a run, whatever its state, that its draft is in force as this version of the profile."""
    row = ShadowRun.objects.select_for_update(of=("self",)).get(pk=run.pk)
    if row.state == ShadowState.PUBLISHED:
        raise Conflict(
            f"Shadow run {row.pk} has been published already.", way_out="Read the versions of the profile."
        )
    row.state, row.ended_at = ShadowState.PUBLISHED, row.ended_at or timezone.now()
    row.cause = f"Published by {by.username} as version {version}."
    row.save(update_fields=["state", "cause", "ended_at"])
    return row
