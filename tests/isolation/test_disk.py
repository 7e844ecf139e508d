"""A task's limit of disk by the kernel's project quotas, where the file system of the state folder has them.

Run in a machine that has them with the tests' folders there: `--basetemp` on ext4 or XFS, mounted with `prjquota`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.agent.isolation import project_quotas
from scheduler.agent.isolation.project_quotas import project_of, use_of
from scheduler.agent.protocol import OUT_OF_STORAGE
from tests.isolation.conftest import means_of, python_for, remove_groups
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.root
MIB = 1024 * 1024
FILLED = "The task filled its disk (working folder, output and /tmp); its limit is 4 MiB."


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneShim]:
    state = tmp_path_factory.mktemp("limited")
    means = means_of("all", state)
    if not means.disk:
        pytest.skip(next(text for text in means.missing if "disk" in text))
    shim = LoneShim(state, means)
    shim.link.start()
    yield shim
    shim.clean_up()
    remove_groups(means)


def folder(shim: LoneShim, key: str) -> str:
    return f"{shim.state}/tasks/{key}"


def out(shim: LoneShim, key: str) -> str:
    return Path(folder(shim, key), "stdout").read_text()


def test_the_node_says_so(shim: LoneShim) -> None:
    assert shim.means is not None
    assert shim.means.facts()["disk"] is True
    assert f"project quotas of {shim.means.disk}" in shim.means.facts()["means"]
    assert shim.means.disk in ("ext4", "xfs")


@pytest.mark.parametrize("into", ["big", "/tmp/big"])
def test_a_task_is_refused_more_than_its_limit_at_once(shim: LoneShim, into: str) -> None:
    key = f"{10 + len(into)}-1"
    shim.start(key, f"head -c 6000000 /dev/zero > {into}", user="alice", scratch_limit_mib=4)

    record = shim.wait(key)

    assert (record["exit_code"], record["text"], record["failure"]) == (1, FILLED, OUT_OF_STORAGE)
    assert use_of(project_of(folder(shim, key)), folder(shim, key)).used_bytes <= 4 * MIB


def test_the_output_counts_and_the_error_has_a_name(shim: LoneShim) -> None:
    shim.start("20-1", "head -c 6000000 /dev/zero; echo $?", user="alice", scratch_limit_mib=4)

    shim.wait("20-1")

    said = Path(folder(shim, "20-1"), "stderr").read_text()
    assert any(words in said for words in ("Disk quota exceeded", "No space left on device")) or said == ""
    assert 3 * MIB < os.path.getsize(f"{folder(shim, '20-1')}/stdout") <= 4 * MIB


def test_a_task_that_makes_way_again_goes_on_and_has_not_failed(shim: LoneShim) -> None:
    command = (
        "head -c 6000000 /dev/zero > big 2>/dev/null; rm big; head -c 1000000 /dev/zero > small && echo done"
    )
    shim.start("30-1", command, user="alice", scratch_limit_mib=4)

    record = shim.wait("30-1")

    assert (record["exit_code"], record["text"], out(shim, "30-1")) == (0, "", "done\n")


def test_a_failure_with_much_free_is_of_its_own(shim: LoneShim) -> None:
    shim.start("31-1", "head -c 1000000 /dev/zero > big; exit 3", user="alice", scratch_limit_mib=4)

    record = shim.wait("31-1")

    assert (record["exit_code"], record["text"], record.get("failure", "")) == (3, "", "")


def test_files_without_contents_have_a_limit_too(shim: LoneShim) -> None:
    program = (
        "n = 0\n"
        "try:\n"
        "    while n < 9000:\n"
        "        open(str(n), 'w').close(); n += 1\n"
        "except OSError: pass\n"
        "print(n)\n"
    )
    argv = [python_for(shim), "-S", "-c", program]
    shim.start("32-1", "", argv=argv, user="alice", scratch_limit_mib=1)

    shim.wait("32-1")

    assert 250 <= int(out(shim, "32-1")) <= 320  # 256 a MiB, and 64 that are also for ours


def test_the_next_task_of_the_same_guard_and_folder_has_its_own_limit(shim: LoneShim) -> None:
    shim.start("40-1", "sleep 0", user="carol", scratch_limit_mib=1)
    shim.wait("40-1")
    shim.link.forget(["40-1"])
    shim.start("41-1", "head -c 3000000 /dev/zero > /tmp/big && rm /tmp/big && echo done", user="carol")
    assert (shim.wait("41-1")["exit_code"], out(shim, "41-1")) == (0, "done\n")
    assert project_of(folder(shim, "41-1")) == 0
    shim.start("42-1", "head -c 3000000 /dev/zero > big", user="carol", scratch_limit_mib=2)

    assert shim.wait("42-1")["failure"] == OUT_OF_STORAGE


def test_the_next_attempt_goes_on_in_its_folder_with_the_limit_of_both(shim: LoneShim) -> None:
    first, second = "7-1-0-50-1", "7-2-0-51-1"
    shim.start(first, "head -c 3000000 /dev/zero > half; mkdir sub", user="alice", scratch_limit_mib=4)
    shim.wait(first)
    project = project_of(folder(shim, first))
    command = "mv half sub/half && echo moved; head -c 3000000 /dev/zero > sub/more"
    shim.start(second, command, user="alice", scratch_limit_mib=4)

    record = shim.wait(second)

    assert out(shim, second) == "moved\n"
    assert record["failure"] == OUT_OF_STORAGE
    assert project_of(folder(shim, second)) == project
    shim.link.forget([first])
    wait_for(lambda: not os.path.exists(folder(shim, first)))
    assert use_of(project, str(shim.state)).limit_bytes == 4 * MIB


def test_the_limit_ends_with_the_task_and_its_number_is_used_by_no_other(shim: LoneShim) -> None:
    name = "8-1-0-60-1"
    shim.start(name, "echo kept > kept", user="alice", scratch_limit_mib=4)
    shim.wait(name)
    project = project_of(folder(shim, name))
    assert use_of(project, str(shim.state)).limit_bytes == 4 * MIB
    shim.link.forget([name])
    kept = wait_for(lambda: (path := shim.state / "results" / name).exists() and path)

    use = use_of(project, str(shim.state))
    assert (use.limit_bytes, use.limit_files) == (0, 0)
    assert use.used_files >= 3
    assert project_of(str(kept)) == project
    assert project != project_quotas._free_project(str(shim.state))


def test_the_next_shim_ends_the_limits_of_tasks_that_are_gone(shim: LoneShim) -> None:
    name = "9-1-0-70-1"
    gone = Path(folder(shim, name))
    (gone / "work").mkdir(parents=True)
    (gone / "work" / "kept").write_text("x")
    project = project_quotas.limit_folder(str(gone), 4, state=str(shim.state))

    shim.kill()

    assert use_of(project, str(shim.state)).limit_bytes == 0
    assert (shim.state / "results" / name).exists()


def test_what_its_owner_takes_out_of_the_quota_is_measured(shim: LoneShim) -> None:
    """Linux lets the owner of a file give it to another project."""
    program = (
        "import fcntl, os, struct, time\n"
        "f = os.open('.', os.O_RDONLY)\n"
        "fcntl.ioctl(f, 0x401C5820, struct.pack('=IIIII8x', 0, 0, 0, 0, 0))\n"
        "open('big', 'wb').write(bytes(6_000_000))\n"
        "print('escaped', flush=True); time.sleep(300)\n"
    )
    shim.start("80-1", "", argv=[python_for(shim), "-S", "-c", program], user="alice", scratch_limit_mib=4)

    record = shim.wait("80-1")

    assert out(shim, "80-1") == "escaped\n"
    assert record["failure"] == OUT_OF_STORAGE
    assert record["text"].startswith("The task used ")


def test_without_quotas_it_is_measured(shim: LoneShim, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert shim.means is not None
    state = tmp_path_factory.mktemp("measured")
    other = LoneShim(state, replace(means_of("all", state), disk=""))
    other.link.start()
    try:
        other.start("1-1", "head -c 6000000 /dev/zero > big && sleep 300", user="alice", scratch_limit_mib=4)
        record = other.wait("1-1")
        assert record["failure"] == OUT_OF_STORAGE
        assert record["text"].startswith("The task used ")
        assert project_of(f"{state}/tasks/1-1") == 0
    finally:
        other.clean_up()
        assert other.means is not None
        remove_groups(other.means)
