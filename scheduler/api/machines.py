"""Nodes, GPUs and how they hang together."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.filters import FilterSet
from infra.api.rest import NewestFirst, both_ways
from quotas.core.gpu_models import slice_of
from quotas.core.resources import MIB
from scheduler.api.base import ApiView, once, person, reason_of
from scheduler.api.filters import FlagFilter, filtered
from scheduler.api.jobs import ReasonBodySerializer
from scheduler.api.serializers import moment
from scheduler.core.lifecycle import NodeState
from scheduler.models import Device, Node, NodeScore
from scheduler.selectors import cluster_map, node_by_ref, nodes_with_devices, visible_partitions
from scheduler.services.cluster import nodes as services
from scheduler.services.cluster.isolation import HOLDS, NONE, PARTIAL, STRICT, level_of


class ObservedSerializer(serializers.Serializer[Any]):
    reliability = serializers.IntegerField(
        allow_null=True, help_text="0 to 100, from attempts that ended on the node lately; null: unknown."
    )
    performance = serializers.IntegerField(
        allow_null=True, help_text="0 to 100; 50: as fast as other nodes of its type; null: unknown."
    )
    attempts = serializers.IntegerField(help_text="Attempts that ended here, the base of `reliability`.")
    failed_starts = serializers.IntegerField(help_text="Attempts that the node could not start.")
    lost = serializers.IntegerField(help_text="Attempts lost with the node.")
    infrastructure = serializers.IntegerField(
        help_text="Attempts that the agent or its supervisor process ended."
    )
    succeeded_elsewhere = serializers.IntegerField(
        help_text="Attempts whose own processes failed here, and whose job succeeded on another node."
    )
    outages = serializers.IntegerField(help_text="Times that the node counted as lost while in service.")
    speed_percent = serializers.IntegerField(
        allow_null=True, help_text="Speed of comparable jobs here, in percent of that on other nodes."
    )
    compared_runs = serializers.IntegerField(help_text="The base of `performance`.")
    updated_at = serializers.DateTimeField()


class AmountSerializer(serializers.Serializer[Any]):
    total = serializers.FloatField()
    used = serializers.FloatField()
    free = serializers.FloatField()


class SizedAmountSerializer(AmountSerializer):
    size = serializers.FloatField(
        help_text="Physical amount; `total` is allocatable, which is more where the node is overcommitted. "
        "One task gets at most this amount."
    )


class GpuSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    node = serializers.CharField()
    node_id = serializers.IntegerField()
    index = serializers.IntegerField()
    uuid = serializers.CharField()
    gpu_type = serializers.CharField()
    slice = serializers.CharField(help_text="The GPU slice, such as 1g.10gb; empty: a whole GPU.")
    memory_bytes = serializers.IntegerField()
    numa_domain = serializers.IntegerField()
    state = serializers.ChoiceField(["free", "shared", "allocated", "unhealthy", "unavailable"])
    used_share = serializers.FloatField()
    fake = serializers.BooleanField(help_text="Simulated by a demo node: computes nothing.")
    utilisation_percent = serializers.IntegerField(allow_null=True)
    memory_used_bytes = serializers.IntegerField(allow_null=True)
    temperature_c = serializers.IntegerField(allow_null=True)
    power_watts = serializers.IntegerField(allow_null=True)
    trouble = serializers.CharField(help_text="Why the GPU is unhealthy, or another fault; else empty.")
    jobs = serializers.ListField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Jobs that use the GPU, if you may see them.",
    )


class IsolationSerializer(serializers.Serializer[Any]):
    level = serializers.ChoiceField([STRICT, PARTIAL, NONE], help_text="strict: all of the following hold")
    files = serializers.BooleanField(help_text=HOLDS["files"])
    people = serializers.BooleanField(help_text=HOLDS["people"])
    processes = serializers.BooleanField(help_text=HOLDS["processes"])
    amounts = serializers.BooleanField(help_text=HOLDS["amounts"])
    disk = serializers.BooleanField(
        help_text="The kernel bounds what a job fills of the disk, by project quotas; false: it is measured. "
        "Not part of the level."
    )
    secrets_in_memory = serializers.BooleanField(
        allow_null=True,
        help_text="Secret files are in memory; false: on the disk while a job runs; null: the agent does not say it.",
    )
    means = serializers.ListField(child=serializers.CharField(), help_text="Means of isolation.")
    missing = serializers.ListField(
        child=serializers.CharField(), help_text="Missing means of isolation, and why."
    )


class NodeSerializer(serializers.Serializer[Any]):
    """A node: capacity, usage, and whether it accepts jobs."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    cluster = serializers.CharField()
    state = serializers.ChoiceField([s.value for s in NodeState])
    cordoned = serializers.BooleanField()
    draining = serializers.BooleanField()
    drain_reason = serializers.CharField()
    drained_by = serializers.CharField()
    drained_at = serializers.DateTimeField(allow_null=True)
    drain_deadline_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When jobs that still run are requeued; null: running jobs continue to their end.",
    )
    schedulable = serializers.BooleanField()
    trouble = serializers.CharField()
    partitions = serializers.ListField(child=serializers.CharField())
    labels = serializers.DictField()
    taints = serializers.ListField(child=serializers.DictField())
    rack = serializers.CharField()
    zone = serializers.CharField()
    region = serializers.CharField()
    numa_domains = serializers.IntegerField()
    cpu_cores = SizedAmountSerializer()
    memory_bytes = SizedAmountSerializer()
    storage_bytes = AmountSerializer()
    gpu_count = AmountSerializer()
    gpus = GpuSerializer(many=True)
    extras = serializers.DictField()
    agent_version = serializers.CharField()
    agent_protocol = serializers.IntegerField(
        allow_null=True, help_text="Version of the messages that its agent sends; null before the first."
    )
    isolation = IsolationSerializer()
    observed = ObservedSerializer(allow_null=True, help_text="Scores from past jobs; null: none yet.")
    last_seen_at = serializers.DateTimeField(allow_null=True)
    generation = serializers.IntegerField()

    def to_representation(self, node: Node) -> dict[str, Any]:
        devices = list(node.devices.all())
        return {
            "id": node.pk,
            "name": node.name,
            "cluster": node.cluster.slug,
            "state": str(node.state),
            "cordoned": node.cordoned,
            "draining": node.draining,
            "drain_reason": node.drain_reason,
            "drained_by": node.drained_by,
            "drained_at": moment(node.drained_at),
            "drain_deadline_at": moment(node.drain_deadline_at),
            "schedulable": node.schedulable,
            "trouble": node.trouble,
            "partitions": [partition.name for partition in node.partitions.all()],
            "labels": node.labels,
            "taints": node.taints,
            "rack": node.rack,
            "zone": node.zone,
            "region": node.region,
            "numa_domains": node.numa_domains,
            "cpu_cores": amount(node.cpu_millis_capacity / 1000, node.used_cpu_millis / 1000)
            | {"size": node.cpu_millis / 1000},
            "memory_bytes": amount(node.memory_mib_capacity * MIB, node.used_memory_mib * MIB)
            | {"size": node.memory_mib * MIB},
            "storage_bytes": amount(node.storage_mib * MIB, node.used_storage_mib * MIB),
            "gpu_count": amount(
                sum(device.share_millis for device in devices) / 1000,
                sum(device.used_millis for device in devices) / 1000,
            ),
            "gpus": [gpu_of(device, node) for device in devices],
            "extras": node.extras,
            "agent_version": node.agent_version,
            "agent_protocol": node.agent_protocol,
            "isolation": isolation_of(node),
            "observed": observed_of(node),
            "last_seen_at": moment(node.last_seen_at),
            "generation": node.generation,
        }


#: Fields of a score that are answered as they are.
_OBSERVED: Final = tuple(str(name) for name in ObservedSerializer._declared_fields if name != "updated_at")


def observed_of(node: Node) -> dict[str, Any] | None:
    """The scores of a node from what ended there, and the counts that they are from."""
    score: NodeScore | None = getattr(node, "score", None)
    if score is None:
        return None
    return {name: getattr(score, name) for name in _OBSERVED} | {"updated_at": moment(score.updated_at)}


def isolation_of(node: Node) -> dict[str, Any]:
    facts = {name: bool(node.isolation.get(name)) for name in HOLDS}
    means, missing = node.isolation.get("means", []), node.isolation.get("missing", [])
    return {
        "level": level_of(node.isolation),
        **facts,
        "disk": bool(node.isolation.get("disk")),
        "secrets_in_memory": node.isolation.get("secrets_in_memory"),
        "means": means,
        "missing": missing,
    }


def amount(total: float, used: float) -> dict[str, float]:
    return {"total": total, "used": used, "free": total - used}


def gpu_of(device: Device, node: Node, jobs: list[int] | None = None) -> dict[str, Any]:
    gpu = {
        "id": device.pk,
        "node": node.name,
        "node_id": node.pk,
        "index": device.index,
        "uuid": device.uuid,
        "gpu_type": device.model,
        "slice": slice_of(device.model),
        "memory_bytes": device.memory_mib * MIB,
        "numa_domain": device.numa_domain,
        "state": gpu_state(device, node),
        "used_share": device.used_millis / 1000,
        "fake": device.fake,
        "utilisation_percent": device.utilisation_percent,
        "memory_used_bytes": None if device.memory_used_mib is None else device.memory_used_mib * MIB,
        "temperature_c": device.temperature_c,
        "power_watts": device.power_watts,
        "trouble": device.trouble,
    }
    return gpu if jobs is None else {**gpu, "jobs": jobs}


def gpu_state(device: Device, node: Node) -> str:
    if not device.healthy:
        return "unhealthy"
    if device.used_millis >= device.share_millis:
        return "allocated"
    if device.used_millis:
        return "shared"
    return "free" if node.schedulable else "unavailable"


class NodeFilter(FilterSet):
    state = django_filters.ChoiceFilter(choices=[(s.value, s.value) for s in NodeState])
    cordoned = FlagFilter()
    draining = FlagFilter()
    cluster = django_filters.CharFilter(field_name="cluster__slug")
    partition = django_filters.CharFilter(method="by_partition")
    gpu_type = django_filters.CharFilter(field_name="devices__model", lookup_expr="iexact", distinct=True)
    name = django_filters.CharFilter(lookup_expr="icontains")
    schedulable = FlagFilter(method="by_schedulable")

    class Meta:
        model = Node
        fields: list[str] = []

    def by_partition(self, nodes: QuerySet[Node], name: str, value: str) -> QuerySet[Node]:
        seen = visible_partitions(person(self.request)).filter(name=value).order_by()
        return nodes.filter(partitions__in=seen.values("pk")).distinct()

    def by_schedulable(self, nodes: QuerySet[Node], name: str, value: bool) -> QuerySet[Node]:
        able = Node.objects.schedulable().values("pk")
        return nodes.filter(pk__in=able) if value else nodes.exclude(pk__in=able)


class Nodes(ApiView):
    """`/nodes`"""

    queryset = Node.objects.none()
    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    pagination_class = NewestFirst
    page_ordering = ("pk",)
    orderings = both_ways(name="name")
    counted = True
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["nodes"]

    @extend_schema(operation_id="nodes_list", responses=NodeSerializer(many=True), filters=True)
    def get(self, request: Request) -> Response:
        """Every node."""
        page = self.paginate_queryset(filtered(NodeFilter, request, nodes_with_devices(person(request))))
        return self.get_paginated_response(NodeSerializer(page, many=True).data)


class NodeDetail(ApiView):
    """`/nodes/{id}`"""

    queryset = Node.objects.none()
    serializer_class = NodeSerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["nodes"]

    @extend_schema(operation_id="nodes_get", responses=NodeSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """One node, by name or id."""
        return Response(NodeSerializer(node_by_ref(person(request), ref)).data)


class NodeVerb(ApiView):
    """`/nodes/{id}/cordon`, `/uncordon`"""

    queryset = Node.objects.none()
    serializer_class = NodeSerializer
    required_scopes = {"POST": "nodes:write"}
    schema_tags = ["nodes"]

    @extend_schema(parameters=[KEY], request=ReasonBodySerializer, responses=NodeSerializer)
    @once
    def post(self, request: Request, ref: str) -> Response:
        node, reason = node_by_ref(person(request), ref), reason_of(request)
        self.do(node, request, reason)
        return Response(NodeSerializer(node_by_ref(person(request), node.pk)).data)

    def do(self, node: Node, request: Request, reason: str) -> None:
        services.cordon_node(node=node, by=person(request), reason=reason)


class CordonNode(NodeVerb):
    """Cordon a node: no new jobs; running jobs continue."""


class UncordonNode(NodeVerb):
    """Uncordon a node: jobs can start again."""

    def do(self, node: Node, request: Request, reason: str) -> None:
        services.uncordon_node(node=node, by=person(request), reason=reason)


class GpuListSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField()
    free = serializers.IntegerField()
    by_type = serializers.DictField(help_text="total and free of each type")
    gpus = GpuSerializer(many=True)


class Gpus(ApiView):
    """`/gpus`"""

    serializer_class = GpuListSerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["nodes"]

    @extend_schema(operation_id="gpus_list", responses=GpuListSerializer)
    def get(self, request: Request) -> Response:
        """Every GPU with its jobs, and the number of free GPUs."""
        gpus: list[dict[str, Any]] = []
        for item in cluster_map(person(request)):
            holders: dict[int, list[int]] = defaultdict(list)
            for allocation, shown in item.allocations:
                for device_id in allocation.device_ids if shown else ():
                    holders[device_id].append(allocation.attempt.job_id)
            gpus += [
                gpu_of(device, item.node, holders[device.pk])
                for device in item.devices
                if device.kind == "gpu"
            ]
        types: dict[str, dict[str, int]] = defaultdict(lambda: {"total": 0, "free": 0})
        for gpu in gpus:
            types[gpu["gpu_type"]]["total"] += 1
            types[gpu["gpu_type"]]["free"] += gpu["state"] == "free"
        free = sum(1 for gpu in gpus if gpu["state"] == "free")
        return Response(
            {"total": len(gpus), "free": free, "by_type": dict(sorted(types.items())), "gpus": gpus}
        )


class TopologySerializer(serializers.Serializer[Any]):
    clusters = serializers.ListField(
        child=serializers.DictField(), help_text="cluster > zones > racks > nodes > numa > gpus"
    )


class Topology(ApiView):
    """`/topology`"""

    serializer_class = TopologySerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["nodes"]

    @extend_schema(operation_id="topology", responses=TopologySerializer)
    def get(self, request: Request) -> Response:
        """Clusters, zones, racks, nodes, NUMA domains and GPUs as a tree."""
        tree: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
        for node in nodes_with_devices(person(request)).order_by("cluster_id", "zone", "rack", "name"):
            racks = tree.setdefault(node.cluster.slug, {}).setdefault(node.zone, {})
            racks.setdefault(node.rack, []).append(_branch(node))
        return Response(
            {
                "clusters": [
                    {
                        "cluster": cluster,
                        "zones": [
                            {
                                "zone": zone,
                                "racks": [{"rack": rack, "nodes": nodes} for rack, nodes in racks.items()],
                            }
                            for zone, racks in zones.items()
                        ],
                    }
                    for cluster, zones in tree.items()
                ]
            }
        )


def _branch(node: Node) -> dict[str, Any]:
    has = {number: (cpu_millis, memory_mib) for number, cpu_millis, memory_mib in node.domains}
    numbers = has or range(max(1, node.numa_domains))
    domains: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    for device in node.devices.all():
        gpu = {
            "id": device.pk,
            "index": device.index,
            "gpu_type": device.model,
            "memory_bytes": device.memory_mib * MIB,
            "state": gpu_state(device, node),
        }
        domains.setdefault(device.numa_domain, []).append(gpu)
    if len(domains) == 1:
        has = dict.fromkeys(domains, (node.cpu_millis, node.memory_mib))
    return {
        "id": node.pk,
        "name": node.name,
        "state": str(node.state),
        "schedulable": node.schedulable,
        "cpu_cores": node.cpu_millis / 1000,
        "memory_bytes": node.memory_mib * MIB,
        "numa": [
            {
                "domain": number,
                "cpu_cores": has[number][0] / 1000 if number in has else None,
                "memory_bytes": has[number][1] * MIB if number in has else None,
                "gpus": gpus,
            }
            for number, gpus in sorted(domains.items())
        ],
    }
