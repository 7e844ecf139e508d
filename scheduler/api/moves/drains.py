"""Drains with a deadline, and rebalancing: what they would mean, and doing it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.once import KEY
from infra.errors import NotFound
from scheduler.api.base import ApiView, body_of, once, person
from scheduler.api.machines import NodeSerializer
from scheduler.api.serializers import moment
from scheduler.models import Cluster, Node
from scheduler.selectors import node_by_ref
from scheduler.services.cluster.nodes import drain_node
from scheduler.services.moves import drains, rebalance
from scheduler.services.moves.drain_plan import DrainPlan, JobPlan
from scheduler.services.moves.fates import FATE_WORDS, Cost, Fate


class CostSerializer(serializers.Serializer[Any]):
    """The cost of moving a job off its nodes."""

    lost_seconds = serializers.IntegerField(help_text="Work that the job repeats.")
    save_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Duration of the last checkpoint, until stored and verified; null: none yet.",
    )
    restart_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Duration of the last start, from the decision until running; null: not measured.",
    )
    gpu_seconds = serializers.FloatField(help_text="The sum of these, times the number of GPUs.")


class JobFateSerializer(serializers.Serializer[Any]):
    """The outcome of the drain for one job."""

    job = serializers.IntegerField()
    name = serializers.CharField()
    user = serializers.CharField()
    project = serializers.CharField()
    outcome = serializers.ChoiceField([(fate.value, words) for fate, words in FATE_WORDS.items()])
    nodes = serializers.ListField(
        child=serializers.CharField(), help_text="Nodes where the job would continue if moved now."
    )
    why = serializers.CharField(help_text="Why no other node can start the job; else empty.")
    ends_at = serializers.DateTimeField(allow_null=True, help_text="Latest end, by the time limit.")
    cost = CostSerializer()


class DrainSerializer(serializers.Serializer[Any]):
    """A drain: the nodes, the deadline, and the outcome for each job."""

    nodes = serializers.ListField(child=serializers.CharField())
    deadline = serializers.DateTimeField(allow_null=True)
    jobs_left = serializers.IntegerField()
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="Jobs by outcome.")
    lost_seconds = serializers.IntegerField(help_text="Work that jobs repeat, in total.")
    lost_gpu_seconds = serializers.FloatField()
    jobs = JobFateSerializer(many=True)


class DrainNodeBodySerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=200)
    deadline = serializers.CharField(
        required=False,
        help_text="2h, 3600 (seconds), or a date and time. Until then jobs with checkpoints are moved to other nodes; "
        "what still runs then is requeued. Without it running jobs continue to their end.",
    )


class DrainBodySerializer(DrainNodeBodySerializer):
    """The nodes to drain: all given conditions have to hold."""

    reason = serializers.CharField(required=False, max_length=200, help_text="Required unless dry_run.")
    dry_run = serializers.BooleanField(required=False, help_text="Only return the plan; nothing is changed.")
    nodes = serializers.ListField(child=serializers.CharField(), required=False)
    labels = serializers.DictField(child=serializers.CharField(), required=False)
    rack = serializers.CharField(required=False)
    zone = serializers.CharField(required=False)
    cluster = serializers.CharField(required=False, help_text="Its slug.")


def cost_row(cost: Cost) -> dict[str, Any]:
    return {
        "lost_seconds": cost.lost_seconds,
        "save_seconds": cost.save_seconds,
        "restart_seconds": cost.restart_seconds,
        "gpu_seconds": cost.gpu_seconds,
    }


def _job_row(plan: JobPlan) -> dict[str, Any]:
    return {
        "job": plan.job.number,
        "name": plan.job.name,
        "user": plan.job.user.username,
        "project": plan.job.project.slug,
        "outcome": plan.fate.value,
        "nodes": list(plan.nodes),
        "why": plan.why,
        "ends_at": moment(plan.ends_at),
        "cost": cost_row(plan.cost),
    }


def drain_row(plan: DrainPlan) -> dict[str, Any]:
    return {
        "nodes": [node.name for node in plan.nodes],
        "deadline": moment(plan.deadline),
        "jobs_left": len(plan.jobs),
        "counts": {fate.value: plan.counts[fate] for fate in Fate if plan.counts[fate]},
        "lost_seconds": plan.lost_seconds,
        "lost_gpu_seconds": plan.lost_gpu_seconds,
        "jobs": [_job_row(job) for job in plan.jobs],
    }


class DrainNode(ApiView):
    """`/nodes/{id}/drain`"""

    queryset = Node.objects.none()
    serializer_class: Any = DrainSerializer
    required_scopes = {"GET": "nodes:read", "POST": "nodes:write"}
    schema_tags = ["nodes"]

    @extend_schema(
        operation_id="nodes_drain_get",
        parameters=[
            OpenApiParameter("deadline", str, description="As of POST, of a drain that is considered.")
        ],
        responses=DrainSerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """The plan of a drain for the jobs left on a node, with its deadline or another; operators only."""
        by, node = person(request), node_by_ref(person(request), ref)
        return Response(drain_row(drains.drain_of(node, by=by, payload=request.query_params)))

    @extend_schema(parameters=[KEY], request=DrainNodeBodySerializer, responses=NodeSerializer)
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Drain a node: no new jobs; running jobs end, or leave until the deadline; operators only."""
        by, node = person(request), node_by_ref(person(request), ref)
        asked = drains.read_drain_of(body_of(request, optional=True), node)
        drain_node(node=node, by=by, reason=asked.reason, deadline=asked.deadline)
        return Response(NodeSerializer(node_by_ref(by, node.pk)).data)


class Drains(ApiView):
    """`/drains`"""

    queryset = Node.objects.none()
    serializer_class: Any = DrainSerializer
    required_scopes = {"POST": "nodes:write"}
    schema_tags = ["nodes"]

    @extend_schema(
        operation_id="drains_create", parameters=[KEY], request=DrainBodySerializer, responses=DrainSerializer
    )
    @once
    def post(self, request: Request) -> Response:
        """Drain several nodes by name, label, rack or zone, or return the plan only; operators only."""
        by = person(request)
        permissions.require(by, "operate")
        return Response(drain_row(drains.drain(drains.read_drain(body_of(request)), by=by)))


class ProposalSerializer(serializers.Serializer[Any]):
    """One move after which pending jobs start at once."""

    job = serializers.IntegerField()
    leaves = serializers.CharField()
    node = serializers.CharField(help_text="Nodes where the job would continue.")
    cost = CostSerializer()
    starts = serializers.ListField(
        child=serializers.IntegerField(), help_text="Waiting jobs that start then."
    )
    started_gpus = serializers.FloatField()
    payback_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Time after which the started jobs have used as many GPU-seconds as the move costs.",
    )
    fragmented_before = serializers.FloatField(
        allow_null=True,
        help_text="Fraction of all GPUs that is idle and too fragmented for the usual requests.",
    )
    fragmented_after = serializers.FloatField(allow_null=True)


class ProposalsSerializer(serializers.Serializer[Any]):
    results = ProposalSerializer(many=True)


class ChosenMoveSerializer(serializers.Serializer[Any]):
    job = serializers.IntegerField()
    node = serializers.CharField()


class ApplyBodySerializer(serializers.Serializer[Any]):
    moves = ChosenMoveSerializer(many=True)
    reason = serializers.CharField(required=False, max_length=200)


class AppliedMoveSerializer(ChosenMoveSerializer):
    refused = serializers.CharField(help_text="Why the move was not started; empty: started.")


class AppliedSerializer(serializers.Serializer[Any]):
    results = AppliedMoveSerializer(many=True)


class Rebalance(ApiView):
    """`/rebalance`"""

    queryset = Node.objects.none()
    serializer_class: Any = ProposalsSerializer
    required_scopes = {"GET": "nodes:read", "POST": "nodes:write"}
    schema_tags = ["nodes"]

    @extend_schema(
        operation_id="rebalance_propose",
        parameters=[
            OpenApiParameter("cluster", str, description="Slug of the cluster; default: the first cluster.")
        ],
        responses=ProposalsSerializer,
    )
    def get(self, request: Request) -> Response:
        """Proposed moves of running jobs after which pending jobs start at once, with their costs; changes nothing."""
        slug = request.query_params.get("cluster", "")
        clusters = Cluster.objects.order_by("id")
        cluster = (clusters.filter(slug=slug) if slug else clusters).first()
        if cluster is None:
            raise NotFound(f"There is no cluster {slug[:60]!r}.", way_out="GET /api/v1/topology lists them.")
        found = rebalance.propose_moves(cluster=cluster, by=person(request))
        return Response({"results": [_proposal_row(one) for one in found]})

    @extend_schema(
        operation_id="rebalance_apply",
        parameters=[KEY],
        request=ApplyBodySerializer,
        responses=AppliedSerializer,
    )
    @once
    def post(self, request: Request) -> Response:
        """Start the chosen moves; each move is checked again first."""
        done = rebalance.apply_moves(payload=body_of(request), by=person(request))
        return Response({"results": [{"job": d.job, "node": d.node, "refused": d.refused} for d in done]})


def _proposal_row(one: rebalance.Proposal) -> dict[str, Any]:
    return {
        "job": one.job.number,
        "leaves": one.leaves,
        "node": one.target.name,
        "cost": cost_row(one.cost),
        "starts": [job.number for job in one.starts],
        "started_gpus": one.started_gpus,
        "payback_seconds": one.payback_seconds,
        "fragmented_before": one.fragmented_before,
        "fragmented_after": one.fragmented_after,
    }
