"""Kills of agent, shim, guard and server, cuts of the network, repeated calls: no job is lost or run twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from scheduler.agent import processes
from scheduler.models import Job, JobEvent, Node, NodeHeartbeat
from scheduler.services.execution import reconcile
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.patience import patience
from tests.support.shims import kill_guards

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def isolation() -> str:
    """The jobs here are watched by files that they write outside their own folders."""
    return "off"


def counting(file: Path, seconds: float = 3.0) -> str:
    """A job that says when it starts, and then counts for a while."""
    steps = int(seconds * 10)
    return f"echo start >> {file}; for i in $(seq {steps}); do echo $i; sleep 0.1; done"


def count_to(seconds: float = 3.0) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, int(seconds * 10) + 1))


def test_t03_a_killed_agent_comes_back_and_adopts(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent()
    job = world.submit(counting(tmp_path / "starts"))
    world.run_until(job, "running")
    wait_for(lambda: world.task(job).log_chunks.exists())
    pid = world.task(job).pid

    agent.kill()
    time.sleep(0.8)
    assert processes.start_ticks(pid)
    agent.start()
    world.run_until(job, "completed")

    assert "adopted 1 tasks" in agent.log()
    assert (job.epoch, job.attempts.count()) == (1, 1)
    assert world.output(job) == count_to()
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_job_that_ends_while_its_agent_is_away_is_reported_with_its_exit_code(
    world: World, start_agent: StartAgent
) -> None:
    agent = start_agent()
    job = world.submit("sleep 0.5; echo last words; exit 9")
    world.run_until(job, "running")

    agent.kill()
    time.sleep(1.0)
    agent.start()
    world.run_until(job, "failed")

    assert job.exit_code == 9
    assert world.output(job) == b"last words\n"


def test_t04_a_server_that_was_away_gets_all_reports(
    world: World, server: Server, start_agent: StartAgent, tmp_path: Path
) -> None:
    start_agent()
    long = world.submit(counting(tmp_path / "starts", 2.0))
    short = world.submit("echo quick")
    world.run_until(long, "running")
    world.run_until(short, "running", "completed")

    server.stop()
    time.sleep(1.0)
    server.start()
    world.run_until(short, "completed")
    world.run_until(long, "completed")

    assert world.output(long) == count_to(2.0)
    assert (tmp_path / "starts").read_text() == "start\n"


@pytest.mark.parametrize("agent_killed", [False, True])
def test_a_killed_shim_costs_nothing(
    world: World, start_agent: StartAgent, tmp_path: Path, agent_killed: bool
) -> None:
    agent = start_agent()
    good = world.submit(counting(tmp_path / "good", 1.5))
    bad = world.submit(counting(tmp_path / "bad", 1.5) + "; exit 7")
    world.run_until(good, "running")
    world.run_until(bad, "running")

    agent.kill_shim()
    if agent_killed:
        agent.kill()
        agent.start()
    world.run_until(good, "completed")
    world.run_until(bad, "failed")

    assert bad.exit_code == 7
    for job, file in ((good, "good"), (bad, "bad")):
        assert (job.epoch, (tmp_path / file).read_text(), world.output(job)) == (1, "start\n", count_to(1.5))
    world.assert_nothing_is_held()


def test_a_job_that_runs_at_most_once_is_not_started_again_when_its_node_is_lost(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    start_agent()
    job = world.submit(counting(tmp_path / "starts", 60), restart_policy="never")
    world.run_until(job, "running")

    end_attempt(attempt_id=world.task(job).attempt_id, epoch=1, lost_text="Node n1 stopped responding.")

    world.run_until(job, "failed")
    assert job.end_text == "Node n1 stopped responding. The job runs at most once, so it is not restarted."
    assert job.attempts.get().state == "lost"


def test_a_killed_guard_fails_its_job_and_leaves_nothing(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent()
    job = world.submit(counting(tmp_path / "starts", 60))
    world.run_until(job, "running")

    kill_guards(agent.state, guards_only=True)
    world.run_until(job, "failed")

    assert (
        job.end_text == "The supervisor process of the task was killed on the node, and the task was ended."
    )
    assert not processes.start_ticks(world.task(job).pid)
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_task_of_a_stale_epoch_is_stopped(world: World, start_agent: StartAgent) -> None:
    start_agent()
    job = world.submit("sleep 60")
    world.run_until(job, "running")
    first = world.task(job)

    end_attempt(attempt_id=first.attempt_id, epoch=1, lost_text="Node n1 stopped responding.")
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    job.refresh_from_db()
    world.run_until(job, "running")
    second = world.task(job)

    wait_for(lambda: not processes.start_ticks(first.pid), seconds=30)
    first.refresh_from_db()
    job.refresh_from_db()
    assert (job.state, job.epoch, first.state) == ("running", 2, "lost")
    assert second.pid is not None
    assert processes.start_ticks(second.pid)


class _Twice:
    """Gives every call of an agent to the server twice, and answers with the second answer."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._stream(scope, receive, send)
            return
        message = await receive()
        while message.get("more_body"):
            more = await receive()
            message = {**more, "body": message["body"] + more.get("body", b"")}

        def again() -> Any:
            given: list[Any] = [message]

            async def once_more() -> Any:
                if given:
                    return given.pop()
                return await receive()

            return once_more

        async def drop(_: Any) -> None:
            return None

        self.calls += 1
        await asyncio.wait_for(self.inner(dict(scope), again(), drop), 30)
        await self.inner(scope, again(), send)

    async def _stream(self, scope: Any, receive: Any, send: Any) -> None:
        """Before each call of a stream comes the same one under a number of which the agent knows nothing."""
        given: list[Any] = []

        async def both() -> Any:
            if given:
                return given.pop()
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            self.calls += 1
            given.append(message)
            copy = json.loads(message["text"])
            return {"type": "websocket.receive", "text": json.dumps(copy | {"id": -copy["id"]})}

        async def answer_of_the_second(message: Any) -> None:
            if message["type"] != "websocket.send" or json.loads(message["text"])["id"] > 0:
                await send(message)

        await self.inner(scope, both, answer_of_the_second)


def test_t15_every_call_may_come_twice(world: World, tmp_path: Path, settings: Settings) -> None:
    settings.MUSTER_SYNC_HOLD_SECONDS = 0.3
    twice: list[_Twice] = []

    def wrap(application: Any) -> Any:
        twice.append(_Twice(application))
        return twice[0]

    server = Server(wrap).start()
    # Registering twice in one message pair is refused the second time: the key of the first is lost with it.
    agent = AgentProcess(server, "n1", tmp_path / "n1", world.join_token(), ("--isolation", "off"))
    try:
        agent.start()
        wait_for(lambda: Node.objects.filter(state="up").exists())
        NodeHeartbeat.objects.update(lease_expires_at=timezone.now())
        settings.MUSTER_NODE_SILENT_SECONDS = 0
        wait_for(lambda: "registered as node" in agent.log())
        settings.MUSTER_NODE_SILENT_SECONDS = 30
        jobs = [world.submit(counting(tmp_path / f"starts-{number}", 0.5)) for number in range(5)]
        for job in jobs:
            world.run_until(job, "completed")
        assert [world.output(job) for job in jobs] == [count_to(0.5)] * 5
    finally:
        agent.clean_up()
        server.stop()

    assert twice[0].calls > 5
    for number, job in enumerate(jobs):
        assert (tmp_path / f"starts-{number}").read_text() == "start\n"
        kinds = list(JobEvent.objects.filter(job=job).order_by("id").values_list("kind", flat=True))
        # One event where a slow machine has the beginning and the end in one report.
        both = ["job.submitted", "job.scheduled", "job.running", "job.completed"]
        assert kinds in (both, [kind for kind in both if kind != "job.running"])
    world.assert_nothing_is_held()


def test_t10_a_cut_off_node_stops_its_jobs_before_they_start_elsewhere(
    world: World, server: Server, start_agent: StartAgent, settings: Settings
) -> None:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_NODE_LOST_SECONDS = 1, 6
    settings.MUSTER_SYNC_HOLD_SECONDS = 0.3
    start_agent()
    job = world.submit("sleep 60")
    world.run_until(job, "running")
    pid = world.task(job).pid

    server.stop()
    wait_for(lambda: not processes.start_ticks(pid), seconds=10)
    server.start()
    world.run_until(job, "queued")

    assert (
        job.attempts.get().end_text
        == "The node was cut off from the server for too long and stopped its tasks."
    )


def test_silence_counts_only_while_the_server_listens(
    world: World, server: Server, start_agent: StartAgent, settings: Settings
) -> None:
    # So long that a busy machine does not cut a node off by itself.
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_NODE_LOST_SECONDS = patience(1.5), patience(3)
    settings.MUSTER_SYNC_HOLD_SECONDS = 0.3
    agent = start_agent()
    job = world.submit("sleep 60")
    world.run_until(job, "running")

    os.kill(agent.popen.pid, signal.SIGSTOP)
    wait_for(lambda: reconcile.reconcile_all().lost_attempts == 1, seconds=20, every=0.2)
    job.refresh_from_db()
    assert (job.state, Node.objects.get().state) == ("queued", "down")

    os.kill(agent.popen.pid, signal.SIGCONT)
    wait_for(lambda: Node.objects.get().state == "up")
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    world.run_until(job, "running")
    assert job.epoch == 2


def test_one_that_must_not_outlive_its_parent_takes_its_jobs_along(
    world: World, start_agent: StartAgent
) -> None:
    agent = start_agent("n1", "--die-with-parent")
    job = world.submit("sleep 60")
    world.run_until(job, "running")
    pid, shim = world.task(job).pid, agent.shim_pid

    agent.kill(signal.SIGTERM)

    assert not processes.start_ticks(pid)
    wait_for(lambda: not processes.start_ticks(shim), seconds=5)
    world.run_until(job, "queued")
    assert job.attempts.get().end_text == "Muster was stopped on this node."


def test_an_agent_alone_is_stopped_without_its_jobs(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent()
    job = world.submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo still here")
    world.run_until(job, "running")

    agent.kill(signal.SIGTERM)
    assert processes.start_ticks(world.task(job).pid)
    (tmp_path / "go").touch()
    agent.start()
    world.run_until(job, "completed")

    assert world.output(job) == b"still here\n"


def test_jobs_of_a_removed_state_folder_are_reported_lost(world: World, start_agent: StartAgent) -> None:
    import shutil

    agent = start_agent()
    job = world.submit("sleep 60")
    world.run_until(job, "running")

    pid = world.task(job).pid
    agent.clean_up()
    processes.signal_group(pid, signal.SIGKILL)
    shutil.rmtree(agent.state)
    NodeHeartbeat.objects.update(
        lease_expires_at=timezone.now()
    )  # the server does not wait for the old agent
    agent.start()
    world.run_until(job, "queued")

    assert job.attempts.get().end_text == "The node has no record of the task: its state folder was removed."


def test_two_agents_do_not_share_a_folder(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    second = AgentProcess(agent.server, "n2", agent.state, agent.token)

    second.start()

    assert second.popen is not None
    assert second.popen.wait(10) == 1
    assert "one folder, one agent" in second.log()
