"""The folders of ended tasks that were kept because their jobs have left something in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scheduler.agent.protocol import KeptFolder, TaskFolder, read_folder_name
from scheduler.agent.results.folder import Measure, Unreadable, measure, opened

#: Folders of one message.
PAGE: Final = 200


class KeptFolders:
    """Of one state folder. Each is measured once: nothing of its task runs any more."""

    def __init__(self, state: Path) -> None:
        self._tasks, self._path = state / "tasks", state / "results"
        self._measured: dict[str, Measure] = {}
        self._changed_ns = 0
        self._next = 0

    def have_changed(self) -> bool:
        """Whether a folder came or went since the last call; costs one look at the folder that they are in."""
        try:
            changed_ns = os.stat(self._path).st_mtime_ns
        except OSError:
            return False
        before, self._changed_ns = self._changed_ns, changed_ns
        return changed_ns != before

    def page(self) -> tuple[int, int, list[KeptFolder]]:
        """The next folders, those of the jobs from one number to another, both included: all that there are of these.

        After the last one it begins again; without any, the range is that of all jobs.
        """
        names = self._names()
        self._measured = {name: self._measured[name] for name in names.values() if name in self._measured}
        at = [key for key in sorted(names) if key.job >= self._next]
        first, last = self._next, 2**62
        if len(at) > PAGE:
            last = at[PAGE - 1].job
            at = [key for key in at if key.job <= last]  # all of one job go together
        self._next = 0 if last == 2**62 else last + 1
        return first, last, [self._kept(key, names[key]) for key in at]

    @property
    def at_the_end(self) -> bool:
        """Whether the last page was the last of a round."""
        return self._next == 0

    def _kept(self, key: TaskFolder, name: str) -> KeptFolder:
        found = self._measured.get(name)
        if found is None:
            try:
                with opened(f"{self._path}/{name}") as root:
                    found = measure(root)
            except Unreadable:
                found = Measure(0, 0, False)
            self._measured[name] = found
        return KeptFolder(
            job=key.job, epoch=key.epoch, rank=key.rank, task=key.task,
            files=found.files, size=found.size, whole=found.whole,
        )  # fmt: skip

    def _names(self) -> dict[TaskFolder, str]:
        return _by_key(self._path)

    def names_of(self, wanted: Sequence[Sequence[int]]) -> list[str]:
        """The names of these folders, by job, epoch, rank and task, as far as they are here; without the task, all."""
        keys = {tuple(key) for key in wanted}
        return [name for key, name in self._names().items() if {key, key[:3]} & keys]

    def folder_of(self, job: int, epoch: int, rank: int, task: int = 0) -> str:
        """The path of a task's folder, of one that runs or whose folder was kept; raises Unreadable.

        `task` 0 is any: a server of an earlier version does not name it.
        """
        for folder in (self._path, self._tasks):
            for key, name in _by_key(folder).items():
                if key[:3] == (job, epoch, rank) and task in (0, key.task):
                    return f"{folder}/{name}"
        raise Unreadable("gone", "The folder is not on the node any more.")


def _by_key(folder: Path) -> dict[TaskFolder, str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {key: name for name in names if (key := read_folder_name(name)) is not None}
