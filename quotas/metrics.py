"""What a scrape says of shares: how use is spread, target ratios, and the factor that follows from both."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

import numpy as np
import structlog
from django.conf import settings
from django.db import DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from accounts.models import Project
from quotas.core.fairshare import STEPS
from quotas.core.share_tree import PERSON, Shares
from quotas.selectors.fair_share_source import share_rules, shares_at

log = structlog.get_logger(__name__)

#: The whole tree is read for it, so not at every scrape.
FRESH_SECONDS: Final = 60.0

_lock = Lock()
_read_at = 0.0
_metrics: list[Metric] = []


def collect() -> Iterable[Metric]:
    """Nothing where MUSTER_FAIRSHARE_METRICS is off: three series a project may be too many."""
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


def _by_project(
    shares: Shares, slugs: Mapping[int, str], name: str, help_text: str, column: np.ndarray
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=["account"])
    for number, row in shares.tree.row_of_project.items():
        if number in slugs:
            family.add_metric([slugs[number]], float(column[row]))
    return family


def _evenness(shares: Shares) -> float:
    rows = [row for row, kind in enumerate(shares.tree.kind) if kind == PERSON]
    entitled, used = shares.standings.entitled[rows], shares.standings.used[rows]
    each = used[entitled > 0] / entitled[entitled > 0]
    squares = float((each**2).sum())
    return float(each.sum() ** 2 / (len(each) * squares)) if squares else 1.0
