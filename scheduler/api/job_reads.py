"""What one can read about jobs: events, logs, why they wait, what a new one would meet, many states."""

from __future__ import annotations

from itertools import groupby
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from infra.api.rest import NewestFirst
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import ApiView, body_of, person
from scheduler.api.filters import asked_flag
from scheduler.api.jobs import JobView
from scheduler.api.serializers import (
    CauseSerializer,
    JobEventSerializer,
    JobRequestSerializer,
    LogSerializer,
    moment,
    reason_times,
)
from scheduler.core.lifecycle import FailureClass, JobState, PublicState, TaskState
from scheduler.models import Job, Task
from scheduler.selectors import visible_jobs
from scheduler.services.jobs.logs import MERGED, STREAMS, read_log
from scheduler.services.jobs.usage import STEP_SECONDS, usage_of
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.job_preview import preview_job
from scheduler.services.submission.fields_dependencies import ElementRef, job_ref

MAX_LOG_BYTES = 1024 * 1024


class JobEvents(JobView):
    """`/jobs/{id}/events`"""

    pagination_class = NewestFirst
    page_ordering = ("pk",)
    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_events", responses=JobEventSerializer(many=True))
    def get(self, request: Request, ref: str) -> Response:
        """What happened to a job, oldest first."""
        page = self.paginate_queryset(self.find(request, ref).events.select_related("actor"))
        return self.get_paginated_response(JobEventSerializer(page, many=True).data)


class JobMemberSerializer(serializers.Serializer[Any]):
    """One task of the latest attempt of a job."""

    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    node = serializers.CharField()
    state = serializers.ChoiceField([state.value for state in TaskState])
    suspended = serializers.BooleanField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    end_text = serializers.CharField(help_text="Why it ended as it did; may be empty.")
    failure_class = serializers.ChoiceField([one.value for one in FailureClass], allow_null=True)

    def to_representation(self, task: Task) -> dict[str, Any]:
        return {
            "attempt": task.attempt.epoch,
            "rank": task.rank,
            "node": task.node.name,
            "state": str(task.state),
            "suspended": task.suspended,
            "started_at": moment(task.started_at),
            "ended_at": moment(task.ended_at),
            "exit_code": task.exit_code,
            "exit_signal": task.exit_signal,
            "end_text": task.end_text,
            "failure_class": task.failure_class or None,
        }


class JobMembers(JobView):
    """`/jobs/{id}/members`"""

    pagination_class = NewestFirst
    page_ordering = ("pk",)
    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_members", responses=JobMemberSerializer(many=True))
    def get(self, request: Request, ref: str) -> Response:
        """The tasks of the latest attempt, with where each runs, its state, and how it ended; none before the start."""
        job = self.find(request, ref)
        tasks = Task.objects.filter(attempt__job=job, attempt__epoch=job.epoch)
        page = self.paginate_queryset(tasks.select_related("attempt", "node"))
        return self.get_paginated_response(JobMemberSerializer(page, many=True).data)


class JobLogs(JobView):
    """`/jobs/{id}/logs`"""

    required_scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_logs",
        parameters=[
            OpenApiParameter("stream", str, enum=[*STREAMS, MERGED], default=MERGED),
            OpenApiParameter(
                "offset", int, default=0, description="Bytes to skip: next_offset of the last answer."
            ),
            OpenApiParameter("limit", int, default=65536, description=f"At most {MAX_LOG_BYTES} bytes."),
            OpenApiParameter("rank", int, description="One task; all of them when absent."),
            OpenApiParameter("attempt", int, description="An earlier attempt; the latest when absent."),
        ],
        responses={
            (200, "application/json"): LogSerializer,
            (200, "text/plain"): OpenApiResponse(OpenApiTypes.STR, "The bytes; continue at X-Next-Offset."),
        },
    )
    def get(self, request: Request, ref: str) -> HttpResponse:
        """The output of a job, from a byte offset on."""
        query = request.query_params
        stream = query.get("stream") or MERGED
        if stream not in (*STREAMS, MERGED):
            raise bad_query("stream", f"Must be one of {', '.join((*STREAMS, MERGED))}.")
        part = read_log(
            job=self.find(request, ref),
            stream=stream,
            offset=query_integer(request, "offset", least=0, most=2**53, default=0),
            limit=query_integer(request, "limit", least=1, most=MAX_LOG_BYTES, default=65536),
            rank=query_integer(request, "rank", least=0, most=2**31 - 1),
            epoch=query_integer(request, "attempt", least=1, most=2**31 - 1),
        )
        if wants_text(request):
            plain = HttpResponse(part.data, content_type="text/plain; charset=utf-8")
            plain["X-Next-Offset"] = str(part.next_offset)
            plain["X-Eof"] = "true" if part.eof else "false"
            plain["X-Awaited-Bytes"] = "unknown" if part.awaited_bytes is None else str(part.awaited_bytes)
            return plain
        cut = incomplete_tail(part.data) if not part.eof else 0
        data = part.data[: len(part.data) - cut]
        return Response(
            {
                "stream": part.stream,
                "offset": part.offset,
                "next_offset": part.next_offset - cut,
                "eof": part.eof,
                "awaited_bytes": part.awaited_bytes,
                "text": data.decode("utf-8", "replace"),
            }
        )


class UsagePointSerializer(serializers.Serializer[Any]):
    """A part of the run of `step_seconds`; over several tasks the mean, and the highest memory of one task."""

    at_seconds = serializers.IntegerField(
        help_text="Start of the sample, in seconds since the start of the attempt."
    )
    cpu_millis = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    gpu_percent = serializers.IntegerField(
        allow_null=True, help_text="Percentage of the time of all GPUs; null: not measured."
    )
    gpu_memory_mib = serializers.IntegerField(allow_null=True, help_text="Sum over all GPUs.")


class GivenSerializer(serializers.Serializer[Any]):
    """What each task of the attempt was given."""

    cpu_millis = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    gpu_memory_mib = serializers.IntegerField(help_text="Sum over all GPUs; 0 without a GPU.")


class JobUsageSerializer(serializers.Serializer[Any]):
    attempt = serializers.IntegerField(allow_null=True, help_text="null for a job that never started.")
    started_at = serializers.DateTimeField(allow_null=True)
    step_seconds = serializers.IntegerField(
        help_text="Doubles each time that an attempt exceeds its number of points."
    )
    tasks = serializers.IntegerField()
    given = GivenSerializer(allow_null=True)
    points = UsagePointSerializer(many=True)


class JobUsageView(JobView):
    """`/jobs/{id}/usage`"""

    required_scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_usage",
        parameters=[
            OpenApiParameter("attempt", int, description="An earlier attempt; the latest when absent.")
        ],
        responses=JobUsageSerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """What each task of a job used while it ran: at most 120 points, none of a job shorter than ten seconds."""
        epoch = query_integer(request, "attempt", least=1, most=2**31 - 1)
        used = usage_of(self.find(request, ref), epoch=epoch)
        if used is None:
            empty = {"attempt": None, "started_at": None, "step_seconds": STEP_SECONDS, "tasks": 0}
            return Response({**empty, "given": None, "points": []})
        return Response(
            {
                "attempt": used.epoch,
                "started_at": moment(used.started_at),
                "step_seconds": used.step_seconds,
                "tasks": used.tasks,
                "given": {
                    "cpu_millis": used.cpu_millis,
                    "memory_mib": used.memory_mib,
                    "gpu_memory_mib": used.gpu_memory_mib,
                },
                "points": [point._asdict() for point in used.points],
            }
        )


def incomplete_tail(data: bytes) -> int:
    """Bytes at the end that begin a character but do not finish it: the next answer brings it whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # inside a character
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back and back < len(data) else 0
    return 0


class StartRangeSerializer(serializers.Serializer[Any]):
    """The predicted start: 10th, 50th and 90th percentile; null = unknown."""

    p10_at = serializers.DateTimeField(allow_null=True)
    p50_at = serializers.DateTimeField(allow_null=True)
    p90_at = serializers.DateTimeField(allow_null=True)
    unknown = serializers.CharField(allow_blank=True, help_text="Why the latest start is unknown.")
    running_jobs = serializers.IntegerField(help_text="Running jobs that end before it.")
    ahead_jobs = serializers.IntegerField()
    computed_at = serializers.DateTimeField(allow_null=True)


class SuggestedChangeSerializer(serializers.Serializer[Any]):
    """The smallest single change of the request, and its gain."""

    field = serializers.CharField(help_text="Of the request: time_limit, gpu_count, gpu_type, queue, ...")
    value = serializers.CharField()
    words = serializers.CharField()
    starts_now = serializers.BooleanField()
    at = serializers.DateTimeField(allow_null=True, help_text="The latest start with that change.")
    gain_seconds = serializers.IntegerField()


class ForecastRecordSerializer(serializers.Serializer[Any]):
    """Accuracy of the first predicted ranges."""

    days = serializers.IntegerField()
    starts = serializers.IntegerField()
    inside = serializers.IntegerField()
    earlier = serializers.IntegerField()
    later = serializers.IntegerField()
    inside_percent = serializers.IntegerField(allow_null=True)


def with_moments(found: dict[str, Any]) -> dict[str, Any]:
    """The answer with its times as every answer writes them."""
    found["snapshot_at"] = moment(found["snapshot_at"])
    if found["change"] is not None:
        found["change"]["at"] = moment(found["change"]["at"])
    if found["start"] is not None:
        for name in ("p10_at", "p50_at", "p90_at", "computed_at"):
            found["start"][name] = moment(found["start"][name])
    if found.get("order"):
        found["order"]["since"] = moment(found["order"]["since"])
    if found.get("placement"):
        found["placement"]["at"] = moment(found["placement"]["at"])
    return found


class ScoredNodeSerializer(serializers.Serializer[Any]):
    node_id = serializers.IntegerField()
    name = serializers.CharField()
    chosen = serializers.BooleanField(
        help_text="false: a node that it might have had instead, the best of these first."
    )
    total = serializers.IntegerField(help_text="The weighted mean of its parts, 0 to 100.")
    parts = serializers.DictField(child=serializers.IntegerField(), help_text="Points by scorer, 0 to 100.")


class PlacementBasisSerializer(serializers.Serializer[Any]):
    """Why a job that has started runs where it does, from the recording of the cycle that started it."""

    cycle = serializers.IntegerField(allow_null=True)
    at = serializers.DateTimeField(allow_null=True)
    order = serializers.CharField(
        allow_blank=True, help_text="The policy by which jobs of its queue take turns."
    )
    placement = serializers.CharField(allow_blank=True, help_text="The strategy that weighs the parts.")
    backfill = serializers.CharField(allow_blank=True)
    place = serializers.IntegerField(help_text="Its place among the starts of the cycle, 1 = the first.")
    starts = serializers.IntegerField()
    gates = serializers.ListField(
        child=serializers.DictField(), help_text="Filters, with the nodes that each left."
    )
    nodes = ScoredNodeSerializer(many=True)
    exact = serializers.BooleanField(
        help_text="Whether the first node has the recorded score; false: other jobs were placed in between."
    )
    unknown = serializers.CharField(allow_blank=True, help_text="Why this is not known any more.")


class OrderInForceSerializer(serializers.Serializer[Any]):
    """By what the jobs of the queue are ordered and placed now."""

    policy = serializers.CharField()
    placement = serializers.CharField()
    rule = serializers.CharField(
        allow_blank=True,
        help_text='The rule of the profile that is in force; "": none, its own settings are.',
    )
    since = serializers.DateTimeField(
        allow_null=True, help_text="Null: the profile has no rules, or no cycle has run with them."
    )


class WhySerializer(serializers.Serializer[Any]):
    job = serializers.UUIDField()
    number = serializers.IntegerField()
    state = serializers.ChoiceField([s.value for s in PublicState])
    headline = serializers.CharField()
    reason_code = serializers.CharField()
    category = serializers.CharField()
    details = serializers.DictField(allow_null=True)
    cause = CauseSerializer(allow_null=True)
    times = serializers.DictField(
        child=serializers.DateTimeField(), help_text="Times among the details, by name, such as begin_at."
    )
    blockers = serializers.ListField(child=serializers.DictField())
    gates = serializers.ListField(child=serializers.DictField())
    position = serializers.IntegerField(allow_null=True)
    ahead_jobs = serializers.IntegerField()
    ahead_gpus = serializers.IntegerField()
    ahead = serializers.ListField(child=serializers.DictField())
    node_table = serializers.ListField(child=serializers.DictField())
    suggestion = serializers.CharField(allow_blank=True)
    change = SuggestedChangeSerializer(allow_null=True)
    start = StartRangeSerializer(allow_null=True)
    record = ForecastRecordSerializer(allow_null=True)
    order = OrderInForceSerializer(allow_null=True, help_text="Null: the job is not in the queue.")
    snapshot_at = serializers.DateTimeField(allow_null=True)
    placement = PlacementBasisSerializer(allow_null=True)


class JobWhy(JobView):
    """`/jobs/{id}/why`"""

    required_scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_why",
        parameters=[
            OpenApiParameter("nodes", bool, description="Also the eligibility of every node for one task.")
        ],
        responses=WhySerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """Why a job is pending: the headline, every filter, and the jobs ahead."""
        job = self.find(request, ref)
        nodes = asked_flag(request, "nodes")
        found = with_moments(explain_job(job=job, by=person(request), nodes=nodes).as_dict())
        times = reason_times(found["details"] or {})
        return Response({"job": str(job.uuid), "number": job.number, **found, "times": times})


class VictimSerializer(serializers.Serializer[Any]):
    """One job that would be preempted; what the caller may not see is null."""

    number = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    project = serializers.CharField(allow_null=True)
    user = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField(allow_null=True)
    lost_seconds = serializers.IntegerField(allow_null=True, help_text="Work that would be repeated.")
    gpus = serializers.IntegerField()
    tasks = serializers.IntegerField()
    mode = serializers.ChoiceField(["requeue", "suspend"])
    kind = serializers.ChoiceField(["preempt", "reclaim"])
    grace_seconds = serializers.IntegerField()


class PreviewSerializer(serializers.Serializer[Any]):
    verdict = serializers.ChoiceField(["starts_now", "would_wait", "never", "refused"])
    headline = serializers.CharField()
    reason_code = serializers.CharField()
    category = serializers.CharField()
    way_out = serializers.CharField()
    problems = serializers.ListField(child=serializers.DictField())
    nodes = serializers.ListField(child=serializers.DictField())
    gates = serializers.ListField(child=serializers.DictField())
    blockers = serializers.ListField(child=serializers.DictField())
    quota = serializers.ListField(child=serializers.DictField())
    budgets = serializers.ListField(child=serializers.DictField())
    victims = VictimSerializer(many=True, help_text="The first jobs that would be stopped or suspended.")
    victims_count = serializers.IntegerField()
    ahead_jobs = serializers.IntegerField()
    ahead_gpus = serializers.IntegerField()
    position = serializers.IntegerField(allow_null=True)
    suggestion = serializers.CharField(allow_blank=True)
    change = SuggestedChangeSerializer(allow_null=True)
    start = StartRangeSerializer(allow_null=True)
    record = ForecastRecordSerializer(allow_null=True)
    elements = serializers.IntegerField()
    deadline = serializers.CharField(
        allow_blank=True,
        help_text="Why the job is likely to miss its deadline; empty: it is not, or has none.",
    )
    relaxations = serializers.ListField(
        child=serializers.CharField(),
        help_text="Which constraints are required until when, and whether the job could start with all relaxed.",
    )
    restarts = serializers.CharField(
        allow_blank=True, help_text="The effect of restart_policy never on the job."
    )
    order = OrderInForceSerializer(allow_null=True, help_text="Null: the request is refused.")
    snapshot_at = serializers.DateTimeField(allow_null=True)


class JobPreview(ApiView):
    """`/jobs/preview`"""

    serializer_class = PreviewSerializer
    required_scopes = {"POST": "jobs:read"}
    schema_tags = ["jobs"]

    @extend_schema(operation_id="jobs_preview", request=JobRequestSerializer, responses=PreviewSerializer)
    def post(self, request: Request) -> Response:
        """Preview of this job if submitted now; nothing is written."""
        found = preview_job(payload=body_of(request), by=person(request)).as_dict()
        return Response(with_moments(found))


class JobStateSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    number = serializers.IntegerField()
    state = serializers.ChoiceField([s.value for s in PublicState])
    state_detail = serializers.CharField()
    exit_code = serializers.IntegerField(allow_null=True)


class JobStatesSerializer(serializers.Serializer[Any]):
    results = JobStateSerializer(many=True)


class JobStates(ApiView):
    """`/jobs/state`"""

    queryset = Job.objects.none()
    serializer_class = JobStatesSerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["jobs"]
    MOST = 1000

    @extend_schema(
        operation_id="jobs_states",
        parameters=[
            OpenApiParameter(
                "ids",
                str,
                required=True,
                description="Numbers, ids or elements (123_3), joined by commas; up to 1000.",
            )
        ],
        responses=JobStatesSerializer,
    )
    def get(self, request: Request) -> Response:
        """States of many jobs in one cheap query, for programs that wait for them."""
        texts = [text for text in request.query_params.get("ids", "").split(",") if text.strip()]
        refs = [job_ref(text.strip()) for text in texts]
        if not refs or len(refs) > self.MOST or None in refs:
            raise bad_query("ids", f"Must be 1 to {self.MOST} job numbers or ids, joined by commas.")
        numbers = [ref for ref in refs if isinstance(ref, int)]
        uuids = [ref for ref in refs if isinstance(ref, UUID)]
        elements = [ref for ref in refs if isinstance(ref, ElementRef)]
        rows = visible_jobs(person(request)).select_related(None).order_by("number")
        wanted = Q(number__in=numbers) | Q(uuid__in=uuids)
        for array, indices in groupby(sorted(elements), key=lambda element: element.array):
            wanted |= Q(array_number=array, array_index__in=[element.element for element in indices])
        rows = rows.filter(wanted)
        results: list[dict[str, Any]] = [
            {
                "id": str(uuid),
                "number": number,
                "state": Job(state=state).public_state.value,
                "state_detail": str(JobState(state)),
                "exit_code": exit_code,
            }
            for uuid, number, state, exit_code in rows.values_list("uuid", "number", "state", "exit_code")
        ]
        return Response({"results": results})


def wants_text(request: Request) -> bool:
    """`Accept: text/plain` before JSON; what a browser or curl sends by itself means JSON."""
    accepted = [part.partition(";")[0].strip() for part in request.headers.get("Accept", "").split(",")]
    return "text/plain" in accepted and "application/json" not in accepted[: accepted.index("text/plain")]


def query_integer(request: Request, name: str, *, least: int, most: int, default: int | None = None) -> Any:
    text = request.query_params.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and least <= int(text) <= most):
        raise bad_query(name, f"Must be a whole number from {least} to {most}.")
    return int(text)


def bad_query(name: str, message: str) -> InvalidInput:
    return InvalidInput(
        message=f"{name}: {message}",
        status=400,
        problems=[FieldProblem(name, message, "out-of-range")],
        way_out="Correct the query and send the request again.",
    )
