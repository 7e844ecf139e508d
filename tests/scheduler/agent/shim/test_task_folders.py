"""A folder that is given out again is like a new one; one that its job has changed is removed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent.protocol import TaskOrder
from scheduler.agent.shim.folders.task_folders import TaskFolders
from scheduler.agent.shim.folders.trash import Trash
from tests.support.agents import ROOT, wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either


def an_order(state: Path, name: str, script: str = "") -> TaskOrder:
    order: Any = {"folder": str(state / "tasks" / name), "script": script}
    return order


def the_folders(state: Path) -> TaskFolders:
    (state / "tasks").mkdir(exist_ok=True)
    return TaskFolders(state, Trash(state))


def what_is_there(folder: Path) -> dict[str, tuple[int, int]]:
    """Each name with its mode and its size; the size of a folder says nothing."""
    paths = (folder, *folder.rglob("*"))
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, 0 if path.is_dir() else path.stat().st_size)
        for path in paths
    }


def number_of(folder: Path) -> int:
    return folder.stat().st_ino


def test_the_folder_of_a_job_that_left_nothing_is_given_out_again_empty(tmp_path: Path) -> None:
    folders = the_folders(tmp_path)
    first, second = tmp_path / "tasks/1-1", tmp_path / "tasks/2-1"
    folders.give(an_order(tmp_path, "1-1", "#!/bin/sh\n"))
    number = number_of(first)
    for name in ("stdout", "stderr"):
        (first / name).write_text("said")
        (first / name).chmod(0o600)

    folders.take_back(str(first))
    assert not first.exists()
    folders.give(an_order(tmp_path, "2-1"))

    assert number_of(second) == number
    assert what_is_there(second) == {
        ".": (0o40700, 0), "work": (0o40700, 0), "stdout": (0o100600, 0), "stderr": (0o100600, 0),
    }  # fmt: skip


def test_a_script_is_the_tasks_own_in_a_folder_that_had_another(tmp_path: Path) -> None:
    folders = the_folders(tmp_path)
    for name, script in (("1-1", "echo one, at length"), ("2-1", "echo two"), ("3-1", "echo three")):
        folders.give(an_order(tmp_path, name, script))
        assert (tmp_path / "tasks" / name / "script").read_text() == script
        assert (tmp_path / "tasks" / name / "script").stat().st_mode & 0o777 == 0o700
        folders.take_back(str(tmp_path / "tasks" / name))

    assert len(list((tmp_path / "spare").iterdir())) == 1


def leave_a_file(folder: Path) -> None:
    (folder / "work/file").touch()


def leave_a_checkpoint(folder: Path) -> None:
    (folder / "checkpoint").touch()


def leave_a_file_and_remove_it(folder: Path) -> None:
    wait_for_the_next_tick(folder)
    (folder / "work/file").touch()
    (folder / "work/file").unlink()


def change_the_mode(folder: Path) -> None:
    (folder / "work").chmod(0o755)


def change_the_mode_and_back(folder: Path) -> None:
    wait_for_the_next_tick(folder)
    (folder / "work").chmod(0o755)
    (folder / "work").chmod(0o700)


def put_another_in_its_place(folder: Path) -> None:
    (folder / "work").rmdir()
    (folder / "work").mkdir(mode=0o700)


def put_a_link_in_its_place(folder: Path) -> None:
    (folder / "work").rmdir()
    (folder / "work").symlink_to(folder.parent)


def open_the_folder_itself(folder: Path) -> None:
    folder.chmod(0o777)


def wait_for_the_next_tick(folder: Path) -> None:
    """Change times have a grain on older kernels."""
    probe = folder / "probe"

    def later() -> bool:
        probe.touch()
        now = probe.stat().st_ctime_ns
        probe.unlink()
        return now > (folder / "work").stat().st_ctime_ns

    wait_for(later, every=0.001)


@pytest.mark.parametrize(
    "leave",
    [
        leave_a_file, leave_a_checkpoint, leave_a_file_and_remove_it, change_the_mode, change_the_mode_and_back,
        put_another_in_its_place, put_a_link_in_its_place, open_the_folder_itself,
    ],
    ids=lambda leave: leave.__name__,
)  # fmt: skip
def test_a_folder_that_its_job_has_changed_is_not_given_out_again(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    folders = the_folders(tmp_path)
    folder = tmp_path / "tasks/1-1"
    folders.give(an_order(tmp_path, "1-1"))

    leave(folder)
    folders.take_back(str(folder))

    assert not os.path.lexists(folder)
    assert list((tmp_path / "spare").iterdir()) == []


def test_output_that_somebody_still_has_open_is_not_the_next_tasks(tmp_path: Path) -> None:
    """A process of another service may have got the open file from the job, and write to it for as long as it likes."""
    folders = the_folders(tmp_path)
    for name in ("1-1", "2-1"):
        folders.give(an_order(tmp_path, name))
        with (tmp_path / "tasks" / name / "stdout").open("a") as held:
            os.fchmod(held.fileno(), 0o600)
            folders.take_back(str(tmp_path / "tasks" / name))
            folders.give(an_order(tmp_path, "next"))
            held.write("of the task before")
            held.flush()
            assert not (tmp_path / "tasks/next/stdout").exists()
        folders.take_back(str(tmp_path / "tasks/next"))


def test_a_file_with_another_name_is_not_the_next_tasks(tmp_path: Path) -> None:
    folders = the_folders(tmp_path)
    folder = tmp_path / "tasks/1-1"
    folders.give(an_order(tmp_path, "1-1"))
    os.close(os.open(folder / "stdout", os.O_CREAT | os.O_WRONLY, 0o600))
    os.link(folder / "stdout", tmp_path / "kept")
    (folder / "stdout").write_text("said")

    folders.take_back(str(folder))
    folders.give(an_order(tmp_path, "2-1"))

    assert (tmp_path / "kept").read_text() == "said"
    assert not (tmp_path / "tasks/2-1/stdout").exists()


def test_the_next_shim_uses_what_is_spare(tmp_path: Path) -> None:
    folders = the_folders(tmp_path)
    folders.give(an_order(tmp_path, "1-1"))
    number = number_of(tmp_path / "tasks/1-1")
    folders.take_back(str(tmp_path / "tasks/1-1"))

    the_folders(tmp_path).give(an_order(tmp_path, "2-1"))

    assert number_of(tmp_path / "tasks/2-1") == number


def test_a_folder_of_an_earlier_shim_is_removed(tmp_path: Path) -> None:
    """What it was like when it was given out is not known."""
    the_folders(tmp_path).give(an_order(tmp_path, "1-1"))

    the_folders(tmp_path).take_back(str(tmp_path / "tasks/1-1"))

    assert not (tmp_path / "tasks/1-1").exists()
    assert list((tmp_path / "spare").iterdir()) == []


# ---------------------------------------------------------------- guards, and tasks one after another


def run_one_after_another(shim: LoneShim, keys: list[str], command: str = "echo $MUSTER_TASK_KEY") -> None:
    for key in keys:
        shim.start(key, command)
        shim.wait(key)
        assert (shim.state / f"tasks/{key}/stdout").read_text() == f"{key}\n"
        shim.link.forget([key])
        wait_for(lambda key=key: not (shim.state / "tasks" / key).exists())


def test_a_guard_and_its_files_serve_one_task_after_another(shim: LoneShim) -> None:
    keys = [f"{number}-1" for number in range(5)]
    guards, files = set(), set()
    for key in keys:
        shim.start(key, "echo $MUSTER_TASK_KEY")
        shim.wait(key)
        guards.add(shim.guard_pid(key))
        files.add(os.stat(shim.state / "guards" / key).st_ino)
        assert (shim.state / f"tasks/{key}/stdout").read_text() == f"{key}\n"
        shim.link.forget([key])
        wait_for(lambda key=key: not (shim.state / "guards" / key).exists())

    assert (len(guards), len(files)) == (1, 1)


def test_what_a_task_used_is_its_own_under_a_guard_that_had_another(shim: LoneShim) -> None:
    big = "exec python3 -c 'held = bytes([1]) * 120_000_000; sum(range(3_000_000))'"
    shim.start("1-1", big, env={"PATH": os.environ["PATH"]})
    first = shim.wait("1-1")
    shim.start("2-1", "true")
    second = shim.wait("2-1")

    assert shim.guard_pid("1-1") == shim.guard_pid("2-1")
    assert (first["peak_memory_mib"] or 0) >= 115 > 60 > (second["peak_memory_mib"] or 0)
    assert (first["cpu_time_ms"] or 0) > (second["cpu_time_ms"] or 0)


def test_a_guard_that_was_killed_while_it_waited_costs_no_task(shim: LoneShim) -> None:
    shim.start("1-1", "true")
    shim.wait("1-1")
    os.kill(shim.guard_pid("1-1"), 9)

    shim.start("2-1", "exit 3")

    record = shim.wait("2-1")
    assert (
        record["exit_code"] == 3 or record["lost"]
    )  # killed between taking the order and reading it: it never began
    shim.start("3-1", "exit 4")
    assert shim.wait("3-1")["exit_code"] == 4


def test_what_a_task_had_whose_guard_was_killed_is_not_used_again(shim: LoneShim) -> None:
    """A process of it may have escaped, and work there still."""
    shim.start("1-1", "sleep 60")
    shim.wait("1-1", "running")
    os.kill(shim.guard_pid("1-1"), 9)
    shim.wait("1-1")

    shim.link.forget(["1-1"])
    wait_for(lambda: not (shim.state / "guards/1-1").exists())

    assert not (shim.state / "tasks/1-1").exists()
    assert [list((shim.state / name).iterdir()) for name in ("spare", "guards-spare")] == [[], []]


def test_guards_without_a_task_go_when_their_shim_is_killed(shim: LoneShim) -> None:
    for key in ("1-1", "2-1"):
        shim.start(key, "sleep 0.2")
    guards = [shim.wait(key) and shim.guard_pid(key) for key in ("1-1", "2-1")]

    shim.kill_for_good()

    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in guards))


_IMPATIENT = """
import sys
from scheduler.agent.shim import __main__ as shim, guard_processes
guard_processes.IDLE_SECONDS = 0.5
sys.exit(shim.main(sys.argv[1:]))
"""


def test_guards_without_a_task_go_after_a_while(shim: LoneShim) -> None:
    """A shim whose guards wait for half a second, not for half a minute."""
    shim.kill_for_good()
    impatient = subprocess.Popen(
        [sys.executable, "-S", "-c", _IMPATIENT, str(shim.state)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    wait_for(lambda: (shim.state / "keeper.lock").read_text().strip() == str(impatient.pid))
    shim.restart()
    shim.link.started.append(impatient)
    shim.start("1-1", "true")
    shim.wait("1-1")
    guard = shim.guard_pid("1-1")

    wait_for(lambda: not os.path.exists(f"/proc/{guard}"))


def test_a_long_order_reaches_its_task_whole(shim: LoneShim) -> None:
    run_one_after_another(shim, ["1-1"])
    value = "x" * 100_000
    shim.start("2-1", 'printf %s "$LONG" | wc -c', env={"PATH": os.environ["PATH"], "LONG": value})

    assert shim.wait("2-1")["exit_code"] == 0
    assert (shim.state / "tasks/2-1/stdout").read_text().strip() == "100000"


def test_no_task_inherits_what_its_guard_has_open(shim: LoneShim) -> None:
    """A task that had the status file would hold its lock, for as long as any process of it lives."""
    for key in ("1-1", "2-1"):
        shim.start(key, "ls -l /proc/$$/fd > list; cat list")
        shim.wait(key)

        opened = (shim.state / f"tasks/{key}/stdout").read_text()
        assert "/stderr" in opened
        assert not any(kind in opened for kind in ("socket:", "pipe:", "/guards/"))


def test_a_status_file_with_lines_of_another_task_says_nothing_of_this_one(tmp_path: Path) -> None:
    """After a loss of power a file may have its new name and its old content."""
    from scheduler.agent.shim.guard_status import read_status

    (tmp_path / "2-1").write_text(
        '{"guard":7,"key":"1-1"}\n{"pid":8,"ticks":9,"at":1}\n{"ended":2,"code":0}\n'
    )

    assert not read_status(str(tmp_path / "2-1"), "2-1").began
    assert read_status(str(tmp_path / "2-1"), "1-1").is_final


def test_a_socket_in_the_folder_is_left_to_the_trash(shim: LoneShim) -> None:
    shim.start("1-1", "exec 3>../extra; echo said >&3; echo $MUSTER_TASK_KEY")
    shim.wait("1-1")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(shim.state / "tasks/1-1/work", os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)

    shim.link.forget(["1-1"])

    wait_for(lambda: not (shim.state / "tasks/1-1").exists())
    wait_for(lambda: not list((shim.state / "trash").iterdir()))
    assert list((shim.state / "spare").iterdir()) == []


def test_an_access_list_is_not_handed_on(tmp_path: Path) -> None:
    folders = the_folders(tmp_path)
    folder = tmp_path / "tasks/1-1"
    folders.give(an_order(tmp_path, "1-1"))
    try:
        os.setxattr(folder, "user.muster", b"1")
    except OSError:
        pytest.skip("the file system of the temporary folder keeps no attributes")

    folders.take_back(str(folder))

    assert list((tmp_path / "spare").iterdir()) == []
    assert subprocess.run(["ls", str(tmp_path / "tasks")], capture_output=True, check=True).stdout == b""


def test_the_next_attempt_goes_on_in_no_folder_of_another_job_that_had_its_number(tmp_path: Path) -> None:
    """The database was restored and gives its numbers again; the numbers of tasks are new all the same."""
    folders = the_folders(tmp_path)
    for name in ("7-1-0-100-1", "7-1-0-900-1"):
        folders.give(an_order(tmp_path, name))
        (tmp_path / "tasks" / name / "work/diary").write_text(name)
        folders.take_back(str(tmp_path / "tasks" / name))
    kept = tmp_path / "results"
    assert sorted(os.listdir(kept)) == ["7-1-0-100-1", "7-1-0-900-1"]

    order = an_order(tmp_path, "7-2-0-950-2")
    order["first_task"] = 900
    folders.give(order)
    (kept / "7-1-0-900-1").mkdir(exist_ok=True)  # as if the first attempt's were gone
    another = an_order(tmp_path, "7-3-0-960-3")
    another["first_task"] = 901
    folders.give(another)

    assert (tmp_path / "tasks/7-2-0-950-2/work/diary").read_text() == "7-1-0-900-1"
    assert (kept / "7-1-0-100-1/work/diary").read_text() == "7-1-0-100-1"
    assert os.listdir(tmp_path / "tasks/7-3-0-960-3/work") == []
