"""Probes of real jobs on a real agent: each kind fails its job, and says which probe and why."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.models import Job
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that says 200 to /up and 503 to everything else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/up" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def results(world: World, job: Job) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = world.task(job).probe_results
    return found


def test_probes_that_succeed_are_seen_and_change_nothing(
    world: World, start_agent: StartAgent, port: int
) -> None:
    start_agent("n1")
    job = world.submit(
        "date > beat; touch ready; sleep 2",
        env={"WORD": "here"},
        probes=[
            {"kind": "command", "command": "test -f ready && test $WORD = here", "every": 1},
            {"kind": "http", "port": port, "path": "/up", "every": 1},
            {"kind": "file", "path": "beat", "limit": "1m", "every": 1},
            {"kind": "output", "limit": "1m", "every": 1},
        ],
    )
    world.run_until(job, "completed")

    found = results(world, job)
    assert found is not None
    assert [(one["number"], one["ok"], one["failures"]) for one in found] == [
        (number, True, 0) for number in range(4)
    ]
    assert [one["text"] for one in found[:2]] == ["exit code 0", "HTTP status 200"]


def test_each_kind_of_probe_ends_its_job(world: World, start_agent: StartAgent, port: int) -> None:
    start_agent("n1")
    quick = {"every": 1, "failures": 1}
    asked = {
        "probe alive failed: exit code 7": {"kind": "command", "command": "exit 7", "name": "alive"},
        "probe command failed: no answer within 1 s": {"kind": "command", "command": "sleep 60", "timeout": 1},
        "probe http failed: HTTP status 503": {"kind": "http", "port": port},
        "probe file failed: beat cannot be read: No such file or directory": {
            "kind": "file", "path": "beat", "limit": 1,
        },
        "probe output failed: no output for": {"kind": "output", "limit": 1},
    }  # fmt: skip
    jobs = {words: world.submit("exec sleep 60", probes=[quick | probe]) for words, probe in asked.items()}

    for words, job in jobs.items():
        world.run_until(job, "failed")
        assert job.failure_class == "unhealthy"
        assert job.end_text.startswith(f"Unhealthy: {words}")
        assert (job.exit_code, job.exit_signal) == (None, 15)
    world.assert_nothing_is_held()


def test_a_job_that_ends_well_when_it_is_stopped_has_failed_all_the_same(
    world: World, start_agent: StartAgent
) -> None:
    start_agent("n1")
    job = world.submit(
        "trap 'exit 0' TERM; sleep 60 & wait",
        probes=[{"kind": "command", "command": "false", "every": 1, "failures": 2}],
        restart_rules=[{"on": ["unhealthy"], "action": "restart"}],
        max_restarts=1,
        restart_delay=1,
    )
    world.run_until(job, "running")

    job = world.run_until(job, "failed")
    assert job.end_text == "Unhealthy: probe command failed 2 times in a row: exit code 1."
    assert (job.exit_code, job.epoch) == (None, 2)
