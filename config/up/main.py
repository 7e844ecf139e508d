"""`manage.py up`: start everything in order, say where it is, keep it running, stop it in order."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from config.up import demo, exposure, leftovers
from config.up.forks.forking import adopt_orphans
from config.up.nodes import LocalNode, remember, remembered
from config.up.options import DEFAULT_PORT, Options, parse
from config.up.ports import PortInUseError, listen
from config.up.processes import Process, die_with_parent
from config.up.servers.embedded import EmbeddedServers, wait_ready
from config.up.services import Environment, agent, beat, fork_servers, planners, webs, worker
from config.up.state import StateError, StateFolder
from config.up.supervisor import Supervisor

PORTS_TO_TRY = 50
# A command that borrowed this state folder's servers gets this long to end.
LOCK_SECONDS = 20.0
# For the jobs of nodes whose agent had ended before everything was stopped.
SHIM_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    return run(parse(arguments))


def run(options: Options) -> int:
    """Run a portal until it is asked to stop; returns the exit code of the process."""
    try:
        return Portal(options).run()
    except (StateError, PortInUseError) as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
        return 1


class Portal:
    """One run of one state folder."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.started_at = time.monotonic()
        self.state = StateFolder.find()
        self.supervisor = Supervisor(self.say)
        self.forks: Sequence[Process] = ()
        self.background: list[Process] = []
        self.agents: list[Process] = []
        self.web: list[Process] = []
        self.servers: EmbeddedServers | None = None
        self.listening: socket.socket | None = None

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started_at:7.1f} s  {text}", flush=True)

    def run(self) -> int:
        self._take_lock()
        try:
            exposure.require_known(self.options, running_on=leftovers.nodes_with_jobs(self.state.agents))
            self.listening = self._listen()
            self.state.say_address(self.local_url)
            self.say(f"state in {self.state.path}, logs in {self.state.logs}")
            self._start()
            self._banner()
            self.supervisor.watch()
            return 0
        except KeyboardInterrupt:
            return 130
        finally:
            self._stop()
            self.state.release_lock()

    # ------------------------------------------------------------ before anything runs

    def _take_lock(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        announced = False
        while not self.state.take_lock():
            other = self.state.published()
            if other and other.web_url:
                raise StateError(
                    f"Already running at {other.web_url} (process {other.owner_pid}, "
                    f"state in {self.state.path}). Stop it first, or set MUSTER_STATE to another folder to "
                    "run a second portal."
                )
            if time.monotonic() > deadline:
                who = f"`{other.command}` (process {other.owner_pid})" if other else "Another process"
                raise StateError(
                    f"{who} uses {self.state.path}. Wait for it to end, or stop it, and try again."
                )
            if not announced:
                self.say(
                    f"waiting for {f'`{other.command}`' if other else 'another start'} in {self.state.path}"
                )
                announced = True
            time.sleep(0.1)
            self.supervisor.require_not_stopping()

    def _listen(self) -> socket.socket:
        host, port = self.options.host, self.options.port
        if port is not None:
            try:
                return listen(host, port)
            except PortInUseError as error:
                raise StateError(
                    f"Port {port} on {host}, asked for by {self.options.port_from}, is in use or refused. "
                    f"Choose another, or leave out {self.options.port_from} to get the next free one."
                ) from error
        for candidate in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY):
            try:
                sock = listen(host, candidate)
            except PortInUseError:
                continue
            if candidate != DEFAULT_PORT:
                self.say(f"port {DEFAULT_PORT} is in use; taking {candidate}")
            return sock
        raise StateError(
            f"Ports {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TO_TRY - 1} on {host} are all in use. "
            "Name one with --port."
        )

    # ------------------------------------------------------------ start

    def _start(self) -> None:
        env = Environment(self.state, self.options)
        self._start_servers(env)
        self.forks = fork_servers(env)
        self._prepare(env)
        assert self.listening is not None
        if self.forks:
            adopt_orphans()
        self.supervisor.start(self.forks)
        self.web = webs(env, self.listening.fileno(), self._web_serves)
        planner, *spare = planners(env)
        first = [planner, worker(env), beat(env)]
        self.background = [*first, *spare]
        self.supervisor.start([self.web[0], *first])
        self.say("web, workers and beat are ready")
        assert self.servers is not None
        self.state.publish(self.servers.published("manage.py up", web_url=self.url))
        self.agents = [agent(env, node) for node in self._nodes(env)]
        self.supervisor.adopt([*self.agents, *self.web[1:], *spare])
        if self.agents:
            self.say(f"started {len(self.agents)} node agents")

    def _nodes(self, env: Environment) -> list[LocalNode]:
        """The nodes of the command line, and nodes whose jobs outlived the supervisor before us."""
        file = self.state.run / "nodes.json"
        before = remembered(file)
        asked = {node.name for node in env.nodes}
        left = [name for name in leftovers.nodes_with_jobs(self.state.agents) if name not in asked]
        if left:
            self.say(f"jobs from before this start run on {', '.join(left)}: kept until the next stop")
        nodes = [*env.nodes, *(before[name] for name in left if name in before)]
        remember(file, nodes)
        return nodes

    def _start_servers(self, env: Environment) -> None:
        self.servers = servers = EmbeddedServers(self.state)
        if servers.postgres and servers.postgres.prepare():
            self.say("made a PostgreSQL data folder")
        for process in servers.processes:
            process.start()
        for process in servers.processes:
            wait_ready(process, interrupted=lambda: self.supervisor.stopping)
        self.supervisor.adopt(servers.processes)
        env.use_servers(servers.database_url, servers.redis_url, servers.owner_database_url)
        self.say(f"{_place('PostgreSQL', servers.database_url)}, {_place('Valkey', servers.redis_url)}")

    def _prepare(self, env: Environment) -> None:
        """Migrate and load demo data in a process of its own, passing on what it says."""
        command = [sys.executable, str(env.checkout / "manage.py"), "prepare"]
        command += ["--join-token-file", str(env.join_token_file)]
        if self.options.demo:
            command.append("--demo")
        log = self.state.logs / "prepare.log"
        with log.open("ab") as errors:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env.for_prepare(),
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509  single-threaded by design
            )
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                self.say(line.strip())
                if self.supervisor.stopping:
                    child.terminate()
        if child.wait() and not self.supervisor.stopping:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise StateError(f"The database could not be prepared. {log} ends:\n{tail}")
        self.supervisor.require_not_stopping()
        self.say("the database is ready")

    def _web_serves(self) -> bool:
        """Whether /readyz is green, asked over the socket that people use."""
        try:
            where = urlsplit(self.local_url)
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            ok = answer.status == 200 and json.load(answer)["status"] in ("ok", "degraded")
            connection.close()
            return bool(ok)
        except (OSError, ValueError, http.client.HTTPException):
            return False

    @property
    def url(self) -> str:
        """The address for people."""
        return f"http://{_shown(self.options.host)}:{self._port}/"

    @property
    def local_url(self) -> str:
        """The address for processes on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.options.host, _shown(self.options.host))  # noqa: S104
        return f"http://{host}:{self._port}"

    @property
    def _port(self) -> int:
        assert self.listening is not None
        return int(self.listening.getsockname()[1])

    def _banner(self) -> None:
        lines = ["", f"Muster is ready: {self.url}", ""]
        if self.options.demo:
            lines += demo.sign_in_lines()
        else:
            lines += ["Make the first account with: .venv/bin/python manage.py createsuperuser", ""]
        lines += exposure.banner_lines(self.options)
        print("\n".join([*lines, "Stop with Ctrl-C."]), flush=True)

    # ------------------------------------------------------------ stop

    def _stop(self) -> None:
        self.supervisor.stopping = True
        everything = [
            *self.forks,
            *self.background,
            *self.agents,
            *self.web,
            *(self.servers.processes if self.servers else []),
        ]
        if any(process.popen for process in everything):
            print(flush=True)
            self.say("stopping (press Ctrl-C again to hurry, a third time to kill)")
        beats = [process for process in self.background if process.name == "beat"]
        workers = [process for process in self.background if process.name != "beat"]
        self.supervisor.stop([beats, [*workers, *self.agents], [*self.web, *self.forks]])
        self._end_leftovers()
        if self.listening:
            self.listening.close()
        if self.servers:
            self.supervisor.stop([[process] for process in reversed(self.servers.processes)])
        if everything:
            self.say("stopped; everything is kept for the next start")

    def _end_leftovers(self) -> None:
        """End the jobs of nodes whose agent has ended: a stop of everything does this, a start that fails does not."""
        if not self.agents and not self.supervisor.stop_reason:
            return
        folders = list(self.state.agents.iterdir())
        leftovers.kill_agents(folders)
        seconds = 0.0 if self.supervisor.hurried else SHIM_SECONDS
        if late := leftovers.end_shims(folders, seconds=seconds):
            self.say(f"jobs of {', '.join(late)} have not ended yet")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _place(name: str, url: str) -> str:
    where = urlsplit(url)
    return f"{name} answers on {where.hostname}:{where.port}"
