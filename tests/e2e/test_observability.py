"""What operators connect to a portal: a collector of traces, and Prometheus with the board and the alert rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.up.ports import free_port
from config.up.processes import die_with_parent
from tests.support.otlp import Collector
from tests.support.stack import ROOT, Stack, wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"


def test_a_trace_of_one_job_shows_web_planner_and_agent(live_stack: Stack, collector: Collector) -> None:
    """About 8 s: a worker sends what the planner and agents did every 5 s."""
    request = urllib.request.Request(
        f"{live_stack.base_url}/api/v1/jobs",
        data=json.dumps({"command": "echo traced", "cpu_cores": 0.1}).encode(),
        headers={
            "Authorization": f"Bearer {live_stack.token}", "Content-Type": "application/json",
            "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
        },
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=30) as answer:
        number = json.load(answer)["number"]

    wait_until(lambda: any(span.name == "end" for span in collector.of_trace(TRACE)), why=live_stack.said)
    wait_until(lambda: any(span.service == "muster-web" for span in collector.of_trace(TRACE)))

    spans = collector.of_trace(TRACE)
    by_name = {span.name: span for span in spans}
    web = by_name["POST /api/v1/jobs"]
    assert {span.service for span in spans} == {"muster-web", "muster-planner", "muster-agent"}
    assert web.parent == "00f067aa0ba902b7"
    assert by_name["cycle"].parent == by_name["wait"].parent == web.id
    assert by_name["run"].parent == by_name["launch"].parent == by_name["cycle"].id
    assert (by_name["run"].attributes["muster.job"], by_name["run"].failed) == (number, False)
    assert by_name["run"].host.startswith("node-")


# ---------------------------------------------------------------- Prometheus


def prometheus_or_skip() -> str:
    found = shutil.which("prometheus")
    if found is None:
        say = "NO PROMETHEUS FOUND, so no query of the board was tried. On Debian: apt install prometheus"
        if os.environ.get("MUSTER_REQUIRE_PROMETHEUS"):
            pytest.fail(say)
        pytest.skip(say)
    return found


@contextmanager
def prometheus(stack: Stack, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes the portal every three seconds, with our alert rules; its address."""
    target = {"static_configs": [{"targets": [stack.base_url.removeprefix("http://")]}]}
    allowed = {"authorization": {"credentials": stack.metrics_token}}
    settings = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "2s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "muster", **allowed, **target},
            {"job_name": "slurm", "metrics_path": "/metrics/slurm", **allowed, **target},
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        popen = subprocess.Popen(
            [
                prometheus_or_skip(), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log, stderr=log, preexec_fn=die_with_parent(15),
        )  # fmt: skip
        try:
            yield f"http://{address}"
        finally:
            popen.terminate()
            popen.wait(20)


def asked(address: str, path: str, **parameters: str) -> Any:
    """What Prometheus answers; None while it does not."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}{query}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def has_a_figure(answer: Any) -> bool:
    """Whether there is a row with a number."""
    return any(row["value"][1] != "NaN" for row in answer["result"])


def value_of(address: str, query: str) -> float:
    """The value of a query with one row; 0 while there is none."""
    found = asked(address, "query", query=query)
    return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0


def test_each_query_of_the_board_returns_rows_and_each_alert_rule_is_evaluated(
    live_stack: Stack, tmp_path: Path
) -> None:
    """About 25 s, most of it waiting: counters follow events every 15 s."""
    with prometheus(live_stack, tmp_path) as address:
        wait_until(lambda: value_of(address, 'count_over_time(up{job="muster"}[1m])') >= 2)
        for command in ("true", "exit 3"):
            live_stack.post(
                "/api/v1/jobs", {"command": command, "cpu_cores": 0.1, "restart_policy": "never"},
                token=live_stack.token,
            )  # fmt: skip
        waiting = live_stack.post("/api/v1/jobs", {"command": "true", "hold": True}, token=live_stack.token)
        changed = "sum(increase(muster_attempts_failed_total[5m])) > 0"
        wait_until(lambda: value_of(address, changed) > 0, seconds=60, why=(tmp_path / "log").read_text)

        empty = [
            f"{panel['title']}: {target['expr']}"
            for panel in json.loads((ROOT / "deploy" / "grafana" / "muster.json").read_text())["panels"]
            for target in panel["targets"]
            if not has_a_figure(asked(address, "query", query=target["expr"]))
        ]
        live_stack.post(f"/api/v1/jobs/{waiting['number']}/release", {}, token=live_stack.token)
        assert empty == []
        rules = [rule for group in asked(address, "rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 10
        assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
        assert value_of(address, 'up{job="slurm"}') == 1
        assert value_of(address, "sum(slurm_nodes_idle)") >= 1
