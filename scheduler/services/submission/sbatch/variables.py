"""Variables of the environment that Slurm sets from what a script asked for; the agent sets those of the layout."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from django.conf import settings

from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import read_array


def with_variables(payload: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The payload with these variables and those of its array in `env`, under what the job sets itself."""
    env = payload.get("env") or {}
    ours = {**variables, **_of_array(payload.get("array"))}
    if not ours or not isinstance(env, Mapping):
        return dict(payload)
    return {**payload, "env": {**ours, **env}}


def _of_array(array: Any) -> dict[str, str]:
    """How many elements an array has, the first and the last index, and the step."""
    try:
        indices = read_array(array, most=settings.MUSTER_MAX_ARRAY_SIZE)[0] if array else ()
    except BadValue:
        indices = ()  # the field itself says what is wrong
    if not indices:
        return {}
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(indices[0]),
        "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
        "SLURM_ARRAY_TASK_STEP": str(min((b - a for a, b in pairwise(indices)), default=1)),
    }
