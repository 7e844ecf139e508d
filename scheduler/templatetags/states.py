"""Template tags of states: chips whose text, tone and icon come from `scheduler/labels.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import template
from django.core.cache import cache
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts.templatetags.ui import duration, icon, show_times, when, zone_of
from quotas.core.resources import show_cpus
from scheduler import labels
from scheduler.core.lifecycle import AttemptState
from scheduler.core.reason_codes import ReasonCategory
from scheduler.deadlines import outlook
from scheduler.labels import Label
from scheduler.models import Job, Node
from scheduler.services.submission.fields_task import qos_word
from scheduler.state.lease.planner_liveness import ClusterNow, clusters_now

register = template.Library()

_QOS_HELP = {
    "guaranteed": "the full request is reserved; no bursting",
    "burstable": "may use idle capacity above the request",
    "best-effort": "runs on leftover capacity",
}

#: How long a page may show a pause that has just been lifted, in seconds.
PAUSE_MEMORY_SECONDS = 2


@register.simple_tag
def chip(label: Label, size: str = "") -> SafeString:
    return format_html(
        '<span class="chip t-{} {}" title="{}">{}<span>{}</span></span>',
        label.tone,
        size,
        label.help,
        icon(label.icon),
        label.word,
    )


@register.simple_tag
def job_chip(job: Job, size: str = "") -> SafeString:
    return chip(labels.job_label(job), size)


@dataclass(frozen=True, slots=True)
class DeadlineLook:
    """How a page shows whether a job meets its deadline."""

    label: labels.Label
    text: str

    @property
    def tone(self) -> str:
        return self.label.tone


@register.filter
def deadline(job: Any) -> DeadlineLook | None:
    """Whether the job meets its deadline; None without one."""
    found = outlook(job)
    return DeadlineLook(labels.DEADLINES[found.state], found.text) if found is not None else None


@register.simple_tag
def deadline_chip(job: Any) -> SafeString:
    """A chip for a deadline that is or may be missed; nothing for any other."""
    look = deadline(job)
    if look is None or look.label.tone == "completed":
        return SafeString("")
    return format_html(' <span data-deadline title="{}">{}</span>', look.text, chip(look.label))


@register.simple_tag
def node_chip(node: Node) -> SafeString:
    return chip(labels.node_label(node))


@register.simple_tag
def attempt_chip(state: str) -> SafeString:
    return chip(labels.ATTEMPT_STATES[AttemptState(state)])


@register.filter
def tone(job: Job) -> str:
    return labels.job_label(job).tone


@register.filter
def reason_title(code: str) -> str:
    return labels.reason_title(code)


#: Another name than where earlier versions kept rows of another shape: both may run at once during an upgrade.
_CLUSTERS = "muster:clusters-now-2"


@register.simple_tag
def cluster_troubles(fresh: object = False) -> dict[str, list[ClusterNow]]:
    """For the banner of every page: clusters where nothing new starts because somebody paused them, and those
    whose planner does not respond, whose cycles fail, or that are planned without a part of their policy; asked
    once every few seconds, or now."""
    found: list[ClusterNow] | None = None if fresh else cache.get(_CLUSTERS)
    if found is None:
        found = clusters_now()
        cache.set(_CLUSTERS, found, PAUSE_MEMORY_SECONDS)
    return {
        "paused": [row for row in found if row.paused],
        "silent": [row for row in found if row.silent],
        "failing": [row for row in found if row.failing],
        "out_of_use": [row for row in found if row.out_of_use],
    }


@register.filter
def category_word(category: str) -> str:
    """What the reason asks of the person: `cannot start`, `blocked`, `waiting`, `scheduler`."""
    try:
        return labels.CATEGORIES[ReasonCategory(category)].word
    except ValueError:
        return category


@register.filter
def qos(job: Job) -> str:
    return qos_word(job)


@register.filter
def qos_help(job: Job) -> str:
    return _QOS_HELP[qos_word(job)]


@register.filter
def gpu_text(job: Job) -> str:
    """All its GPUs: `4 × H100`, `0.5 × L4`, `–`."""
    if not job.gpus:
        return "–"
    if job.gpu_slice:
        return f"{job.tasks:,} × slice {job.gpu_slice}" + (f" of {job.gpu_model}" if job.gpu_model else "")
    count = show_cpus(job.gpu_millis * job.tasks) if job.gpu_millis else f"{job.gpus * job.tasks:,}"
    return f"{count} × {job.gpu_model}" if job.gpu_model else count


@register.filter
def cpu_seconds(milliseconds: int) -> str:
    """`1250` -> `1.2 s`, `90000` -> `1m 30s`."""
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else duration(milliseconds / 1000)


@register.simple_tag(takes_context=True)
def likely_start(context: template.Context, start: Any, shown: str = "") -> SafeString:
    """`Likely starts 14:10–15:30`, or what is known instead; of a StartRange or a StartForecast.

    The cause of an unknown start is left out where the page shows it already, as `shown`.
    """
    if start.p90_at is None:
        if start.p50_at is not None and start.p10_at is not None:
            return format_html("Likely starts about {}; latest start unknown.", when(context, start.p50_at))
        if start.unknown in ("", shown):
            return SafeString("Start time unknown.")
        return format_html("Start time unknown. {}", show_times(context, start.unknown))
    zone = zone_of(context)
    first, last = start.p10_at or start.p90_at, start.p90_at + timedelta(seconds=59.999)  # to the minute, up
    if (last - first).total_seconds() < 120:
        return format_html("Likely starts at {}", when(context, last))
    if first.astimezone(zone).date() == last.astimezone(zone).date():
        return format_html("Likely starts {}–{}", when(context, first), f"{last.astimezone(zone):%H:%M}")
    return format_html("Likely starts {} – {}", when(context, first), when(context, last))


@register.simple_tag(takes_context=True)
def sooner(context: template.Context, change: Any) -> SafeString:
    """`With a time limit of 4:00:00 instead of 8:00:00 the job would start by 13:20 at the latest, 3h sooner.`"""
    return format_html(
        "{} the job would start by {} at the latest, {} sooner.",
        show_times(context, change.words),
        when(context, change.at),
        duration(change.gain_seconds),
    )
