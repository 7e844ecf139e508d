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
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.services.submission.sbatch.script_tools import notes_on_tools

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
    ReasonCode.QUOTA_PROVIDER_REFUSES: "AssocGrpJobsLimit",
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
    """A script, what belongs to it on the command line, and fields of a job that win over both."""

    script = serializers.CharField(required=False, help_text="The script; left out with --wrap in args.")
    args = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Options of sbatch's command line, word by word.",
    )
    submit_env = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text="Variables of the shell: SBATCH_* are read as options, others where --export names them.",
    )
    file_name = serializers.CharField(required=False, help_text="Names a job that has no --job-name.")
    script_args = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Arguments of the script: refused unless empty.",
    )


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
        script, beside, overrides = self._read(request.data)
        payload, ignored = parse_sbatch(script, by=person(request), overrides=overrides, **beside)
        job = submit.submit_job(payload=payload, by=person(request), via="sbatch")
        job._prefetched_objects_cache = {"attempts": []}  # type: ignore[attr-defined]  # it has none yet
        body = {
            "job_id": job.number,
            "job": self.whole(job),
            "ignored": [{"line": item.line, "text": item.text, "reason": item.reason} for item in ignored],
            "notes": notes_on(job) + notes_on_tools(job.script),
        }
        return Response(body, status=status.HTTP_201_CREATED)

    def _read(self, data: Any) -> tuple[str, dict[str, Any], Mapping[str, Any]]:
        """The script, what comes with it on sbatch's command line, and the fields of the job beside it."""
        given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        beside = {name: given[name] for name in _BESIDE if name in given}
        problem = _beside_problem(beside) or _script_problem(given)
        if problem is not None:
            raise InvalidInput(message=problem.message, code="bad-script", problems=[problem])
        overrides = {name: value for name, value in given.items() if name != "script" and name not in _BESIDE}
        unknown = [name for name in overrides if name not in FIELDS]
        if unknown:
            message = (
                f"There is no field {str(unknown[0])[:60]!r}; fields of a job are accepted beside script."
            )
            raise InvalidInput(
                message=message, problems=[FieldProblem(str(unknown[0])[:60], message, "unknown-field")]
            )
        return given.get("script") or "", beside, overrides


def _script_problem(given: Mapping[str, Any]) -> FieldProblem | None:
    """What keeps the script from being read; there may be none where --wrap is on the command line."""
    script = given.get("script")
    if "command" in given:
        return FieldProblem("command", "Not allowed together with a script.", "one-of")
    if script is None and any(word.startswith("--wrap") for word in given.get("args", ())):
        return None
    if not isinstance(script, str) or not script.strip():
        return FieldProblem("script", "Required: the text of an sbatch script.", "required")
    if trouble := unclean(script):
        return FieldProblem("script", f"The script {trouble}.", "bad-text")
    return None


#: What sbatch itself has beside the script.
_BESIDE: Final = ("args", "submit_env", "file_name", "script_args")
MAX_ARGS: Final = 500
MAX_ARG: Final = 65_536


def _beside_problem(beside: Mapping[str, Any]) -> FieldProblem | None:
    """What is wrong with what comes beside a script."""
    for name, value in beside.items():
        texts: Any = value
        if name == "file_name":
            texts = [value]
        elif name == "submit_env" and isinstance(value, Mapping):
            texts = [*value.keys(), *value.values()]
        elif name == "submit_env" or not isinstance(value, list):
            kind = "an object of text" if name == "submit_env" else "a list of texts"
            return FieldProblem(name, f"Must be {kind}.", "invalid")
        if len(texts) > MAX_ARGS:
            return FieldProblem(name, f"Has {len(texts)} entries; the maximum is {MAX_ARGS}.", "too-many")
        for text in texts:
            if not isinstance(text, str) or len(text) > MAX_ARG:
                return FieldProblem(name, f"Must be text of at most {MAX_ARG} characters.", "not-text")
            if trouble := unclean(text):
                return FieldProblem(name, f"The text {trouble}.", "bad-text")
    return None


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
    return {
        "job_id": job.said_number,
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
