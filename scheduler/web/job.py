"""One job: where it is in its life, why it waits, what it prints, what happened to it."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import User
from accounts.templatetags.ui import duration
from accounts.web.pages import page, reader
from infra.errors import Conflict, InvalidInput, MusterError
from infra.plain_text import reason_of
from quotas.core.resources import show_bytes
from scheduler import labels
from scheduler.core.lifecycle import ACTIVE, PENDING, JobState
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence as reason_sentence
from scheduler.deadlines import relaxations
from scheduler.models import Allocation, Attempt, Device, Job, Task
from scheduler.selectors import env_shown_to, job_by_ref, node_by_ref, priority_names
from scheduler.services.changes.change import change_job
from scheduler.services.jobs.boosts import boost_job
from scheduler.services.jobs.logs import LogSlice, read_log
from scheduler.services.jobs.usage import usage_of_attempt
from scheduler.services.jobs.verbs import cancel_job, hold_job, may_release, release_job, requeue_job
from scheduler.services.moves.verbs import migrate_job
from scheduler.services.planning.explain import NodeLine, explain_job
from scheduler.services.planning.forecasts import expected_runtime
from scheduler.services.planning.suspension_reason import suspension_reason
from scheduler.state.lease.planner_liveness import silent_for
from scheduler.state.lifecycle.dependencies import conditions_of
from scheduler.web.changes.fields import change_form, changes_of
from scheduler.web.job_usage import usage_lines
from scheduler.web.moves import may_move, moves_shown
from scheduler.web.probes import probes_of
from scheduler.web.reads import exit_words
from scheduler.web.results.artifacts import artifacts_shown
from scheduler.web.results.checkpoints import checkpoints_shown
from scheduler.web.results.working_folder import results_of
from scheduler.web.submissions.uploads import upload_of_job
from scheduler.web.submit import funnel

TABS: Final = {"overview": "Overview", "why": "Why", "log": "Log", "results": "Results", "events": "Events"}
STREAMS: Final = ("merged", "stdout", "stderr")
#: What the first paint carries of a log; the rest follows live or by download.
FIRST_LOG_BYTES: Final = 65_536
#: Tasks of a gang that are listed.
MOST_TASKS: Final = 200
MOST_EVENTS: Final = 300
#: Nodes whose reason is listed; the counts of the gates cover all.
MOST_NODES: Final = 200

VERBS: Final[dict[str, Callable[..., Any]]] = {
    "cancel": cancel_job, "hold": hold_job, "release": release_job, "requeue": requeue_job,
}  # fmt: skip
SAID: Final = {
    "cancel": "Job {number} is cancelled.",
    "stopping": "Job {number} is being stopped.",
    "hold": "Job {number} is held until released.",
    "release": "Job {number} is released.",
    "requeue": "Job {number} is requeued.",
    "boost": "Job {number} is boosted ahead of jobs of the same priority.",
    "boost without effect": (
        "Job {number} is boosted. The queue is not ordered by priority, so the position stays the same."
    ),
    "migrate": "Job {number} is being moved: the job writes a checkpoint, ends, and continues on another node.",
    "change": "Job {number} is changed.",
    "boosted": "Job {number} has its base priority again.",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the life of a job: when it was reached, and how long the way to the next took."""

    word: str
    tone: str
    at: datetime | None
    until: datetime | None = None
    here: bool = False


@require_safe
@page
def show(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    return _shown(request, job_by_ref(user, number), user)


def _shown(request: HttpRequest, job: Job, user: User, refused: MusterError | None = None) -> HttpResponse:
    """The page of a job; after a change was `refused`, with its dialog as it was sent, and why."""
    asked = request.GET.get("tab", "")
    tab = asked if asked in TABS else ("why" if job.state in PENDING else "overview")
    stream = request.GET.get("stream", "")
    stream = stream if stream in STREAMS else "merged"
    verbs = _verbs(job, user)
    context: dict[str, Any] = {
        "job": job,
        "label": labels.job_label(job),
        "sentence": _running_on(job) or sentence(job),
        "tab": tab,
        "tabs": TABS.items(),
        "steps": steps(job),
        "forecast": job.likely_start,
        "verbs": verbs,
        **moves_shown(job, verbs),
        **change_form(job, verbs, sent=request.POST if refused else None),
        "change_refused": refused,
        "live_url": f"{reverse('job', args=[job.number])}?partial=1"
        + (f"&tab={asked}" if asked in TABS else ""),
    }
    if tab == "overview":
        context |= _holdings(job) | {"env": env_shown_to(user, job), "upload": upload_of_job(job)}
    elif tab == "why":
        context |= _why(job, user)
        if context["found"].start is not None:
            context["forecast"] = context["found"].start  # that of this moment, and no other beside it
    elif tab == "results":
        context |= results_of(job, user, request) | artifacts_shown(job, user) | checkpoints_shown(job, user)
    elif tab == "events":
        context["events"] = list(job.events.select_related("actor").order_by("-id")[:MOST_EVENTS])
    if "partial" in request.GET:
        return render(request, "scheduler/job_body.html", context)
    if asked in ("", "overview", "log"):
        context |= _log(job, stream, bool(asked == "log"))
    return render(request, "scheduler/job.html", context, status=refused.status if refused else 200)


def _verbs(job: Job, user: User) -> frozenset[str]:
    """What the person may do to it that its state allows."""
    possible = set()
    if not job.is_terminal and job.state != JobState.STOPPING:
        possible.add("cancel")
    if job.state in PENDING and job.state != JobState.HELD:
        possible.add("hold")
    if job.state == JobState.HELD and may_release(job, user, _role(job, user)):
        possible.add("release")
    if job.is_terminal or job.state in ACTIVE - {JobState.STOPPING, JobState.PREEMPTING, JobState.MIGRATING}:
        possible.add("requeue")
    if not job.is_terminal:
        possible.add("boost")
    if not job.is_terminal and job.state != JobState.STOPPING:
        possible.add("edit")
    allowed = permissions.allowed_verbs(user, job) & possible
    return allowed | {"migrate"} if "requeue" in allowed and may_move(job) else allowed


def _role(job: Job, user: User) -> str | None:
    """The person's role in the project of a job that a lead holds; for other jobs it is not asked."""
    if job.held_by != "lead":
        return None
    return permissions.roles_of(user, project_ids=[job.project_id]).get(job.project_id)


def sentence(job: Job) -> str:
    """One sentence under the title: why it waits, or how it ended."""
    if job.state in PENDING:
        unseen = job.reason_code in ("", ReasonCode.NOT_EVALUATED_YET)
        return not_looked_at(job) if unseen else job.reason_text
    if job.is_terminal:
        ended, words = job.end_text, exit_words(job)
        bare = words.removeprefix("ended by ").removeprefix("ended with ")
        if not words or bare in ended:
            return ended
        return f"{ended} The job {words}." if ended else f"{words[:1].upper()}{words[1:]}."
    suspended = suspension_reason(job)
    if suspended:
        return suspended
    return labels.JOB_STATES[JobState(job.state)].help.capitalize() + "."


def _running_on(job: Job) -> str:
    """`Running on node-1, node-2 and 3 more nodes.`; "" for a job that does not run."""
    if job.state != JobState.RUNNING:
        return ""
    held = Allocation.objects.filter(attempt__job=job, attempt__epoch=job.epoch).order_by("rank")
    names = list(dict.fromkeys(held.values_list("node__name", flat=True)[:MOST_TASKS]))
    more = f" and {len(names) - 3} more nodes" if len(names) > 3 else ""
    return f"Running on {', '.join(names[:3])}{more}." if names else ""


def not_looked_at(job: Job) -> str:
    silent = silent_for(job.queue.cluster_id)
    if silent is None:
        return reason_sentence(ReasonCode.NOT_EVALUATED_YET, ())
    return f"Not evaluated yet: the scheduler has not responded for {duration(silent)}."


def steps(job: Job) -> list[Step]:
    """Submitted, eligible, scheduled, running, ended: the ones reached with their times, the rest to come."""
    end = labels.job_label(job)
    moments: list[tuple[str, str, datetime | None]] = [("Submitted", "cancelled", job.created_at)]
    if job.eligible_at is None or job.eligible_at != job.created_at:
        moments.append(("Eligible", "pending", job.eligible_at))
    moments += [
        ("Scheduled", "starting", job.scheduled_at),
        ("Started" if job.state == JobState.SUSPENDED else "Running", "running", job.started_at),
        (end.word.capitalize() if job.is_terminal else "Ends", end.tone if job.is_terminal else "completed",
         job.completed_at),
    ]  # fmt: skip
    reached = [index for index, (_, _, at) in enumerate(moments) if at is not None]
    last = reached[-1]
    shown = []
    for index, (word, tone, at) in enumerate(moments):
        later = next((moments[i][2] for i in reached if i > index), None) if at is not None else None
        shown.append(Step(word, tone, at, later, here=index == last and not job.is_terminal))
    return shown


def _holdings(job: Job) -> dict[str, Any]:
    """What its attempts hold and held: per task the node and the GPU numbers."""
    attempts = list(Attempt.objects.filter(job=job).select_related("usage").order_by("-epoch"))
    latest = attempts[0] if attempts else None
    allocations: list[Allocation] = []
    tasks: dict[int, Task] = {}
    devices: dict[int, Device] = {}
    if latest is not None:
        allocations = list(
            Allocation.objects.filter(attempt=latest).select_related("node").order_by("rank")[:MOST_TASKS]
        )
        tasks = {task.rank: task for task in Task.objects.filter(attempt=latest)[:MOST_TASKS]}
        wanted = {device for allocation in allocations for device in allocation.device_ids}
        devices = {device.pk: device for device in Device.objects.filter(pk__in=wanted)}
    rows = [
        (allocation, tasks.get(allocation.rank), [devices[d] for d in allocation.device_ids if d in devices])
        for allocation in allocations
    ]
    return {
        "attempts": attempts,
        "latest": latest,
        "expected_runtime": expected_runtime(job, latest),
        "allocation_rows": rows,
        "waits": conditions_of(job),
        "probes": probes_of(job, tasks.values()),
        "relaxations": relaxations(job),
        "usage": usage_lines(usage_of_attempt(job, latest, allocations, devices.values()))
        if latest
        else None,
    }


def _why(job: Job, user: User) -> dict[str, Any]:
    """The planner's answer of this moment: the headline, every gate, every node, who goes first."""
    found = explain_job(job=job, by=user, nodes=True)
    return {
        "found": found,
        "funnel": funnel(found.gates),
        "others": [b for b in found.blockers if b.code != found.reason_code],
        "nodes_shown": sorted(found.node_table, key=_usable_first)[:MOST_NODES],
        "nodes_left": max(0, len(found.node_table) - MOST_NODES),
        "priority_word": dict(priority_names()).get(job.priority, ""),
        "pending": job.state in PENDING,
        "relaxations": relaxations(job),
    }


def _usable_first(node: NodeLine) -> tuple[bool, int, str]:
    return node.gate is not None, -node.slots, node.name


def _log(job: Job, stream: str, whole_page: bool) -> dict[str, Any]:
    piece = read_log(job=job, stream=stream, offset=0, limit=FIRST_LOG_BYTES)
    text, used = whole_characters(bytes(piece.data))
    return {
        "show_log": True,
        "log_text": text,
        "log_offset": piece.offset + used,
        "log_eof": piece.eof and used == len(piece.data),
        "log_empty": _why_empty(job, piece),
        "stream": stream,
        "streams": STREAMS,
        "log_tab": whole_page,
    }


def _why_empty(job: Job, piece: LogSlice) -> str:
    """What stands where the log will be, as long as nothing of it is here."""
    if piece.awaited_bytes:
        size = show_bytes(piece.awaited_bytes)
        return f"Not complete yet: the node is still sending {size} of output."
    if piece.lost_bytes:
        return f"The node never sent {show_bytes(piece.lost_bytes)} of output."
    if job.is_terminal:
        return "The job printed no output."
    return "No output has arrived yet." if job.started_at else "No output yet: the job has not started."


def whole_characters(data: bytes) -> tuple[str, int]:
    """The text up to the last whole character, and its length in bytes: an offset never cuts one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


@require_safe
@page
def download_log(request: HttpRequest, number: int) -> HttpResponse | StreamingHttpResponse:
    """The whole log as a file, as far as it has come."""
    job = job_by_ref(reader(request), number)
    stream = request.GET.get("stream", "merged")
    stream = stream if stream in STREAMS else "merged"

    def pieces() -> Any:
        offset = 0
        while True:
            piece = read_log(job=job, stream=stream, offset=offset, limit=1_048_576)
            if not piece.data:
                return
            yield bytes(piece.data)
            offset = piece.next_offset

    response = StreamingHttpResponse(pieces(), content_type="text/plain; charset=utf-8")
    whole = read_log(job=job, stream=stream, limit=1).awaited_bytes == 0
    name = f"job-{job.number}-{stream}{'' if whole else '-so-far'}.log"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _whole(text: str) -> int:
    """-1, which nothing takes, for what is no whole number."""
    return int(text) if text.strip().isdecimal() and len(text) < 9 else -1


@require_POST
@page
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    if verb not in VERBS and verb not in ("boost", "migrate", "change"):
        raise Http404
    user = reader(request)
    job = job_by_ref(user, number)
    if verb == "change":
        reason, seen = (
            reason_of(request.POST.get("reason", ""), most=200),
            _whole(request.POST.get("seen", "")),
        )
        try:
            change_job(
                job=job, changes=changes_of(request.POST.dict(), job), by=user, reason=reason, seen=seen
            )
        except (InvalidInput, Conflict) as refused:
            return _shown(request, job_by_ref(user, number), user, refused)
        messages.success(request, SAID["change"].format(number=job.said_number))
        return redirect("job", number=number)
    if verb == "migrate":
        name, reason = request.POST.get("node", ""), reason_of(request.POST.get("reason", ""), most=200)
        migrate_job(job=job, by=user, target=node_by_ref(user, name[:120]) if name else None, reason=reason)
        messages.success(request, SAID["migrate"].format(number=job.said_number))
        return redirect("job", number=number)
    if verb == "boost":
        points, hours = (_whole(request.POST.get(name, "")) for name in ("points", "hours"))
        reason = reason_of(request.POST.get("reason", ""), most=200)
        boost_job(job=job, by=user, points=points, reason=reason, seconds=hours * 3600)
        said = "boost" if job.queue.counts_priority else "boost without effect"
        messages.success(request, SAID[said if points else "boosted"].format(number=job.said_number))
        return redirect("job", number=number)
    VERBS[verb](job=job, by=user, reason=reason_of(request.POST.get("reason", ""), most=300))
    said = "stopping" if verb == "cancel" and not job.is_terminal else verb
    messages.success(request, SAID[said].format(number=job.said_number))
    return redirect("job", number=number)
