"""Time limits that change while a job runs, with real processes; the agent may be away at the time."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.models import Job
from scheduler.services.changes.change import change_job
from scheduler.services.jobs.logs import read_log
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for
from tests.support.factories import OperatorFactory

pytestmark = pytest.mark.django_db(transaction=True)


def changed(job: Job, seconds: int) -> None:
    change_job(job=Job.objects.get(pk=job.pk), changes={"time_limit": seconds}, by=OperatorFactory())


def test_a_longer_limit_is_kept_and_a_shorter_one_ends_the_job(world: World, start_agent: StartAgent) -> None:
    start_agent()
    longer = world.submit("sleep 6; echo done", time_limit=5)
    shorter = world.submit("sleep 60", time_limit=3600)
    world.run_until(longer, "running")
    world.run_until(shorter, "running")

    changed(longer, 20)
    changed(shorter, 1)

    wait_for(lambda: ended(shorter))
    wait_for(lambda: ended(longer))
    assert (ended(longer).state, ended(longer).exit_code) == ("completed", 0)
    assert (ended(shorter).state, ended(shorter).end_text) == ("failed", "Stopped at the time limit of 1 s.")


def test_a_signal_comes_before_the_limit_and_again_before_a_later_one(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    script = "trap 'echo asked' USR1; echo ready; while :; do sleep 0.1; done"
    job = world.submit(script, time_limit=60, limit_signal={"signal": "USR1", "before": 58, "to": "shell"})
    world.run_until(job, "running")
    wait_for(lambda: printed(job) == b"ready\nasked\n")

    changed(job, 61)  # it has not been asked before this one
    wait_for(lambda: printed(job) == b"ready\nasked\nasked\n")
    changed(job, 1)

    wait_for(lambda: ended(job))
    assert ended(job).failure_class == "time-limit"


def printed(job: Job) -> bytes:
    return read_log(job=Job.objects.get(pk=job.pk)).data


def test_an_agent_that_was_away_hears_of_the_limit(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = world.submit("sleep 60", time_limit=3600)
    world.run_until(job, "running")

    agent.kill()
    changed(job, 1)
    agent.start()

    wait_for(lambda: ended(job))
    assert ended(job).end_text == "Stopped at the time limit of 1 s."


def ended(job: Job) -> Any:
    """The job once it is over."""
    return Job.objects.filter(pk=job.pk, completed_at__isnull=False).first()
