"""Arrays as one thing: states and progress, and verbs on all elements."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import MAX_REASON, ApiView, body_of, once, person, reason_of, text_of
from scheduler.api.serializers import moment
from scheduler.core.lifecycle import PublicState
from scheduler.models import Job
from scheduler.services.changes.arrays import (
    ArrayOverview,
    act_on_array,
    array_by_number,
    overview,
    throttle_array,
)
from scheduler.services.changes.many import Outcome
from scheduler.services.submission.fields import read_integer

#: Refusals that an answer names; it counts the others.
MOST_REFUSED: Final = 20


class StateCountsSerializer(serializers.Serializer[Any]):
    """Number of jobs in each state."""

    queued = serializers.IntegerField()
    scheduled = serializers.IntegerField()
    running = serializers.IntegerField()
    preempted = serializers.IntegerField()
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    cancelled = serializers.IntegerField()


class ArraySerializer(serializers.Serializer[Any]):
    """An array. The elements are GET /jobs?array_id=NUMBER; each has the job_id NUMBER_INDEX."""

    number = serializers.IntegerField()
    name = serializers.CharField()
    project = serializers.CharField()
    user = serializers.CharField()
    queue = serializers.CharField(help_text="Of the first element.")
    elements = serializers.IntegerField(help_text="Number of indices.")
    jobs = serializers.IntegerField(help_text="Fewer than elements where elements share jobs.")
    states = StateCountsSerializer()
    held = serializers.IntegerField()
    held_by_admin = serializers.IntegerField()
    over = serializers.IntegerField(help_text="Number of jobs that have ended.")
    progress = serializers.FloatField(help_text="Part of the jobs that has ended, from 0 to 1.")
    max_running = serializers.IntegerField(allow_null=True, help_text="Elements that may run at once.")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    completed_at = serializers.DateTimeField(allow_null=True, help_text="null until all have ended.")


class ChangedElementsSerializer(serializers.Serializer[Any]):
    """What a verb did to the elements, by number of jobs."""

    done = serializers.IntegerField()
    unchanged = serializers.IntegerField(help_text="Jobs that were so already.")
    refused = serializers.IntegerField(help_text="Jobs in another state, such as those that have ended.")


class ArrayAnswerSerializer(ArraySerializer):
    """The array after a verb, and what the verb did."""

    changed = ChangedElementsSerializer()


class ArrayReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(required=False, allow_blank=True, max_length=MAX_REASON)


class ArrayChangeSerializer(ArrayReasonSerializer):
    max_running = serializers.IntegerField(
        allow_null=True, min_value=1, help_text="Elements that may run at once; null: any number."
    )


class ArrayView(ApiView):
    """What all views of arrays share."""

    queryset = Job.objects.none()
    serializer_class = ArraySerializer
    schema_tags = ["arrays"]


def array_answer(first: Job, outcome: Outcome | None = None) -> dict[str, Any]:
    """An array as answers show it."""
    body = _shown(overview(first))
    if outcome is not None:
        body["changed"] = {
            "done": len(outcome.done), "unchanged": len(outcome.unchanged), "refused": len(outcome.refused)
        }  # fmt: skip
    return body


def _shown(array: ArrayOverview) -> dict[str, Any]:
    first = array.first
    return {
        "number": array.number,
        "name": first.name,
        "project": first.project.slug,
        "user": first.user.username,
        "queue": first.queue.slug,
        "elements": array.elements,
        "jobs": array.jobs,
        "states": {state.value: array.by_state[state] for state in PublicState},
        "held": array.held,
        "held_by_admin": array.held_by_admin,
        "over": array.over,
        "progress": round(array.progress, 4),
        "max_running": first.array_max_running,
        "created_at": moment(first.created_at),
        "started_at": moment(array.started_at),
        "completed_at": moment(array.completed_at),
    }


class ArrayDetail(ArrayView):
    """`/arrays/{number}`"""

    required_scopes = {"GET": "jobs:read", "PATCH": "jobs:write", "DELETE": "jobs:write"}

    @extend_schema(operation_id="arrays_get", responses=ArraySerializer)
    def get(self, request: Request, number: int) -> Response:
        """An array: how many elements are in which state."""
        return Response(array_answer(array_by_number(person(request), number)))

    @extend_schema(
        operation_id="arrays_change", request=ArrayChangeSerializer, responses=ArrayAnswerSerializer
    )
    def patch(self, request: Request, number: int) -> Response:
        """Change how many elements may run at once."""
        by = person(request)
        first = array_by_number(by, number)
        most, reason = _change_of(request)
        changed = throttle_array(first, most=most, by=by, reason=reason)
        return Response(array_answer(array_by_number(by, number), Outcome(done=[0] * changed)))

    @extend_schema(
        operation_id="arrays_cancel",
        parameters=[OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")],
        responses={200: ArrayAnswerSerializer},
    )
    def delete(self, request: Request, number: int) -> Response:
        """Cancel all elements that have not ended."""
        return _act(request, "cancel", number)


class ArrayVerb(ArrayView):
    """`/arrays/{number}/hold`, `/release`"""

    required_scopes = {"POST": "jobs:write"}
    verb = "hold"

    @extend_schema(parameters=[KEY], request=ArrayReasonSerializer, responses=ArrayAnswerSerializer)
    @once
    def post(self, request: Request, number: int) -> Response:
        return _act(request, self.verb, number)


class HoldArray(ArrayVerb):
    """Hold all pending elements until they are released."""


class ReleaseArray(ArrayVerb):
    """Release all held elements."""

    verb = "release"


def _act(request: Request, verb: str, number: int) -> Response:
    by = person(request)
    first = array_by_number(by, number)
    outcome = act_on_array(verb, first, by=by, reason=reason_of(request))
    return Response(array_answer(first, outcome))


def _change_of(request: Request) -> tuple[int | None, str]:
    body = dict(body_of(request))
    reason = text_of(body.pop("reason", ""))
    problems = [
        FieldProblem(
            str(name)[:60], "There is no such field; known are max_running and reason.", "unknown-field"
        )
        for name in body
        if name != "max_running"
    ]
    most = read_integer(body.get("max_running"))
    if "max_running" not in body:
        problems.append(
            FieldProblem("max_running", "Required: a number, or null for any number.", "required")
        )
    elif most is None and body["max_running"] is not None:
        problems.append(FieldProblem("max_running", "Must be a whole number or null.", "not-a-number"))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems, way_out="Nothing was changed.")
    return most, reason
