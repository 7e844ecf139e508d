"""The file that tells a task how many are left: whole, and never written through a link that the job has made."""

from __future__ import annotations

import json
from pathlib import Path

from scheduler.agent.tasks.local_task import LocalTask
from scheduler.agent.tasks.world_file import write_world
from scheduler.services.execution.dispatch import ranges_of


def entry(folder: Path) -> LocalTask:
    return LocalTask(key="1-1", task=1, epoch=3, job=1, folder=str(folder))


def test_the_file_takes_the_place_of_links_and_follows_none(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "task"
    victim.write_text("mine")
    folder.mkdir()
    for name in ("world.json", ".world.json.new"):
        (folder / name).symlink_to(victim)
    task = entry(folder)

    assert write_world(task, 3, "0-1,4")

    assert victim.read_text() == "mine"
    assert not (folder / "world.json").is_symlink()
    assert json.loads((folder / "world.json").read_text()) == {"size": 3, "ranks": "0-1,4", "attempt": 3}


def test_a_folder_that_is_a_link_or_not_there_gets_none(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for folder in (link, tmp_path / "none"):
        task = entry(folder)
        assert not write_world(task, 3, "0-2")
    assert not list(real.iterdir())


def test_ranks_are_written_as_ranges() -> None:
    assert [ranges_of(one) for one in ([], [0], [0, 1, 2], [0, 1, 4, 6, 7])] == ["", "0", "0-2", "0-1,4,6-7"]
