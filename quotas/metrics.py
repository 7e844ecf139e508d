"""What a scrape says of shares: how use is spread, target ratios, the factor from both, and adjustments."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

import numpy as np
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from accounts.models import AuditEvent, AuditOutcome, Project
from quotas.core.fairshare import STEPS
from quotas.core.share_tree import PERSON, Shares
from quotas.selectors.fair_share_source import share_rules, shares_at

log = structlog.get_logger(__name__)

#: Projects with a series of their own: those with the most use.
MOST_PROJECTS: Final = 500
#: Kinds of adjustments, by the action in the audit trail.
_ADJUSTMENTS: Final = {"share.set": "share", "share.set_rules": "rules", "share.reset_rules": "rules_reset"}

#: The whole tree is read for it, so not at every scrape.
FRESH_SECONDS: Final = 60.0

_lock = Lock()
_read_at = 0.0
_metrics: list[Metric] = []


def collect() -> Iterable[Metric]:
    """Nothing where MUSTER_FAIRSHARE_METRICS is off."""
    global _read_at, _metrics
    if not settings.MUSTER_FAIRSHARE_METRICS:
        return []
    with _lock:
        if not _metrics or time.monotonic() - _read_at > FRESH_SECONDS:
            try:
                _metrics = list(_read(time.time()))
            except DatabaseError as error:
                log.warning("share_metrics_unreadable", error=str(error))
                return []
            _read_at = time.monotonic()
        return _metrics


def _read(at: float) -> Iterator[Metric]:
    decay, metering = share_rules()
    shares = shares_at(at, decay=decay, metering=metering)
    standings = shares.standings
    slugs = dict(Project.objects.filter(pk__in=shares.tree.row_of_project).values_list("pk", "slug"))
    for name, help_text, column in (
        ("muster_fairshare_factor", "1 for the project whose people go first.", standings.factor / STEPS),
        ("muster_share_target_ratio", "What a project is entitled to of the site.", standings.entitled),
        ("muster_share_used_gpu_seconds", "Decayed use of a project.", standings.used),
    ):
        yield _by_project(shares, slugs, name, help_text, column)
    yield GaugeMetricFamily(
        "muster_share_evenness",
        "Jain's index of use over share, of people with a share: 1 when all have used what they are entitled to.",
        value=_evenness(shares),
    )
    yield _adjustments()


def _adjustments() -> Metric:
    """How often weights, limits and rules were changed, of what the audit trail keeps."""
    family = GaugeMetricFamily(
        "muster_share_adjustments",
        "Changes of weights and limits of shares, and of the rules of fair share, in the audit trail.",
        labels=["kind"],
    )
    counts = dict(
        AuditEvent.objects.filter(action__in=_ADJUSTMENTS, outcome=AuditOutcome.DONE)
        .values_list("action")
        .annotate(Count("pk"))
    )
    for action, kind in _ADJUSTMENTS.items():
        family.add_metric([kind], counts.get(action, 0))
    return family


def _by_project(
    shares: Shares, slugs: Mapping[int, str], name: str, help_text: str, column: np.ndarray
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=["account"])
    rows = {number: row for number, row in shares.tree.row_of_project.items() if number in slugs}
    by_use = sorted(rows, key=lambda number: (-shares.standings.used[rows[number]], number))
    for number in sorted(by_use[:MOST_PROJECTS]):
        row = rows[number]
        family.add_metric([slugs[number]], float(column[row]))
    return family


def _evenness(shares: Shares) -> float:
    rows = [row for row, kind in enumerate(shares.tree.kind) if kind == PERSON]
    entitled, used = shares.standings.entitled[rows], shares.standings.used[rows]
    each = used[entitled > 0] / entitled[entitled > 0]
    squares = float((each**2).sum())
    return float(each.sum() ** 2 / (len(each) * squares)) if squares else 1.0
