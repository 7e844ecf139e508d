"""Secrets of tasks as files: for the task alone, in memory where the machine has a place there, gone at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.agent.isolation.means import Means
from scheduler.agent.secret_values import memory
from tests.isolation.conftest import KINDS, means_of, open_up, remove_groups
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

VALUE = "a-secret-of-this-test"


@pytest.fixture(params=KINDS)
def shim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoneShim]:
    means = means_of(request.param, tmp_path)
    if not means.namespaces:
        open_up(tmp_path / "tasks")
    shim = LoneShim(tmp_path, means)
    shim.link.start()
    yield shim
    shim.clean_up()
    remove_groups(means)


def on_disk(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]


def in_memory(state: Path) -> list[Path]:
    return [path for folder in memory.folders(state) for path in folder.glob("files/*/*")]


def test_a_task_reads_its_secret_and_cannot_change_it(shim: LoneShim) -> None:
    means: Means | None = shim.means
    assert means is not None
    script = (
        "cat secrets/key > work/seen; (echo > secrets/other) 2>/dev/null; ls secrets > work/names; sleep 60"
    )
    shim.start(
        "1-1",
        f"cd ..; {script}",
        user="bob",
        secrets={"files": {"key": VALUE}, "masked": [VALUE]},
        meta={"secrets": True},
    )
    work = shim.state / "tasks/1-1/work"
    wait_for(lambda: (work / "names").exists() and (work / "names").read_text())

    assert (work / "seen").read_text() == VALUE
    if means.namespaces:
        assert (work / "names").read_text() == "key\n"
    places = {str(path.relative_to(shim.state)) for path in on_disk(shim.state)}
    assert places == {"tasks/1-1/work/seen"} | (
        set() if means.namespaces or means.memory else {"tasks/1-1/secrets/key"}
    )
    assert bool(in_memory(shim.state)) == (bool(means.memory) and not means.namespaces)
    shim.link.stop_task("1-1", reason="cancelled", grace_seconds=1)
    shim.wait("1-1")
    assert not in_memory(shim.state)
    assert not os.path.lexists(shim.state / "tasks/1-1/secrets")


def test_the_folder_in_memory_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.is_in_memory(Path(memory.SHARED_MEMORY))
    assert not memory.is_in_memory(Path("/nowhere/at/all"))
    (tmp_path / "taken").symlink_to(tmp_path)
    monkeypatch.setattr(memory, "is_in_memory", lambda folder: True)
    monkeypatch.setattr(memory, "folders", lambda state: [tmp_path / "taken"])
    assert memory.claim(tmp_path, jobs_see_shared_memory=False, passable=False) == ""
    monkeypatch.setattr(memory, "folders", lambda state: [tmp_path / "free"])
    assert memory.claim(tmp_path, jobs_see_shared_memory=False, passable=False) == str(tmp_path / "free")
    monkeypatch.setattr(memory, "folders", lambda state: [Path(memory.SHARED_MEMORY) / "muster-test"])
    assert memory.claim(tmp_path, jobs_see_shared_memory=True, passable=False) == ""


def test_a_folder_in_memory_whose_state_folder_was_deleted_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "is_in_memory", lambda folder: True)
    names = {"gone": f"muster-{os.geteuid()}-gone", "kept": f"muster-{os.geteuid()}-kept"}
    monkeypatch.setattr(memory, "folders", lambda state: [tmp_path / names[state.name]])
    for name in names:
        (tmp_path / name).mkdir()
        assert memory.claim(tmp_path / name, jobs_see_shared_memory=False, passable=False)
    (tmp_path / names["gone"] / memory.FILES / "1-1").mkdir()
    (tmp_path / "gone").rmdir()

    memory.claim(tmp_path / "kept", jobs_see_shared_memory=False, passable=False)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", names["kept"]]
