"""Our own processes: web, workers, beat and agents, and the environment of each, without what it must not know."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from config.up.forks.forking import ForkServer, can_fork
from config.up.memory import ceiling_mib
from config.up.nodes import LocalNode, cores, demo_nodes, this_machine
from config.up.options import Options
from config.up.processes import Process
from config.up.servers.roles import OWNER_URL
from config.up.state import CHECKOUT, StateError, StateFolder

# An agent runs other people's commands, so it gets only these variables.
AGENT_MAY_KNOW = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
)

# Without its compiled modules, each start would compile hundreds of files again. The owner of the tables is only for
# the process that migrates.
NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PORT", OWNER_URL)

MAX_WEB_PROCESSES = 16
CELERY = ("-m", "celery", "-A", "config")


class Environment:
    """What all processes of one run share."""

    def __init__(self, state: StateFolder, options: Options) -> None:
        self.state = state
        self.options = options
        self.checkout = CHECKOUT
        self._owner_database_url = ""
        self.join_token_file = state.path / "join_token"
        self.nodes = demo_nodes(options.nodes) if options.demo else this_machine(options.nodes)
        #: They fork our processes, and those of agents, where that can be done.
        self.forks_services: ForkServer | None = None
        self.forks_agents: ForkServer | None = None
        self.web_count = web_processes()
        self._shared = {
            "DJANGO_SETTINGS_MODULE": os.environ.get("DJANGO_SETTINGS_MODULE", "config.settings.development"),
            "MUSTER_STATE": str(state.path),
            "MUSTER_DEMO": "1" if options.demo else "0",
            "MUSTER_ALLOWED_HOSTS": os.environ.get(
                "MUSTER_ALLOWED_HOSTS", ",".join(allowed_hosts(options.host))
            ),
            "PYTHONUNBUFFERED": "1",
            # Number libraries that start a thread for each core make a small shared machine crawl.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TZ": "UTC",
        }

    def use_servers(self, database_url: str, redis_url: str, owner_database_url: str = "") -> None:
        self._shared |= {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
        self._owner_database_url = owner_database_url

    def for_service(self, name: str) -> dict[str, str]:
        """The environment of a process of ours, which we trust with everything."""
        inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        own = {"MUSTER_PROCESS": f"muster-{name}", "MUSTER_READY_FILE": str(self.ready_file(name))}
        return {**inherited, **self._shared, **own}

    def for_prepare(self) -> dict[str, str]:
        """The environment of what migrates: the only process that may know the owner of the tables."""
        return {**self.for_service("prepare"), OWNER_URL: self._owner_database_url}

    def for_agent(self) -> dict[str, str]:
        """The environment of an agent: no secret of the portal can leak from it into a job."""
        known = {name: os.environ[name] for name in AGENT_MAY_KNOW if name in os.environ}
        return {**known, "PYTHONUNBUFFERED": "1"}

    @cached_property
    def counters(self) -> dict[str, str]:
        """Where several web processes write their counters, so that each reports them all; one has its memory."""
        return {"PROMETHEUS_MULTIPROC_DIR": str(self.empty_folder("counters"))} if self.web_count > 1 else {}

    def empty_folder(self, name: str) -> Path:
        """A folder for what this run alone keeps."""
        folder = self.state.run / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def ready_file(self, name: str) -> Path:
        return self.state.run / f"{name}.ready"


def web_processes() -> int:
    """How many web processes share the port: one on one core, else two; Python fills one core with each."""
    if wanted := os.environ.get("MUSTER_WEB_PROCESSES", "").strip():
        if not wanted.isdecimal() or not 1 <= int(wanted) <= MAX_WEB_PROCESSES:
            raise StateError(
                f"MUSTER_WEB_PROCESSES is {wanted!r}; it has to be from 1 to {MAX_WEB_PROCESSES}."
            )
        return int(wanted)
    return 1 if cores() <= 1 else 2


def fork_servers(env: Environment) -> list[ForkServer]:
    """What forks our processes, and what forks agents, which has loaded nothing and knows nothing of the portal."""
    if not can_fork():
        return []
    env.forks_services = ForkServer(
        name="fork-server",
        argv=[],
        preload=("config.workers.preload",),
        env=env.for_service("fork-server") | env.counters,
        log_folder=env.state.logs,
        cwd=env.checkout,
        ready_seconds=120,
    )
    if not env.nodes:  # agents of nodes whose jobs were left over load for themselves
        return [env.forks_services]
    env.forks_agents = ForkServer(
        name="fork-server-agents",
        argv=[],
        preload=("scheduler.agent.main",),
        env=env.for_agent(),
        log_folder=env.state.logs,
        cwd=env.checkout,
    )
    return [env.forks_services, env.forks_agents]


def webs(env: Environment, fd: int, serves: Callable[[], bool]) -> list[Process]:
    """The web processes: all accept from one socket, so a free process takes the next connection.

    The first is ready when the portal answers; the others join in their own time.
    """
    ceiling_mib()  # a value that means nothing stops the start, and not each web process
    return [
        _web(env, fd, "web", serves),
        *(_web(env, fd, f"web-{number}", lambda: True) for number in range(2, env.web_count + 1)),
    ]


def _web(env: Environment, fd: int, name: str, serves: Callable[[], bool]) -> Process:
    ready_file = env.ready_file(name)
    return Process(
        name=name,
        argv=[sys.executable, "-m", "config.up.web", "--fd", str(fd)],
        env=env.for_service(name) | env.counters,
        log_folder=env.state.logs,
        is_ready=lambda: ready_file.exists() and serves(),
        before_start=lambda: ready_file.unlink(missing_ok=True),
        cwd=env.checkout,
        pass_fds=(fd,),
        forked_by=env.forks_services,
        stop_seconds=10,
        ready_seconds=120,
    )


def planners(env: Environment) -> list[Process]:
    """The worker of queue `scheduling`, and where there are several cores a spare that is loaded and waits.

    Planning runs in the worker's own process, one plan at a time, so that what it keeps warm stays warm. It has no
    children that could outlive it.
    """
    names = ["worker-scheduling", "worker-scheduling-spare"] if cores() > 1 else ["worker-scheduling"]
    lock = str(env.state.run / "planner.lock")
    return [_celery(env, name, ["-m", "config.workers.planner", "--lock", lock]) for name in names]


def worker(env: Environment) -> Process:
    """The worker of queue `default`: its work waits for the database most of the time, so threads of one process do."""
    options = ["-n", "default@%h", "-Q", "default", "-P", "threads", "-c", "3"]
    return _celery(
        env,
        "worker-default",
        [*CELERY, "worker", *options, "--without-gossip", "--without-mingle", "-l", "INFO"],
    )


def beat(env: Environment) -> Process:
    return _celery(env, "beat", [*CELERY, "beat", "--pidfile=", "-l", "INFO"])


def _celery(env: Environment, name: str, arguments: list[str]) -> Process:
    ready_file = env.ready_file(name)
    return Process(
        name=name,
        argv=[sys.executable, *arguments],
        # Its Django checks would load every page of the site into a worker that serves none.
        env=env.for_service(name) | {"CELERY_SKIP_CHECKS": "1"},
        log_folder=env.state.logs,
        is_ready=ready_file.exists,
        before_start=lambda: ready_file.unlink(missing_ok=True),
        cwd=env.checkout,
        forked_by=env.forks_services,
        stop_seconds=20,
        ready_seconds=120,
    )


def agent(env: Environment, node: LocalNode) -> Process:
    """A node agent: its jobs go on when it or the supervisor is killed, and end when the portal is stopped.

    It takes its folder over from an agent that outlived the supervisor before us.
    """
    folder = env.state.agents / node.name
    folder.mkdir(parents=True, exist_ok=True)
    return Process(
        name=node.name,
        argv=[
            *(sys.executable, "-m", "scheduler.agent", "--server-file", str(env.state.address_file)),
            # The server is on this machine: requests do not leave it, whatever the address.
            "--insecure-ok",
            *("--state", str(folder), "--end-jobs-on-stop", "--take-over", *node.agent_arguments()),
            *("--join-token-file", str(env.join_token_file)),
            # Its jobs must not see the portal's keys and passwords, the database, or other nodes.
            *("--hide", str(env.state.path)),
            *(word for path in env.options.readable for word in ("--readable", path)),
            *(word for path in env.options.writable for word in ("--writable", path)),
        ],
        env=env.for_agent(),
        log_folder=env.state.logs,
        cwd=env.checkout,
        death_signal=None,
        forked_by=env.forks_agents,
        stop_seconds=15,
    )


def allowed_hosts(host: str) -> list[str]:
    """The names by which this machine may be called when we listen on this address."""
    names = ["localhost", "127.0.0.1", "[::1]"]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        return [*names, socket.gethostname(), socket.getfqdn(), *_own_addresses()]
    return [*names, f"[{host}]" if ":" in host else host]


def _own_addresses() -> list[str]:
    import psutil

    addresses = [address for group in psutil.net_if_addrs().values() for address in group]
    return [a.address for a in addresses if a.family == socket.AF_INET] + [
        f"[{a.address.split('%')[0]}]" for a in addresses if a.family == socket.AF_INET6
    ]
