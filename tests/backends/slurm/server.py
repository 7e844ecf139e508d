"""A whole Slurm from Debian's packages on this machine, for tests: its own folder, its own ports, no systemd.

    python3 tests/backends/slurm/server.py install          # packages, when root and missing
    python3 tests/backends/slurm/server.py run /tmp/slurm   # start, print the environment, stop at Ctrl-C

Only the standard library is used, so that CI can install the packages before anything else is there.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

PACKAGES = (
    "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client", "munge", "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin", "slurm-wlm-jwt-plugin", "mariadb-server-core", "mariadb-client-core",
)  # fmt: skip
PROGRAMS = (
    "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "sacctmgr", "munged", "mariadbd", "mariadb-install-db",
)  # fmt: skip
#: Accounts of the machine that jobs and the REST server run under; made with useradd, without a home.
PEOPLE = ("mustertest1", "mustertest2")
REST_USER = "musterrest"
#: One Slurm at a time: the accounts above and the packages belong to the whole machine.
LOCK = Path(tempfile.gettempdir()) / "muster-slurm.lock"
CLUSTER = "mustertest"
NODES, CPUS, MEMORY_MIB, GPUS = 2, 8, 16_000, 4


class SlurmUnavailable(Exception):
    """There can be no Slurm here; the text says why and what would help."""


def missing() -> str:
    """Why a Slurm cannot be started here, or nothing."""
    if os.geteuid() != 0:
        return "starting a Slurm needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} missing: run `python3 tests/backends/slurm/server.py install` as root"
    return ""


def install() -> None:
    """Install the packages that are missing, with apt-get; does nothing when all are there."""
    if not missing():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SlurmUnavailable("Slurm's packages are missing, and only root on Debian can install them here")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SlurmUnavailable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-600:]}")


class SlurmServer:
    """munged, MariaDB, slurmdbd, slurmctld, its slurmds and slurmrestd, each a child of this process."""

    def __init__(
        self, folder: Path, *, patience_seconds: float = 180, nodes: int = NODES, cpus: int = CPUS
    ) -> None:
        self.folder = folder
        self.patience_seconds = patience_seconds
        self.nodes, self.cpus = nodes, cpus
        self.host = socket.gethostname().split(".")[0]
        names = ("controller", "accounting", "rest", "sql", *(f"node{n + 1}" for n in range(nodes)))
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.key = secrets.token_bytes(32)
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._lock: IO[str] | None = None

    # ------------------------------------------------------------ what callers use

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['rest']}"

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find this Slurm and no other."""
        return {"SLURM_CONF": str(self.folder / "etc/slurm.conf")}

    @property
    def daemon_pids(self) -> list[int]:
        """The daemons that were started; the steps of jobs leave them."""
        return [child.pid for _, child in self._children]

    def token(self, user: str = "slurm", life_seconds: int = 3600) -> str:
        """A JWT as `scontrol token` would print it; of `slurm` it may do everything."""
        now = int(time.time())
        body = _part({"exp": now + life_seconds, "iat": now, "sun": user})
        head = _part({"alg": "HS256", "typ": "JWT"}) + b"." + body
        return (head + b"." + _base64(hmac.new(self.key, head, hashlib.sha256).digest())).decode()

    def run(self, *command: str, user: str = "", check: bool = True) -> str:
        """Run one of Slurm's commands, under another account if asked; answers what it printed."""
        if user:
            command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command)
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder / "work",
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def start(self) -> None:
        self._take_lock()
        try:
            _make_people()
            self._write_files()
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every child, the youngest first, then the steps of jobs that may still run."""
        for name, child in reversed(self._children):
            self._end(name, child)
        self._children.clear()
        self._kill_steps()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Freeze one daemon: it neither answers nor refuses, as on an overloaded machine."""
        child = next(child for known, child in self._children if known == name)
        os.killpg(child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(child.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Kill one daemon, and start it again afterwards."""
        position = next(n for n, (known, _) in enumerate(self._children) if known == name)
        self._end(name, self._children.pop(position)[1], signal.SIGKILL)
        try:
            yield
        finally:
            self._start_again(name)

    # ------------------------------------------------------------ start, in order

    def _start_all(self) -> None:
        etc, sql = self.folder / "etc", self.folder / "sql"
        socket_path = self.folder / "munge/s"
        self._launch(
            "munged", "munged", "-F", "--force", f"--key-file={etc / 'munge.key'}", f"--socket={socket_path}",
            f"--pid-file={self.folder / 'run/munged.pid'}", f"--log-file={self.folder / 'log/munged.log'}",
            f"--seed-file={self.folder / 'munge/seed'}",
        )  # fmt: skip
        self._run_quietly(
            "mariadb-install-db", "--no-defaults", "--user=slurm", f"--datadir={sql / 'data'}", "--skip-test-db",
            "--auth-root-authentication-method=normal",
        )  # fmt: skip
        self._launch(
            "mariadbd", *_as("slurm"), "mariadbd", "--no-defaults", f"--datadir={sql / 'data'}",
            f"--socket={sql / 's'}", f"--pid-file={self.folder / 'own/mariadbd.pid'}",
            "--bind-address=127.0.0.1", f"--port={self.ports['sql']}", "--skip-log-bin", "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite",
        )  # fmt: skip
        client = ("mariadb", "--no-defaults", f"--socket={sql / 's'}", "--user=root", "-e")
        self._wait("mariadbd", lambda: self._succeeds(*client, "select 1"))
        self._run_quietly(
            *client,
            "create database slurm_acct_db; create user 'slurm'@'127.0.0.1' identified by 'only-for-tests';"
            " grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'",
        )
        self._wait("munged", lambda: self._succeeds("munge", "-n", "-S", str(socket_path)))
        self._start_again("slurmdbd")
        self._wait("slurmdbd", lambda: self._succeeds("sacctmgr", "-n", "show", "cluster"))
        self.run("sacctmgr", "-i", "add", "cluster", CLUSTER)
        self._start_again("slurmctld")
        for number in range(self.nodes):
            self._launch(f"node{number + 1}", "slurmd", "-D", "-N", f"node{number + 1}")
        self._start_again("slurmrestd")
        self._wait("slurmctld", self._nodes_are_up)

    def _start_again(self, name: str) -> None:
        if name == "slurmrestd":
            # It ends on its own now and then (a NULL list on some requests), so a shell starts it anew.
            self._launch(
                name, "bash", "-c",
                "while :; do " + " ".join(_as(REST_USER)) + ' slurmrestd -a rest_auth/jwt "$0"; sleep 0.2; done',
                f"127.0.0.1:{self.ports['rest']}", SLURM_JWT="daemon",
            )  # fmt: skip
            self._wait(name, lambda: port_answers(self.ports["rest"]))
        elif name == "slurmdbd":
            self._launch(name, *_as("slurm"), "slurmdbd", "-D")
            self._wait(name, lambda: port_answers(self.ports["accounting"]))
        elif name == "slurmctld":
            self._launch(name, *_as("slurm"), "slurmctld", "-D")
            self._wait(name, lambda: self._succeeds("scontrol", "ping"))
        else:
            raise LookupError(name)

    def _nodes_are_up(self) -> bool:
        idle = self.run("sinfo", "-h", "-t", "idle,alloc,mix", "-o", "%D", check=False).split()
        return sum(int(count) for count in idle) >= self.nodes

    # ------------------------------------------------------------ processes

    def _launch(self, name: str, *command: str, **extra: str) -> None:
        with (self.folder / f"log/{name}.out").open("ab") as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder / "work",
                env=os.environ | self.environment | extra, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._children.append((name, child))

    def _wait(self, name: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        """Until it is ready; raises with the end of its log when it has died or takes too long."""
        child = next(child for known, child in self._children if known == name)
        until = time.monotonic() + seconds
        while not ready():
            if child.poll() is not None or time.monotonic() > until:
                raise SlurmUnavailable(f"{name} did not come up: {self._tail(name)}")
            time.sleep(0.05)

    def _tail(self, name: str) -> str:
        texts = []
        for path in (self.folder / f"log/{name}.out", self.folder / f"log/{name}.log"):
            if path.exists():
                texts.append(path.read_text(errors="replace")[-800:])
        return " | ".join(texts)

    def _end(self, name: str, child: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(15)

    def _kill_steps(self) -> None:
        """slurmstepd leaves its parent's group; those that were started with our configuration are ours."""
        mark = f"SLURM_CONF={self.folder / 'etc/slurm.conf'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() == "slurmstepd" and mark in (
                    process / "environ"
                ).read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue

    def _succeeds(self, *command: str) -> bool:
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True)
        return done.returncode == 0

    def _run_quietly(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SlurmUnavailable(f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-500:]}")

    def _take_lock(self) -> None:
        handle = LOCK.open("a")
        until = time.monotonic() + self.patience_seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    handle.close()
                    raise SlurmUnavailable(
                        f"another run holds {LOCK}: one Slurm at a time on a machine"
                    ) from None
                time.sleep(0.2)
        self._lock = handle

    # ------------------------------------------------------------ files

    def _write_files(self) -> None:
        if len(str(self.folder)) > 80:
            raise SlurmUnavailable(f"{self.folder} is too long for the path of a socket")
        for name in ("etc", "run", "own", "log", "munge", "sql/data", "state", "spool", "work", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("", "etc", "run", "munge", "sql", "spool", "dev"):
            (self.folder / name).chmod(0o755)
        (self.folder / "work").chmod(0o777)
        self._secret("munge.key", secrets.token_bytes(128))
        self._secret("jwt_hs256.key", self.key)
        self._secret("slurmdbd.conf", self._slurmdbd_conf().encode())
        (self.folder / "etc/slurm.conf").write_text(self._slurm_conf())
        (self.folder / "etc/cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "etc/gres.conf").write_text(
            f"NodeName=node1 Name=gpu Type=a100 File={self.folder}/dev/gpu[0-{GPUS - 1}]\n"
        )
        for number in range(GPUS):  # a GPU's file must be a device; these are twins of /dev/null
            path = self.folder / f"dev/gpu{number}"
            if not path.exists():
                os.mknod(path, 0o20666, os.makedev(1, 3))
        for number in range(self.nodes):
            (self.folder / f"spool/node{number + 1}").mkdir(exist_ok=True)
        for name in ("etc/jwt_hs256.key", "etc/slurmdbd.conf", "own", "log", "state", "sql", "sql/data"):
            shutil.chown(self.folder / name, "slurm", "slurm")
        self._run_quietly(
            "setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "test", "-r",
            str(self.folder / "etc/slurm.conf"),
        )  # fmt: skip

    def _secret(self, name: str, content: bytes) -> None:
        path = self.folder / "etc" / name
        path.touch(mode=0o600)
        path.write_bytes(content)

    def _slurmdbd_conf(self) -> str:
        return f"""\
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/s
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={self.folder}/etc/jwt_hs256.key
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self.ports["accounting"]}
SlurmUser=slurm
DebugLevel=info
LogFile={self.folder}/log/slurmdbd.log
PidFile={self.folder}/own/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.ports["sql"]}
StorageUser=slurm
StoragePass=only-for-tests
StorageLoc=slurm_acct_db
"""

    def _slurm_conf(self) -> str:
        nodes = "\n".join(
            f"NodeName=node{n + 1} NodeHostname={self.host} NodeAddr=127.0.0.1 Port={self.ports[f'node{n + 1}']}"
            f" CPUs={self.cpus} RealMemory={MEMORY_MIB} {'Gres=gpu:a100:4 ' if n == 0 else ''}State=UNKNOWN"
            for n in range(self.nodes)
        )
        return f"""\
ClusterName={CLUSTER}
SlurmctldHost={self.host}(127.0.0.1)
SlurmctldPort={self.ports["controller"]}
SlurmdPort={self.ports["node1"]}
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/s
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={self.folder}/etc/jwt_hs256.key
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/own/slurmctld.pid
SlurmdPidFile={self.folder}/own/%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/%n.log
# no cgroups, no systemd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
# the nodes below are bigger than the machine
SlurmdParameters=config_overrides
InactiveLimit=0
KillWait=2
MessageTimeout=20
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
PriorityType=priority/multifactor
PriorityWeightFairshare=1000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self.ports["accounting"]}
# the munge socket again: what goes to slurmdbd uses this one
AccountingStoragePass={self.folder}/munge/s
AccountingStorageTRES=gres/gpu,gres/gpu:a100
AccountingStorageEnforce=associations,limits,qos,safe
JobCompType=jobcomp/none
{nodes}
PartitionName=main Nodes=node[1-{self.nodes}] Default=YES MaxTime=1:00:00 DefaultTime=00:10:00 State=UP
"""


# ---------------------------------------------------------------- helpers


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, below the range that outgoing connections are given."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _make_people() -> None:
    for name in (*PEOPLE, REST_USER):
        if subprocess.run(["id", name], capture_output=True).returncode:
            subprocess.run(
                ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/", name],
                check=True,
            )


def _as(user: str) -> list[str]:
    """Change to this account before the program starts: one that does so itself outlives us when we are killed."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--pdeathsig", "KILL"]


def die_with_parent() -> None:
    """A run that is killed leaves no daemon behind."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _part(value: dict[str, Any]) -> bytes:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def main() -> int:
    words = sys.argv[1:]
    try:
        if words == ["install"]:
            install()
            return 0
        if len(words) == 2 and words[0] == "run":
            if reason := missing():
                raise SlurmUnavailable(reason)
            server = SlurmServer(Path(words[1]).resolve())
            server.start()
            for name, value in server.environment.items():
                print(f"export {name}={value}")
            print(f"export EXECUTOR_SLURM_REST_API_URL={server.rest_url}")
            print(f"export EXECUTOR_SLURM_AUTH_TOKEN={server.token(life_seconds=86400)}", flush=True)
            try:
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
            finally:
                server.stop()
            return 0
    except SlurmUnavailable as problem:
        print(problem, file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
