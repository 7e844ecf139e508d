"""Where a script's job runs: its queue, features that nodes have, and nodes by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, F, Q, QuerySet

from accounts.models import User
from quotas.core.gpu_models import suits
from scheduler.core.snapshot.constraints import NODE_NAME
from scheduler.models import Device, Node, Partition, Queue
from scheduler.selectors import visible_queues
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_placement import MAX_TERMS
from scheduler.services.submission.sbatch.directives import Directives, NotSupported

_FEATURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,250}(?:=[A-Za-z0-9._-]{1,250})?")
#: Of a list of names in a message.
_MOST_SHOWN: Final = 20


# ---------------------------------------------------------------- features


def feature_terms(value: str) -> list[list[str]]:
    """Alternatives of `ib&(a100|h100)`, each a list of features that a node has to have together."""
    if re.search(r"[\[\]*]", value):
        raise NotSupported(
            f"{value[:60]!r}: counts of nodes with a feature do not exist here; join features with & and |"
        )
    marks = re.findall(r"[&,|()]|[^&,|()]+", value)
    terms, rest = _either(marks, value)
    if rest:
        raise BadValue(_unreadable(value))
    return terms


def _unreadable(value: str) -> str:
    return f"{value[:60]!r} cannot be read; write features joined by & or |, with parentheses if needed"


def _either(marks: Sequence[str], value: str, depth: int = 0) -> tuple[list[list[str]], Sequence[str]]:
    terms, marks = _all_of(marks, value, depth)
    while marks and marks[0] == "|":
        more, marks = _all_of(marks[1:], value, depth)
        terms = terms + more
    if len(terms) > MAX_TERMS:
        raise BadValue(f"{value[:60]!r} has more than {MAX_TERMS} alternatives")
    return terms, marks


def _all_of(marks: Sequence[str], value: str, depth: int) -> tuple[list[list[str]], Sequence[str]]:
    terms, marks = _one(marks, value, depth)
    while marks and marks[0] in "&,":
        more, marks = _one(marks[1:], value, depth)
        terms = [[*one, *other] for one in terms for other in more]
        if len(terms) > MAX_TERMS or any(len(term) > MAX_TERMS for term in terms):
            raise BadValue(f"{value[:60]!r} has more than {MAX_TERMS} alternatives or features in one")
    return terms, marks


def _one(marks: Sequence[str], value: str, depth: int) -> tuple[list[list[str]], Sequence[str]]:
    if not marks or depth > MAX_TERMS:
        raise BadValue(_unreadable(value))
    if marks[0] == "(":
        terms, rest = _either(marks[1:], value, depth + 1)
        if not rest or rest[0] != ")":
            raise BadValue(_unreadable(value))
        return terms, rest[1:]
    if not _FEATURE.fullmatch(marks[0].strip()):
        raise BadValue(_unreadable(value))
    return [[marks[0].strip()]], marks[1:]


def _requirement(feature: str) -> dict[str, Any]:
    key, equals, value = feature.partition("=")
    if equals:
        return {"key": key, "operator": "In", "values": [value]}
    return {"key": key, "operator": "Exists"}


def fill_affinity(found: Directives) -> None:
    """The field `affinity`: features are labels that nodes have, and nodes are named by `@node`."""
    names = []
    if found.places.nodelist:
        names.append({"key": NODE_NAME, "operator": "In", "values": found.places.nodelist})
    if found.places.excluded:
        names.append({"key": NODE_NAME, "operator": "NotIn", "values": found.places.excluded})
    terms = [[_requirement(feature) for feature in term] for term in found.places.features] or [[]]
    required = [term + names for term in terms if term + names]
    affinity: dict[str, Any] = {"required": required} if required else {}
    if found.places.preferred:
        affinity["preferred"] = [
            {"weight": 50, "requirements": [_requirement(feature) for feature in term]}
            for term in found.places.preferred
        ]
    if affinity:
        found.fill("affinity", affinity)


# ---------------------------------------------------------------- the queue, and its nodes


def find_queue(found: Directives, by: User | None) -> list[Queue]:
    """The queues that `--partition` names, in order: queues, or those that feed a partition; [] where it is not given.

    Others' queues are no names here. A name that nothing has is a problem.
    """
    queues = Queue.objects.filter(project__isnull=True) if by is None else visible_queues(by)
    return [queue for name in found.places.partitions if (queue := _called(found, queues, name)) is not None]


def _called(found: Directives, queues: QuerySet[Queue], wanted: str) -> Queue | None:
    queue = queues.filter(Q(slug=wanted) | Q(name=wanted)).first()
    if queue is None and wanted:
        feeding = queues.filter(partitions__name=wanted).order_by(
            F("project").asc(nulls_first=True), "-is_default", "-priority", "pk"
        )
        queue = feeding.first()
    if queue is None:
        known = sorted(
            {
                *queues.order_by().values_list("slug", flat=True),
                *Partition.objects.filter(queues__in=queues.order_by()).values_list("name", flat=True),
            }
        )
        there = f"there are {', '.join(known[:_MOST_SHOWN])}." if known else "there is none that you may use."
        found.wrong("partition", f"there is no queue or partition {wanted[:60]!r}; {there}", "not-found")
    return queue


@dataclass(frozen=True, slots=True)
class Machine:
    """A node that a script's job may run on, with what its jobs may have, and its GPUs of the model asked for."""

    name: str
    labels: dict[str, str]
    cpus: int
    memory_mib: int
    gpus: int = 0


def machines_of(found: Directives, queue: Queue, *, whole_cluster: bool = False) -> list[Machine]:
    """The nodes of a queue, or of its cluster, that have the names, features and GPUs that the script asks for."""
    model = str(found.fields.get("gpu_type", ""))
    devices: Counter[str] = Counter()
    if model or found.fields.get("gpu_count"):
        kinds = Device.objects.filter(node__cluster=queue.cluster_id, kind="gpu", gone=False).order_by()
        for name, of_device, number in kinds.values_list("node__name", "model").annotate(number=Count("pk")):
            devices[name] += number if suits(model, of_device) else 0
    nodes = Node.objects.filter(cluster=queue.cluster_id)
    if not whole_cluster and queue.partitions.exists():
        nodes = nodes.filter(partitions__queues=queue).distinct()
    rows = nodes.values_list("name", "labels", "cpu_millis_capacity", "memory_mib_capacity")
    least = int(found.fields.get("gpu_count", 0))
    return [
        machine
        for name, labels, cpu_millis, memory_mib in rows
        if (machine := Machine(name, labels, cpu_millis // 1000, memory_mib, devices[name])).gpus >= least
        and name not in found.places.excluded
        and _suits(found, name, labels)
    ]


def check_names(found: Directives, queue: Queue) -> None:
    """Refuse names and features that no node of the cluster has: with a misspelt one the job would stay pending."""
    places = found.places
    if not (places.nodelist or places.excluded or places.features or places.preferred):
        return
    everywhere = dict(Node.objects.filter(cluster=queue.cluster_id).values_list("name", "labels"))
    for option, names in (("nodelist", places.nodelist), ("exclude", places.excluded)):
        lost = next((name for name in names if name not in everywhere), None)
        if lost is not None:
            found.wrong(
                option, f"--{option}: there is no node {lost[:60]!r}{_some(everywhere)}.", "not-found"
            )
    known = list(everywhere.values())
    for option, terms in (("constraint", places.features), ("prefer", places.preferred)):
        features = dict.fromkeys(feature for term in terms for feature in term)
        for feature in features:
            if not any(_has(labels, feature) for labels in known):
                _no_feature(found, option, feature, known)


def _no_feature(found: Directives, option: str, feature: str, known: list[dict[str, str]]) -> None:
    there = _some({key for labels in known for key in labels})
    found.wrong(
        option,
        f"--{option}: no node has the feature {feature[:60]!r}; features are labels of nodes{there}.",
        "not-found",
    )


def lacking(found: Directives, queue: Queue, machines: Sequence[Machine]) -> tuple[str, str]:
    """The option that leaves too few nodes of a queue, and the sentence; two empty texts where enough are left."""
    needed = found.shape.nodes or 1
    narrows = [name for name in ("constraint", "nodelist", "exclude") if name in found.said]
    names = {machine.name for machine in machines}
    missing = [name for name in found.places.nodelist if name not in names]
    if missing:
        return "nodelist", (
            f"--nodelist: {missing[0]} is excluded, or is no node of queue {queue.slug} with what is requested."
        )
    enough = len(machines) >= (needed if narrows else 1)
    if enough or (not narrows and _is_nowhere(found, queue)):
        return "", ""
    gpus = [name for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task") if name in found.said]
    option = [*narrows, *gpus, "nodes"][0]
    many = "nodes" if len(machines) != 1 else "node"
    return option, (
        f"--{option}: {len(machines) or 'no'} {many} of queue {queue.slug} can have what is requested, and the job "
        f"needs {needed}. Request less, or use another queue."
    )


def _is_nowhere(found: Directives, queue: Queue) -> bool:
    """Whether no node of the cluster has the GPUs: such a job is refused with numbers, as at every door."""
    return "gpu_count" not in found.fields or not machines_of(found, queue, whole_cluster=True)


def _suits(found: Directives, name: str, labels: dict[str, str]) -> bool:
    named = not found.places.nodelist or name in found.places.nodelist
    terms = found.places.features
    return named and (not terms or any(all(_has(labels, feature) for feature in term) for term in terms))


def _has(labels: dict[str, str], feature: str) -> bool:
    key, equals, value = feature.partition("=")
    return key in labels and (not equals or labels[key] == value)


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)[:_MOST_SHOWN]
    return f"; there are {', '.join(shown)}" if shown else "; there is none"


def fit_nodelist(found: Directives) -> None:
    """`--nodelist` names nodes that the job is to have all of; a job that may add others does not exist here."""
    names = len(found.places.nodelist)
    if not names:
        return
    if found.shape.nodes is not None and found.shape.nodes < names:
        found.wrong("nodelist", f"--nodelist: names {names} nodes, but --nodes requests {found.shape.nodes}.")
    elif found.shape.nodes is not None and found.shape.nodes > names:
        found.wrong(
            "nodelist",
            f"--nodelist: names {names} of {found.shape.nodes} nodes; named nodes and others together do not exist "
            "here. Name all of them, or lower --nodes.",
            "not-supported",
        )
    else:
        found.shape.nodes = names
