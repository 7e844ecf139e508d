"""What this node isolates and bounds its jobs with: chosen by `probe`, given to the shim, reported to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from scheduler.agent.isolation import kernel

#: The accounts that people without one of their own get on nodes: above those of containers, below 2^31.
FIRST_UID: Final = 1_900_000_000
UIDS: Final = 100_000_000

#: Of `Means.namespaces`.
NO_NAMESPACES: Final = ""
OWN_NAMESPACES: Final = "own"
USER_NAMESPACES: Final = "user"

#: From this version on, Landlock keeps signals and abstract sockets inside.
SCOPING_ABI: Final = 6


@dataclass(frozen=True, slots=True)
class Files:
    """Folders and files by their absolute paths: what jobs may read, what they may write, what no job may ever see."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    #: Ours, to be seen where they are behind something hidden: the interpreter and the program of the agent.
    programs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class People:
    """Which account each person's jobs run under; only an agent that is root can choose."""

    #: "" = the agent's own account.
    accounts: bool = False
    #: Names of existing accounts, by person, in the place of the account of the person's own name.
    mapped: Mapping[str, str] = field(default_factory=dict)
    first_uid: int = FIRST_UID
    uids: int = UIDS


@dataclass(frozen=True, slots=True)
class Groups:
    """Control groups: the version (0 = none), and our folder in the hierarchy of each controller."""

    version: int = 0
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Means:
    """All that is used; the empty one isolates nothing. It travels as JSON."""

    state: str = ""
    landlock: int = 0
    namespaces: str = NO_NAMESPACES
    files: Files = Files()
    people: People = People()
    groups: Groups = Groups()
    #: The folder in memory for secrets (`secret_values.memory`); "" = they are in the state folder.
    memory: str = ""
    #: The file system whose project quotas limit what a task fills of the disk; "" = it is measured.
    disk: str = ""
    #: Why something is not used that could protect more: sentences.
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Means:
        """From `as_json`, perhaps of another version."""
        files = {name: tuple(paths) for name, paths in data.get("files", {}).items() if name in _FILES}
        people = {name: value for name, value in data.get("people", {}).items() if name in _PEOPLE}
        return cls(
            state=data.get("state", ""),
            landlock=data.get("landlock", 0),
            namespaces=data.get("namespaces", NO_NAMESPACES),
            files=Files(**files),
            people=People(**people),
            groups=Groups(
                data.get("groups", {}).get("version", 0), data.get("groups", {}).get("folders", {})
            ),
            memory=data.get("memory", ""),
            disk=data.get("disk", ""),
            missing=tuple(data.get("missing", ())),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def clone_flags(self) -> int:
        """The namespaces that a guard is forked into."""
        if not self.namespaces:
            return 0
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
        return flags | kernel.CLONE_NEWUSER if self.namespaces == USER_NAMESPACES else flags

    @property
    def confines(self) -> bool:
        """Whether anything is done to a task before it starts."""
        return bool(self.landlock or self.people.accounts)

    def facts(self) -> dict[str, Any]:
        """The node's facts, for the server and for people: its protections, by which means, and what is missing."""
        accounts = self.people.accounts
        apart = accounts or self.landlock >= SCOPING_ABI or bool(self.namespaces)
        files = bool(self.landlock) or (accounts and bool(self.namespaces))
        bounded = {"memory", "pids", "cpu"} <= set(self.groups.folders)
        return {
            "files": files,
            "people": apart,
            "processes": bool(self.namespaces) or bool(self.groups.version),
            "amounts": bounded,
            "secrets_in_memory": bool(self.memory),
            "disk": bool(self.disk),
            "means": self._words(),
            "missing": list(self.missing),
        }

    def _words(self) -> list[str]:
        words = []
        if self.people.accounts:
            words.append("an account of its own for each person")
        if self.landlock:
            words.append(f"Landlock {self.landlock}")
        if self.namespaces:
            words.append("namespaces" if self.namespaces == OWN_NAMESPACES else "user namespaces")
        if self.groups.version:
            words.append(f"cgroup v{self.groups.version}: {', '.join(sorted(self.groups.folders))}")
        if self.disk:
            words.append(f"project quotas of {self.disk}")
        return words


_FILES: Final = ("readable", "writable", "hidden", "programs")
_PEOPLE: Final = ("accounts", "mapped", "first_uid", "uids")
