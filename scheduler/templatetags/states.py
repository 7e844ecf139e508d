"""Template words for states: chips with icon and word, from the one table of labels."""

from __future__ import annotations

from typing import Any

from django import template
from django.core.cache import cache
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts.templatetags.ui import icon
from scheduler import labels
from scheduler.core.lifecycle import AttemptState
from scheduler.labels import Label
from scheduler.models import Cluster, Job, Node

register = template.Library()

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


@register.simple_tag
def paused_clusters() -> list[dict[str, Any]]:
    """Clusters where nothing new starts, for the banner of every page; asked once every few seconds."""
    found = cache.get("muster:paused-clusters")
    if found is None:
        found = list(
            Cluster.objects.filter(paused=True).values("name", "paused_reason", "paused_by", "paused_at")
        )
        cache.set("muster:paused-clusters", found, PAUSE_MEMORY_SECONDS)
    return found
