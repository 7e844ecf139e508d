"""The machines: a map with a cell for each GPU, one node's page, and taking nodes out of service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.plain_text import reason_of
from scheduler import labels
from scheduler.agent import PROTOCOL, VERSION
from scheduler.core.lifecycle import NodeState
from scheduler.models import Allocation, Device, Node, ReservationStatus
from scheduler.selectors import NodeOnMap, cluster_map, node_by_ref, visible_reservations
from scheduler.services.cluster.isolation import isolation_shown
from scheduler.services.cluster.node_scores import observed
from scheduler.services.cluster.nodes import cordon_node, drain_node, uncordon_node
from scheduler.services.moves.drains import read_drain_of
from scheduler.services.moves.fates import words_without_plan
from scheduler.web import reads
from scheduler.web.moves import DEADLINES, said_of_drain

UNNAMED: Final = "No rack set"
#: An allocated GPU that does less than this much work shows as idle.
IDLE_PERCENT: Final = 5
MOST_RESERVATIONS: Final = 10
DIALOGS: Final = (
    ("cordon", "Cordon {name}?", "The node accepts no new jobs. Running jobs continue.", "Cordon"),
    (
        "drain", "Drain {name}?",
        "The node accepts no new jobs. Until the deadline jobs that make checkpoints are moved to other nodes; "
        "what still runs then is requeued.",
        "Drain",
    ),
)  # fmt: skip
DONE: Final = {
    "cordon": "{name} accepts no new jobs; running jobs continue.",
    "uncordon": "{name} accepts jobs again.",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU as a cell: how it looks, what it is called, where it leads."""

    device: Device
    look: str
    mark: str
    name: str
    url: str
    mine: bool = False

    @property
    def percent(self) -> int:
        return self.device.used_millis // 10


@dataclass(slots=True)
class Tile:
    """One node with its cells and the jobs on it that the reader may know of."""

    node: Node
    label: labels.Label
    cells: list[Cell]
    jobs: list[Any] = field(default_factory=list)
    others: int = 0

    @property
    def off(self) -> bool:
        return not self.node.schedulable


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    group_by = request.GET.get("by", "rack")
    group_by = group_by if group_by in ("rack", "partition", "state") else "rack"
    view = "table" if request.GET.get("view") == "table" else "map"
    tiles = [tile_of(on_map, user) for on_map in cluster_map(user)]
    supply = reads.gpu_supply()
    context = {
        "groups": _groups(tiles, group_by),
        "tiles": tiles,
        "group_by": group_by,
        "view": view,
        "states": Counter(tile.label.word for tile in tiles).most_common(),
        "supply": supply,
        "finding": finding(tiles, supply),
        "live_url": f"{reverse('cluster')}?partial=1&by={group_by}&view={view}",
    }
    template = "scheduler/cluster_body.html" if "partial" in request.GET else "scheduler/cluster.html"
    return render(request, template, context)


def finding(tiles: list[Tile], supply: list[reads.GpuSupply]) -> str:
    """The map's title: what it shows, in one sentence."""
    if not tiles:
        return "No node has joined yet"
    up = sum(1 for tile in tiles if tile.node.schedulable)
    nodes = f"{up} of {len(tiles)} nodes schedulable"
    total = sum(gpu.total for gpu in supply) // 1000
    if not total:
        return nodes
    free = sum(gpu.free for gpu in supply) // 1000
    return f"{nodes}; {free} of {total} GPUs are free"


def _groups(tiles: list[Tile], by: str) -> list[tuple[str, list[Tile]]]:
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        if by == "partition":
            names = [partition.name for partition in tile.node.partitions.all()] or ["In no partition"]
        elif by == "state":
            names = [tile.label.word]
        else:
            names = [" / ".join(filter(None, (tile.node.zone, tile.node.rack))) or UNNAMED]
        for name in names:
            groups.setdefault(name, []).append(tile)
    if by == "rack" and len(groups) == 1:
        return [("Nodes" if name == UNNAMED else name, tiles) for name, tiles in groups.items()]
    return sorted(groups.items())


def tile_of(on_map: NodeOnMap, user: User) -> Tile:
    holders: dict[int, list[tuple[Allocation, bool]]] = {}
    tile = Tile(on_map.node, labels.node_label(on_map.node), [])
    seen = set()
    for allocation, shown in on_map.allocations:
        for device_id in allocation.device_ids:
            holders.setdefault(device_id, []).append((allocation, shown))
        job = allocation.attempt.job
        if job.pk in seen:
            continue
        seen.add(job.pk)
        if shown:
            tile.jobs.append(job)
        else:
            tile.others += 1
    for device in on_map.devices:
        tile.cells.append(_cell(on_map.node, device, holders.get(device.pk, []), user))
    return tile


def _cell(node: Node, device: Device, holders: list[tuple[Allocation, bool]], user: User) -> Cell:
    words = [node.name, f"GPU {device.index}", device.model or "GPU"]
    if device.fake:
        words.append("demo GPU, computes nothing")
    mark, url, mine = str(device.index), reverse("node", args=[node.pk]), False
    if not device.healthy:
        look, mark = "fault", "!"
        words.append("faulty")
    elif node.state != NodeState.UP:
        look = "off"
        words.append("node not responding")
    elif device.used_millis == 0:
        look = "free"
        words.append("free" if node.schedulable else "free, but the node accepts no new jobs")
    elif device.used_millis < device.share_millis:
        look = "part"
        words.append(f"{device.used_millis // 10} % allocated")
    elif device.utilisation_percent is not None and device.utilisation_percent < IDLE_PERCENT:
        look = "idle"
        words.append("in use but idle")
    else:
        look = "used"
        words.append("in use")
    for allocation, shown in holders:
        job = allocation.attempt.job
        if shown:
            words.append(f"job {job.said_number} {job.name} of {job.user.username}")
            url, mine = reverse("job", args=[job.number]), mine or job.user_id == user.pk
        else:
            words.append("a job of another project")
    if device.utilisation_percent is not None:
        words.append(f"{device.utilisation_percent} % busy")
    if device.temperature_c is not None:
        words.append(f"{device.temperature_c} °C")
    if device.trouble:
        words.append(device.trouble)
    return Cell(device, look, mark, ", ".join(words), url, mine)


@require_safe
@page
def show(request: HttpRequest, node_id: int) -> HttpResponse:
    user = reader(request)
    node = node_by_ref(user, node_id)
    held = (
        Allocation.objects.held()
        .filter(node=node)
        .select_related("attempt__job__user", "attempt__job__project", "attempt__job__queue")
    )
    visible = set(permissions.roles_of(user))
    everything = permissions.sees_everything(user)
    allocations = tuple(
        (allocation, everything or allocation.attempt.job.project_id in visible)
        for allocation in held.order_by("attempt_id", "rank")
    )
    devices = tuple(node.devices.all())
    tile = tile_of(NodeOnMap(node, devices, allocations), user)
    context = {
        "node": node,
        "tile": tile,
        "label": tile.label,
        "holdings": [
            (
                allocation,
                shown,
                [d for d in devices if d.pk in allocation.device_ids],
                ends_by(allocation),
                words_without_plan(allocation.attempt, node.drain_deadline_at),
            )
            for allocation, shown in allocations
        ],
        "jobs_left": len({allocation.attempt.job_id for allocation, _ in allocations}),
        "deadlines": DEADLINES,
        "empty_by": empty_by([ends_by(allocation) for allocation, _ in allocations]),
        "any_fake": any(device.fake for device in devices),
        "isolation": isolation_shown(node.isolation),
        "observed": observed(node),
        "clock": clock_words(node.clock_skew_ms) if node.registered_at else "unknown",
        "agent": agent_shown(node),
        "reservations": visible_reservations(user)
        .filter(Q(nodes=node) | Q(parts__node=node), cancelled_at=None, ends_at__gt=timezone.now(), job=None)
        .filter(status=ReservationStatus.APPROVED)
        .select_related("project")
        .distinct()
        .order_by("starts_at", "pk")[:MOST_RESERVATIONS],
        "may_operate": (operates := permissions.may(user, "operate", node)),
        # Whose they are is known by their agent alone: for operators.
        "unknown_tasks": list(node.unknown_tasks.all()) if operates and node.runs_unknown_tasks else [],
        "dialogs": [(verb, title.format(name=node.name), *rest) for verb, title, *rest in DIALOGS],
        "live_url": f"{reverse('node', args=[node.pk])}?partial=1",
    }
    template = "scheduler/node_body.html" if "partial" in request.GET else "scheduler/node.html"
    return render(request, template, context)


@dataclass(frozen=True, slots=True)
class AgentShown:
    """The agent of a node in words, and what to do about its version."""

    words: str
    advice: str = ""


def agent_shown(node: Node) -> AgentShown:
    """Version and protocol of a node's agent beside those of this server."""
    if not node.agent_version:
        return AgentShown("unknown")
    protocol = "" if node.agent_protocol is None else f", protocol {node.agent_protocol}"
    words = f"{node.agent_version}{protocol}"
    if node.agent_version == VERSION and node.agent_protocol in (None, PROTOCOL):
        return AgentShown(words)
    return AgentShown(
        words,
        f"The server has {VERSION}, protocol {PROTOCOL}. Upgrade the agent; its jobs continue.",
    )


def ends_by(allocation: Allocation) -> datetime | None:
    """When its time limit ends it at the latest; None without one, and while it is suspended.

    Suspended time does not count.
    """
    attempt = allocation.attempt
    limit = attempt.job.time_limit_seconds or attempt.job.queue.max_wall_seconds
    if not limit or attempt.suspended_at is not None:
        return None
    begin = attempt.started_at or allocation.held_at
    return begin + timedelta(seconds=limit, milliseconds=attempt.suspended_ms)


def clock_words(skew_ms: int) -> str:
    """How the clock of a node differs from the server's, of which it is `skew_ms` ahead."""
    if not skew_ms:
        return "in sync"
    apart = f"{abs(skew_ms):,} ms" if abs(skew_ms) < 1000 else f"{abs(skew_ms) / 1000:,.1f} s"
    return f"{apart} {'ahead of' if skew_ms > 0 else 'behind'} the server"


def empty_by(ends: Sequence[datetime | None]) -> datetime | None:
    """When the last of them has ended at the latest; None if nobody can say."""
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


@require_POST
@page
def act(request: HttpRequest, node_id: int, verb: str) -> HttpResponse:
    if verb not in (*DONE, "drain"):
        raise Http404
    user = reader(request)
    node = node_by_ref(user, node_id)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    if verb == "uncordon":
        uncordon_node(node=node, by=user)
    elif verb == "drain":
        asked = read_drain_of({"deadline": request.POST.get("deadline", ""), "reason": reason}, node)
        drain_node(node=node, by=user, reason=reason, deadline=asked.deadline)
        messages.success(request, said_of_drain(node))
        return redirect("node", node_id=node.pk)
    else:
        cordon_node(node=node, by=user, reason=reason)
    messages.success(request, DONE[verb].format(name=node.name))
    return redirect("node", node_id=node.pk)
