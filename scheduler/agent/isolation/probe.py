"""Chooses, once at the agent's start, what this node isolates its jobs with: all that the machine offers.

What a machine offers is tried, not concluded from versions: containers and security modules refuse what the kernel
could do.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from scheduler.agent.isolation import kernel, project_quotas
from scheduler.agent.isolation.cgroups import PREFIX, remove_abandoned
from scheduler.agent.isolation.landlock import SYSTEM, around, is_beneath
from scheduler.agent.isolation.means import (
    NO_NAMESPACES,
    OWN_NAMESPACES,
    USER_NAMESPACES,
    Files,
    Groups,
    Means,
    People,
)
from scheduler.agent.isolation.namespaces import View, closed_to_others, remember_account
from scheduler.agent.secret_values.memory import claim

#: What the site may ask for: all that there is, no more than the rules on files, or nothing.
AUTO, FILES_ONLY, OFF = "auto", "files", "off"
CHOICES: Final = (AUTO, FILES_ONLY, OFF)
#: How long a process that tries something out may take.
_TRY_SECONDS: Final = 10
_SILENT: Final = "the process that tried it did not respond"
#: Controllers that bound something, in the words of version 1; in version 2 there are no devices among them.
_CONTROLLERS: Final = ("memory", "pids", "cpu", "devices")
#: What is not bounded by the kernel on a node without project quotas.
_MEASURED: Final = "What a job fills of the disk is measured, not bounded by the kernel"
#: How a kernel or a file system without project quotas refuses them.
_NO_QUOTAS: Final = (errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP, errno.ESRCH, errno.EINVAL, errno.ENODEV)
_PACKAGE: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Site:
    """What the site says of its jobs' isolation, on the agent's command line."""

    isolation: str = AUTO
    #: Files and folders that jobs may also read, or write, and that they may never see.
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    #: The account of each person who has none of their own name.
    accounts: Mapping[str, str] = field(default_factory=dict)
    #: Run jobs as root, where the agent is root.
    jobs_as_root: bool = False


class BadSite(ValueError):
    """What the site says cannot be had: names it, and the way out."""


def choose(site: Site, state: Path) -> Means:
    """The means of this node; raises BadSite. For a process with one thread: it forks to try things out."""
    state = state.resolve()
    (state / "tasks").mkdir(mode=0o700, parents=True, exist_ok=True)
    files, missing = _files(site, state)
    if site.isolation == OFF or not kernel.AVAILABLE:
        why = "--isolation off" if site.isolation == OFF else "it needs Linux on a 64-bit machine"
        return _with_memory(Means(str(state)), [f"Nothing is isolated: {why}."])
    landlock = kernel.landlock_abi()
    if not landlock:
        missing.append("The kernel has no Landlock (Linux 5.13 or newer, with landlock in its lsm= list).")
    if site.isolation == FILES_ONLY:
        missing.append("The site asks for rules on files only.")
        return _with_memory(Means(str(state), landlock, files=files), missing)
    people = _people(site, missing)
    means = Means(str(state), landlock, files=files, people=people)
    namespaces = _namespaces(means, missing)
    if people.accounts and not namespaces:
        _open_the_way(state, missing)
    groups = _groups(state, missing)
    disk = _disk(state, people, missing)
    return _with_memory(Means(str(state), landlock, namespaces, files, people, groups, disk=disk), missing)


def _with_memory(means: Means, missing: list[str]) -> Means:
    """The means with a folder in memory for secrets; why there is none is added to `missing`."""
    accounts = means.people.accounts
    seen = bool(means.landlock) and not means.namespaces and not accounts
    memory = claim(Path(means.state), jobs_see_shared_memory=seen, passable=accounts and not means.namespaces)
    if not memory:
        missing.append(
            "Secrets are on the node's disk while a job runs: there is no tmpfs for them that no job sees."
        )
    return replace(means, memory=memory, missing=(*means.missing, *missing))


# ---------------------------------------------------------------- files


def _files(site: Site, state: Path) -> tuple[Files, list[str]]:
    """What jobs may see, without what is hidden in it, and what could not be granted."""
    for path in (*site.readable, *site.writable, *site.hidden):
        if not os.path.isabs(path):
            raise BadSite(f"{path!r} is not an absolute path.")
    hidden = list(dict.fromkeys(os.path.realpath(path) for path in (str(state), *site.hidden)))
    missing = []
    writable = []
    for path in map(os.path.realpath, site.writable):
        if any(is_beneath(one, path) or is_beneath(path, one) for one in hidden):
            missing.append(
                f"Jobs may not write {path}: the folder contains, or is in, a folder that is hidden from jobs."
            )
        else:
            writable.append(path)
    roots = dict.fromkeys(
        os.path.realpath(path) for path in (*SYSTEM, *site.readable) if os.path.exists(path)
    )
    readable = [path for root in roots for path in around(root, hidden)]
    return Files(tuple(readable), tuple(writable), tuple(hidden), tuple(_programs())), missing


def _programs() -> list[str]:
    """The interpreter and the package, which run a chunk of an array's elements inside the job."""
    found = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), str(_PACKAGE)}
    found.add(os.path.dirname(os.path.realpath(sys.executable)))
    return sorted(path for path in found if path not in ("/", "/usr"))


# ---------------------------------------------------------------- people


def _people(site: Site, missing: list[str]) -> People:
    if os.geteuid() != 0:
        missing.append(
            "All jobs share the agent's account: only an agent that is root can give each person one."
        )
        return People()
    if site.jobs_as_root:
        missing.append("WARNING: jobs run as root, because the agent has the option --jobs-as-root.")
        return People()
    return People(accounts=True, mapped=dict(site.accounts))


def read_accounts(path: Path) -> dict[str, str]:
    """The site's map of people to accounts, an object of JSON; raises BadSite."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadSite(f"The map of accounts {path} cannot be read: {error}.") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise BadSite(
            f'The map of accounts {path} has to be an object of JSON, such as {{"alice": "asmith"}}.'
        )
    return found


def _open_the_way(state: Path, missing: list[str]) -> None:
    """Let other accounts pass through our folder to their tasks' own: there is no view of their own to put them in."""
    for folder in (state, state / "tasks"):
        os.chmod(folder, 0o711)  # noqa: S103  the names in it cannot be listed
    if closed := closed_to_others([str(state / "tasks")]):
        missing.append(
            f"Jobs cannot reach their folders: {closed[0]} is closed to their accounts (chmod o+x)."
        )


# ---------------------------------------------------------------- namespaces


def _namespaces(means: Means, missing: list[str]) -> str:
    """Which namespaces a guard can have here; what was refused is added to `missing`."""
    kinds = [OWN_NAMESPACES, USER_NAMESPACES] if os.geteuid() == 0 else [USER_NAMESPACES]
    if means.people.accounts:
        kinds = [OWN_NAMESPACES]  # in a user namespace there is one account only
    why = ""
    for kind in kinds:
        why = _try_namespaces(means, kind)
        if not why:
            return kind
    missing.append(f"No PID and mount namespaces, so no private /tmp: {why}.")
    return NO_NAMESPACES


def _try_namespaces(means: Means, kind: str) -> str:
    """Make a guard's view once; empty where that works, else why not."""
    means = Means(means.state, means.landlock, kind, means.files, means.people)
    private = Path(means.state) / "private-try"
    private.mkdir(mode=0o700, exist_ok=True)
    remember_account()

    def attempt() -> None:
        View(means.state).make(means, str(private))

    try:
        return _tried(attempt, means.clone_flags)
    finally:
        with contextlib.suppress(OSError):
            private.rmdir()


def _tried(attempt: Callable[[], object], namespaces: int) -> str:
    """Do it in a child that is forked into these namespaces; empty where it raises nothing, else why.

    Once more where the child does not respond: one that is forked while another thread allocates memory may wait for
    a lock that nobody gives back.
    """
    said = _tried_once(attempt, namespaces)
    return said if said != _SILENT else _tried_once(attempt, namespaces)


def _tried_once(attempt: Callable[[], object], namespaces: int) -> str:
    read_end, write_end = os.pipe()
    try:
        pid = kernel.fork_into(namespaces)
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        return os.strerror(error.errno or 0)
    if pid == 0:
        try:
            signal.alarm(_TRY_SECONDS)
            attempt()
            os.write(write_end, b"ok")
        except BaseException as error:
            os.write(write_end, str(error).encode()[:400] or b"it failed")
        finally:
            os._exit(0)
    os.close(write_end)
    is_answered = bool(select.select([read_end], [], [], _TRY_SECONDS + 1)[0])
    if not is_answered:
        os.kill(pid, signal.SIGKILL)
    said = os.read(read_end, 400).decode(errors="replace") if is_answered else _SILENT
    os.close(read_end)
    os.waitpid(pid, 0)
    return "" if said == "ok" else said or "the process that tried it was killed"


# ---------------------------------------------------------------- control groups


def _groups(state: Path, missing: list[str]) -> Groups:
    """Our folders in the hierarchies of control groups, where we may make groups there."""
    name = f"{PREFIX}{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"
    own = _own_groups()
    folders = {}
    for controller in _CONTROLLERS:
        parent = _group_folder(controller, own)
        if parent and _usable(f"{parent}/{name}"):
            remove_abandoned(parent)
            folders[controller] = f"{parent}/{name}"
    if folders:
        _say_missing(set(_CONTROLLERS) - set(folders), missing)
        return Groups(1, folders)
    if folder := _delegated(own.get("", ""), name):
        found = set(Path(folder, "cgroup.controllers").read_text().split()) & set(_CONTROLLERS)
        _say_missing(set(_CONTROLLERS) - found - {"devices"}, missing)
        return Groups(2, dict.fromkeys(sorted(found), folder))
    missing.append(
        "No control groups: memory, processes and CPU are measured every second, not bounded by the kernel"
        " (run the agent as root, or as a service with Delegate=yes)."
    )
    return Groups()


def _disk(state: Path, people: People, missing: list[str]) -> str:
    """The file system of the state folder, where its project quotas limit jobs; else why not is added to `missing`."""
    if not people.accounts:
        missing.append(
            f"{_MEASURED}: only an agent that is root, and whose jobs are not, can have the kernel bound it."
        )
        return ""
    trial = state / "quota-try"
    try:
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir(mode=0o700)
        file = project_quotas.prepare_trial(str(trial), str(state))
        try:
            why = _tried(lambda: _exceed(file, people.first_uid), 0)
        finally:
            os.close(file)
    except OSError as error:
        why = "the file system has no project quotas" if error.errno in _NO_QUOTAS else str(error)
    finally:
        project_quotas.end_limit(str(trial))
        shutil.rmtree(trial, ignore_errors=True)
    if why:
        missing.append(f"{_MEASURED}: {why} (ext4 or XFS, mounted with prjquota).")
        return ""
    return _file_system_of(state)


def _exceed(file: int, uid: int) -> None:
    kernel.become(uid, uid)
    project_quotas.try_to_exceed(file)


def _file_system_of(folder: Path) -> str:
    """Its name, as the mount with the longest path above this folder has it."""
    found = ("", "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        where = words.split()[4]
        if is_beneath(str(folder), where) and len(where) >= len(found[0]):
            found = where, rest.split()[0]
    return found[1]


def _say_missing(names: Iterable[str], missing: list[str]) -> None:
    if names := sorted(names):
        missing.append(f"No control group for: {', '.join(names)}.")


def _own_groups() -> dict[str, str]:
    """The path of our own group by controller; that of version 2 has no name."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            found |= dict.fromkeys(names.split(","), path)
    return found


def _group_folder(controller: str, own: Mapping[str, str]) -> str:
    """The folder of our own group in a hierarchy of version 1, or the top one where that is not to be seen."""
    for name in (controller, "cpu,cpuacct"):
        root = f"/sys/fs/cgroup/{name}"
        if controller in own and controller in name.split(",") and os.path.isdir(root):
            path = root + own[controller].rstrip("/")
            return path if os.path.isdir(path) else root
    return ""


def _usable(folder: str) -> bool:
    """Whether we may make groups there, and put processes into them."""
    trial = f"{folder}/try"
    try:
        os.makedirs(trial, exist_ok=True)
        os.rmdir(trial)
    except OSError:
        return False
    return os.access(f"{folder}/cgroup.procs", os.W_OK)


def _delegated(path: str, name: str) -> str:
    """Our folder in a group of version 2 that systemd has delegated to us; empty where it has not.

    A group that has groups of its own may hold no process: what is in the delegated one, which is the agent and what
    it has started, moves into one beside our folder.
    """
    own = f"/sys/fs/cgroup{path.rstrip('/')}"
    if os.path.basename(own) == "muster-agent":
        own = os.path.dirname(own)  # an agent before us has moved there
    if not _is_delegated(own):
        return ""
    try:
        os.makedirs(f"{own}/muster-agent", exist_ok=True)
        for pid in Path(own, "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                Path(own, "muster-agent", "cgroup.procs").write_text(pid)
        offered = set(Path(own, "cgroup.controllers").read_text().split()) & set(_CONTROLLERS)
        os.makedirs(f"{own}/{name}", exist_ok=True)
        for folder in (own, f"{own}/{name}"):
            for controller in offered:
                Path(folder, "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return ""
    return f"{own}/{name}" if offered else ""


def _is_delegated(folder: str) -> bool:
    """Whether systemd says that this group is for its service to divide."""
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError, AttributeError):
            if os.getxattr(folder, attribute) == b"1":
                return True
    return False


def facts_in_words(facts: Mapping[str, Any]) -> str:
    """One line for the log of the agent."""
    means = "; ".join(facts["means"]) or "nothing"
    return f"jobs are isolated by: {means}"
