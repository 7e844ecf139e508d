"""Taints as node rows store them: each with when it was added, by whom and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

Taints = list[dict[str, str]]


def signed(taints: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], *, by: str, reason: str,
           at: datetime) -> Taints:  # fmt: skip
    """The taints: those of `before` keep their signature, new ones are signed now."""
    known = {_key(taint): taint for taint in before}
    found: Taints = []
    for taint in taints:
        plain = {name: str(taint.get(name) or "") for name in ("key", "value", "effect")}
        old = known.get(_key(taint), {})
        sign = {"added_at": at.isoformat(), "added_by": by, "reason": reason}
        found.append(plain | {name: str(old.get(name) or text) for name, text in sign.items()})
    return found


def _key(taint: Mapping[str, Any]) -> tuple[str, str, str]:
    return taint["key"], taint.get("value") or "", taint.get("effect") or ""
