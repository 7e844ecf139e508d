"""Metrics of shares: only where they are wanted."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from quotas import metrics
from tests.quotas.sharing import a_shared_site

pytestmark = pytest.mark.django_db


class Door:
    def collect(self):
        return metrics.collect()


def text() -> str:
    metrics._metrics = []
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Door())
    return generate_latest(registry).decode()


def test_there_are_none_where_they_are_switched_off(settings) -> None:
    settings.MUSTER_FAIRSHARE_METRICS = False
    a_shared_site()

    assert "muster_fairshare_factor" not in text()


def test_they_say_factor_target_and_use_of_each_project() -> None:
    a_shared_site()

    said = text()

    factor = {name: float(re.search(rf'muster_fairshare_factor{{account="{name}"}} (\S+)', said)[1])
              for name in ("vision", "secret", "other")}  # fmt: skip
    assert factor["vision"] < factor["secret"] < factor["other"]
    used = re.search(r'muster_share_used_gpu_seconds{account="vision"} (\S+)', said)
    assert used is not None
    assert int(float(used[1]) / 360) == 118  # tenths of an hour
    assert "muster_share_evenness 0." in said
