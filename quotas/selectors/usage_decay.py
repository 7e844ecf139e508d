"""How past use fades: what was used in each slice of the window, and how much of that still counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import connection

from accounts import permissions
from accounts.models import User
from accounts.selectors import visible_projects
from quotas.core.decay import SLICE_SECONDS, Decay, slice_start
from quotas.selectors.fair_share_source import share_rules

_SLICES: Final = """
SELECT extract(epoch FROM starts_at)::bigint, sum(gpu_seconds), sum(cpu_seconds), sum(memory_gib_seconds),
    sum(gpu_decayed), sum(cpu_decayed), sum(memory_decayed), bool_and(half_life_seconds = %s)::int
FROM quotas_shareusage WHERE starts_at >= to_timestamp(%s) AND (%s OR project_id = ANY(%s::bigint[]))
GROUP BY starts_at ORDER BY starts_at
"""
#: Slices of one drawing: of a longer window only the newest are drawn.
MOST: Final = 120


@dataclass(frozen=True, slots=True)
class Slice:
    """Six hours: the use of work that has ended in it, as GPU-hours by the site's weights, and what counts of it."""

    starts_at: datetime
    used: float
    counts: float
    #: What is left of one GPU-hour of that time, 0 to 1.
    left: float


def fading(user: User, *, at: float, decay: Decay | None = None) -> tuple[Slice, ...]:
    """The window, slice by slice and oldest first, of the projects that the person may see.

    With another decay than the site's, what counts is reckoned as if a slice had been used evenly.
    """
    rules, metering = share_rules()
    own = decay is None or decay == rules
    decay = decay or rules
    newest = int(slice_start(at))
    edge = max(int(slice_start(at - decay.window_seconds)), newest - (MOST - 1) * SLICE_SECONDS)
    everything = permissions.sees_everything(user)
    mine = [] if everything else list(visible_projects(user).order_by().values_list("pk", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(_SLICES, [decay.half_life_seconds, edge, everything, mine])
        rows = {row[0]: [float(value) for value in row[1:]] for row in cursor.fetchall()}
    weights = (metering.gpu, metering.cpu, metering.memory)
    found = []
    for begins in range(edge, newest + 1, SLICE_SECONDS):
        stored = rows.get(begins, [0.0] * 7)
        plain, decayed, is_ours = stored[:3], stored[3:6], stored[6] == 1
        used = sum(weight * seconds for weight, seconds in zip(weights, plain, strict=True)) / 3600
        ended = min(begins + SLICE_SECONDS, at)
        left = 1.0
        if decay.mode == "exponential":
            left = decay.decayed(1.0, begins, ended) / max(ended - begins, 1) * decay.left(at - ended)
        counts = used * left
        if own and is_ours and decay.mode == "exponential":
            brought = decay.left(at - begins - SLICE_SECONDS)
            counts = sum(w * seconds for w, seconds in zip(weights, decayed, strict=True)) * brought / 3600
        found.append(Slice(datetime.fromtimestamp(begins, tz=UTC), used, counts, left))
    return tuple(found)
