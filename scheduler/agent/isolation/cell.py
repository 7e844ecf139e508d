"""Where a guard's tasks run: its namespaces, its control group, and the account and rules that each task starts with.

A guard's first task enters the cell in a process forked from the guard, which takes the task's rights and becomes its
program: so the guard stays small. A later task is started from a thread of its guard that has taken the task's rights:
the kernel keeps these for each thread, and a process that is started inherits those of the thread. So nothing is forked
in between, and the guard itself keeps its own.
"""

from __future__ import annotations

import _thread
import fcntl
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.agent.isolation import kernel
from scheduler.agent.isolation.accounts import Account
from scheduler.agent.isolation.cgroups import Group
from scheduler.agent.isolation.landlock import FileRules
from scheduler.agent.isolation.means import Means
from scheduler.agent.isolation.namespaces import TEMPORARY, View
from scheduler.agent.isolation.project_quotas import charge
from scheduler.agent.protocol import SECRETS

_STACK_BYTES: Final = 512 * 1024
#: What a person's files of a job are for nobody else.
_UMASK: Final = 0o077


@dataclass(slots=True)
class Hold:
    """What a guard has of its cell from its first moment on: its number outside, its view, its private folder."""

    pid: int
    view: View | None = None
    lock: int = -1


def hold(*, isolates: bool, private_tmp: str, viewed_state: str) -> Hold:
    """In the guard, right after the fork; raises OSError. Empty texts are of what the cell does not have."""
    if isolates:
        os.umask(_UMASK)
    if not private_tmp:
        return Hold(os.getpid())
    # Who has the lock has the folder: what is not locked is nobody's any more.
    lock = os.open(private_tmp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    view = View(viewed_state) if viewed_state else None
    return Hold(view.pid if view else os.getpid(), view, lock)


class Cell:
    """Made in the shim; the guard has it from the shim's message, with its `hold`, and enters it.

    `account` None is the agent's own; `private_tmp` is an empty folder for what tasks see as `/tmp`, or is named by
    TMPDIR; empty where nothing is isolated.
    """

    def __init__(
        self,
        means: Means,
        account: Account | None = None,
        *,
        private_tmp: str = "",
        group_folders: Mapping[str, str] | None = None,
        held: Hold | None = None,
    ) -> None:
        self.means = means
        self._account = account
        self.private_tmp = private_tmp
        self._group_folders = group_folders or {}
        self._group = Group(means.groups.version, self._group_folders)
        self._held = held or Hold(0)
        self._view = self._held.view
        self._rules: FileRules | None = None
        self._entered = self._resumed = False
        self._project = 0

    def as_json(self) -> dict[str, Any]:
        """What its guard needs to know, for `of`."""
        account = self._account
        return {
            "means": self.means.as_json(),
            "account": [account.uid, account.gid, account.name, account.home] if account else None,
            "private_tmp": self.private_tmp,
            "group_folders": dict(self._group_folders),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any], held: Hold) -> Cell:
        """In its guard: the cell that the shim has made."""
        account = Account(*data["account"]) if data["account"] else None
        return cls(
            Means.of(data["means"]),
            account,
            private_tmp=data["private_tmp"],
            group_folders=data["group_folders"],
            held=held,
        )

    def charge(self, project: int) -> None:
        """In the shim: have what the next task writes to its private `/tmp` count for its project; 0 = for none.

        Raises OSError.
        """
        if project != self._project:
            charge(self.private_tmp, project)
            self._project = project

    @property
    def isolates(self) -> bool:
        return bool(self.means.confines or self.means.namespaces or self.means.groups.version)

    @property
    def viewed_state(self) -> str:
        """The agent's state folder where the guard is in namespaces, else empty."""
        return self.means.state if self.means.namespaces else ""

    def enter(self) -> None:
        """Be in the cell: the guard, or a process forked from it; raises OSError where the cell cannot be had."""
        if self._view and not self._resumed:
            self._view.make(self.means, self.private_tmp)
        self._group.enter()
        if self.means.landlock:
            files = self.means.files
            home = [self._account.home] if self._account and self._account.home else []
            self._rules = FileRules(
                self.means.landlock,
                readable=(*files.readable, *files.programs),
                writable=(*files.writable, *home, TEMPORARY[0] if self._view else self.private_tmp),
            )
        self._entered = True

    def state(self) -> dict[str, Any]:
        """What a process that has entered the cell, and started a task in it, leaves to its guard for `resume`."""
        clean, mounted = self._view.state() if self._view else ({}, [])
        return {"clean": clean, "mounted": mounted, "group": self._group.state()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take over the cell from a forked process that has entered it; this one enters it with its next task."""
        self._resumed = True
        self._group.resume(state["group"])
        if self._view:
            self._view.resume(state["clean"], state["mounted"])

    @property
    def pid(self) -> int:
        """The guard's number outside."""
        return self._held.pid

    def own_pid(self) -> int:
        """The number outside of the calling process, which was forked from the guard and has not entered yet."""
        return int(os.readlink("/proc/self")) if self._view else os.getpid()

    def pid_of(self, process: int) -> int:
        """The number outside of a child that is not reaped yet."""
        return self._view.outer_pid(process) if self._view else process

    def start(self, order: Mapping[str, Any], spawn: Callable[[], int]) -> int:
        """Have `spawn` start the task's first process with the task's rights; returns what it returns.

        Raises OSError or ValueError where it does, or where the rights cannot be taken.
        """
        if not self._entered:
            self.enter()
        self._prepare_for(order, with_guard=True)
        return self.start_beside(order, spawn)

    def confine_for(self, order: Mapping[str, Any]) -> None:
        """Give the calling process, which has entered the cell, the task's folder and rights for ever.

        Raises OSError where that cannot be; then the process must start nothing.
        """
        self._prepare_for(order, with_guard=False)
        if self.means.confines:
            self._confine(order)
        else:
            os.chdir(order["cwd"])

    def _prepare_for(self, order: Mapping[str, Any], *, with_guard: bool) -> None:
        self._group.bound(order, with_guard=with_guard)
        if self._view:
            self._view.show(order["folder"])
            if "secrets" in order and "secrets_folder" not in order:
                owner = (self._account.uid, self._account.gid) if self._account else None
                self._view.put_secrets(f"{order['folder']}/{SECRETS}", order["secrets"]["files"], owner)

    def start_beside(self, order: Mapping[str, Any], spawn: Callable[[], int]) -> int:
        """Have `spawn` start another process with the rights of the task that runs; raises OSError or ValueError."""
        if not self.means.confines:
            os.chdir(order["cwd"])
            try:
                return spawn()
            finally:
                os.chdir("/")
        _thread.stack_size(_STACK_BYTES)

        def confined() -> int:
            self._confine(order)
            return spawn()

        return _in_a_thread(confined)

    def _confine(self, order: Mapping[str, Any]) -> None:
        kernel.own_working_directory()
        kernel.forbid_new_privileges()
        if self._account is not None:
            kernel.become(self._account.uid, self._account.gid)
        os.chdir(order["cwd"])
        if self._rules is not None:
            secrets = [order["secrets_folder"]] if "secrets_folder" in order else []
            self._rules.enforce([order["folder"], *order.get("device_files", ())], readable=secrets)

    @property
    def shares_late(self) -> bool:
        """Whether the task that runs moves into its CPU group by `share_cpu` only."""
        return self._group.shares_late

    def share_cpu(self) -> None:
        """Have the task that runs share the CPU as its request says."""
        self._group.share_cpu()

    def clear(self) -> bool:
        """After a task, whose processes have all ended: False when no other task may run in this cell."""
        if self._view:
            return self._view.clear()
        return not self.private_tmp or not os.listdir(self.private_tmp)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the last task for its memory."""
        return self._group.ran_out_of_memory()


def _in_a_thread(work: Callable[[], int]) -> int:
    """What `work` returns or raises, done in a thread of its own that ends with it."""
    done = _thread.allocate_lock()
    done.acquire()
    results: list[int] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]
