"""Jobs: submit, list, look at, cancel, hold, release, requeue."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api import etags
from accounts.api.etags import IF_MATCH
from accounts.api.once import KEY
from infra.api.rest import NewestFirst, both_ways
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import MAX_REASON, ApiView, body_of, once, person, reason_of, text_of
from scheduler.api.filters import JobFilter, filtered
from scheduler.api.serializers import (
    JobChangeSerializer,
    JobRequestSerializer,
    JobRowSerializer,
    JobSerializer,
    whole_job,
)
from scheduler.core.lifecycle import PUBLIC, ElementState
from scheduler.job_lists import MOST_COUNTED, Count, how_many, job_rows, with_relations
from scheduler.models import Job
from scheduler.selectors import (
    env_shown_to,
    job_by_ref,
    listed_jobs,
    priority_names,
    visible_jobs,
    with_allocations,
)
from scheduler.services.changes.arrays import act_on_array, overview
from scheduler.services.changes.change import change_job
from scheduler.services.changes.change_array import change_array
from scheduler.services.jobs import submit, verbs
from scheduler.services.jobs.boosts import DAY_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS, boost_job
from scheduler.services.jobs.datasets import report_checkpoint
from scheduler.services.jobs.elements import Element, cancel_element, elements_of
from scheduler.services.jobs.resize import resize_job
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.fields_task import MAX_PATH
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE
from scheduler.services.submission.rules import MAX_TASKS
from scheduler.services.submission.submitter import MAX_PRIORITY


class ReasonBodySerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(required=False, allow_blank=True, max_length=MAX_REASON)


class JobView(ApiView):
    """What all views of jobs share."""

    queryset = Job.objects.none()
    serializer_class = JobSerializer
    lookup_field = "ref"
    schema_tags = ["jobs"]

    def whole(self, job: Job) -> dict[str, Any]:
        return whole_job(job, priority_names())

    def find(self, request: Request, ref: str) -> Job:
        return job_by_ref(person(request), ref)

    def again(self, request: Request, job: Job) -> dict[str, Any]:
        """The job as it is now, with its allocations, and with what of its environment the person may see."""
        by = person(request)
        whole = self.whole(with_allocations(visible_jobs(by)).get(pk=job.pk))
        return whole | {"env": env_shown_to(by, job)}


def new_job(job: Job, *, waits: bool) -> dict[str, Any]:
    """A job that was just written, whole; unless it `waits` for others, nothing of it has to be read."""
    nothing_yet = ("attempts",) if waits else ("attempts", "dependencies")
    job._prefetched_objects_cache = {name: [] for name in nothing_yet}  # type: ignore[attr-defined]
    return whole_job(job, priority_names(), is_new=True)


def is_whole_array(job: Job, ref: str) -> bool:
    """Whether a job was named by the number of its array: not by its id, and not as element 123_0."""
    return job.array_number is not None and ref == str(job.array_number)


def job_etag(job: Job) -> str:
    """Names what can be changed: reasons and forecasts move without it."""
    return etags.etag("job", job.number, job.generation)


def location_of(job: Job) -> str:
    """The address of a job in the API."""
    return f"/api/v1/jobs/{job.uuid}"


class JobPages(NewestFirst):
    """Pages of jobs, with how many there are on all of them where that was asked for."""

    jobs: Count | None = None

    def get_paginated_response(self, data: Any) -> Response:
        answer = super().get_paginated_response(data)
        if self.jobs is not None:
            answer.data |= {"count": self.jobs.jobs, "count_is_estimate": self.jobs.estimated}
        return answer

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        described = super().get_paginated_response_schema(schema)
        described["properties"] |= {
            "count": {"type": "integer", "description": "With count=true: the total number of jobs."},
            "count_is_estimate": {
                "type": "boolean",
                "description": f"From {MOST_COUNTED} jobs on, the number is an estimate.",
            },
        }
        return described


class Jobs(JobView):
    """`/jobs`"""

    pagination_class = JobPages
    filterset_class = JobFilter
    required_scopes = {"GET": "jobs:read", "POST": "jobs:write"}
    page_ordering: tuple[str, ...] = ("-pk",)
    orderings = both_ways(number="pk")
    location = "/api/v1/jobs/{id}"

    @extend_schema(
        operation_id="jobs_list",
        parameters=[OpenApiParameter("count", bool, description="Also return the total number.")],
        responses=JobRowSerializer(many=True),
        filters=True,
    )
    def get(self, request: Request) -> Response:
        """Jobs that you may see, newest first."""
        jobs = filtered(JobFilter, request, listed_jobs(person(request)))
        if "submitted__lte" in request.query_params:
            self.page_ordering = ("-created_at", "-pk")  # the newest of them are not the newest of all
        rows: Any = job_rows(jobs)
        page = with_relations(self.paginate_queryset(rows) or ())
        if request.query_params.get("count") == "true" and isinstance(self.paginator, JobPages):
            self.paginator.jobs = how_many(jobs)
        names = priority_names()
        return self.get_paginated_response(
            JobRowSerializer(page, many=True, context={"priority_names": names}).data
        )

    @extend_schema(
        operation_id="jobs_submit",
        parameters=[KEY],
        request=JobRequestSerializer,
        responses={201: JobSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Submit a job; amounts are per task. For an array the response is its first job."""
        body = body_of(request)
        job = submit.submit_job(payload=body, by=person(request), via="api")
        answer = new_job(job, waits=bool(body.get("depends_on")))
        return Response(answer, status=status.HTTP_201_CREATED)


class JobDetail(JobView):
    """`/jobs/{id}`"""

    required_scopes = {"GET": "jobs:read", "PATCH": "jobs:write", "DELETE": "jobs:write"}

    @extend_schema(operation_id="jobs_get", responses=JobSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """One job, by id or number, or an element as 123_3. The ETag names what PATCH may compare."""
        job = self.find(request, ref)
        return Response(self.again(request, job), headers={"ETag": job_etag(job)})

    @extend_schema(
        operation_id="jobs_change",
        parameters=[IF_MATCH],
        request=JobChangeSerializer,
        responses=JobSerializer,
    )
    def patch(self, request: Request, ref: str) -> Response:
        """Change a pending job in place; of a running job the name, labels, mail and the time limit.

        By the number of an array, all waiting elements, or none where one of them refuses the change.
        """
        job = self.find(request, ref)
        changes = dict(body_of(request))
        reason = text_of(changes.pop("reason", ""))
        seen = etags.expected(request, "job", job.number, "job")
        if is_whole_array(job, ref):
            change_array(job, changes=changes, by=person(request), reason=reason, seen=seen)
        else:
            job = change_job(job=job, changes=changes, by=person(request), reason=reason, seen=seen)
        job = self.find(request, ref) if is_whole_array(job, ref) else job
        return Response(self.again(request, job), headers={"ETag": job_etag(job)})

    @extend_schema(
        operation_id="jobs_cancel",
        parameters=[OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")],
        responses={
            200: JobSerializer,
            202: OpenApiResponse(JobSerializer, "The job is running and is being stopped."),
        },
    )
    def delete(self, request: Request, ref: str) -> Response:
        """Cancel a job, or by the number of an array all elements: 202 while its processes are being stopped."""
        job = self.find(request, ref)
        if is_whole_array(job, ref):
            act_on_array("cancel", job, by=person(request), reason=reason_of(request))
            state = overview(job)
            over = status.HTTP_200_OK if state.over == state.jobs else status.HTTP_202_ACCEPTED
            return Response(self.again(request, job), status=over)
        job = verbs.cancel_job(job=job, by=person(request), reason=reason_of(request))
        over = status.HTTP_200_OK if job.is_terminal else status.HTTP_202_ACCEPTED
        return Response(self.again(request, job), status=over)


class JobVerb(JobView):
    """`/jobs/{id}/hold`, `/release`, `/requeue`"""

    required_scopes = {"POST": "jobs:write"}
    verb = staticmethod(verbs.hold_job)
    #: What the verb does to an array, where it is one for arrays.
    array_verb = "hold"

    @extend_schema(parameters=[KEY], request=ReasonBodySerializer, responses=JobSerializer)
    @once
    def post(self, request: Request, ref: str) -> Response:
        job = self.find(request, ref)
        if self.array_verb and is_whole_array(job, ref):
            act_on_array(self.array_verb, job, by=person(request), reason=reason_of(request))
        else:
            job = self.verb(job=job, by=person(request), reason=reason_of(request))
        return Response(self.again(request, job))


class HoldJob(JobVerb):
    """Hold a pending job until it is released; by the number of an array, all pending elements."""


class ReleaseJob(JobVerb):
    """Release a held job; by the number of an array, all held elements."""

    verb = staticmethod(verbs.release_job)
    array_verb = "release"


class RequeueJob(JobVerb):
    """Stop a running job and requeue it, or queue one that has ended again; of an array one element."""

    verb = staticmethod(verbs.requeue_job)
    array_verb = ""


class BoostBodySerializer(serializers.Serializer[Any]):
    points = serializers.IntegerField(min_value=0, max_value=MAX_PRIORITY, help_text="0 ends the boost.")
    seconds = serializers.IntegerField(
        required=False,
        min_value=SHORTEST_SECONDS,
        max_value=LONGEST_SECONDS,
        help_text="Duration; default: one day.",
    )
    reason = serializers.CharField(max_length=MAX_REASON)


class BoostJob(JobView):
    """`/jobs/{id}/boost`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_boost", parameters=[KEY], request=BoostBodySerializer, responses=JobSerializer
    )
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Add points to the effective priority of a job for a time; operators only, recorded in the audit trail."""
        job = self.find(request, ref)
        inputs = Inputs(body_of(request))
        inputs.refuse_unknown(("points", "seconds", "reason"))
        points = inputs.integer("points", least=0, most=MAX_PRIORITY)
        seconds = inputs.integer("seconds", least=SHORTEST_SECONDS, most=LONGEST_SECONDS)
        reason = inputs.text("reason", most=MAX_REASON)
        if points is None and not inputs.problems:
            inputs.wrong("points", "Required: points to add to the priority.", code="required")
        inputs.finish("The job cannot be boosted")
        assert points is not None  # otherwise there was a problem
        boost_job(job=job, by=person(request), points=points, reason=reason, seconds=seconds or DAY_SECONDS)
        return Response(self.again(request, job))


class CheckpointBodySerializer(serializers.Serializer[Any]):
    path = serializers.CharField(required=False, allow_blank=True, max_length=MAX_PATH)


class JobCheckpoint(JobView):
    """`/jobs/{id}/checkpoint`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_checkpoint",
        parameters=[KEY],
        request=CheckpointBodySerializer,
        responses=JobSerializer,
    )
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Report a checkpoint of a running job: jobs that depend on the checkpoint can start."""
        job = self.find(request, ref)
        inputs = Inputs(body_of(request, optional=True))
        inputs.refuse_unknown(("path",))
        path = inputs.text("path", most=MAX_PATH)
        inputs.finish("The checkpoint cannot be recorded")
        report_checkpoint(job=job, by=person(request), path=path)
        return Response(self.again(request, job))


class ResizeBodySerializer(serializers.Serializer[Any]):
    tasks = serializers.IntegerField(min_value=1, max_value=MAX_TASKS)
    reason = serializers.CharField(required=False, allow_blank=True, max_length=MAX_REASON)


class ResizeJob(JobView):
    """`/jobs/{id}/resize`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_resize", parameters=[KEY], request=ResizeBodySerializer, responses=JobSerializer
    )
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Resize a running elastic job: fewer tasks at once, or more tasks after a restart from its checkpoint."""
        job = self.find(request, ref)
        inputs = Inputs(body_of(request))
        inputs.refuse_unknown(("tasks", "reason"), called_elsewhere=CALLED_ELSEWHERE)
        tasks = inputs.integer("tasks", least=1, most=MAX_TASKS)
        reason = inputs.text("reason", most=MAX_REASON)
        if tasks is None and not inputs.problems:
            inputs.wrong("tasks", "Required: the new number of tasks.", code="required")
        inputs.finish("The size cannot be changed")
        assert tasks is not None  # otherwise there was a problem
        job = resize_job(job=job, tasks=tasks, by=person(request), reason=reason)
        return Response(self.again(request, job))


#: Of an element that has not ended.
NOT_ENDED = "not_ended"


class ElementSerializer(serializers.Serializer[Any]):
    """An element; the offsets give its part of the attempt's stdout and stderr."""

    index = serializers.IntegerField()
    state = serializers.ChoiceField([NOT_ENDED, *(state.value for state in ElementState)])
    attempt = serializers.IntegerField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    cpu_time_ms = serializers.IntegerField(allow_null=True)
    peak_memory_mib = serializers.IntegerField(allow_null=True)
    stdout_offset = serializers.IntegerField()
    stdout_bytes = serializers.IntegerField()
    stderr_offset = serializers.IntegerField()
    stderr_bytes = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)


class ElementsSerializer(serializers.Serializer[Any]):
    results = ElementSerializer(many=True)


class JobElementsView(JobView):
    """`/jobs/{id}/elements`"""

    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_elements", responses=ElementsSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """The elements of an array that this job runs one after another; at most 1000."""
        rows = [_row(element) for element in elements_of(self.find(request, ref))]
        return Response(ElementsSerializer({"results": rows}).data)


class CancelElement(JobView):
    """`/jobs/{id}/elements/{index}/cancel`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_elements_cancel",
        parameters=[KEY],
        request=ReasonBodySerializer,
        responses=ElementSerializer,
    )
    @once
    def post(self, request: Request, ref: str, index: str) -> Response:
        """Cancel one element of a pending job."""
        end = cancel_element(
            job=self.find(request, ref), index=int(index), by=person(request), reason=reason_of(request)
        )
        return Response(ElementSerializer(_row(Element(end.index, end))).data)


def _row(element: Element) -> dict[str, Any]:
    end = element.end
    if end is None:
        return _NOTHING_YET | {"index": element.index, "state": NOT_ENDED}
    return {
        name: getattr(end, {"attempt": "epoch", "text": "end_text"}.get(name, name)) for name in _NOTHING_YET
    }


#: What is said of an element that has not ended; offsets and bytes are 0.
_NOTHING_YET: Final[dict[str, Any]] = {
    str(name): {"text": ""}.get(str(name), 0 if str(name).startswith("std") else None)
    for name in ElementSerializer().fields
}


class BulkItemSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    status = serializers.IntegerField()
    id = serializers.UUIDField(required=False)
    number = serializers.IntegerField(required=False)
    state = serializers.CharField(required=False)
    jobs = serializers.IntegerField(required=False, help_text="Number of jobs of an array.")
    error = serializers.DictField(required=False)


class BulkAnswerSerializer(serializers.Serializer[Any]):
    taken = serializers.IntegerField()
    refused = serializers.IntegerField()
    results = BulkItemSerializer(many=True)


class BulkRequestSerializer(serializers.Serializer[Any]):
    jobs = JobRequestSerializer(many=True)
    atomic = serializers.BooleanField(default=True)


class BulkJobs(JobView):
    """`/jobs:bulk`"""

    required_scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_submit_bulk",
        parameters=[KEY],
        request=BulkRequestSerializer,
        responses={
            201: BulkAnswerSerializer,
            207: OpenApiResponse(BulkAnswerSerializer, "Some jobs were refused."),
        },
    )
    @once
    def post(self, request: Request) -> Response:
        """Submit many jobs: all or none, or with `atomic: false` each one separately."""
        payloads, atomic = self._read(request)
        specs, errors = submit.parse_many(payloads=payloads, by=person(request))
        if errors and (atomic or len(errors) == len(payloads)):
            raise submit.refused_whole(errors)
        taken = submit.submit_specs(
            specs=[spec for spec in specs if spec is not None], by=person(request), via="api"
        )
        results: list[dict[str, Any]] = []
        at = 0
        for index, spec in enumerate(specs):
            if spec is None:
                results.append({"index": index, **_refusal(errors[index])})
                continue
            results.append(
                {"index": index, "status": 201, "id": str(taken.rows[at].uuid), "number": taken.number(at),
                 "state": PUBLIC[taken.state(at)].value, "jobs": spec.size}
            )  # fmt: skip
            at += spec.size
        body = {"taken": len(payloads) - len(errors), "refused": len(errors), "results": results}
        return Response(body, status=status.HTTP_207_MULTI_STATUS if errors else status.HTTP_201_CREATED)

    def _read(self, request: Request) -> tuple[list[Any], bool]:
        body = body_of(request)
        problems = [
            FieldProblem(
                str(name)[:60], "There is no such field; known are jobs and atomic.", "unknown-field"
            )
            for name in body
            if name not in ("jobs", "atomic")
        ]
        payloads, atomic = body.get("jobs"), body.get("atomic", True)
        most = settings.MUSTER_MAX_BULK
        if not isinstance(payloads, list) or not 1 <= len(payloads) <= most:
            problems.append(FieldProblem("jobs", f"Must be a list of 1 to {most} jobs.", "out-of-range"))
        if not isinstance(atomic, bool):
            problems.append(FieldProblem("atomic", "Must be true or false.", "not-a-flag"))
        if problems:
            raise InvalidInput(message=problems[0].message, problems=problems, way_out="Nothing was written.")
        return payloads, atomic  # type: ignore[return-value]


def _refusal(error: Any) -> dict[str, Any]:
    problems = [
        {"pointer": f"/{p.field}", "field": p.field, "message": p.message, "code": p.code}
        for p in error.problems
    ]
    return {
        "status": error.status,
        "error": {"code": error.code, "detail": error.message, "errors": problems},
    }
