"""A node whose clock is minutes off runs jobs like any other: messages carry ages, and the database's clock decides
(T14)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from scheduler import metrics
from scheduler.models import Node, NodeHeartbeat
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

#: Read by the agent's interpreter before anything else.
SHIFTED = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {seconds}
time.time_ns = lambda: _time_ns() + {seconds} * 10**9
"""


@pytest.mark.parametrize("minutes", [-5, 5])
def test_t14_a_clock_that_is_minutes_off_moves_no_time_of_a_job_and_no_lease(
    world: World, start_agent: StartAgent, tmp_path: Path, minutes: int
) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock/sitecustomize.py").write_text(SHIFTED.format(seconds=minutes * 60))
    start_agent(python_path=str(tmp_path / "clock"))
    began = timezone.now()

    job = world.submit("exit 3")
    world.run_until(job, "failed")

    ended = timezone.now()
    attempt = job.attempts.get()
    assert job.exit_code == 3
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    slack = timedelta(seconds=2)  # ages are whole milliseconds, and the messages take a moment
    assert began - slack <= attempt.started_at <= attempt.ended_at <= ended + slack
    heartbeat = wait_for(
        lambda: NodeHeartbeat.objects.filter(clock_skew_ms__gt=0 if minutes > 0 else -(2**31)).first()
    )
    assert abs(heartbeat.clock_skew_ms - minutes * 60_000) < 30_000
    assert heartbeat.lease_expires_at < timezone.now() + timedelta(minutes=4)
    assert heartbeat.lease_expires_at > began
    assert Node.objects.get().state == "up"
    (gauge,) = [one for one in metrics.read_metrics() if one.name == "muster_agent_clock_skew_seconds"]
    (sample,) = gauge.samples
    assert abs(sample.value - minutes * 60) < 30
