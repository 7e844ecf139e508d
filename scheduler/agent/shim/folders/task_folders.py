"""The folder of each task: an unused one is given out, and one that its job has left as it was is given out again.

One in which its job has left something is kept in `results`, with the working folder and the checkpoint file, until the
server lets it go; the next attempt of the job on this node gets both from there.

To make and to remove folders and files costs more than to run a short job does: ext4, for one, looks for an inode that
was not freed a moment ago. A rename costs a hundredth of that. So the folder of a task whose job has left nothing in
it is renamed into `spare`, with its empty files, and the next task gets it under a name of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from scheduler.agent.isolation import project_quotas
from scheduler.agent.isolation.means import Means
from scheduler.agent.protocol import CHECKPOINTS, RESTORED, SECRETS, TaskOrder, read_folder_name
from scheduler.agent.secret_values.memory import FILES, remove_files, remove_files_but, write_files
from scheduler.agent.shim.folders.trash import Trash

#: Folders that are kept for later tasks.
MOST_SPARE: Final = 256
#: Files of a task that we make ourselves, and the mode that they have.
_OWN_FILES: Final = {"stdout": 0o600, "stderr": 0o600, "script": 0o700}
#: What of a task's folder is the job's.
_JOBS: Final = ("work", "checkpoint")
#: A file that is larger is removed rather than emptied.
_LARGE_FILE_BYTES: Final = 1024 * 1024
#: A folder that has held very many names stays large, and slow to read, on some file systems.
_LARGE_FOLDER_BYTES: Final = 4096
#: The end of the name of a spare folder that has a script file.
_WITH_SCRIPT: Final = "-script"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TaskFolders:
    """The task folders of one state folder; what is neither kept nor given out again goes to `trash`."""

    def __init__(self, state: Path, trash: Trash) -> None:
        self._trash, self._state = trash, state
        self._tasks, self._results = state / "tasks", state / "results"
        self._path = state / "spare"
        self._path.mkdir(mode=0o700, exist_ok=True)
        # A folder gets its name here only once it is known to be unused, so what an earlier shim left is good.
        self._spare = os.listdir(self._path)
        numbers = (name.removesuffix(_WITH_SCRIPT) for name in self._spare)
        self._number = max((int(number) for number in numbers if number.isdecimal()), default=0)
        #: What the working folders that are given out looked like then.
        self._given: dict[str, tuple[int, ...]] = {}

    def give(
        self,
        order: TaskOrder,
        *,
        owner: tuple[int, int] | None = None,
        ended: Callable[[], Iterable[str]] = tuple,
        means: Means | None = None,
    ) -> int:
        """Make the folder that the order names, with the script and `work` in it; raises OSError.

        All of it belongs to the `owner` (user and group), where one is given. `work` is empty for the first attempt of
        a job. A later one goes on in that of the attempt before it, where that ran here: its folder was kept, or is
        among those of tasks that have `ended`. Each attempt of a job with an upload has a fresh copy of that instead.
        Returns the project whose quota limits what is in the folder, 0 where the kernel does not.
        """
        folder = order["folder"]
        has_script = self._rename_spare(folder)
        if has_script is None:
            os.mkdir(folder, 0o700)
            os.mkdir(folder + "/work", 0o700)
        _give_to(folder, owner or (os.geteuid(), os.getegid()))
        if upload := order.get("upload"):
            _begin_with(folder, upload, owner)
        if order.get("checkpoints"):
            _add_checkpoints(folder, order.get("restore", ""), owner)
        if "secrets" in order:
            _add_secrets(order, owner, means or Means())
        self._given[folder] = _identity(folder + "/work")
        if order["script"]:
            with open(
                folder + "/script", "w", encoding="utf-8", errors="surrogateescape", newline=""
            ) as file:
                file.write(order["script"])
                os.fchmod(file.fileno(), _OWN_FILES["script"])
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
        elif has_script:
            os.unlink(folder + "/script")
        whose, project = read_folder_name(os.path.basename(folder)), 0
        goes_on = not upload and whose is not None and whose.epoch > 1
        if goes_on and (earlier := self._earlier(order, ended())):
            project = project_quotas.take_project(earlier)
            self._take_over(earlier, folder)
        return self._limit(order, project, means or Means())

    def _limit(self, order: TaskOrder, project: int, means: Means) -> int:
        """Have the kernel limit what is in a new folder, where it can; `project` is that of what was taken over.

        A working folder that comes from an attempt without a project is measured: to look through all of it takes as
        long as its job likes, and with two projects in one folder the job could not rename files from one to the other.
        """
        folder = order["folder"]
        mib = order.get("scratch_limit_mib") if means.disk else None
        if not mib or (folder not in self._given and not project):
            if project:
                project_quotas.note(folder, project)
            return 0
        trees = (*(("work",) if order.get("upload") else ()), *((RESTORED,) if order.get("restore") else ()))
        project = project_quotas.limit_folder(
            folder, mib, state=str(self._state), earlier=project, trees=trees
        )
        if folder in self._given:
            self._given[folder] = _identity(folder + "/work")
        return project

    def _earlier(self, order: TaskOrder, ended: Iterable[str]) -> str | None:
        """The folder of the job's last attempt before this one, of the same rank, that is here and not in use.

        One of a task before the job's first is of another job, which had the number before the database was restored.
        """
        whose = read_folder_name(os.path.basename(order["folder"]))
        assert whose is not None
        first_task = order.get("first_task", 0)
        kept = [f"{self._results}/{name}" for name in _names_in(self._results)]
        found = []
        for path in (*kept, *ended):
            one = read_folder_name(os.path.basename(path))
            if one is None or one.task < first_task:
                continue
            if (one.job, one.rank) == (whose.job, whose.rank) and one.epoch < whose.epoch:
                found.append((one.epoch, path))
        return max(found)[1] if found else None

    def _take_over(self, earlier: str, folder: str) -> None:
        """Move what is the job's into the folder of its next attempt, as far as it is there."""
        for name in _JOBS:
            with contextlib.suppress(OSError):
                os.rename(f"{earlier}/{name}", f"{folder}/{name}")
        del self._given[folder]
        if os.path.dirname(earlier) == str(self._results):
            self._trash.take(earlier)

    def remove_secrets(self, folder: str) -> None:
        """Remove the secrets of a task that has ended, wherever its job has led a link."""
        self._remove(folder, SECRETS)
        remove_files(self._state, os.path.basename(folder))

    def remove_output(self, folder: str) -> None:
        """Remove what a task with secrets has printed: the server has all of it, masked."""
        self._remove(folder, *(f"{stream}{end}" for stream in ("stdout", "stderr") for end in ("", ".whole")))

    def _remove(self, folder: str, *names: str) -> None:
        for name in names:
            if os.path.lexists(f"{folder}/{name}"):
                self._trash.take(f"{folder}/{name}")

    def _rename_spare(self, folder: str) -> bool | None:
        """Give a spare folder this name, and say whether it has a script file; None where there is no spare one.

        Raises OSError where something has the name already.
        """
        while self._spare:
            name = self._spare.pop()
            try:
                os.rename(f"{self._path}/{name}", folder)
                return name.endswith(_WITH_SCRIPT)
            except FileNotFoundError:
                continue  # removed by somebody, or there is no folder of tasks: mkdir says so
        return None

    def take_back(self, folder: str, *, reusable: bool = True) -> None:
        """Keep the folder of an ended task: for a later task where its job has left nothing, else as its results.

        One in which a process of the task may still work is not `reusable`.
        """
        given = self._given.pop(folder, None)
        is_marked = project_quotas.end_limit(folder) != 0
        if reusable and given is not None and len(self._spare) < MOST_SPARE:
            with contextlib.suppress(OSError):
                names = _left_when_cleared(folder, given)
                if names is not None:
                    if is_marked:
                        project_quotas.unmark(folder)
                    self._number += 1
                    name = f"{self._number}{_WITH_SCRIPT if 'script' in names else ''}"
                    os.rename(folder, f"{self._path}/{name}")
                    self._spare.append(name)
                    return
        if not self._keep(folder):
            self._trash.take(folder)

    def _keep(self, folder: str) -> bool:
        """Move the folder to the results, if there is something of its job in it and its name says whose it is."""
        name = os.path.basename(folder)
        if read_folder_name(name) is None or os.path.islink(folder) or not _holds_results(folder):
            return False
        into = f"{self._results}/{name}"
        for not_kept in (CHECKPOINTS, RESTORED, SECRETS):
            if os.path.lexists(f"{folder}/{not_kept}"):
                self._trash.take(f"{folder}/{not_kept}")  # checkpoints are stored elsewhere by now
        try:
            os.makedirs(self._results, mode=0o700, exist_ok=True)
            os.rename(folder, into)
            opened = os.open(into, _FOLDER)
        except OSError:
            return os.path.lexists(into)
        try:
            for left in os.listdir(opened):
                if left not in _JOBS:
                    with contextlib.suppress(OSError):
                        os.unlink(left, dir_fd=opened)
        except OSError:
            pass  # closed by its job: the rest goes with it
        finally:
            os.close(opened)
        return True

    def take_unknown(self, known: Collection[str]) -> None:
        """Take back all folders but these: a shim was killed between forgetting a task and this."""
        for name in _names_in(self._tasks):
            if name not in known:
                self.take_back(f"{self._tasks}/{name}", reusable=False)
        remove_files_but(self._state, known)

    def discard(self, names: Iterable[str]) -> None:
        """Remove kept folders."""
        for name in names:
            if read_folder_name(name) is not None:
                self._trash.take(f"{self._results}/{name}")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _holds_results(folder: str) -> bool:
    """Whether its job has left something; a folder that was closed counts, for nobody knows."""
    if os.path.lexists(folder + "/checkpoint"):
        return True
    try:
        work = os.open(folder + "/work", _FOLDER)
    except PermissionError:
        return True
    except OSError:
        return False
    try:
        with os.scandir(work) as entries:
            return next(entries, None) is not None
    except OSError:
        return True
    finally:
        os.close(work)


def _give_to(folder: str, owner: tuple[int, int]) -> None:
    """Have a task's new folder, and what we made in it, belong to this account."""
    if os.stat(folder, follow_symlinks=False).st_uid == owner[0]:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            os.chown(entry.path, *owner, follow_symlinks=False)
    os.chown(folder, *owner, follow_symlinks=False)


def _add_checkpoints(folder: str, restored: str, owner: tuple[int, int] | None) -> None:
    """Make the folder for checkpoints, and move in the one that the agent has fetched."""
    os.mkdir(f"{folder}/{CHECKPOINTS}", 0o700)
    if restored:
        os.rename(restored, f"{folder}/{RESTORED}")
    if owner is None:
        return
    os.chown(f"{folder}/{CHECKPOINTS}", *owner, follow_symlinks=False)
    if restored:
        _give_all(f"{folder}/{RESTORED}", owner)


def _begin_with(folder: str, upload: str, owner: tuple[int, int] | None) -> None:
    """Have what the agent has fetched be the working folder."""
    if owner is not None:
        _give_all(upload, owner)
    os.rmdir(f"{folder}/work")
    os.rename(upload, f"{folder}/work")


def _give_all(folder: str, owner: tuple[int, int]) -> None:
    """Have a folder of ours, and all that is in it, belong to this account."""
    for path, _, files in os.walk(folder):
        os.chown(path, *owner, follow_symlinks=False)
        for name in files:
            os.chown(os.path.join(path, name), *owner, follow_symlinks=False)


def _add_secrets(order: TaskOrder, owner: tuple[int, int] | None, means: Means) -> None:
    """Write secrets as files: into memory where there is such a folder; a guard with a view does it there itself.

    Raises OSError.
    """
    if means.namespaces:
        return
    path = f"{order['folder']}/{SECRETS}"
    if means.memory:
        inside = f"{means.memory}/{FILES}/{os.path.basename(order['folder'])}"
        os.symlink(inside, path)
    else:
        inside = path
    os.mkdir(inside, 0o700)
    write_files(inside, order["secrets"]["files"], owner)
    order["secrets_folder"] = inside


def _left_when_cleared(folder: str, work: tuple[int, ...]) -> set[str] | None:
    """Empty our own files; the names in the folder, or None where it is not as it was given out.

    `work` is what its working folder looked like then.
    """
    opened = os.open(folder, _FOLDER)
    try:
        found = os.fstat(opened)
        if found.st_mode & ~stat.S_ISGID != stat.S_IFDIR | 0o700 or found.st_size > _LARGE_FOLDER_BYTES:
            return None
        names = set(os.listdir(opened))
        if names - {"work", *_OWN_FILES} or _has_attributes(opened):
            return None
        if _identity(folder + "/work") != work or os.listdir(folder + "/work"):
            return None
        for name in names - {"work"}:
            if not _emptied(opened, name):
                os.unlink(name, dir_fd=opened)
                names.discard(name)
        return names
    finally:
        os.close(opened)


def _emptied(folder: int, name: str) -> bool:
    """Empty a file of ours, where nobody else has it open and it is as we made it; else it must be removed."""
    try:
        file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        found = os.fstat(file)
        if found.st_mode != stat.S_IFREG | _OWN_FILES[name] or found.st_nlink != 1:
            return False
        if found.st_size > _LARGE_FILE_BYTES or _has_attributes(file):
            return False
        # The kernel grants this lease only where nobody else has the file open; some file systems never do.
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        if found.st_size:
            os.ftruncate(file, 0)
        return True
    except (OSError, AttributeError):
        return False
    finally:
        os.close(file)  # and with it the lease


def _identity(work: str) -> tuple[int, ...]:
    """What of a folder changes when anything is done to it: the change time, and what can be changed in its grain."""
    found = os.stat(work, follow_symlinks=False)
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mode, found.st_uid, found.st_size


def _has_attributes(entry: int) -> bool:
    """Whether it has attributes that a job can set: an access control list, or its own; no where there are none."""
    try:
        return any(name.startswith(("user.", "system.")) for name in os.listxattr(entry))
    except (OSError, AttributeError):
        return False
