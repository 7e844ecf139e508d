"""What a job leaves behind goes, whatever it is, and nothing outside its folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.agent.shim.folders.trash import Trash, empty
from tests.support.agents import ROOT, wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either


def closed_folders(work: Path, outside: Path) -> None:
    (work / "a/b/c").mkdir(parents=True)
    (work / "a/b/c/file").touch()
    for folder in ("a/b/c", "a/b", "a"):
        (work / folder).chmod(0)


def special_files(work: Path, outside: Path) -> None:
    os.mkfifo(work / "fifo", 0)
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(work, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    (work / "closed").touch(mode=0)


def odd_names(work: Path, outside: Path) -> None:
    for name in (b"-rf", b"--", b"a\nb", b"\xff\xfe", b" ", b"..a", b"\x1b[31m", b"x" * 255, b"\xe2\x80\xae"):
        os.mkdir(os.path.join(os.fsencode(work), name))
        with open(os.path.join(os.fsencode(work), name, name), "wb"):
            pass


def links_out(work: Path, outside: Path) -> None:
    (work / "file").symlink_to(outside / "stdout")
    (work / "folder").symlink_to(outside)
    (work / "nowhere").symlink_to("/no/such/thing")
    (work / "loop").symlink_to("loop")
    os.link(outside / "stdout", work / "hard")
    (work / "deep").mkdir()
    (work / "deep/up").symlink_to("../../../..")


def deeper_than_paths_and_open_files_go(work: Path, outside: Path) -> None:
    here = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d" * 20, dir_fd=here)
        inner = os.open("d" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        here = inner
    os.close(here)


def instead_of_our_files(work: Path, outside: Path) -> None:
    task = work.parent
    (task / "stdout").unlink()
    (task / "stdout").symlink_to(outside / "stdout")
    (task / "stderr").mkdir()
    (task / "stderr/x").touch()
    work.rmdir()
    work.symlink_to(outside)


def instead_of_the_whole(work: Path, outside: Path) -> None:
    task = work.parent
    task.rename(task.with_name("moved"))
    task.symlink_to(outside)


def less_than_we_made(work: Path, outside: Path) -> None:
    work.rmdir()


def nothing(work: Path, outside: Path) -> None:
    pass


def the_whole_closed(work: Path, outside: Path) -> None:
    (work / "file").touch()
    work.chmod(0)
    work.parent.chmod(0)


LEFT = (
    nothing, less_than_we_made, closed_folders, special_files, odd_names, links_out,
    deeper_than_paths_and_open_files_go, instead_of_our_files, instead_of_the_whole, the_whole_closed,
)  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stdout").write_text("not ours")
    (outside / "stdout").chmod(0o640)
    return outside


def a_task(state: Path, name: str = "1-1") -> Path:
    task = state / "tasks" / name
    (task / "work").mkdir(parents=True)
    (task / "stdout").write_text("said")
    return task


def emptied(trash: Trash) -> None:
    assert empty(str(trash.path)) == []
    assert list(trash.path.iterdir()) == []


@pytest.mark.parametrize("leave", LEFT, ids=lambda leave: leave.__name__)
def test_whatever_a_job_left_goes_and_nothing_else(
    tmp_path: Path, outside: Path, leave: Callable[[Path, Path], None]
) -> None:
    trash = Trash(tmp_path)
    task = a_task(tmp_path)
    leave(task / "work", outside)

    trash.take(str(task))
    emptied(trash)

    assert not os.path.lexists(task)
    assert (outside / "stdout").read_text() == "not ours"
    assert (outside / "stdout").stat().st_mode & 0o777 == 0o640


def test_many_files_go_with_little_memory_and_after_an_interruption(tmp_path: Path) -> None:
    trash = Trash(tmp_path)
    work = a_task(tmp_path) / "work"
    for folder in range(10):
        (work / str(folder)).mkdir()
        for number in range(2000):
            os.close(os.open(work / str(folder) / f"{number:0100}", os.O_CREAT | os.O_WRONLY))
    trash.take(str(work.parent))
    code = f"from scheduler.agent.shim.folders.trash import Trash, empty; empty({str(trash.path)!r})"
    first = next(trash.path.iterdir())
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as other:
        wait_for(lambda: len(list(trash.path.iterdir())) > 1 or not first.exists(), every=0.001)
        other.kill()

    tracemalloc.start()
    emptied(trash)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1_000_000


def test_the_shim_empties_its_trash_beside_its_work_also_after_it_was_killed(shim: LoneShim) -> None:
    shim.start("1-1", "mkdir -m 0 a; touch ../more; mkdir b; touch b/c; chmod 0 b")
    shim.wait("1-1")
    left = shim.state / "trash" / "of an earlier shim"
    (left / "x").mkdir(parents=True)
    (left / "x/y").touch()
    (shim.state / "tasks" / "9-9" / "work").mkdir(parents=True)  # forgotten, and not removed yet
    (shim.state / "tasks" / "9-9" / "work" / "z").touch()

    shim.link.forget(["1-1"])
    wait_for(lambda: not (shim.state / "tasks/1-1").exists())
    os.kill(shim.pid, signal.SIGKILL)

    wait_for(
        lambda: not list((shim.state / "trash").iterdir()) and not list((shim.state / "tasks").iterdir())
    )


def test_what_is_swapped_for_a_link_meanwhile_leads_nowhere(tmp_path: Path, outside: Path) -> None:
    """Somebody with the same account goes on changing what is being removed.

    `-T`: a link is replaced, never followed, so the swapper itself adds nothing to the directory it points to.
    """
    (outside / "keep").mkdir()
    for number in range(200):
        (outside / "keep" / str(number)).touch()
    trash = Trash(tmp_path)
    task = a_task(tmp_path)
    for number in range(300):
        (task / "work" / f"d{number}" / "e").mkdir(parents=True)
    trash.take(str(task))
    swap = 'while :; do for d in */work/d* *; do mv -T "$d" "$d.x" && ln -sT $0 "$d"; done; done'
    swapper = subprocess.Popen(
        ["/bin/sh", "-c", swap, str(outside / "keep")], cwd=trash.path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(5):
            empty(str(trash.path))
    finally:
        swapper.kill()
        swapper.wait()

    emptied(trash)
    assert {file.name for file in (outside / "keep").iterdir()} == {str(number) for number in range(200)}


@pytest.mark.root
def test_immutable_names_go_and_mounts_are_only_taken_off(tmp_path: Path, outside: Path) -> None:
    trash = Trash(tmp_path)
    work = a_task(tmp_path) / "work"
    (work / "a").mkdir()
    (work / "a/file").touch()
    (work / "mounted").mkdir()
    (work / "mounted file").touch()
    subprocess.run(["mount", "--bind", str(outside), str(work / "mounted")], check=True)
    subprocess.run(["mount", "--bind", str(outside / "stdout"), str(work / "mounted file")], check=True)
    for path, flag in ((work / "a/file", "+i"), (work / "a", "+i"), (work, "+a"), (work.parent, "+i")):
        subprocess.run(["chattr", flag, str(path)], check=True)

    trash.take(str(work.parent))
    emptied(trash)

    assert not work.parent.exists()
    assert (outside / "stdout").read_text() == "not ours"
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
