"""A process that was forked is one like any other, and a child of the one that asked for it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.up.forks import forking
from config.up.forks.forking import ForkServer
from config.up.processes import NotForked, Process
from tests.support.agents import wait_for
from tests.support.stack import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@pytest.fixture(autouse=True)
def _orphans_are_ours() -> Iterator[None]:
    forking.adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def a_server(folder: Path, *preload: str) -> ForkServer:
    for part in ("log", "run"):
        (folder / part).mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "OF_THE_SERVER": "1"}
    return ForkServer(
        name="forks", argv=[], env=env, log_folder=folder / "log", cwd=ROOT, preload=preload or ("json",)
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    server = a_server(tmp_path)
    server.start()
    wait_for(lambda: is_ready(server))
    yield server
    server.ask_to_stop()
    server.wait_stopped(time.monotonic() + 5)


def is_ready(process: Process) -> bool:
    process.look()
    return process.ready


@pytest.fixture
def forked(server: ForkServer, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a process by fork; it ends with the test."""
    started = []

    def start(*arguments: str, pass_fds: tuple[int, ...] = ()) -> Process:
        process = Process(
            name="child",
            argv=[sys.executable, "-m", "tests.support.forked", *arguments, *map(str, pass_fds)],
            env={"OF_THE_CHILD": "2"},
            log_folder=tmp_path / "log",
            cwd=tmp_path,
            forked_by=server,
            pass_fds=pass_fds,
        )
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.wait_stopped(0.0)


def said(process: Process) -> dict[str, object]:
    wait_for(lambda: process.log_file.read_text().endswith("\n"))
    return dict(json.loads(process.log_file.read_text()))


def test_it_is_our_child_with_the_environment_files_and_command_line_that_were_asked_for(
    forked: Callable[..., Process], tmp_path: Path
) -> None:
    with (tmp_path / "passed").open("w") as passed:
        child = forked("here", pass_fds=(passed.fileno(),))
        inode, number = os.fstat(passed.fileno()).st_ino, passed.fileno()

    assert child.pid is not None
    assert child.pid_file.read_text() == f"{child.pid}\n"
    found = said(child)
    listed = found.pop("open")
    assert found == {
        "arguments": ["here"],
        "cwd": str(tmp_path),
        "environment": {"OF_THE_CHILD": "2"},
        "passed": [inode],
        "parent": os.getpid(),
        "session": child.pid,
        "shown": f"{sys.executable} -m tests.support.forked here {number}",
    }
    # Besides those, only what lists the folder.
    assert len(set(listed) - {0, 1, 2, number}) == 1  # type: ignore[call-overload]


def test_how_it_ends_is_seen(forked: Callable[..., Process]) -> None:
    child = forked("here")

    wait_for(lambda: child.look() or child.popen is None)  # type: ignore[func-returns-value]

    assert (child.last_exit, child.failures) == ("exit code 7", 1)


def test_a_server_that_does_not_answer_is_killed_and_its_child_never_begins(
    server: ForkServer, forked: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.popen is not None
    assert server._orders is not None
    server._orders.settimeout(0.2)
    server.popen.send_signal(signal.SIGSTOP)

    child = forked("here")

    assert child.popen is None
    assert "forks did not fork it" in child.last_exit
    wait_for(lambda: server.look() or server.popen is None)  # type: ignore[func-returns-value]
    assert child.log_file.read_text() == ""
    server.start()
    child.start()  # not before it has loaded
    assert child.popen is None
    wait_for(lambda: is_ready(server))
    child.start()
    assert said(child)["arguments"] == ["here"]


def test_a_process_whose_asker_is_gone_ends(server: ForkServer, tmp_path: Path) -> None:
    child = Process(
        name="child", argv=[sys.executable, "-m", "tests.support.forked"], env={}, log_folder=tmp_path / "log"
    )
    with child.log_file.open("wb") as log:
        known, ours = os.pipe()
        pid = server._order(child, [log.fileno(), known])
        os.close(known)
        os.close(ours)

    wait_for(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
    assert child.log_file.read_text() == ""


def test_what_starts_a_thread_is_refused(tmp_path: Path) -> None:
    server = a_server(tmp_path, "tests.support.starts_a_thread")
    server.start()

    wait_for(lambda: server.look() or server.popen is None)  # type: ignore[func-returns-value]

    assert "has started a thread" in server.log_tail()
    with pytest.raises(NotForked):
        server.fork(
            Process(name="x", argv=["", "-m", "y"], env={}, log_folder=tmp_path / "log"), sys.stdout.buffer
        )
    server.wait_stopped(0.0)


def test_orphans_are_collected_and_children_are_left_to_who_started_them(tmp_path: Path) -> None:
    ours = os.posix_spawn("/bin/true", ["true"], {})
    os.system("sh -c 'sh -c \"exit 0\" & echo $!' > " + str(tmp_path / "orphan"))
    orphan = int((tmp_path / "orphan").read_text())

    def collected() -> bool:
        forking.reap_orphans({ours})
        return not Path(f"/proc/{orphan}").exists()

    os.waitid(os.P_PID, ours, os.WEXITED | os.WNOWAIT)
    forking.reap_orphans({ours})
    assert os.waitpid(ours, 0) == (ours, 0)
    wait_for(collected)


THREADS = """
import threading, time
from config.up.forks.fork_server import require_forkable
threading.Thread(target=time.sleep, args=(0.1,)).start()
require_forkable()
threading.Thread(target=time.sleep, args=(60,), name="of a library", daemon=True).start()
try:
    require_forkable(patience_seconds=0.05)
except RuntimeError as error:
    print(error)
"""


def test_a_thread_that_ends_soon_is_waited_for_and_one_that_stays_is_named() -> None:
    said = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert said.stdout.strip().endswith("cannot be forked: of a library")
