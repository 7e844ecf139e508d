"""The arguments of a provider's calls as JSON and back: kept with the allocation, for every repeated call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from quotas.core.resources import Resources
from quotas.providers.base import QuotaStart


def as_json(start: QuotaStart) -> dict[str, Any]:
    """Everything but the key, which is the row's."""
    words = asdict(replace(start, devices=dict(start.devices)))
    words.pop("key")
    return words


def start_of(attempt_id: int, words: Mapping[str, Any]) -> QuotaStart:
    """The start that was kept for this attempt."""
    resources = dict(words["resources"])
    resources["extras"] = tuple((str(name), int(count)) for name, count in resources.get("extras", ()))
    return QuotaStart(**{**words, "resources": Resources(**resources)}, key=str(attempt_id))
