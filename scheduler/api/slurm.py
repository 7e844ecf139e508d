"""For those who come from Slurm: `sbatch` scripts in, `squeue` out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db.models import Prefetch
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.problems import BadInput, too_big
from infra.api.rest import CleanJSONParser, unclean
from infra.errors import FieldProblem, InvalidInput
from scheduler.api.base import ApiView, once, person
from scheduler.api.job_reads import bad_query, wants_text
from scheduler.api.jobs import JobView
from scheduler.api.serializers import JobSerializer
from scheduler.core.lifecycle import ACTIVE, PENDING, JobState
from scheduler.core.reason_codes import ReasonCode
from scheduler.models import Allocation, Attempt, Job
from scheduler.selectors import visible_jobs
from scheduler.services.jobs import submit
from scheduler.services.submission.job_spec import FIELDS
from scheduler.services.submission.sbatch import parse_sbatch

#: Slurm's letters for our states.
LETTERS: Final[dict[JobState, str]] = {
    JobState.CREATED: "PD",
    JobState.HELD: "PD",
    JobState.BLOCKED: "PD",
    JobState.QUEUED: "PD",
    JobState.RESERVED: "PD",
    JobState.SCHEDULED: "CF",
    JobState.STARTING: "CF",
    JobState.RUNNING: "R",
    JobState.CHECKPOINTING: "R",
    JobState.PREEMPTING: "CG",
    JobState.STOPPING: "CG",
    JobState.MIGRATING: "R",
    JobState.PREEMPTED: "PR",
    JobState.SUSPENDED: "S",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
}
#: Slurm's words for our reasons.
REASONS: Final[dict[str, str]] = {
    ReasonCode.NO_MATCHING_NODE: "ReqNodeNotAvail",
    ReasonCode.NODES_UNAVAILABLE: "ReqNodeNotAvail",
    ReasonCode.EXCEEDS_MAX_QUOTA: "AssocMaxJobsLimit",
    ReasonCode.EXCEEDS_MAX_WALLTIME: "PartitionTimeLimit",
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: "DependencyNeverSatisfied",
    ReasonCode.QUEUE_STOPPED: "PartitionDown",
    ReasonCode.HELD_BY_ADMIN: "JobHeldAdmin",
    ReasonCode.HELD_BY_USER: "JobHeldUser",
    ReasonCode.ACCOUNT_EXPIRED: "InvalidAccount",
    ReasonCode.QUOTA_ZERO: "AssocGrpGRES",
    ReasonCode.BUDGET_SPENT: "AssocGrpGRESMinutes",
    ReasonCode.EXCEEDS_BUDGET: "AssocGrpGRESMinutes",
    ReasonCode.QUOTA_PROVIDER_AWAY: "JobHeldAdmin",
    ReasonCode.BEGIN_TIME: "BeginTime",
    ReasonCode.DEPENDENCY: "Dependency",
    ReasonCode.BACKOFF: "BeginTime",
    ReasonCode.RATE_LIMITED: "QOSGrpJobsLimit",
    ReasonCode.WAITING_FOR_QUOTA: "AssocGrpGRES",
    ReasonCode.FAIR_SHARE_BEHIND: "Priority",
    ReasonCode.RESERVATION: "Reservation",
    ReasonCode.PRIORITY: "Priority",
    ReasonCode.NOT_EVALUATED_YET: "None",
}
MAX_ROWS: Final = 5000
#: squeue's own columns, with its widths.
_COLUMNS: Final = "{:>18} {:>9} {:>8} {:>8} {:>2} {:>10} {:>6} {}"
HEADER: Final = _COLUMNS.format(
    "JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"
)


class ScriptParser(BaseParser):
    """A script as the whole body, as `curl --data-binary @job.sh -H 'Content-Type: text/plain'` sends it."""

    media_type = "text/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, str]:
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(most + 1)
        if len(raw) > most:
            raise BadInput(too_big())
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as broken:
            raise InvalidInput(
                message="The script is not UTF-8.",
                code="bad-script",
                way_out="Save it as UTF-8 and send it again.",
            ) from broken
        return {"script": text}


class IgnoredDirectiveSerializer(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    text = serializers.CharField()
    reason = serializers.CharField()


class SbatchAnswerSerializer(serializers.Serializer[Any]):
    job_id = serializers.IntegerField(help_text="The number, as sbatch prints it.")
    job = JobSerializer()
    ignored = IgnoredDirectiveSerializer(many=True, help_text="Directives without effect here, and why.")
    notes = serializers.ListField(child=serializers.CharField())


class SbatchRequestSerializer(serializers.Serializer[Any]):
    """A script, and fields of a job that override its directives."""

    script = serializers.CharField()


class Sbatch(JobView):
    """`/slurm/sbatch`"""

    serializer_class = SbatchAnswerSerializer  # type: ignore[assignment]
    parser_classes = [CleanJSONParser, ScriptParser]
    required_scopes = {"POST": "jobs:write"}
    location = "/api/v1/jobs/{job_id}"
    schema_tags = ["slurm"]

    @extend_schema(
        operation_id="slurm_sbatch",
        parameters=[KEY],
        request={"application/json": SbatchRequestSerializer, "text/plain": OpenApiTypes.STR},
        responses={201: SbatchAnswerSerializer},
    )
    @once
    def post(self, request: Request) -> Response:
        """Submit an `sbatch` script; it runs unchanged, by the interpreter of its first line."""
        script, overrides = self._read(request.data)
        payload, ignored = parse_sbatch(script, by=person(request), overrides=overrides)
        job = submit.submit_job(payload=payload, by=person(request), via="sbatch")
        job._prefetched_objects_cache = {"attempts": []}  # type: ignore[attr-defined]  # it has none yet
        body = {
            "job_id": job.number,
            "job": self.whole(job),
            "ignored": [{"line": item.line, "text": item.text, "reason": item.reason} for item in ignored],
            "notes": notes_on(job),
        }
        return Response(body, status=status.HTTP_201_CREATED)

    def _read(self, data: Any) -> tuple[str, Mapping[str, Any]]:
        script = data.get("script") if isinstance(data, Mapping) else None
        problem = None
        if not isinstance(script, str) or not script.strip():
            problem = FieldProblem("script", "Required: the text of an sbatch script.", "required")
        elif trouble := unclean(script):
            problem = FieldProblem("script", f"The script {trouble}.", "bad-text")
        elif "command" in data:
            problem = FieldProblem("command", "Not allowed together with a script.", "one-of")
        if problem is not None:
            raise InvalidInput(message=problem.message, code="bad-script", problems=[problem])
        overrides = {name: value for name, value in data.items() if name != "script"}
        unknown = [name for name in overrides if name not in FIELDS]
        if unknown:
            message = (
                f"There is no field {str(unknown[0])[:60]!r}; fields of a job are accepted beside script."
            )
            raise InvalidInput(
                message=message, problems=[FieldProblem(str(unknown[0])[:60], message, "unknown-field")]
            )
        return script, overrides  # type: ignore[return-value]


def notes_on(job: Job) -> list[str]:
    """What a person who knows Slurm might not expect."""
    notes = []
    if job.tasks > 1:
        notes.append(
            f"Each of the {job.tasks} tasks runs the script, as srun would; RANK tells them apart. "
            "Slurm itself runs it once, on the first node."
        )
    return notes


class SqueueRowSerializer(serializers.Serializer[Any]):
    job_id = serializers.CharField()
    number = serializers.IntegerField()
    partition = serializers.CharField()
    name = serializers.CharField()
    user = serializers.CharField()
    account = serializers.CharField()
    st = serializers.CharField()
    state = serializers.CharField()
    time = serializers.CharField()
    time_seconds = serializers.IntegerField()
    time_limit_seconds = serializers.IntegerField(allow_null=True)
    nodes = serializers.IntegerField()
    nodelist = serializers.ListField(child=serializers.CharField())
    reason = serializers.CharField()
    nodelist_reason = serializers.CharField()
    gpus = serializers.IntegerField()
    priority = serializers.IntegerField()


class SqueueSerializer(serializers.Serializer[Any]):
    jobs = SqueueRowSerializer(many=True)
    total = serializers.IntegerField()
    truncated = serializers.BooleanField()


class Squeue(ApiView):
    """`/slurm/squeue`"""

    queryset = Job.objects.none()
    serializer_class = SqueueSerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["slurm"]

    @extend_schema(
        operation_id="slurm_squeue",
        parameters=[
            OpenApiParameter("user", str, description='A username, or "me".'),
            OpenApiParameter("partition", str, description="A queue."),
            OpenApiParameter("account", str, description="A project."),
            OpenApiParameter(
                "states", str, description="Slurm's letters joined by commas; PD,CF,R,CG,PR,S when absent."
            ),
        ],
        responses={
            (200, "application/json"): SqueueSerializer,
            (200, "text/plain"): OpenApiResponse(OpenApiTypes.STR, "The table that squeue prints."),
        },
    )
    def get(self, request: Request) -> HttpResponse:
        """Pending and running jobs, as squeue lists them."""
        rows = self._rows(request)
        total = rows.count()
        newest = Attempt.objects.prefetch_related(
            Prefetch("allocations", queryset=Allocation.objects.select_related("node").order_by("rank"))
        ).order_by("-epoch")
        found = rows.order_by("-priority", "number").prefetch_related(Prefetch("attempts", queryset=newest))
        now = timezone.now()
        jobs = [squeue_row(job, now) for job in found[:MAX_ROWS]]
        if wants_text(request):
            text = "\n".join([HEADER, *(_line(job) for job in jobs)]) + "\n"
            return HttpResponse(text, content_type="text/plain; charset=utf-8")
        return Response({"jobs": jobs, "total": total, "truncated": total > len(jobs)})

    def _rows(self, request: Request) -> Any:
        query = request.query_params
        rows = visible_jobs(person(request))
        if unknown := set(query) - {"user", "partition", "account", "states"}:
            raise bad_query(min(unknown)[:60], "There is no such filter.")
        states = PENDING | ACTIVE | {JobState.PREEMPTED, JobState.SUSPENDED}
        if given := query.get("states"):
            letters = {part.strip().upper() for part in given.split(",")}
            states = frozenset(s for s, letter in LETTERS.items() if letter in letters or "ALL" in letters)
            if not states or letters - set(LETTERS.values()) - {"ALL"}:
                raise bad_query("states", f"Must be of {', '.join(sorted(set(LETTERS.values())))} or ALL.")
        rows = rows.in_states(states)
        if user := query.get("user"):
            rows = rows.filter(user=person(request)) if user == "me" else rows.filter(user__username=user)
        if queue := query.get("partition"):
            rows = rows.filter(queue__slug=queue)
        if account := query.get("account"):
            rows = rows.filter(project__slug=account)
        return rows


def squeue_row(job: Job, now: datetime) -> dict[str, Any]:
    attempts = list(job.attempts.all())
    held = attempts[0].allocations.all() if attempts and not job.is_pending else []
    nodes = list(dict.fromkeys(allocation.node.name for allocation in held))
    seconds = _elapsed(job, now)
    reason = REASONS.get(job.reason_code, "Resources") if job.is_pending else ""
    job_id = str(job.number)
    if job.array_index is not None:
        job_id = f"{job.number}_{job.array_index}"
    return {
        "job_id": job_id,
        "number": job.number,
        "partition": job.queue.slug,
        "name": job.name,
        "user": job.user.username,
        "account": job.project.slug,
        "st": LETTERS[JobState(job.state)],
        "state": job.public_state.value,
        "time": clock(seconds),
        "time_seconds": seconds,
        "time_limit_seconds": job.time_limit_seconds,
        "nodes": len(nodes) or job.nodes or 1,
        "nodelist": nodes,
        "reason": reason,
        "nodelist_reason": ",".join(nodes) if nodes else f"({reason})" if reason else "",
        "gpus": job.gpus * job.tasks,
        "priority": job.priority,
    }


def _elapsed(job: Job, now: datetime) -> int:
    if job.started_at is None or job.is_pending:
        return 0
    return max(0, int(((job.completed_at or now) - job.started_at).total_seconds()))


def clock(seconds: int) -> str:
    """`1-02:03:04`, `2:03:04`, `3:04`: as squeue writes times."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _line(job: dict[str, Any]) -> str:
    name = "".join(c if c.isprintable() else "?" for c in job["name"])
    return _COLUMNS.format(
        job["job_id"][:18], job["partition"][:9], name[:8], job["user"][:8],
        job["st"], job["time"], job["nodes"], job["nodelist_reason"],
    )  # fmt: skip
