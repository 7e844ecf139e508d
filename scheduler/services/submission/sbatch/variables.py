"""Variables of the environment that Slurm sets from what a script asked for; the agent sets those of the layout."""

from __future__ import annotations

import itertools

from django.conf import settings

from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import read_array
from scheduler.services.submission.sbatch.directives import Directives


def fill_variables(found: Directives) -> None:
    """Put them into the field `env`, under what the script itself exports."""
    variables = dict(found.variables)
    if array := found.fields.get("array"):
        try:
            indices, _ = read_array(array, most=settings.MUSTER_MAX_ARRAY_SIZE)
        except BadValue:
            indices = ()  # the field itself says what is wrong
        if indices:
            step = min((b - a for a, b in itertools.pairwise(indices)), default=1)
            variables |= {
                "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
                "SLURM_ARRAY_TASK_MIN": str(indices[0]),
                "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
                "SLURM_ARRAY_TASK_STEP": str(step),
            }
    if variables:
        found.fill("env", {**variables, **found.fields.get("env", {})})
