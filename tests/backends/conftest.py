"""The same promises, tried on every backend: in memory, and by real agents with real processes."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends.base import Backend
from scheduler.backends.docker.container import container_name, container_options
from scheduler.backends.docker.host_link import HostLink
from scheduler.backends.docker.hosts import read_docker_settings
from scheduler.backends.fake import FakeBackend
from scheduler.backends.registry import backend_of, forget_backends, use_backend
from scheduler.models import Cluster, Job, Node
from scheduler.services.execution import backend_driver, dispatch, driving
from tests.backends.docker.server import IMAGE, DockerServer, DockerUnavailable, install
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.factories import DeviceFactory, NodeFactory
from tests.support.patience import patience

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


class DockerBench(Bench):
    """Two real Docker daemons; a job's containers end when a file is written in them."""

    def __init__(self, world: World, daemons: Mapping[str, DockerServer]) -> None:
        self.world, self.daemons = world, daemons
        hosts = [
            {"name": name, "url": daemon.url, "cpus": 8, "memory_mib": 64_000, "gpus": ["A100-80GB"] * 2}
            for name, daemon in daemons.items()
        ]
        Cluster.objects.update(backend="docker", backend_settings={"hosts": hosts, "network": "none"})
        self.driver = driving.Driver()
        self.driver.round()

    def start(self, **fields: Any) -> Job:
        command = (
            "until [ -s /tmp/end-$RANK ]; do sleep 0.05; done; "
            "[ $(cat /tmp/end-$RANK) = kill ] && kill -9 $$; exit $(cat /tmp/end-$RANK)"
        )
        return self.world.submit(command, image=IMAGE, **fields)

    def finish(self, job: Job, exit_code: int = 0, rank: int = 0) -> None:
        self._write(job, str(exit_code), rank)

    def kill(self, job: Job) -> None:
        self._write(job, "kill", 0)

    def _write(self, job: Job, text: str, rank: int) -> None:
        self.daemon_of(job, rank).exec(self.container_of(job, rank), f"echo {text} > /tmp/end-{rank}")

    def daemon_of(self, job: Job, rank: int = 0) -> DockerServer:
        return self.daemons[self.world.task(job, rank).node.name]

    def container_of(self, job: Job, rank: int = 0) -> str:
        key = str(Cluster.objects.get(pk=self.world.cluster.pk).backend_key)
        return container_name(key, self.world.task(job, rank).pk, job.epoch)

    @property
    def backend(self) -> Backend:
        return backend_of(Cluster.objects.get(pk=self.world.cluster.pk))

    def containers(self) -> list[str]:
        return [name for daemon in self.daemons.values() for name in daemon.containers()]

    def create_only(self, job: Job) -> None:
        """What a driver leaves that is killed between `create` and `start`."""
        cluster = Cluster.objects.get(pk=self.world.cluster.pk)
        node = self.world.task(job).node
        (assignment,) = dispatch.orders_for(node, {}).assignments
        settings = read_docker_settings(cluster.backend_settings)
        host = next(one for one in settings.hosts if one.name == node.name)
        options = container_options(assignment, str(cluster.backend_key), settings, node_name=node.name)
        HostLink(host, str(cluster.backend_key)).create(self.container_of(job), options)

    def replace_driver(self) -> None:
        """As if the process of the driver was killed and another one went on."""
        self.driver.release()
        self.backend.close()
        forget_backends()
        self.driver = driving.Driver()

    def step(self) -> None:
        super().step()
        self.driver.round()

    def close(self) -> None:
        self.driver.release()
        self.backend.close()
        forget_backends()


@pytest.fixture(scope="session")
def docker_daemons() -> Iterator[dict[str, DockerServer]]:
    """MUSTER_REQUIRE_DOCKER installs what is missing, and makes a daemon that does not start a failure."""
    required = os.environ.get("MUSTER_REQUIRE_DOCKER") == "1"
    folder = Path(tempfile.mkdtemp(prefix="muster-docker-"))
    daemons = {name: DockerServer(folder / name, patience_seconds=patience(30)) for name in ("n1", "n2")}
    try:
        if required:
            install()
        for name, daemon in daemons.items():
            (folder / name).mkdir()
            daemon.start()
    except DockerUnavailable as problem:
        for daemon in daemons.values():
            daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
        if required:
            pytest.fail(f"MUSTER_REQUIRE_DOCKER is set, and there is no Docker: {problem}")
        pytest.skip(f"THE BACKEND OF DOCKER IS NOT TESTED AGAINST A REAL DOCKER: {problem}")
    yield daemons
    for daemon in daemons.values():
        daemon.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def docker(transactional_db: None, docker_daemons: dict[str, DockerServer]) -> Iterator[DockerBench]:
    bench = DockerBench(World.make(), docker_daemons)
    yield bench
    bench.close()
    for daemon in docker_daemons.values():
        for name in daemon.containers():
            daemon.remove(name)


@pytest.fixture(params=["fake", "agents", pytest.param("docker", marks=pytest.mark.root)])
def bench(request: pytest.FixtureRequest, transactional_db: None, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "docker":
        yield request.getfixturevalue("docker")
        return
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
