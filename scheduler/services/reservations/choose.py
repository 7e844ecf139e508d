"""Choice: the nodes and devices that a reservation holds, of those that are free of others in its window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

from accounts.models import User
from infra.errors import Conflict
from infra.times_in_text import written
from quotas.core.gpu_models import suits
from quotas.core.resources import show_cpus, show_mib
from scheduler.core.lifecycle import NodeState
from scheduler.models import Device, Node, Reservation, ReservationPart, ReservationStatus
from scheduler.selectors import visible_reservations
from scheduler.services.reservations.terms import ReservationAmounts

#: Names of nodes in a refusal.
_NAMED: Final = 5


class Held(NamedTuple):
    """What a reservation holds."""

    nodes: list[Node]  # whole
    parts: list[ReservationPart]  # not written yet


def in_force(starts_at: datetime, ends_at: datetime) -> Any:
    """Reservations that hold something between two moments."""
    return Reservation.objects.filter(
        status=ReservationStatus.APPROVED,
        cancelled_at__isnull=True,
        starts_at__lt=ends_at,
        ends_at__gt=starts_at,
    )


def locked(node_ids: Collection[int]) -> list[Node]:
    """These nodes, locked: two bookings of one node come one after the other."""
    return list(
        Node.objects.filter(pk__in=node_ids)
        .select_related(None)
        .order_by("pk")
        .select_for_update(no_key=True)
    )


def choose(
    wanted: ReservationAmounts, starts_at: datetime, ends_at: datetime, by: User, *, but: int | None = None
) -> Held:
    """Choose, and lock the nodes; to be asked in a transaction. `but` is the key of a reservation that does not count.

    Raises Conflict when what is asked for is not there, or is reserved already.
    """
    others = in_force(starts_at, ends_at).exclude(pk=but).prefetch_related("nodes", "parts")
    if wanted.nodes:
        nodes = locked([node.pk for node in wanted.nodes])
        if not wanted.in_parts:
            _refuse_overlap(nodes, others, by)
            return Held(nodes, [])
        found = [_part_of(node, wanted, others, starts_at) for node in nodes]
        _refuse_missing(nodes, found, wanted, others, by)
        return Held([], [part for part in found if part is not None])
    nodes = locked(_suitable(wanted))
    if wanted.in_parts:
        parts = [part for node in nodes if (part := _part_of(node, wanted, others, starts_at)) is not None]
        return Held([], _enough(parts, wanted))
    taken = {node.pk for one in others for node in one.nodes.all()} | {
        part.node_id for one in others for part in one.parts.all()
    }
    return Held(_enough([node for node in nodes if node.pk not in taken], wanted), [])


def _enough(found: Sequence[Any], wanted: ReservationAmounts) -> list[Any]:
    if len(found) < wanted.node_count:
        what = "nodes have" if wanted.in_parts else "nodes are"
        raise Conflict(
            message=f"{wanted.node_count} nodes are asked for; {len(found)} {what} that free of other reservations.",
            code="not-enough-free",
            way_out="Choose another window, fewer nodes or smaller parts, or cancel another reservation first.",
        )
    return list(found[: wanted.node_count])


def _suitable(wanted: ReservationAmounts) -> list[int]:
    """The nodes that meet the constraints, those first on which the least is in use."""
    rows = Node.objects.filter(
        cluster=wanted.cluster,
        state=NodeState.UP,
        cordoned=False,
        draining=False,
        labels__contains=dict(wanted.labels),
    )
    if wanted.partition is not None:
        rows = rows.filter(partitions=wanted.partition)
    found = list(rows.order_by("used_gpu_millis", "used_cpu_millis", "name").values_list("pk", flat=True))
    if wanted.gpu_type:
        having = {
            device.node_id
            for device in Device.objects.filter(node__in=found, gone=False)
            if suits(wanted.gpu_type, device.model)
        }
        found = [pk for pk in found if pk in having]
    return found


def _part_of(
    node: Node, wanted: ReservationAmounts, others: Iterable[Reservation], starts_at: datetime
) -> ReservationPart | None:
    """The part of a node that is asked for; None where others leave too little of it."""
    others = list(others)
    if any(node.pk == whole.pk for one in others for whole in one.nodes.all()):
        return None
    cpu_millis, memory_mib = _amounts(node, wanted)
    sharing = [(one, part) for one in others for part in _parts_on(one, node)]
    if not _has_left(node, cpu_millis, memory_mib, sharing, starts_at):
        return None
    taken = {device for _, part in sharing for device in part.device_ids}
    devices = [
        device.pk
        for device in node.devices.filter(gone=False, healthy=True).order_by("used_millis", "-index")
        if device.pk not in taken and suits(wanted.gpu_type, device.model)
    ]
    if len(devices) < wanted.gpus:
        return None
    return ReservationPart(
        node=node, cpu_millis=cpu_millis, memory_mib=memory_mib, device_ids=sorted(devices[: wanted.gpus])
    )


def _has_left(
    node: Node,
    cpu: int,
    memory: int,
    sharing: Sequence[tuple[Reservation, ReservationPart]],
    starts_at: datetime,
) -> bool:
    """Whether the parts of others leave so much of a node at every moment: most is held where one of them begins."""
    for moment in {starts_at, *(one.starts_at for one, _ in sharing)}:
        held = [part for one, part in sharing if one.starts_at <= moment < one.ends_at]
        if cpu + sum(part.cpu_millis for part in held) > node.cpu_millis_capacity:
            return False
        if memory + sum(part.memory_mib for part in held) > node.memory_mib_capacity:
            return False
    return True


def _amounts(node: Node, wanted: ReservationAmounts) -> tuple[int, int]:
    """CPU and memory of a part. What is not said is the same share of the node as the largest amount that is."""
    cpu, memory = node.cpu_millis_capacity, node.memory_mib_capacity
    gpus = node.devices.filter(gone=False).count()
    shares = ((wanted.cpu_millis, cpu), (wanted.memory_mib, memory), (wanted.gpus, gpus))
    share = max((Fraction(asked, have) for asked, have in shares if asked and have), default=Fraction(0))
    share = min(share, Fraction(1))
    return wanted.cpu_millis or int(cpu * share), wanted.memory_mib or int(memory * share)


def _parts_on(one: Reservation, node: Node) -> list[ReservationPart]:
    return [part for part in one.parts.all() if part.node_id == node.pk]


def _refuse_missing(
    nodes: list[Node],
    found: Sequence[Any],
    wanted: ReservationAmounts,
    others: Iterable[Reservation],
    by: User,
) -> None:
    missing = [node for node, part in zip(nodes, found, strict=True) if part is None]
    if not missing:
        return
    _refuse_overlap(missing, [one for one in others if one.nodes.all()], by)
    words = [show_cpus(wanted.cpu_millis)] * bool(wanted.cpu_millis)
    words += [show_mib(wanted.memory_mib)] * bool(wanted.memory_mib)
    words += [f"{wanted.gpus} GPUs"] * bool(wanted.gpus)
    names = ", ".join(node.name for node in missing[:_NAMED])
    raise Conflict(
        message=f"{', '.join(words)} are asked for of each node; free of other reservations they are not on {names}.",
        code="not-enough-free",
        way_out="Choose other nodes, another window or smaller parts.",
    )


def _refuse_overlap(nodes: list[Node], others: Iterable[Reservation], by: User) -> None:
    keys = {node.pk: node for node in nodes}
    for other in others:
        shared = [*(node.pk for node in other.nodes.all()), *(part.node_id for part in other.parts.all())]
        met = next((keys[key] for key in shared if key in keys), None)
        if met is None:
            continue
        seen = visible_reservations(by).filter(pk=other.pk).exists()
        raise Conflict(
            message=f"Node {met} is reserved from {written(other.starts_at)} to "
            f"{written(other.ends_at)}{f' ({other.name})' if seen else ''}.",
            code="already-reserved",
            way_out="Choose other nodes or another window, or cancel that reservation first.",
        )
