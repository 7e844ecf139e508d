"""Metrics of shares: what they say, and a bound on their number."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from accounts.models import Project
from accounts.services import audit
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


def test_there_are_none_where_they_are_turned_off(settings) -> None:
    settings.MUSTER_FAIRSHARE_METRICS = False
    a_shared_site()

    assert "muster_fairshare_factor" not in text()


def test_they_say_factor_target_and_use_of_each_project(settings) -> None:
    assert settings.MUSTER_FAIRSHARE_METRICS  # the default
    a_shared_site()

    said = text()

    factor = {name: float(re.search(rf'muster_fairshare_factor{{account="{name}"}} (\S+)', said)[1])
              for name in ("vision", "secret", "other")}  # fmt: skip
    assert factor["vision"] < factor["secret"] < factor["other"]
    used = re.search(r'muster_share_used_gpu_seconds{account="vision"} (\S+)', said)
    assert used is not None
    assert int(float(used[1]) / 360) == 118  # tenths of an hour
    assert "muster_share_evenness 0." in said


def test_the_projects_with_the_most_use_have_a_series_each(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "MOST_PROJECTS", 1)
    a_shared_site()

    assert re.findall(r'muster_share_used_gpu_seconds{account="(\w+)"}', text()) == ["vision"]


def test_adjustments_of_shares_are_counted() -> None:
    a_shared_site()
    for action in ("share.set", "share.set", "share.set_rules"):
        audit.record(by=None, action=action, thing=Project.objects.first(), reason="test")

    said = text()

    counts = {kind: float(re.search(rf'muster_share_adjustments{{kind="{kind}"}} (\S+)', said)[1])
              for kind in ("share", "rules", "rules_reset")}  # fmt: skip
    assert counts == {"share": 2, "rules": 1, "rules_reset": 0}
