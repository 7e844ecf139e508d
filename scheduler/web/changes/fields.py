"""The form that changes a job: its fields as the submit form types them, of which only the edited ones are sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from scheduler.core.lifecycle import PENDING, JobState
from scheduler.models import Job
from scheduler.models.job import DependencyKind
from scheduler.services.changes.parse_change import WHILE_RUNNING
from scheduler.web.forms import ON_FORM, form_of_field, typed

#: Fields of the form, and those of them that a running job shows.
FIELDS: Final = (
    "name", "queue", "priority", "time_limit", "tasks", "nodes", "cpu_cores", "memory", "gpu_count", "gpu_type",
)  # fmt: skip


def fields_shown(job: Job) -> list[dict[str, Any]]:
    """The fields that may be changed in the state of the job, each as it is now."""
    waits = job.state in PENDING | {JobState.PREEMPTED}
    shown = []
    for name in FIELDS:
        if not waits and name not in WHILE_RUNNING:
            continue
        form = form_of_field(ON_FORM[name])
        shown.append(
            {"name": name, "label": form.label, "value": text_of(job, name), "placeholder": form.placeholder,
             "mode": form.mode}
        )  # fmt: skip
    return shown


def change_form(job: Job, verbs: Collection[str], *, sent: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the dialog shows, with what was `sent` in place of what is; nothing for who may not change the job."""
    if "edit" not in verbs:
        return {}
    waits, fields, sent = waits_as_text(job) if job.state in PENDING else None, fields_shown(job), sent or {}
    if waits is not None:
        waits = sent.get("depends_on", waits[0]), sent.get("depends_kind", waits[1])
    for field in fields:
        field["value"] = sent.get(field["name"], field["value"])
    return {
        "change_fields": fields,
        "change_reason": sent.get("reason", ""),
        "change_waits": waits,
        "change_kinds": [(kind.value, kind.label) for kind in _KINDS],
    }


_KINDS: Final = (DependencyKind.SUCCESS, DependencyKind.COMPLETION, DependencyKind.FAILURE)


def text_of(job: Job, name: str) -> str:
    """What a person would type for the field as it is; "" where it has the default."""
    if name == "priority":
        return str(job.priority)
    if name == "time_limit" and job.time_limit_seconds is not None:
        return _in_words(job.time_limit_seconds)
    return typed(ON_FORM[name], job)


def _in_words(seconds: int) -> str:
    """`1h30m`, as a time limit is typed."""
    parts = (
        (seconds // 86_400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "m"),
        (seconds % 60, "s"),
    )
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def waits_as_text(job: Job) -> tuple[str, str] | None:
    """The jobs that it waits for, and how, as the form types them; None where the form cannot say it."""
    rows = list(job.dependencies.order_by("id"))
    kinds = {row.kind for row in rows}
    if len(kinds) > 1 or any(row.group or row.data for row in rows):
        return None
    return " ".join(
        str(row.on_array) if row.on is None else row.on.said_number for row in rows
    ), kinds.pop() if kinds else DependencyKind.SUCCESS


def changes_of(form: Mapping[str, str], job: Job) -> dict[str, Any]:
    """What the form changes: fields that were typed otherwise than they are; an emptied one is reset."""
    changes: dict[str, Any] = {
        name: form[name].strip() or None
        for name in FIELDS
        if name in form and form[name].strip() != text_of(job, name)
    }
    now = waits_as_text(job)
    if "depends_on" in form and now is not None:
        wanted, kind = form["depends_on"].replace(",", " ").split(), form.get("depends_kind", now[1])
        if (wanted, kind) != (now[0].split(), now[1]) and (wanted or now[0]):
            changes["depends_on"] = [{"job": number, "type": kind} for number in wanted]
    return changes
