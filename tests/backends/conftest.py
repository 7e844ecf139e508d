"""The same promises, tried on every backend: in memory, and by real agents with real processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends.fake import FakeBackend
from scheduler.backends.registry import use_backend
from scheduler.models import Cluster, Job, Node
from scheduler.services.execution import backend_driver
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.factories import DeviceFactory, NodeFactory

_numbers = itertools.count(1)


class Bench:
    """A backend with two nodes of 8 cores and 2 GPUs, and jobs that end when they are told to."""

    world: World

    def start(self, **fields: Any) -> Job:
        raise LookupError

    def finish(self, job: Job, exit_code: int = 0, rank: int = 0) -> None:
        raise LookupError

    def kill(self, job: Job) -> None:
        raise LookupError

    def settle(self, job: Job, *states: str) -> Job:
        """Let things happen until the job is in one of these states."""

        def there() -> bool:
            self.step()
            job.refresh_from_db()
            return job.state in states

        wait_for(there)
        return job

    def step(self) -> None:
        self.world.plan()


class FakeBench(Bench):
    def __init__(self, world: World) -> None:
        self.world = world
        self.backend = FakeBackend()
        use_backend("fake", self.backend)
        Cluster.objects.update(backend="fake")
        for name in ("n1", "n2"):
            node = NodeFactory(cluster=world.cluster, name=name, cpu_millis=8000, gpu_millis=2000)
            DeviceFactory.create_batch(2, node=node)

    def start(self, **fields: Any) -> Job:
        return self.world.submit("sleep 60", **fields)

    def finish(self, job: Job, exit_code: int = 0, rank: int = 0) -> None:
        task = self.world.task(job, rank)
        self.backend.end(task.pk, job.epoch, exit_code=exit_code)

    def kill(self, job: Job) -> None:
        self.backend.end(self.world.task(job).pk, job.epoch, exit_signal=9)

    def step(self) -> None:
        super().step()
        backend_driver.drive_backend(Cluster.objects.get(pk=self.world.cluster.pk))


class AgentsBench(Bench):
    def __init__(self, world: World, server: Server, folder: Path) -> None:
        self.world = world
        self.folder = folder
        token = world.join_token()
        self.agents = [
            AgentProcess(
                server, name, folder / name, token, ("--fake-gpus", "2xA100-80GB", "--isolation", "off")
            ).start()
            for name in ("n1", "n2")
        ]
        wait_for(lambda: Node.objects.filter(state="up").count() == 2)

    def start(self, **fields: Any) -> Job:
        end = self.folder / f"end-{next(_numbers)}"
        command = (
            f"until [ -s {end}-$RANK ]; do sleep 0.02; done; "
            f"[ $(cat {end}-$RANK) = kill ] && kill -9 $$; exit $(cat {end}-$RANK)"
        )
        job = self.world.submit(command, **fields)
        self._end_of(job).write_text(str(end))
        return job

    def _end_of(self, job: Job) -> Path:
        return self.folder / f"job-{job.number}"

    def finish(self, job: Job, exit_code: int = 0, rank: int = 0) -> None:
        self._write(job, str(exit_code), rank)

    def kill(self, job: Job) -> None:
        self._write(job, "kill", 0)

    def _write(self, job: Job, text: str, rank: int) -> None:
        file = Path(f"{self._end_of(job).read_text()}-{rank}")
        fresh = file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(file)


@pytest.fixture(params=["fake", "agents"])
def bench(request: pytest.FixtureRequest, transactional_db: None, tmp_path: Path) -> Iterator[Bench]:
    world = World.make()
    if request.param == "fake":
        yield FakeBench(world)
        use_backend("fake", None)
        return
    server = Server().start()
    agents = AgentsBench(world, server, tmp_path)
    yield agents
    for agent in agents.agents:
        agent.clean_up()
    server.stop()
