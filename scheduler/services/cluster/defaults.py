"""Defaults: the rows that Muster needs: priority classes, a profile, a first cluster with a queue."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db import transaction

from scheduler.models import Cluster, Partition, PriorityClass, Queue, SchedulerProfile

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
    """Create what is missing and change no row that exists; safe to run at every start."""
    _ensure_priority_classes()
    profile, _ = SchedulerProfile.objects.get_or_create(
        name="default",
        defaults={
            "policy": settings.SCHEDULING_POLICY,
            "tie_breakers": ["submitted"],
            "backfill": settings.SCHEDULING_BACKFILL,
        },
    )
    cluster = Cluster.objects.order_by("id").first()
    if cluster is None:
        cluster = Cluster.objects.create(name="main", slug="main", profile=profile)
        Partition.objects.create(cluster=cluster, name="default")
        # No partitions on the queue: it reaches every node of the cluster.
        Queue.objects.create(cluster=cluster, name="default", slug="default", is_default=True)
    return cluster


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
