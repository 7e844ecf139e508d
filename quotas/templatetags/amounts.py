"""Template words for amounts of resources: MiB as GiB, thousandths as cores and GPUs."""

from __future__ import annotations

from typing import Any

from django import template

from quotas.core.amounts import BUDGET_WORDS, RESOURCE_WORDS
from quotas.core.pricing import UNITS
from quotas.core.resources import show_bytes, show_cpus, show_mib
from quotas.models import BudgetResource
from quotas.services.budget_impact import amount_shown

register = template.Library()


@register.filter
def mib(value: int | None) -> str:
    """`1536` -> `1.5 GiB`."""
    return "–" if value is None else show_mib(value)


@register.filter
def size(value: int | None) -> str:
    """Bytes in the units of all other amounts: `3000000` -> `2.9 MiB`."""
    return "–" if value is None else show_bytes(value)


@register.filter
def units(millis: int | None) -> str:
    """Thousandths of a core or of a GPU as whole ones: `2500` -> `2.5`."""
    return "–" if millis is None else show_cpus(millis)


@register.filter
def amount(value: int | None, resource: str) -> str:
    """An amount in the words of its resource: `amount:"memory_mib"` -> `1.5 GiB`."""
    if value is None:
        return "no limit"
    if resource in BudgetResource.values:
        return amount_shown(resource, value)
    if resource.endswith("_mib"):
        return show_mib(value)
    if resource.endswith("_millis"):
        return show_cpus(value)
    return f"{value:,}"


@register.filter
def minus(value: int, other: int) -> int:
    return value - other


@register.filter
def at_least(value: int, other: int) -> int:
    return max(value, other)


@register.filter
def resource_word(resource: str) -> str:
    """A quota line's resource as people say it."""
    if resource in BudgetResource.values:
        return BUDGET_WORDS[resource]
    return RESOURCE_WORDS.get(resource, resource)


@register.filter
def rolled(line: Any, sums: int) -> str:
    """A sum of a line that stands for old lines of one resource: `40 GPU-hours`, `12.5 GiB-hours`."""
    resource = next((name for name in UNITS if getattr(line, name)), None)
    if resource is None or not sums:
        return "–"
    unit = {"gpu_millis": "GPU", "cpu_millis": "core", "memory_mib": "GiB", "storage_mib": "GiB of storage"}
    hours = f"{sums / UNITS[resource] / 3600:,.2f}".rstrip("0").rstrip(".")
    return f"{hours} {unit[resource]}-hours"
