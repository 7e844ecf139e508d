"""A real agent with a health check of the site: the node drains while the program fails, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.models import Node
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_node_is_out_of_service_while_its_check_fails(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    program = tmp_path / "node-check"
    program.write_text("#!/bin/sh\necho scratch is not mounted\nexit 1\n")
    program.chmod(0o755)
    start_agent("n1", "--health-check", str(program), "--health-check-seconds", "1")

    node = wait_for(lambda: Node.objects.filter(name="n1", draining=True).first())
    assert node.drain_reason == "Health check failed: scratch is not mounted"
    job = world.submit("true")
    world.plan()
    job.refresh_from_db()
    assert job.state == "queued"

    program.write_text("#!/bin/sh\nexit 0\n")
    wait_for(lambda: Node.objects.filter(name="n1", draining=False).exists())
    world.run_until(job, "completed")
