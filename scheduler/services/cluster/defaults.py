"""Defaults: the rows that Muster needs: priority classes, a profile, a first cluster with a queue."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db import transaction

from accounts.services import audit
from scheduler import outbox
from scheduler.models import Cluster, Partition, PriorityClass, Queue, SchedulerProfile, VersionOrigin
from scheduler.services.cluster import named_rows
from scheduler.state.records import profile_versions
from scheduler.state.records.profile_versions import Origin

#: Name, value, aliases, the classes it may preempt, what it is for.
PRIORITY_CLASSES: Final[tuple[tuple[str, int, list[str], list[str], str], ...]] = (
    (
        "CRITICAL",
        100,
        [],
        ["HIGH", "NORMAL", "LOW", "BATCH", "SCAVENGER"],
        "System work; needs a raised ceiling",
    ),
    ("HIGH", 75, [], ["NORMAL", "LOW", "BATCH", "SCAVENGER"], "Deadlines and production"),
    ("NORMAL", 50, ["MEDIUM"], ["LOW", "BATCH", "SCAVENGER"], "Everyday work; the default"),
    ("LOW", 25, [], ["SCAVENGER"], "Background work"),
    ("BATCH", 10, [], ["SCAVENGER"], "Bulk work that can wait"),
    ("SCAVENGER", 0, [], [], "Runs on idle resources; any other job may preempt it"),
)


@transaction.atomic
def ensure_defaults() -> Cluster:
    """Create what is missing; of the rows that exist, change only what a setting of the site decides.

    Safe to run at every start.
    """
    _ensure_priority_classes()
    profile, created = SchedulerProfile.objects.get_or_create(
        name=named_rows.DEFAULT_PROFILE,
        defaults={
            "policy": settings.SCHEDULING_POLICY,
            "tie_breakers": ["submitted"],
            "backfill": settings.SCHEDULING_BACKFILL,
        },
    )
    if created:
        profile_versions.add(
            profile, Origin(VersionOrigin.CREATE), by="", reason="Created at the first start."
        )
    else:
        _follow_settings()
    cluster = Cluster.objects.order_by("id").first()
    if cluster is None:
        cluster = Cluster.objects.create(name="main", slug="main", profile=profile)
        Partition.objects.create(cluster=cluster, name="default")
        # No partitions on the queue: it reaches every node of the cluster.
        Queue.objects.create(cluster=cluster, name="default", slug="default", is_default=True)
    return cluster


def _follow_settings() -> None:
    """Give the default profile the order and backfill that the site's settings say, where they are set."""
    profile = SchedulerProfile.objects.select_for_update().get(name=named_rows.DEFAULT_PROFILE)
    profile_versions.keep_present(profile)
    before, given = {}, named_rows.given_by_settings(profile)
    for field, name in given.items():
        if getattr(profile, field) != (value := getattr(settings, name)):
            before[field] = getattr(profile, field)
            setattr(profile, field, value)
    if not before:
        return
    profile.version += 1
    profile.save(update_fields=[*before, "version"])
    named_rows.refuse_change(profile, {})
    reason = f"Set by {', '.join(given[field] for field in before)}."
    profile_versions.add(profile, Origin(VersionOrigin.SETTINGS), by="", reason=reason)
    for cluster in Cluster.objects.values_list("pk", flat=True):
        outbox.wake_planner(cluster, trigger="settings")
    audit.record(
        by=None, action="schedulerprofile.edit", thing=profile, before=before,
        after={field: getattr(profile, field) for field in before},
        reason=reason,
    )  # fmt: skip


def _ensure_priority_classes() -> None:
    there = set(PriorityClass.objects.values_list("name", flat=True))
    missing = [row for row in PRIORITY_CLASSES if row[0] not in there]
    if not missing:
        return
    # Another start may be making the same rows at this moment.
    PriorityClass.objects.bulk_create(
        [
            PriorityClass(name=name, value=value, aliases=aliases, description=description)
            for name, value, aliases, _, description in missing
        ],
        ignore_conflicts=True,
    )
    ids = dict(PriorityClass.objects.values_list("name", "id"))
    preempts = PriorityClass.preempts.through
    preempts.objects.bulk_create(
        [
            preempts(from_priorityclass_id=ids[name], to_priorityclass_id=ids[victim])
            for name, _, _, victims, _ in missing
            for victim in victims
            if name in ids and victim in ids  # not those whose value an operator gave to another
        ],
        ignore_conflicts=True,
    )
