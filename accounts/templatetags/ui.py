"""Template words of every page: icons, times in the reader's zone, durations as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import conditional_escape, format_html, format_html_join, strip_tags
from django.utils.safestring import SafeString

from infra.machine.disk_space import Shortage, shortages
from infra.times_in_text import pieces, zone_named

register = template.Library()

_STEPS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """A decorative icon of the sprite: the word beside it says the same."""
    return format_html('<svg class="icon {}" aria-hidden="true"><use href="#i-{}"/></svg>', extra, name)


def zone_of(context: template.Context) -> tzinfo:
    """The reader's zone: of the account, UTC where nobody is signed in."""
    user = getattr(context.get("request"), "user", None)
    return zone_named(getattr(user, "time_zone", "") or "UTC")


@register.simple_tag(takes_context=True)
def sentence(context: template.Context, text: str | None, most: int = 0) -> SafeString:
    """A sentence with its times in the reader's zone; cut to `most` characters where that is given."""
    return show_times(context, text or "", most)


def show_times(context: template.Context, text: str, most: int = 0) -> SafeString:
    """The same for other tags that show a sentence."""
    shown: list[SafeString] = []
    left = most or len(text) + 1
    for piece in pieces(text):
        part = when(context, piece) if isinstance(piece, datetime) else piece
        length = len(strip_tags(part))
        if length > left:
            shown.append(conditional_escape("…" if isinstance(piece, datetime) else f"{piece[: left - 1]}…"))
            break
        shown.append(conditional_escape(part))
        left -= length
    return format_html_join("", "{}", ((one,) for one in shown))


@register.simple_tag(takes_context=True)
def when(
    context: template.Context, at: datetime | None, style: str = "short", empty: str = "–"
) -> str | SafeString:
    """A moment in the reader's zone; the tooltip gives it in UTC with how long ago it was.

    `short` leaves out today's date, `full` gives date, seconds and zone, `ago` is relative.
    """
    if at is None:
        return empty
    zone = zone_of(context)
    local, now = at.astimezone(zone), timezone.now()
    tip = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {relative(at, now)}"
    if style == "ago":
        text = relative(at, now)
        tip = f"{local:%Y-%m-%d %H:%M:%S %Z}, {at.astimezone(UTC):%H:%M:%S} UTC"
    elif style == "full":
        text = f"{local:%Y-%m-%d %H:%M:%S %Z}"
    elif local.date() == now.astimezone(zone).date():
        text = f"{local:%H:%M:%S}" if style == "seconds" else f"{local:%H:%M}"
    else:
        text = f"{local:%d %b %H:%M}" if local.year == now.year else f"{local:%d %b %Y %H:%M}"
    return format_html(
        '<time class="nowrap" datetime="{}" title="{}"{}>{}</time>',
        at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tip,
        SafeString(' data-ago=""') if style == "ago" else "",
        text,
    )


def relative(at: datetime, now: datetime) -> str:
    """`4m ago`, `in 2h 5m`, `just now`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 5:
        return "just now"
    text = duration(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


@register.filter
def duration(value: float | int | timedelta | None) -> str:
    """`3h 12m`, `45 s`, `2d 4h`: the two largest units."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return "0 s"
    left = int(seconds)
    parts: list[str] = []
    for size, unit in _STEPS:
        amount, left = divmod(left, size)
        if amount or (parts and len(parts) < 2):
            parts.append(f"{amount}{unit}")
        if len(parts) == 2:
            break
    while len(parts) > 1 and parts[-1].startswith("0"):
        parts.pop()
    return f"{parts[0][:-1]} s" if len(parts) == 1 and parts[0].endswith("s") else " ".join(parts) or "0 s"


@register.simple_tag
def elapsed(start: datetime | None, end: datetime | None = None) -> str | SafeString:
    """How long it took, or has taken so far; an open one counts on in the browser."""
    if start is None:
        return "–"
    if end is not None:
        seconds = (end - start).total_seconds()
        if 0 <= seconds < 0.1:
            return "<0.1 s"
        return f"{seconds:.1f} s" if 0 <= seconds < 10 else duration(seconds)
    return format_html(
        '<span class="nowrap" data-since="{}">{}</span>',
        start.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        duration(timezone.now() - start),
    )


@register.filter
def percent_of(part: int | float | None, whole: int | float | None) -> int:
    """A bar's width, 0 to 100."""
    if not part or not whole:
        return 0
    return max(0, min(100, round(100 * part / whole)))


@register.filter
def plural(count: int, words: str) -> str:
    """`{{ n|plural:"job,jobs" }}` -> `1 job`, `2,431 jobs`."""
    one, many = words.split(",")
    return f"{count:,} {one if count == 1 else many}"


@register.filter
def get(mapping: Any, key: Any) -> Any:
    """A dictionary's value by a variable key."""
    return mapping.get(key) if mapping else None


@register.filter
def lowfirst(text: str) -> str:
    """The opposite of `capfirst`, for a sentence that goes on after a name; `GPUs` stays as it is."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


@register.simple_tag
def disk_troubles() -> tuple[Shortage, ...]:
    """For the banner of every page: disks with little room left."""
    return shortages()
