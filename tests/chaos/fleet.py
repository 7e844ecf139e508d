"""Agents that reach the portal through proxies, and are started again when they die, as a service manager would."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config.up.processes import die_with_parent
from tests.chaos.proxy import Proxy
from tests.support.stack import ROOT, Stack

CPUS: Final = 16
#: As `Restart=always` with `RestartSec` has it.
RESTART_SECONDS: Final = 0.5
#: A disk of its own for a node, where root can mount one.
DISK_MIB: Final = 48


#: What Python runs at its start where this is on its path: a process whose clock differs by what a file says.
ANOTHER_CLOCK: Final = """
import os, time
_real, _file = time.time, os.environ["CHAOS_CLOCK"]
def _now():
    with open(_file) as file:
        return _real() + float(file.read())
time.time, time.time_ns = _now, lambda: int(_now() * 1e9)
"""


@dataclass(eq=False)
class Member:
    """One node: its agent, the proxy before it, and its folder."""

    name: str
    folder: Path
    proxy: Proxy
    popen: subprocess.Popen[bytes] | None = None
    #: The file that says by how many seconds its agent's clock differs; None = the machine's clock.
    clock: Path | None = None
    mounted: bool = False


@dataclass(eq=False)
class Fleet:
    """`count` nodes on this machine."""

    stack: Stack
    count: int
    seed: int
    members: list[Member] = field(default_factory=list)
    restarts: int = 0

    def start(self) -> Fleet:
        port = urlsplit(self.stack.base_url).port
        assert port is not None
        self._stopping = threading.Event()
        self._log = (self.stack.state / "chaos-agents.log").open("ab")
        (self.stack.state / "clock").mkdir()
        (self.stack.state / "clock" / "sitecustomize.py").write_text(ANOTHER_CLOCK)
        for number in range(self.count):
            folder = self.stack.state / "chaos-agents" / f"n{number}"
            folder.mkdir(parents=True)
            (self.stack.state / "chaos-agents").chmod(0o755)
            member = Member(f"chaos-{number}", folder, Proxy(port, self.seed + number).start())
            if number < 2:
                member.clock = self.stack.state / "clock" / str(number)
                self.set_clock(member, 0)
            if number == 2 and os.geteuid() == 0:
                member.mounted = _mount(folder)
            self.members.append(member)
            self._spawn(member)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def set_clock(self, member: Member, seconds: int) -> None:
        """Let its agent's clock differ from now on; the file is replaced whole."""
        assert member.clock is not None
        fresh = member.clock.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(member.clock)

    def _spawn(self, member: Member) -> None:
        clock = {}
        if member.clock is not None:
            clock = {"PYTHONPATH": str(member.clock.parent), "CHAOS_CLOCK": str(member.clock)}
        writable = ["--writable", str(self.stack.open_folder)] if self.stack.open_folder else []
        member.popen = subprocess.Popen(
            [
                sys.executable, "-m", "scheduler.agent", "--server", f"http://127.0.0.1:{member.proxy.port}",
                "--state", str(member.folder), "--name", member.name, "--cpus", str(CPUS),
                "--memory-mib", "65536", "--join-token-file", str(self.stack.state / "join_token"), *writable,
            ],
            cwd=ROOT,
            env=os.environ | clock,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip

    def _watch(self) -> None:
        while not self._stopping.wait(RESTART_SECONDS):
            for member in self.members:
                if (
                    member.popen is not None
                    and member.popen.poll() is not None
                    and not self._stopping.is_set()
                ):
                    self.restarts += 1
                    self._spawn(member)

    def stop(self) -> None:
        """End the agents and what they started."""
        self._stopping.set()
        time.sleep(RESTART_SECONDS)
        for member in self.members:
            if member.popen is not None and member.popen.poll() is None:
                member.popen.terminate()
        for member in self.members:
            if member.popen is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.popen.wait(30)
                member.popen.kill()
            for lock in (member.folder / "keeper.lock",):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    os.kill(int(lock.read_text().split()[0]), signal.SIGTERM)
            member.proxy.stop()
            if member.mounted:
                subprocess.run(["umount", "-l", str(member.folder)], check=False)
        self._log.close()


def _mount(folder: Path) -> bool:
    if shutil.which("mount") is None:
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "muster-chaos", str(folder)],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0
