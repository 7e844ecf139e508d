"""Submitting a job: the form, its examples and copies, and the preview beside it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models import User
from accounts.selectors import default_project, submit_projects
from accounts.services import audit
from accounts.web.pages import page, reader
from infra.errors import Conflict, MusterError
from infra.times_in_text import written
from scheduler.deadlines import DeadlineState, outlook
from scheduler.models import Device, Job, PriorityClass
from scheduler.selectors import env_shown_to, job_by_ref, visible_queues
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning.explanation_parts import Gate
from scheduler.services.planning.job_preview import NEVER, REFUSED, STARTS_NOW, WOULD_WAIT, preview_job
from scheduler.services.submission.fields import BadValue, read_seconds
from scheduler.services.submission.idempotency import Answer, do_once, request_hash
from scheduler.services.submission.sbatch.directives import Unhonoured
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.web import forms
from scheduler.web.submissions.uploads import left_out, offered

MOST_SHOWN_IGNORED: Final = 20
#: So often, and so far apart, the second of two clicks looks whether the first is done.
TRIES, TRY_SECONDS = 40, 0.1
#: What a copy may ask otherwise than the job it is of, when a suggestion is followed.
CHANGED: Final = ("time_limit", "gpu_count", "gpu_type", "cpu_cores", "memory", "tasks", "queue")
#: How each verdict of the preview looks: icon, tone, the word before its sentence.
VERDICTS: Final = {
    STARTS_NOW: ("check", "completed", "Starts now"),
    WOULD_WAIT: ("hourglass", "pending", "Would wait"),
    NEVER: ("flag", "blocked", "Can never start"),
    REFUSED: ("flag", "blocked", "Not ready to submit"),
}


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    if request.method == "POST":
        return _submit(request, user)
    context: dict[str, Any] = {}
    form: Mapping[str, str] = forms.EXAMPLES.get(request.GET.get("example", ""), {})
    if request.GET.get("copy"):
        job = job_by_ref(user, request.GET["copy"])
        changes = {name: request.GET[name][:100] for name in CHANGED if name in request.GET}
        hidden = job.env and None in env_shown_to(user, job).values()
        copied = {name: text for name, text in forms.form_of(job).items() if name != "env" or not hidden}
        if why := left_out(job, user):
            context["upload_left_out"] = why
            copied.pop("upload", None)
        form, context["copied"] = copied | changes, job
    return _render(request, user, form, context)


def _submit(request: HttpRequest, user: User) -> HttpResponse:
    form = request.POST.dict()
    try:
        job, ignored, again = _submit_once(form, user)
    except MusterError as error:
        audit.record_refusal(error, by=user)
        problems = forms.by_form_field(error.problems)
        return _render(request, user, form, {"error": error, "problems": problems}, status=error.status)
    if again:
        messages.info(
            request, "This form was already submitted; this is the job. Nothing was submitted twice."
        )
        return redirect("job", number=job.number)
    if job.array_id is not None:
        messages.success(request, f"Array {job.array_number} submitted; job {job.said_number} is its first.")
    late = outlook(job)
    if job.deadline_at and late is not None and late.state == DeadlineState.LATE:
        messages.warning(request, f"{late.text} Deadline: {written(job.deadline_at)}.")
    for directive in ignored[:MOST_SHOWN_IGNORED]:
        messages.warning(
            request, f"Line {directive.line} has no effect: {directive.text}. {directive.reason}"
        )
    return redirect("job", number=job.number)


def _submit_once(form: Mapping[str, str], user: User) -> tuple[Job, list[Unhonoured], bool]:
    """The job of a form; the same one when the same page sends the same once more, as after a double click."""
    made: list[tuple[Job, list[Unhonoured]]] = []

    def do() -> Answer:
        payload, ignored = read(form, user)
        via = "sbatch" if forms.is_sbatch(form.get("what", "")) else "web"
        made.append((submit_job(payload=payload, by=user, via=via), ignored))
        return Answer(302, {"number": made[0][0].number})

    if not form.get("page"):
        do()
        return *made[0], False
    whole = request_hash(json.dumps(form, sort_keys=True))
    for left in reversed(range(TRIES)):
        try:
            answer = do_once(user=user, key=f"page-{whole}", request_hash=whole, do=do)
            break
        except Conflict as error:
            if error.code != "idempotency-in-progress" or not left:
                raise
            time.sleep(TRY_SECONDS)  # the first of two clicks is at it
    if made:
        return *made[0], False
    return job_by_ref(user, answer.body["number"]), [], True


def read(form: Mapping[str, str], user: User) -> tuple[dict[str, Any], list[Unhonoured]]:
    """The request of a form; what was filled in wins over a script's own lines, save project and queue."""
    payload = forms.payload_of(form, time_zone=user.time_zone)
    what = form.get("what", "").replace("\r\n", "\n")
    if not forms.is_sbatch(what):
        return payload, []
    # These two are chosen for everybody beforehand, so a script that names them means it.
    chosen = {name: payload.pop(name) for name in ("project", "queue") if name in payload}
    translated, ignored = parse_sbatch(what, by=user, overrides=payload)
    return chosen | translated, ignored


def _render(
    request: HttpRequest, user: User, form: Mapping[str, str], extra: dict[str, Any], status: int = 200
) -> HttpResponse:
    problems = extra.get("problems", {})
    priorities = list(
        PriorityClass.objects.filter(value__lte=user.priority_ceiling).values_list("value", "name")
    )
    own = form.get("priority", "")
    context = {
        "form": form,
        "problems": problems,
        "projects": list(submit_projects(user).order_by("name", "id")),
        "default_project": default_project(user),
        "queues": list(visible_queues(user).order_by("name", "id")),
        "gpu_models": list(
            Device.objects.filter(kind="gpu", gone=False)
            .exclude(model="")
            .order_by("model")
            .values_list("model", flat=True)
            .distinct()
        ),
        **offered(user, form.get("upload", "")),
        "page": form.get("page") or secrets.token_urlsafe(12),
        "groups": forms.groups(),
        "priorities": [(value, name.lower()) for value, name in priorities],
        "own_priority": own if own and own not in {str(value) for value, _ in priorities} else "",
        "advanced_open": any(form.get(name) or problems.get(name) for name in forms.ADVANCED),
    } | extra
    return render(request, "scheduler/submit.html", context, status=status)


@require_POST
@page
def preview(request: HttpRequest) -> HttpResponse:
    """What would become of the form as it stands; writes nothing."""
    user = reader(request)
    form = request.POST.dict()
    context: dict[str, Any] = {"empty": not form.get("what", "").strip()}
    if not context["empty"]:
        try:
            payload, ignored = read(form, user)
        except MusterError as error:
            context["error"] = error
        else:
            found = preview_job(payload=payload, by=user)
            context |= {
                "found": found,
                "look": VERDICTS[found.verdict],
                "funnel": funnel(found.gates),
                "problems": [(forms.at_field(problem.field), problem.message) for problem in found.problems],
                "ignored": ignored[:MOST_SHOWN_IGNORED],
                "is_sbatch": forms.is_sbatch(form["what"]),
                "curl": _curl(request, payload),
                "sbatch": forms.as_sbatch(form),
                "gpu_hours": _gpu_hours(payload),
            }
    return render(request, "scheduler/preview.html", context)


def funnel(gates: Sequence[Gate]) -> list[tuple[Gate, int]]:
    """Each gate with how much of the bar is left after it, in percent of all nodes."""
    most = gates[0].left if gates else 0
    return [(gate, round(100 * gate.left / most) if most else 0) for gate in gates]


def _gpu_hours(payload: Mapping[str, Any]) -> str:
    """What it costs at most: GPUs times tasks times the time limit; empty where one is not said."""
    try:
        gpus = float(payload.get("gpu_share") or payload.get("gpu_count") or 0) * int(
            payload.get("tasks") or 1
        )
        hours = gpus * read_seconds(payload["time_limit"]) / 3600
    except (KeyError, ValueError, OverflowError, BadValue):
        return ""
    return f"{hours:.2f}".rstrip("0").rstrip(".") if hours and isfinite(hours) else ""


def _curl(request: HttpRequest, payload: Mapping[str, Any]) -> str:
    """The same request for a program, quoted for a POSIX shell."""
    body = json.dumps(payload, ensure_ascii=False, indent=2).replace("'", "'\\''")
    url = request.build_absolute_uri("/api/v1/jobs")
    return (
        f"curl {url} \\\n  -H 'Authorization: Bearer YOUR_TOKEN' \\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d '{body}'"
    )
