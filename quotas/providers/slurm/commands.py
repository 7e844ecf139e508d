"""Slurm through its own commands, where there is no slurmrestd: here, or on another machine through a wrapper."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from quotas.core.units.slurm import JOBS, BadTres, format_tres, parse_tres
from quotas.providers.base import Refused, Unreachable
from quotas.providers.external import timeout_seconds
from quotas.providers.slurm.transport import Record

#: In what a command complains of, these say that somebody is away; everything else is a refusal.
_AWAY: Final = (
    "Unable to contact", "Connection refused", "Connection timed out", "Connection reset", "No route to host",
    "Problem talking to the database", "Unable to connect", "connect to host", "Could not resolve",
    "Socket timed out", "Zero Bytes were transmitted", "Could not establish a configuration",
    "Sending PersistInit msg",
)  # fmt: skip
#: Done before, which is as good.
_DONE: Final = ("Nothing new added", "Nothing modified", "Nothing deleted", "already exist")


class CommandTransport:
    """No argument has a space or a sign that a shell would read, so a wrapper such as ssh passes them on whole."""

    def __init__(self, wrapper: str = "", *, cluster: str = "") -> None:
        self.wrapper = shlex.split(wrapper)
        self.cluster = cluster

    # ------------------------------------------------------------ read

    def read(self, name: str) -> Record:
        record = Record()
        for qos, tres, jobs in self._rows("qos", name, "name,grptres,grpjobs"):
            if qos == name:
                record.has_qos = True
                record.limits = _numbers(tres)
                if jobs not in ("", "-1"):  # the latter is no limit
                    record.limits |= _numbers(f"{JOBS}={jobs}")
        for account, user, qos in self._rows("assoc", f"account={name}", "account,user,qos", *self._where()):
            if account == name and user:
                record.members[user] = name in qos.split(",")
            elif account == name:
                record.has_account = True
        record.used = self._used(name)
        record.facts = self._fair_share(name) if record.has_account else {}
        return record

    def _rows(self, what: str, which: str, columns: str, *more: str) -> list[list[str]]:
        text = self.run("sacctmgr", "-nP", "show", what, which, *more, f"format={columns}")
        width = columns.count(",") + 1
        return [row for line in text.splitlines() if len(row := line.split("|")) == width]

    def _used(self, name: str) -> dict[str, int]:
        used: dict[str, int] = {JOBS: 0}
        text = self.run("squeue", "-h", "-t", "RUNNING", "-q", name, "-O", "tres-alloc:300", missing_qos=True)
        for line in text.splitlines():
            used[JOBS] += 1
            for key, amount in _numbers(line).items():
                used[key] = used.get(key, 0) + amount
        return used

    def _fair_share(self, name: str) -> dict[str, Any]:
        """What Slurm's own fair share says: profiles with `"shares": "slurm"` order jobs by it."""
        columns = "Account,User,NormShares,RawUsage,EffectvUsage,FairShare"
        facts: dict[str, Any] = {}
        try:
            text = self.run("sshare", "-nP", "-a", "-A", name, "-o", columns)
        except (Refused, Unreachable):
            return {}
        for line in text.splitlines():
            row = [cell.strip() for cell in line.split("|")]
            if len(row) != 6 or row[0] != name:
                continue
            values = {
                "norm_shares": _fraction(row[2]), "raw_usage_seconds": int(_fraction(row[3]) or 0),
                "effective_usage": _fraction(row[4]), "fair_share": _fraction(row[5]),
            }  # fmt: skip
            if row[1]:
                facts.setdefault("users", {})[row[1]] = values
            else:
                facts.update(values)
        return {"fair_share": facts} if facts else {}

    # ------------------------------------------------------------ write

    def make_account(self, name: str, title: str) -> None:
        self._change(
            "add", "account", name, *self._where(), f"description={title}", "organization=muster", f"qos={name}",
            f"defaultqos={name}",
        )  # fmt: skip

    def set_limits(self, name: str, record: Record, changes: Mapping[str, int | None]) -> None:
        if not record.has_qos:
            self._change("add", "qos", name)
        tres = {key: value for key, value in changes.items() if key != JOBS}
        sets = [f"grptres={format_tres(tres)}"] if tres else []
        if JOBS in changes:
            sets.append(f"grpjobs={-1 if changes[JOBS] is None else changes[JOBS]}")
        if sets:
            self._change("modify", "qos", name, "set", *sets)

    def add_members(self, name: str, record: Record, users: Sequence[str]) -> None:
        own = f"defaultqos={name}"
        if known := [user for user in users if user in record.members]:
            where = [f"account={name}", *self._where()]
            self._change("modify", "user", ",".join(known), "where", *where, "set", f"qos+={name}", own)
        if new := [user for user in users if user not in record.members]:
            self._change("add", "user", ",".join(new), f"account={name}", *self._where(), f"qos={name}", own)

    def remove_members(self, name: str, users: Sequence[str]) -> None:
        self._change("delete", "user", f"name={','.join(users)}", f"account={name}", *self._where())

    def _where(self) -> list[str]:
        return [f"cluster={self.cluster}"] if self.cluster else []

    # ------------------------------------------------------------ commands

    def _change(self, *words: str) -> None:
        self.run("sacctmgr", "-i", *words)

    def run(self, *command: str, missing_qos: bool = False) -> str:
        seconds = timeout_seconds()
        try:
            done = subprocess.run(
                [*self.wrapper, *command],
                check=False,
                capture_output=True,
                text=True,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{command[0]} did not end within {seconds:g} s.") from error
        except OSError as error:
            raise Unreachable(
                f"{(self.wrapper or command)[0]} cannot be run here: {error.strerror}."
            ) from error
        said = f"{done.stdout}\n{done.stderr}"
        if done.returncode == 0 or any(text in said for text in _DONE):
            return done.stdout
        if missing_qos and "Invalid qos" in said:
            return ""
        text = " ".join(line.strip() for line in said.splitlines() if line.strip())[-200:]
        if any(sign in said for sign in _AWAY) or done.returncode == 255:  # the latter is ssh's own
            raise Unreachable(f"{command[0]} cannot reach Slurm: {text}")
        raise Refused(f"{command[0]} refuses: {text}")


def _numbers(tres: str) -> dict[str, int]:
    try:
        return parse_tres(tres)
    except BadTres as bad:
        raise Refused(f"Slurm says what Muster cannot read: {bad}.") from bad


def _fraction(text: str) -> float | None:
    """Of a user with nothing to weigh Slurm says `inf`, which no JSON can say."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
