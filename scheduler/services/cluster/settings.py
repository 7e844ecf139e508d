"""Settings: how an operator changes what a cluster is made of, with one write, one reason and one audit row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import models, transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from infra.errors import Conflict, InvalidInput
from infra.plain_text import check_line, check_row
from scheduler import outbox
from scheduler.models import (
    Cluster,
    JoinToken,
    Node,
    Partition,
    PolicyFault,
    PriorityClass,
    Queue,
    Reservation,
    SchedulerProfile,
    VersionOrigin,
)
from scheduler.services.cluster import named_rows, overcommit
from scheduler.services.cluster.inventory_service import refuse_other_place
from scheduler.services.cluster.taints import signed
from scheduler.state.records import policy_faults, profile_versions
from scheduler.state.records.profile_versions import Origin

#: What may be written here, and who may: the policy of the site is the admins', the rest the operators'.
VERBS: Final[Mapping[type[models.Model], str]] = {
    Cluster: "operate",
    Partition: "operate",
    Node: "operate",
    Queue: "operate",
    PriorityClass: "administer",
    SchedulerProfile: "administer",
    PolicyFault: "operate",
}
#: Raised by each change, so that a plan made from the old row is refused.
COUNTERS: Final = ("generation", "version")
#: Facts that change by themselves are no part of an audited change.
NOT_SETTINGS: Final = frozenset({"id", "created_at", "updated_at", *COUNTERS})


def settings_of(thing: models.Model) -> dict[str, Any]:
    """The row and its relations as plain values, to compare and for the audit trail."""
    values = {
        field.name: audit.plain(getattr(thing, field.name))
        for field in thing._meta.concrete_fields
        if field.name not in NOT_SETTINGS
    }
    if thing.pk is not None:
        for relation in thing._meta.many_to_many:
            values[relation.name] = sorted(str(other) for other in getattr(thing, relation.name).all())
    return values


@transaction.atomic
def save_settings(
    *,
    thing: models.Model,
    changed_fields: list[str],
    by: User,
    reason: str,
    save_relations: Callable[[], None] = lambda: None,
    origin: Origin | None = None,
) -> models.Model:
    """Write a row that an admin page has filled in; only `changed_fields` of a row that exists.

    The other fields may have changed since: counters of use belong to the planner. `save_relations` writes the
    many-to-many rows in the same transaction. `origin` is how a new version of a profile comes about, where it is not
    edited.
    """
    kind = type(thing)
    _require(by, kind, thing)
    check_row(thing)
    reason = _needed(reason, f"Give a reason for changing this {thing._meta.verbose_name}.")
    before: dict[str, Any] = {}
    if thing.pk is not None:
        before = _save_changed(thing, changed_fields, by=by, reason=reason)
    else:
        if isinstance(thing, Node):
            thing.taints = signed(thing.taints, (), by=by.username, reason=reason, at=timezone.now())
        thing.save()
    save_relations()
    named_rows.refuse_change(thing, before)
    if isinstance(thing, Node):
        refuse_other_place(thing, before)
    overcommit.recount(thing)
    if isinstance(thing, SchedulerProfile):
        policy_faults.rules_are_new(thing.name)
    old, new = audit.changed(before, settings_of(kind._default_manager.get(pk=thing.pk)))
    if old or new:
        if isinstance(thing, SchedulerProfile):
            made = VersionOrigin.EDIT if before else VersionOrigin.CREATE
            profile_versions.add(thing, origin or Origin(made), by=by.username, reason=reason)
        _announce(thing)
        verb = origin.kind.value if origin else "edit" if before else "create"
        _record(by, f"{thing._meta.model_name}.{verb}", thing, old, new, reason)
    return thing


def _save_changed(thing: models.Model, changed_fields: list[str], *, by: User, reason: str) -> dict[str, Any]:
    """Write a row that exists; answers what it was before."""
    row = type(thing)._default_manager.select_for_update(of=("self",)).get(pk=thing.pk)
    before = settings_of(row)
    if isinstance(row, SchedulerProfile):
        profile_versions.keep_present(row)
    if isinstance(thing, Node) and isinstance(row, Node) and "taints" in changed_fields:
        thing.taints = signed(thing.taints, row.taints, by=by.username, reason=reason, at=timezone.now())
    if isinstance(thing, PriorityClass):
        named_rows.refuse_change(thing, before)  # before the database does, without a sentence
    _write(thing, row, changed_fields, before)
    return before


def _write(
    thing: models.Model, row: models.Model, changed_fields: list[str], before: Mapping[str, Any]
) -> None:
    """Write these fields of a row that exists, and raise its counter; that of a profile only where a field differs."""
    own = [field.name for field in thing._meta.concrete_fields if field.name in changed_fields]
    same = isinstance(thing, SchedulerProfile) and all(
        audit.plain(getattr(thing, name)) == before[name] for name in own
    )
    for counter in COUNTERS:
        if hasattr(row, counter):
            setattr(thing, counter, getattr(row, counter) + (not same))
            own.append(counter)
    if hasattr(thing, "updated_at"):
        own.append("updated_at")
    thing.save(update_fields=own)


def refuse_stale(row: models.Model, expected: int | None) -> None:
    """Raise Conflict (412) where the version or generation of a row, which is locked, is another one."""
    counter = next((name for name in COUNTERS if hasattr(row, name)), None)
    if expected is None or counter is None or getattr(row, counter) == expected:
        return
    raise Conflict(
        f"The {row._meta.verbose_name} {row} was changed since you read it: its {counter} is "
        f"{getattr(row, counter)} and not {expected}.",
        code="stale",
        status=412,
        way_out="Read the current values, then repeat your change.",
        extra={counter: getattr(row, counter)},
    )


@transaction.atomic
def remove_settings(*, thing: models.Model, by: User, reason: str = "") -> None:
    """Delete a row that nothing uses; raises Conflict or ProtectedError while another row names it."""
    _require(by, type(thing), thing)
    named_rows.refuse_removal(thing)
    before = settings_of(thing)
    named = audit.describe(thing)
    _announce(thing)
    thing.delete()
    audit.record(by=by, action=f"{named.type}.delete", thing=named, before=before, reason=reason)


@transaction.atomic
def pause_cluster(*, cluster: Cluster, by: User, reason: str) -> Cluster:
    """Start no more jobs in the cluster; running jobs continue."""
    permissions.require(by, "operate", cluster)
    reason = _needed(reason, f"Give a reason for pausing {cluster.name}; its pending jobs show the reason.")
    row = Cluster.objects.select_for_update(of=("self",)).get(pk=cluster.pk)
    if row.paused:
        return row
    row.paused, row.paused_reason, row.paused_by, row.paused_at = True, reason, by.username, timezone.now()
    return _saved_cluster(row, by, "cluster.pause", {"paused": False}, {"paused": True}, reason)


@transaction.atomic
def resume_cluster(*, cluster: Cluster, by: User, reason: str = "") -> Cluster:
    """Let a paused cluster start jobs again."""
    permissions.require(by, "operate", cluster)
    row = Cluster.objects.select_for_update(of=("self",)).get(pk=cluster.pk)
    if not row.paused:
        return row
    before = {"paused": True, "paused_reason": row.paused_reason, "paused_by": row.paused_by}
    row.paused, row.paused_reason, row.paused_by, row.paused_at = False, "", "", None
    return _saved_cluster(row, by, "cluster.resume", before, {"paused": False}, reason)


@transaction.atomic
def revoke_join_token(*, token: JoinToken, by: User, reason: str = "") -> JoinToken:
    """Let no more machines register with the token; registered machines keep their own keys."""
    permissions.require(by, "operate", token.cluster)
    now = timezone.now()
    if JoinToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now):
        token.revoked_at = now
        audit.record(by=by, action="jointoken.revoke", thing=token, after={"revoked_at": now}, reason=reason)
    return token


def _saved_cluster(
    row: Cluster, by: User, action: str, before: dict[str, Any], after: dict[str, Any], reason: str
) -> Cluster:
    row.generation += 1
    row.save(update_fields=["paused", "paused_reason", "paused_by", "paused_at", "generation"])
    _announce(row)
    audit.record(by=by, action=action, thing=row, before=before, after=after, reason=reason)
    return row


def _require(by: User, kind: type[models.Model], thing: models.Model) -> None:
    verb = VERBS.get(kind)
    if verb is None:
        raise Conflict(
            message=f"A {thing._meta.verbose_name} is not edited by hand.",
            way_out="This record is generated by Muster and cannot be edited.",
        )
    permissions.require(by, verb)


def _needed(reason: str, message: str) -> str:
    reason = " ".join(reason.split())
    check_line(reason, "reason")
    if not reason:
        raise InvalidInput(message=message, way_out="Give a reason of one sentence.")
    return reason[:200]


def _announce(thing: models.Model) -> None:
    """Refresh open pages, and wake the planners of the clusters that the row belongs to."""
    outbox.announce(outbox.CLUSTER_TOPIC, outbox.QUEUES_TOPIC)
    if isinstance(thing, Cluster):
        clusters = [thing.pk]
    elif isinstance(thing, (Partition, Node, Queue, Reservation)):
        clusters = [thing.cluster_id]
    else:
        clusters = list(Cluster.objects.values_list("pk", flat=True))
    for cluster_id in clusters:
        outbox.wake_planner(cluster_id, trigger="settings")


def _record(
    by: User, action: str, thing: models.Model, before: dict[str, Any], after: dict[str, Any], reason: str
) -> None:
    project = getattr(thing, "project", None)
    audit.record(
        by=by,
        action=action,
        thing=thing,
        before=before or None,
        after=after,
        reason=reason,
        project=project if isinstance(project, Project) else None,
    )
