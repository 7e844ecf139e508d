"""The board, the alert rules and /metrics belong together: no query asks for what the portal does not have."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from scheduler import metrics
from tests.scheduler.portal import a_portal

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"


@pytest.fixture
def scrape(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Prometheus gets of a small portal."""
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0)
    settings.MUSTER_METRICS_TOKEN = "a-token"
    a_portal().submit()
    answer = Client().get("/metrics", headers={"Authorization": "Bearer a-token"})
    assert answer.status_code == 200
    return answer.content.decode()


def queries() -> Iterator[tuple[str, str]]:
    """Where each query is, and the query."""
    for panel in json.loads((DEPLOY / "grafana" / "muster.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield f"board: {panel['title']}", target["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


def test_each_query_asks_for_metrics_and_labels_that_are_there(scrape: str) -> None:
    names: set[str] = set()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape):
        names.add(family.name)
        # A counter is asked for with its suffix, a histogram by its samples.
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        names |= {family.name + suffix for suffix in suffixes}
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)

    wrong = []
    found = list(queries())
    for where, query in found:
        for name, matchers in re.findall(r"\b(muster_\w+)(?:\{([^}]*)\})?", query):
            if name not in names or (name.endswith("_total") and name not in labels and name not in names):
                wrong.append(f"{where}: there is no {name}")
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            if name in labels and not asked <= labels[name]:
                wrong.append(f"{where}: {name} has no {sorted(asked - labels[name])}")
    assert len(found) > 25
    assert wrong == []


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        say = "NO PROMTOOL FOUND, so nothing checked the format. On Debian: apt install prometheus"
        if os.environ.get("MUSTER_REQUIRE_PROMETHEUS"):
            pytest.fail(say)
        pytest.skip(say)
    return found


def test_prometheus_accepts_the_metrics_and_finds_nothing_to_criticize(scrape: str) -> None:
    checked = subprocess.run(
        [promtool(), "check", "metrics"], input=scrape, capture_output=True, text=True, check=False
    )

    ours = [line for line in (checked.stdout + checked.stderr).splitlines() if line.startswith("muster_")]
    assert ours == []
    assert "error" not in checked.stderr


def test_prometheus_accepts_the_alert_rules() -> None:
    checked = subprocess.run(
        [promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
