"""The account that each person's jobs run under on this node.

An existing account of the person's name, or the one that the site maps the person to; else a number of a reserved
range, which is the same on every node as far as two names do not ask for one number. Accounts of the system (below
UID_MIN) are nobody's, whatever they are called, and neither is the agent's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.agent.isolation.means import People

#: The numbers that were given out, by person: never given to another.
FILE: Final = "accounts.json"
_DEFAULT_UID_MIN: Final = 1000
_NOBODY: Final = 65534


class NoAccount(ValueError):
    """A person's jobs cannot run here: says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Account:
    """`home` is empty for an account that exists on no list of the system."""

    uid: int
    gid: int
    name: str
    home: str = ""


class Accounts:
    """Finds the account of a person; what it gives out is kept in the agent's state folder."""

    def __init__(self, state: Path, people: People) -> None:
        self._path = state / FILE
        self._people = people
        self._known: dict[str, Account] = {}
        self._given = self._read()
        self._uid_min = _uid_min()

    def account_of(self, person: str) -> Account:
        """The account of this person; raises NoAccount, or OSError where a new one cannot be written down."""
        if (known := self._known.get(person)) is None:
            known = self._known[person] = self._existing(person) or self._reserved(person)
        return known

    def _existing(self, person: str) -> Account | None:
        mapped = self._people.mapped.get(person)
        try:
            entry = pwd.getpwnam(mapped or person)
        except (KeyError, ValueError):
            if mapped:
                raise NoAccount(
                    f"The site maps {person} to the account {mapped}, which this node does not have."
                ) from None
            return None
        if self._is_the_systems(entry.pw_uid):
            if mapped:
                raise NoAccount(
                    f"The site maps {person} to {mapped}, which is an account of the system, and runs no jobs."
                )
            return None
        return Account(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)

    def _is_the_systems(self, uid: int) -> bool:
        return uid < self._uid_min or uid == _NOBODY or uid == os.geteuid()

    def _reserved(self, person: str) -> Account:
        if (uid := self._given.get(person)) is None:
            uid = self._free_uid(person)
            self._given[person] = uid
            self._write()
        return Account(uid, uid, person)

    def _free_uid(self, person: str) -> int:
        """A number of the range by the person's name, the next one where another person has that."""
        first, uids = self._people.first_uid, self._people.uids
        taken = set(self._given.values())
        start = int.from_bytes(hashlib.sha256(person.encode()).digest()[:8], "big")
        for step in range(min(uids, len(taken) + 1)):
            uid = first + (start + step) % uids
            if uid not in taken:
                return uid
        raise NoAccount(f"All {uids:,} accounts for people on this node are in use.")

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        return {str(name): int(uid) for name, uid in found.items()}

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        with open(fresh, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump(self._given, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)


def _uid_min() -> int:
    """The first number of people's accounts, as the system's own tools have it."""
    try:
        for line in Path("/etc/login.defs").read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == "UID_MIN" and words[1].isdecimal():
                return int(words[1])
    except OSError:
        pass
    return _DEFAULT_UID_MIN
