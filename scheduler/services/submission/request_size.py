"""How many rows, and how much text, requests make once they are multiplied out; counted before any job is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings

from infra.request_cost import check_rows, check_text
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import array_size, refs_named

_WAY_OUT: Final = "Make the arrays smaller, or send the jobs in several requests."


def check_sizes(payloads: Sequence[Any], *, field: str) -> None:
    """Refuse requests that together make more rows, or hold more text, than one request may.

    A row is a job, or one thing that one job waits for: an array of 100 that waits for an array of 50 of the same
    request is 100 jobs and 5,000 waits. What cannot be read counts as one job; its reader says what is wrong.
    Raises InvalidInput with the code too-many-rows.
    """
    known = [payload for payload in payloads if isinstance(payload, Mapping)]
    sizes = [_jobs_of(payload) for payload in known]
    named: dict[str, int] = {}
    for payload, size in zip(known, sizes, strict=True):
        if isinstance(ref := payload.get("ref"), str):
            named[ref.strip()] = named.get(ref.strip(), 0) + size
    rows = text = 0
    for payload, size in zip(known, sizes, strict=True):
        refs, others = refs_named(payload.get("depends_on"))
        rows += size * (1 + others + sum(named.get(ref, 1) for ref in refs))
        text += size * _text_of(payload)
    what = "jobs" if rows == sum(sizes) else "rows, of jobs and of what each of them waits for"
    check_rows(rows, what=what, field=field, way_out=_WAY_OUT)
    check_text(text, field=field, way_out=_WAY_OUT)


def _jobs_of(payload: Mapping[str, Any]) -> int:
    array = payload.get("array")
    if not array:
        return 1
    try:
        return array_size(array, most=settings.MUSTER_MAX_ARRAY_SIZE)
    except BadValue:
        return 1


def _text_of(payload: Mapping[str, Any]) -> int:
    """Characters that each job of it repeats."""
    size = sum(len(value) for name in ("command", "script") if isinstance(value := payload.get(name), str))
    for name in ("env", "labels"):
        if isinstance(value := payload.get(name), Mapping):
            size += sum(len(key) + len(str(one)) for key, one in value.items() if isinstance(key, str))
    return size
