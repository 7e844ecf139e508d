"""Terms: what a reservation is asked for with, read from a payload, and as a request stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from accounts.models import Project, User
from accounts.selectors import project_by_ref
from infra.errors import NotFound
from quotas.core.resources import cores_to_millis, parse_mib
from scheduler.models import Cluster, Node, Partition
from scheduler.selectors import visible_partitions
from scheduler.services.submission.fields import Inputs, read_moment, read_seconds
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE

MAX_NODES: Final = 5000
MAX_PEOPLE: Final = 200
MAX_LABELS: Final = 20
#: A window longer than this is a change of partitions, not a booking.
MAX_WINDOW_SECONDS: Final = 366 * 86_400

#: What is reserved of the cluster; the first three amounts are of each node.
AMOUNTS: Final = (
    "cpus_per_node", "memory_per_node", "gpus_per_node", "nodes", "node_count", "partition", "labels", "gpu_type",
    "cluster",
)  # fmt: skip
FIELDS: Final = (
    *AMOUNTS, "name", "project", "users", "magnetic", "starts_at", "ends_at", "seconds", "reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReservationAmounts:
    """What is to be reserved: whole nodes, or with amounts a part of each node."""

    cluster: Cluster
    nodes: tuple[Node, ...] = ()  # these nodes; () = `node_count` of those that suit
    node_count: int = 0
    partition: Partition | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_type: str = ""
    cpu_millis: int = 0
    memory_mib: int = 0
    gpus: int = 0

    @property
    def in_parts(self) -> bool:
        return bool(self.cpu_millis or self.memory_mib or self.gpus)


@dataclass(frozen=True, slots=True)
class Terms:
    """A reservation as it is asked for."""

    wanted: ReservationAmounts
    name: str
    starts_at: datetime
    ends_at: datetime
    reason: str
    project: Project | None
    users: tuple[User, ...]
    magnetic: bool
    #: The fields of `AMOUNTS` as they were sent.
    stored: Mapping[str, Any]


def read_terms(
    payload: Mapping[str, Any], *, by: User, refusal: str = "The reservation cannot be made"
) -> Terms:
    """The terms of a payload; raises InvalidInput naming every problem."""
    inputs = Inputs(payload)
    inputs.refuse_unknown(FIELDS, called_elsewhere=CALLED_ELSEWHERE | _ELSEWHERE)
    starts_at, ends_at = read_window(inputs)
    name = inputs.text("name", most=120) or "reservation"
    reason = inputs.text("reason", most=200)
    project, users = _project(inputs, by), _users(inputs)
    wanted = _wanted(inputs, by)
    magnetic = inputs.flag("magnetic", default=wanted is None or not wanted.in_parts)
    if magnetic and wanted is not None and wanted.in_parts:
        inputs.wrong(
            "magnetic",
            "Jobs use parts of nodes only when they name the reservation; leave magnetic out, or reserve whole nodes.",
            code="inconsistent",
        )
    inputs.finish(refusal)
    assert ends_at is not None
    assert wanted is not None
    stored = {name: payload[name] for name in AMOUNTS if inputs.given(name) is not None}
    return Terms(wanted, name, starts_at, ends_at, reason, project, users, magnetic, stored)


#: Words of scontrol for the same, and what it knows that is not here.
_ELSEWHERE: Final = {
    "nodecnt": "node_count", "accounts": "project", "starttime": "starts_at", "endtime": "ends_at",
    "duration": "seconds", "partitionname": "partition", "features": "labels", "reservationname": "name",
}  # fmt: skip


def read_window(inputs: Inputs) -> tuple[datetime, datetime | None]:
    """The window; its end is None where a problem was kept."""
    now = timezone.now()
    starts_at: datetime = inputs.read("starts_at", read_moment, default=now)
    seconds = inputs.read("seconds", read_seconds)
    ends_at = inputs.read("ends_at", read_moment) or (
        starts_at + timedelta(seconds=seconds) if seconds else None
    )
    if ends_at is None and not inputs.problems:
        inputs.wrong("ends_at", "Required, or seconds: how long the nodes are reserved.", code="required")
    elif ends_at is not None and ends_at <= max(starts_at, now):
        inputs.wrong("ends_at", "Must be after the start, and in the future.", code="inconsistent")
    elif ends_at is not None and (ends_at - starts_at).total_seconds() > MAX_WINDOW_SECONDS:
        inputs.wrong("ends_at", "Is more than a year after the start.", code="out-of-range")
    return starts_at, ends_at


def _wanted(inputs: Inputs, by: User) -> ReservationAmounts | None:
    nodes, cluster = named_nodes(inputs, needed=False), _cluster(inputs)
    count = inputs.integer("node_count", least=1, most=MAX_NODES) or 0
    if nodes and count:
        inputs.wrong("node_count", "Give nodes or node_count, one of the two.", code="one-of")
    if not nodes and not count and not inputs.problems:
        inputs.wrong("nodes", "Required: a list of node names or ids, or node_count.", code="required")
    cpu = inputs.read("cpus_per_node", cores_to_millis, default=0)
    memory = inputs.read("memory_per_node", parse_mib, default=0)
    gpus = inputs.integer("gpus_per_node", least=0, most=1000) or 0
    labels = {str(key): str(value) for key, value in inputs.mapping("labels", most=MAX_LABELS).items()}
    gpu_type = inputs.text("gpu_type", most=80)
    cluster = nodes[0].cluster if nodes else cluster or _only_cluster(inputs)
    partition = _partition(inputs, cluster, by)
    _refuse_narrowing(inputs, bool(nodes))
    if inputs.problems or cluster is None:
        return None
    return ReservationAmounts(cluster, tuple(nodes), count, partition, labels, gpu_type, cpu, memory, gpus)


def _refuse_narrowing(inputs: Inputs, has_names: bool) -> None:
    """What chooses among nodes does nothing beside their names."""
    for name in ("partition", "labels") if has_names else ():
        if inputs.given(name) is not None:
            inputs.wrong(name, "Chooses among nodes; leave it out with nodes.", code="inconsistent")


def _project(inputs: Inputs, by: User) -> Project | None:
    value = inputs.given("project")
    if value is None:
        return None
    try:
        return project_by_ref(by, str(value)[:120])
    except NotFound:
        inputs.wrong("project", f"There is no project {str(value)[:60]!r}.", code="not-found")
        return None


def _users(inputs: Inputs) -> tuple[User, ...]:
    names = [str(item)[:150] for item in inputs.listing("users", most=MAX_PEOPLE) if isinstance(item, str)]
    found = {user.username: user for user in User.objects.filter(username__in=names, is_active=True)}
    for number, name in enumerate(names):
        if name not in found:
            inputs.wrong(f"users/{number}", f"There is no user {name[:60]!r}.", code="not-found")
    return tuple(found[name] for name in names if name in found)


def named_nodes(inputs: Inputs, *, needed: bool = True) -> list[Node]:
    """The nodes that the names or ids of a payload mean."""
    wanted = [
        str(item)[:120] for item in inputs.listing("nodes", most=MAX_NODES) if isinstance(item, (str, int))
    ]
    if not wanted:
        if needed and not inputs.problems:
            inputs.wrong("nodes", "Required: a list of node names or ids.", code="required")
        return []
    cluster = _cluster(inputs)
    ids = [int(text) for text in wanted if text.isascii() and text.isdecimal() and len(text) < 19]
    rows = Node.objects.filter(name__in=wanted) | Node.objects.filter(pk__in=ids)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    nodes = list(rows.select_related("cluster").order_by("pk"))
    known = {node.name for node in nodes} | {str(node.pk) for node in nodes}
    for number, text in enumerate(wanted):
        if text not in known:
            inputs.wrong(f"nodes/{number}", f"There is no node {text[:60]!r}.", code="not-found")
    if len({node.cluster_id for node in nodes}) > 1:
        inputs.wrong(
            "nodes", "Belong to several clusters; make one reservation for each.", code="inconsistent"
        )
    return nodes


def _cluster(inputs: Inputs) -> Cluster | None:
    value = inputs.given("cluster")
    if value is None:
        return None
    cluster = Cluster.objects.filter(slug=str(value)[:80]).first() if "\x00" not in str(value) else None
    if cluster is None and not any(problem.field.endswith("cluster") for problem in inputs.problems):
        inputs.wrong("cluster", f"There is no cluster {str(value)[:60]!r}.", code="not-found")
    return cluster


def _only_cluster(inputs: Inputs) -> Cluster | None:
    found = list(Cluster.objects.order_by("pk")[:2])
    if len(found) == 1:
        return found[0]
    if not inputs.problems:
        inputs.wrong("cluster", "Required: this site has several clusters.", code="required")
    return None


def _partition(inputs: Inputs, cluster: Cluster | None, by: User) -> Partition | None:
    """A partition that the person may know of."""
    name = inputs.text("partition", most=120)
    if not name or cluster is None:
        return None
    found = visible_partitions(by).filter(cluster=cluster, name=name).first()
    if found is None:
        inputs.wrong(
            "partition", f"There is no partition {name[:60]!r} in cluster {cluster.slug}.", code="not-found"
        )
    return found
