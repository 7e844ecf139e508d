"""The moves of a job: begun, and listed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from scheduler.api.base import MAX_REASON, body_of, once, person
from scheduler.api.jobs import JobView, ReasonBodySerializer
from scheduler.api.serializers import JobSerializer, moment
from scheduler.models import JobMove, MoveCause, MoveState
from scheduler.selectors import node_by_ref
from scheduler.services.moves.verbs import migrate_job
from scheduler.services.submission.fields import Inputs

#: The moves of a job that are listed, the newest.
MOST_LISTED = 100


class MigrateBodySerializer(ReasonBodySerializer):
    node = serializers.CharField(
        required=False,
        help_text="Name or id of the target node; absent: the scheduler chooses.",
    )


class MoveSerializer(serializers.Serializer[Any]):
    """One move of a job."""

    id = serializers.IntegerField()
    attempt = serializers.IntegerField(help_text="The attempt that ends.")
    state = serializers.ChoiceField(
        MoveState.choices, help_text="saving can still be undone: the job then stays on its nodes."
    )
    cause = serializers.ChoiceField(MoveCause.choices)
    leaves = serializers.ListField(child=serializers.CharField(), help_text="Names of nodes.")
    target = serializers.CharField(allow_null=True)
    asked_by = serializers.CharField(allow_null=True)
    asked_at = serializers.DateTimeField()
    stopped_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()
    text = serializers.CharField(help_text="Result of the move.")


class MovesSerializer(serializers.Serializer[Any]):
    results = MoveSerializer(many=True)


def row_of(move: JobMove) -> dict[str, Any]:
    return {
        "id": move.pk,
        "attempt": move.epoch,
        "state": move.state,
        "cause": move.cause,
        "leaves": move.leaves,
        "target": move.target.name if move.target else None,
        "asked_by": move.asked_by.username if move.asked_by else None,
        "asked_at": moment(move.asked_at),
        "stopped_at": moment(move.stopped_at),
        "ended_at": moment(move.ended_at),
        "reason": move.reason,
        "text": move.text,
    }


class MigrateJob(JobView):
    """`/jobs/{id}/migrate`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_migrate", parameters=[KEY], request=MigrateBodySerializer, responses=JobSerializer
    )
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Move a running job: the job writes a checkpoint, ends, and continues from the checkpoint on another node."""
        by, job = person(request), self.find(request, ref)
        inputs = Inputs(body_of(request, optional=True))
        inputs.refuse_unknown(("node", "reason"))
        reason = inputs.text("reason", most=MAX_REASON)
        name = inputs.given("node")
        inputs.finish("The job cannot be moved")
        target = None if name is None else node_by_ref(by, str(name)[:120])
        job = migrate_job(job=job, by=by, target=target, reason=reason)
        return Response(self.again(request, job))


class JobMoves(JobView):
    """`/jobs/{id}/moves`"""

    serializer_class: Any = MovesSerializer
    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_moves", responses=MovesSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """The newest moves of a job, including cancelled ones."""
        rows = JobMove.objects.filter(job=self.find(request, ref)).select_related("target", "asked_by")
        return Response({"results": [row_of(move) for move in rows[:MOST_LISTED]]})
