"""What a project has in Slurm's accounting database, and the interface to read and change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class Record:
    """What Slurm has of one project; memory in MiB, a limit that is not there does not exist."""

    has_account: bool = False
    has_qos: bool = False
    limits: dict[str, int] = field(default_factory=dict)
    #: Everybody with an association in the account, and whether it carries the project's QOS.
    members: dict[str, bool] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    #: Flags of the QOS, which an update through REST would clear if it did not repeat them.
    flags: list[str] = field(default_factory=list)


class Transport(Protocol):
    """How Slurm is talked to. Every call may be repeated."""

    def read(self, name: str) -> Record: ...

    def make_account(self, name: str, title: str) -> None: ...

    def set_limits(self, name: str, record: Record, changes: Mapping[str, int | None]) -> None: ...

    def add_members(self, name: str, record: Record, users: Sequence[str]) -> None: ...

    def remove_members(self, name: str, users: Sequence[str]) -> None: ...
