"""Fair share as this site has it: its rules from the settings, its tree and its use from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from django.conf import settings
from django.db import connection
from django.utils.module_loading import import_string

from quotas.core.decay import SLICE_SECONDS, Decay
from quotas.core.fairshare import Metering
from quotas.core.share_tree import Pair, Shares, ShareTree, Use, build_tree, shares_of


class Held(NamedTuple):
    """What a task held, from start to end (epoch seconds): GPUs, cores and GiB; negative while it was suspended."""

    project_id: int
    user_id: int
    start: float
    end: float
    gpus: float
    cores: float
    memory_gib: float


class Waiting(NamedTuple):
    """A job that waits in line: whose it is, and when it was submitted (epoch seconds)."""

    number: int
    project_id: int
    user_id: int
    person: str
    submitted: float


class ShareSource(Protocol):
    """Knows what was held and is: the truth behind the slices (settings.SHARE_USAGE_SOURCE)."""

    def used(
        self, *, decay: Decay, at: float, running_only: bool, project_ids: Iterable[int] | None = None
    ) -> Mapping[Pair, Use]: ...

    def ended_since(self, since: float) -> Iterator[Held]: ...

    def capacity(self) -> Mapping[str, float]: ...

    def waiting(self, most: int) -> Iterable[Waiting]: ...


def share_rules() -> tuple[Decay, Metering]:
    """How long use counts, and what counts how much: the newest row of FairShareRules, else the settings.

    Raises ValueError for settings that make no sense.
    """
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST)
        row = cursor.fetchone()
    if row is None or row[0]:
        return settings_rules()
    _, mode, half_life, window, gpu, cpu, memory, dominant = row
    return Decay(mode, half_life, window), Metering(gpu, cpu, memory, dominant)


_NEWEST: Final = """
SELECT from_settings, mode, half_life_seconds, window_seconds, gpu_weight, cpu_weight, memory_weight, dominant
FROM quotas_fairsharerules ORDER BY id DESC LIMIT 1
"""


def settings_rules() -> tuple[Decay, Metering]:
    """The rules that the settings MUSTER_FAIRSHARE_* say: in force until somebody sets others at run time."""
    weights = settings.MUSTER_FAIRSHARE_WEIGHTS
    return (
        Decay(
            mode=settings.MUSTER_FAIRSHARE_MODE,
            half_life_seconds=settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS,
            window_seconds=settings.MUSTER_FAIRSHARE_WINDOW_SECONDS,
        ),
        Metering(
            gpu=weights.get("gpu", 0.0), cpu=weights.get("cpu", 0.0), memory=weights.get("memory", 0.0),
            dominant=settings.MUSTER_FAIRSHARE_DOMINANT,
        ),
    )  # fmt: skip


@lru_cache(maxsize=1)
def share_source() -> ShareSource:
    source: ShareSource = import_string(settings.SHARE_USAGE_SOURCE)()
    return source


#: What the slices hold that count, brought to one moment.
_STORED: Final = """
SELECT project_id, user_id, {sums}, bool_or({other})
FROM quotas_shareusage
WHERE starts_at >= to_timestamp(%s) AND (%s::bigint[] IS NULL OR project_id = ANY(%s::bigint[]))
GROUP BY project_id, user_id
"""
#: Whether a slice was decayed by another half-life, or cut at a shorter window, than is asked for.
_OTHER_DECAY: Final = "half_life_seconds <> %s OR window_seconds < %s"
_OTHER_WINDOW: Final = "window_seconds < %s"
_PLAIN: Final = "sum(gpu_seconds), sum(cpu_seconds), sum(memory_gib_seconds)"
_DECAYED: Final = ", ".join(
    f"sum({name}_decayed * power(2, greatest(({SLICE_SECONDS} + extract(epoch FROM starts_at) - %s) / %s, -300)))"
    for name in ("gpu", "cpu", "memory")
)


def use_at(at: float, *, decay: Decay, project_ids: Iterable[int] | None = None) -> dict[Pair, Use]:
    """What everybody has used that counts at a moment: ended work from the slices, running work by closed form.

    Where a slice was kept for another half-life or a shorter window, all is worked out from what was held instead:
    exact as well, and slower, until the recount has replaced those slices.
    """
    wanted = None if project_ids is None else list(project_ids)
    exponential = decay.mode == "exponential"
    parameters: list[Any] = [at, float(decay.half_life_seconds)] * 3 if exponential else []
    other = {"exponential": _OTHER_DECAY, "window": _OTHER_WINDOW}.get(decay.mode, "false")
    asked = {"exponential": [decay.half_life_seconds, decay.window_seconds], "window": [decay.window_seconds]}
    with connection.cursor() as cursor:
        cursor.execute(
            _STORED.format(sums=_DECAYED if exponential else _PLAIN, other=other),
            [*parameters, *asked.get(decay.mode, []), decay.edge(at), wanted, wanted],
        )
        rows = cursor.fetchall()
    if any(row[5] for row in rows):
        return dict(share_source().used(decay=decay, at=at, running_only=False, project_ids=wanted))
    used = {(row[0], row[1]): (_some(row[2]), _some(row[3]), _some(row[4])) for row in rows}
    running = share_source().used(decay=decay, at=at, running_only=True, project_ids=wanted)
    for pair, now in running.items():
        before = used.get(pair, (0.0, 0.0, 0.0))
        used[pair] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
    return used


def _some(seconds: float) -> float:
    """Less than a thousandth of a second is what a repair left of sums of floats: nobody used it."""
    return float(seconds) if seconds >= 1e-3 else 0.0


_TREE: Final = (
    "SELECT id, name, parent_id, share_weight, share_soft_percent, share_hard_percent"
    " FROM accounts_organization ORDER BY id",
    "SELECT id, name, organization_id, share_weight, share_soft_percent, share_hard_percent"
    " FROM accounts_project WHERE active OR id = ANY(%s::bigint[]) ORDER BY id",
    "SELECT member.project_id, member.user_id, person.username, member.share_weight"
    " FROM accounts_membership member JOIN accounts_user person ON person.id = member.user_id"
    " WHERE person.is_active AND member.role <> 'viewer'"
    " AND (member.expires_at IS NULL OR member.expires_at > to_timestamp(%s)) ORDER BY member.id",
)


def read_tree(at: float, pairs: Iterable[Pair] = ()) -> ShareTree:
    """The tree of open projects and those named in `pairs`, with everybody who may submit there or did."""
    named = sorted({(int(project), int(user)) for project, user in pairs})
    with connection.cursor() as cursor:
        cursor.execute(_TREE[0])
        organizations = cursor.fetchall()
        cursor.execute(_TREE[1], [sorted({project for project, _ in named})])
        projects = cursor.fetchall()
        cursor.execute(_TREE[2], [at])
        members = cursor.fetchall()
    return build_tree(organizations, projects, members, named)


def shares_at(
    at: float,
    *,
    decay: Decay,
    metering: Metering,
    pairs: Iterable[Pair] = (),
    used: Mapping[Pair, Use] | None = None,
) -> Shares:
    """How everybody of the site stands; `used` in place of the kept use answers what-if."""
    if used is None:
        used = use_at(at, decay=decay)
    tree = read_tree(at, [*used, *pairs])
    return shares_of(
        tree, used, metering=metering, capacity=share_source().capacity(), full_seconds=decay.full(at)
    )
