"""The shim's side of isolation: whose account a task runs under, and a cell for each guard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scheduler.agent.isolation.accounts import Account, Accounts
from scheduler.agent.isolation.cell import Cell
from scheduler.agent.isolation.cgroups import GroupTree
from scheduler.agent.isolation.means import Means
from scheduler.agent.isolation.namespaces import TEMPORARY, remember_account

#: In the state folder: the private temporary folders of guards.
_PRIVATE: Final = "private"
#: From one attempt to the next, where the means cannot be used.
RETRY_SECONDS: Final = 5.0
_MOST_CHARACTERS: Final = 190
#: What a task's environment says of its account, unless its job sets it itself.
_OF_ACCOUNT: Final = ("HOME", "USER", "LOGNAME", "TMPDIR")


class Cells:
    """Cells of one state folder; `remove` takes away a folder with whatever is in it."""

    def __init__(self, state: Path, remove: Callable[[str], None], means: Means | None = None) -> None:
        self._state, self._remove = state, remove
        self._number = 0
        self._wanted = means or Means()
        #: Why the means that were asked for last cannot be used; empty where they are in use.
        self.fault = ""
        self._retry_at = 0.0
        self._use(self._wanted)

    def use(self, means: Means) -> None:
        """From now on, isolate by these means; what runs keeps its own.

        Where that fails, `fault` says why, nothing changes, and no task may start until `retry` has succeeded.
        """
        self._wanted = means
        try:
            self._use(means)
            self.fault = ""
        except (OSError, ValueError) as error:
            self.fault = f"jobs cannot be isolated: {error}"[:_MOST_CHARACTERS]
            self._retry_at = time.monotonic() + RETRY_SECONDS

    def retry(self, now: float) -> None:
        """While there is a fault, try again when that is due; `now` is on the monotonic clock."""
        if self.fault and now >= self._retry_at:
            self.use(self._wanted)

    def due_at(self) -> Iterator[float]:
        """When `retry` has something to do next (monotonic)."""
        if self.fault:
            yield self._retry_at

    def _use(self, means: Means) -> None:
        accounts = Accounts(self._state, means.people) if means.people.accounts else None
        groups = GroupTree(means.groups)
        folder = self._state / _PRIVATE
        if means.confines or means.namespaces:
            folder.mkdir(mode=0o711, exist_ok=True)
        self.means, self._accounts, self._groups, self._folder = means, accounts, groups, folder
        self.remove_unused()

    def owner_of(self, order: Mapping[str, Any]) -> Account | None:
        """The account that this task runs under, None = our own; raises NoAccount or OSError where there is none."""
        return self._accounts.account_of(order.get("user", "")) if self._accounts else None

    def make(self, account: Account | None) -> tuple[Cell, str]:
        """A cell for a guard that is about to be forked, and the name to `discard` it by. Raises OSError."""
        remember_account()
        group = self._groups.make()
        private = ""
        if self.means.confines or self.means.namespaces:
            self._number += 1
            private = f"{self._folder}/{os.getpid()}-{self._number}"
            os.mkdir(private, 0o700)
            if account is not None:
                os.chown(private, account.uid, account.gid)
        cell = Cell(self.means, account, private_tmp=private, group_folders=self._groups.folders(group))
        return cell, group

    def is_current(self, cell: Cell) -> bool:
        """Whether a new cell would be isolated as this one is."""
        return cell.means is self.means

    def discard(self, cell: Cell, group: str) -> None:
        """The guard of this cell has ended: end what is left in it, and remove its folder."""
        self._groups.remove(group)
        if cell.private_tmp:
            _remove_empty(cell.private_tmp, self._remove)

    def remove_unused(self) -> None:
        """Remove what guards of shims before this one have left, but not of those that still run."""
        self._groups.clear()
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                path = f"{self._folder}/{name}"
                if not name.startswith(f"{os.getpid()}-") and _is_unlocked(path):
                    _remove_empty(path, self._remove)

    def close(self) -> None:
        """The shim ends, and has no guard any more."""
        self._groups.close()

    def complete(self, order: Mapping[str, Any], account: Account | None, cell: Cell) -> None:
        """Have the task's environment name its account and its private folder."""
        if not cell.private_tmp:
            return
        values = {"HOME": TEMPORARY[0] if self.means.namespaces else cell.private_tmp}
        if account is not None:
            values |= {"USER": account.name, "LOGNAME": account.name}
            if account.home:
                values["HOME"] = account.home
        if not self.means.namespaces:
            values["TMPDIR"] = cell.private_tmp
        own = order.get("own_variables", ())
        order["env"].update(
            {name: values[name] for name in _OF_ACCOUNT if name in values and name not in own}
        )


def _remove_empty(path: str, remove: Callable[[str], None]) -> None:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:
        remove(path)


def _is_unlocked(path: str) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
