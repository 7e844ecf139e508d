"""Named rows: what a profile, a queue or a cluster names stays; a queue's profile says nothing that is not followed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from infra.errors import Conflict, InvalidInput
from scheduler.core.policy import BACKFILL_MAX_CLASS
from scheduler.models import Cluster, Partition, PriorityClass, Queue, SchedulerProfile

#: What is the cluster's alone: jobs of all queues share its nodes, and so the order in which gaps are filled, promised
#: starts and the bounds of preemption. By field of a profile, the value that leaves it to the cluster.
OF_THE_CLUSTER: Final[Mapping[str, Any]] = {"backfill": "none", "preemption_enabled": False, "preemption": {}}
#: The same among the options of a profile: none of these may be there.
OPTIONS_OF_THE_CLUSTER: Final = (
    "backfill_order", "backfill_promises", "backfill_delay_seconds", "backfill_scan", "assemblies", "resize_seconds",
    "shares",
)  # fmt: skip

DEFAULT_PROFILE: Final = "default"
#: By field of the default profile, the setting that decides the field wherever the site sets it.
SETTINGS_OF_DEFAULT: Final[Mapping[str, str]] = {
    "policy": "SCHEDULING_POLICY",
    "backfill": "SCHEDULING_BACKFILL",
}


def given_by_settings(profile: SchedulerProfile) -> dict[str, str]:
    """By field of this profile, the setting of the site that decides it; empty for other profiles than the default."""
    if profile.name != DEFAULT_PROFILE:
        return {}
    return {field: name for field, name in SETTINGS_OF_DEFAULT.items() if name in settings.SETTINGS_GIVEN}


def refuse_removal(thing: models.Model) -> None:
    """Raise Conflict while another row names this one, with the names."""
    if isinstance(thing, PriorityClass):
        _refuse_class(thing, thing.name)
    elif isinstance(thing, SchedulerProfile):
        users = [
            *(f"cluster {name}" for name in _names(Cluster.objects.filter(profile=thing))),
            *(f"queue {name}" for name in _names(Queue.objects.filter(profile=thing))),
        ]
        if users:
            raise Conflict(
                message=f"The profile {thing.name} is that of {', '.join(users)}.",
                way_out="Choose another profile there first.",
            )
    elif isinstance(thing, Partition):
        queues = [*_names(Queue.objects.filter(partitions=thing))]
        if queues:
            raise Conflict(
                message=f"The partition {thing.name} is named by {', '.join(f'queue {name}' for name in queues)}; "
                "a queue that names none may use every node.",
                way_out="Choose other partitions there first.",
            )


def refuse_change(thing: models.Model, before: Mapping[str, Any]) -> None:
    """Raise Conflict for a new name of a class that a profile names, InvalidInput for what a queue's profile ignores.

    Call it in the transaction that has written `thing`; `before` are its values until then.
    """
    if isinstance(thing, PriorityClass) and before and before["name"].upper() != thing.name.upper():
        _refuse_class(thing, str(before["name"]))
    if isinstance(thing, SchedulerProfile):
        _refuse_given(thing, before)
    if isinstance(thing, (Queue, Cluster, SchedulerProfile)):
        own = Queue.objects.exclude(profile=None).exclude(profile=F("cluster__profile"))
        if isinstance(thing, Queue):
            own = own.filter(pk=thing.pk)
        elif isinstance(thing, Cluster):
            own = own.filter(cluster=thing)
        else:
            own = own.filter(Q(profile=thing) | Q(cluster__profile=thing))
        for queue in own.select_related("profile", "cluster__profile").order_by("slug"):
            assert queue.profile is not None  # excluded above
            ignored = ignored_in_queue(queue.profile, queue.cluster.profile)
            if ignored:
                raise InvalidInput(message=f"Queue {queue.slug}: {ignored}", way_out=WAY_OUT)


WAY_OUT: Final = (
    "Set it in the profile of the cluster, and leave it out in the profile of the queue (backfill: none)."
)


def ignored_in_queue(profile: SchedulerProfile, of_cluster: SchedulerProfile | None) -> str:
    """A sentence about what this profile says that a queue's own profile cannot; "" where that is nothing.

    The backfill of the cluster's profile may be repeated: it is followed.
    """
    said = [
        name.removesuffix("_enabled")
        for name, left in OF_THE_CLUSTER.items()
        if (getattr(profile, name) or left) != left
    ]
    if of_cluster is not None and profile.backfill == of_cluster.backfill and "backfill" in said:
        said.remove("backfill")
    said += [name for name in OPTIONS_OF_THE_CLUSTER if name in (profile.options or {})]
    if not said:
        return ""
    return (
        f"its own profile {profile.name} sets {', '.join(dict.fromkeys(said))}, which only the profile of the cluster "
        "decides, for all its queues."
    )


def _refuse_given(profile: SchedulerProfile, before: Mapping[str, Any]) -> None:
    """A change that the next start would undo."""
    for field, name in given_by_settings(profile).items():
        if before and getattr(profile, field) != before[field]:
            raise Conflict(
                message=f"The setting {name} decides the {field} of the profile {profile.name}: "
                f"{getattr(settings, name)}.",
                way_out=f"Change {name} and start Muster again, or remove it; or make another profile.",
            )


def _refuse_class(priority_class: PriorityClass, name: str) -> None:
    """A profile names classes by their names, in its options, which no foreign key watches."""
    for profile in SchedulerProfile.objects.select_for_update().order_by("pk"):
        named = (profile.options or {}).get(BACKFILL_MAX_CLASS)
        if isinstance(named, str) and named.upper() == name.upper():
            raise Conflict(
                message=f"The profile {profile.name} names the priority class {name} in {BACKFILL_MAX_CLASS}.",
                way_out="Change the profile first.",
            )


def _names(rows: models.QuerySet[Any]) -> Iterable[str]:
    return rows.order_by("slug").values_list("slug", flat=True)
