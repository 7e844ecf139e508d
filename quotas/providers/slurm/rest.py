"""Slurm through slurmrestd: its slurmdb calls for accounts, QOS and associations, and the jobs for what is in use.

The shapes are those of v0.0.38 (Slurm 22.05). Whatever the HTTP status says, the `errors` of an answer count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3

from quotas.core.units.slurm import GPU, JOBS, BadTres, parse_tres
from quotas.providers.base import Refused, Unreachable
from quotas.providers.external import once_a_round, timeout_seconds
from quotas.providers.slurm.transport import Record

#: Slurm's error numbers that say that somebody behind slurmrestd is away; others are refusals.
_AWAY: Final = {1800, 1801, 1802, 1803, 1804, 1805, 1900, 5004, 5005, 7000}
_NOTHING_FOUND: Final = 9003
_BAD_TOKEN: Final = 1007

_pool = urllib3.PoolManager(num_pools=4, maxsize=4, retries=False)


class RestTransport:
    def __init__(self, url: str, token: str, *, user: str, version: str, cluster: str = "") -> None:
        self.url = url.rstrip("/")
        self.version = version
        self.cluster = cluster
        self._headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token}

    # ------------------------------------------------------------ read

    def read(self, name: str) -> Record:
        try:
            return self._read(name)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise Refused(
                f"slurmrestd answers in a shape that Muster does not know ({type(error).__name__}: {error});"
                f" it reads that of v0.0.38, and SLURM_REST_VERSION is {self.version}."
            ) from error

    def _read(self, name: str) -> Record:
        record = Record()
        for qos in self._slurmdb("GET", f"qos/{quote(name)}").get("QOS", []):
            if qos.get("name") == name:
                record.has_qos = True
                record.flags = list(qos.get("flags") or [])
                record.limits = _limits(qos)
        for row in self._associations(name):
            if row.get("account") != name:
                continue
            if row.get("user"):
                record.members[row["user"]] = name in (row.get("qos") or [])
            else:
                record.has_account = True
        record.used = self._used(name)
        return record

    def _associations(self, name: str) -> list[dict[str, Any]]:
        query = {"account": name, "cluster": self._cluster()}
        return list(self._slurmdb("GET", f"associations?{urlencode(query)}").get("associations", []))

    def _used(self, name: str) -> dict[str, int]:
        """What running jobs hold under the project's QOS, from every submitter."""
        used: dict[str, int] = {JOBS: 0}
        path = f"/slurm/{self.version}/jobs"  # every job there is: megabytes on a busy cluster
        for job in once_a_round(self.url + path, lambda: self.call("GET", path).get("jobs", [])):
            if job.get("qos") == name and job.get("job_state") == "RUNNING":
                used[JOBS] += 1
                try:
                    held = parse_tres(job.get("tres_alloc_str") or "")
                except BadTres:
                    continue
                for key, amount in held.items():
                    used[key] = used.get(key, 0) + amount
        return used

    # ------------------------------------------------------------ write

    def make_account(self, name: str, title: str) -> None:
        self._slurmdb(
            "POST", "accounts", {"accounts": [{"name": name, "description": title, "organization": "muster"}]}
        )
        # An association without a user is the account's own. This version makes it and complains that the
        # user is missing, in one answer; without it no member can be added.
        body = {"account": name, "cluster": self._cluster(), "qos": [name], "default": {"qos": name}}
        self._slurmdb(
            "POST", "associations", {"associations": [body]}, ignore="Missing required field 'user'"
        )

    def set_limits(self, name: str, record: Record, changes: Mapping[str, int | None]) -> None:
        """Only what changes is sent, for the rest stays; but for flags, which an update would clear."""
        tres = [_tres(key, value) for key, value in sorted(changes.items()) if key != JOBS]
        most: dict[str, Any] = {}
        if tres:
            most["tres"] = {"total": tres}
        if JOBS in changes:
            most["active_jobs"] = {"count": changes[JOBS]}
        body = {"name": name, "flags": record.flags, "limits": {"max": most}}
        if not record.has_qos:
            body["description"] = "kept by Muster"
        self._slurmdb("POST", "qos", {"QOS": [body]})

    def add_members(self, name: str, record: Record, users: Sequence[str]) -> None:
        """People whom Slurm does not know are made, with this as their first account; others keep theirs."""
        if any(user in record.members for user in users):
            self._refuse_to_crash_it(name, users)
        known = {row["name"] for row in self._slurmdb("GET", "users").get("users", [])}
        if unknown := [user for user in users if user not in known]:
            people = [{"name": user, "default": {"account": name}} for user in unknown]
            self._slurmdb("POST", "users", {"users": people})
        cluster, own = self._cluster(), {"qos": [name], "default": {"qos": name}}
        rows = [{"account": name, "cluster": cluster, "user": user, **own} for user in users]
        self._slurmdb("POST", "associations", {"associations": rows})

    def remove_members(self, name: str, users: Sequence[str]) -> None:
        for user in users:
            query = urlencode({"account": name, "user": user, "cluster": self._cluster()})
            self._slurmdb("DELETE", f"association?{query}", nothing_is_fine=True)

    def _refuse_to_crash_it(self, name: str, users: Sequence[str]) -> None:
        """slurmrestd 22.05 dies when an association that carries limits of its own is updated."""
        for row in self._associations(name):
            user, tres = row.get("user"), (row.get("max") or {}).get("tres") or {}
            carries = tres.get("total") or any((tres.get("per") or {}).values())
            if user in users and carries:
                raise Refused(
                    f"The association of {user} in {name} carries limits of its own, which slurmrestd cannot update;"
                    f" add the QOS by hand: sacctmgr modify user {user} where account={name} set qos+={name}."
                )

    # ------------------------------------------------------------ the wire

    def _cluster(self) -> str:
        """The one cluster that slurmdbd knows, asked once; with several it must be named."""
        if not self.cluster:
            names = [row["name"] for row in self._slurmdb("GET", "clusters").get("clusters", [])]
            if len(names) != 1:
                raise Refused(
                    f"slurmdbd knows {len(names)} clusters ({', '.join(names[:5])}); name one in SLURM_CLUSTER."
                )
            self.cluster = names[0]
        return self.cluster

    def _slurmdb(
        self, method: str, path: str, body: Any = None, *, ignore: str = "", nothing_is_fine: bool = False
    ) -> dict[str, Any]:
        return self.call(
            method, f"/slurmdb/{self.version}/{path}", body, ignore=ignore, nothing_is_fine=nothing_is_fine
        )

    def call(
        self, method: str, path: str, body: Any = None, *, ignore: str = "", nothing_is_fine: bool = False
    ) -> dict[str, Any]:
        seconds = timeout_seconds()
        try:
            answer = _pool.request(
                method,
                self.url + path,
                headers=self._headers,
                timeout=urllib3.Timeout(connect=min(seconds, 5), read=seconds),
                **({} if body is None else {"json": body}),
            )
        except urllib3.exceptions.TimeoutError as error:
            raise Unreachable(f"slurmrestd did not answer within {seconds:g} s.") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"slurmrestd is unreachable: {_short(error)}.") from error
        if answer.status == 401:
            raise Refused("slurmrestd needs a user and a token; set EXECUTOR_SLURM_AUTH_TOKEN.")
        if answer.status == 404:
            raise Refused(
                f"slurmrestd has no {path.split('?')[0]}; set SLURM_REST_VERSION to one that it offers."
            )
        if answer.status == 429:
            raise Unreachable(
                "slurmrestd is rate limiting requests.",
                retry_after_seconds=_seconds(answer.headers.get("Retry-After")),
            )
        try:
            content = answer.json()
            assert isinstance(content, dict)
        except (ValueError, AssertionError) as error:
            raise Unreachable(f"slurmrestd answered {answer.status} without JSON.") from error
        self._complain(
            content, answer.status, ignore=ignore, nothing_is_fine=nothing_is_fine or method == "GET"
        )
        return content

    def _complain(self, content: dict[str, Any], status: int, *, ignore: str, nothing_is_fine: bool) -> None:
        errors = [error for error in content.get("errors") or [] if isinstance(error, dict)]
        for error in errors:
            number, text = _number_and_text(error)
            if (nothing_is_fine and number == _NOTHING_FOUND) or (ignore and ignore in text):
                continue
            raise _failure(number, text, str(error.get("error") or ""))
        if status >= 500 and not errors:
            raise Unreachable(f"slurmrestd answered {status}.")


def _limits(qos: dict[str, Any]) -> dict[str, int]:
    most = (qos.get("limits") or {}).get("max") or {}
    limits = {}
    for tres in (most.get("tres") or {}).get("total") or []:
        key = f"{tres['type']}/{tres['name']}" if tres.get("name") else str(tres["type"])
        if int(tres["count"]) >= 0:
            limits[key] = int(tres["count"])
    count = (most.get("active_jobs") or {}).get("count")
    if count is not None:
        limits[JOBS] = int(count)
    return limits


def _tres(key: str, value: int | None) -> dict[str, Any]:
    """`gres/gpu:a100` -> its type and name; a limit is taken away with -1."""
    kind, _, name = key.partition("/")
    assert key == kind or key.startswith(GPU)
    return {"type": kind, **({"name": name} if name else {}), "count": -1 if value is None else value}


def _seconds(text: str | None) -> int:
    return min(int(text), 3600) if text and text.isascii() and text.isdecimal() else 1


def _short(error: Exception) -> str:
    """The last part of what urllib3 says, without the objects it prints."""
    return str(error).rpartition(": ")[2].rstrip(".")[:160]


def _number_and_text(error: dict[str, Any]) -> tuple[int, str]:
    """Slurm's error number and its description; releases name the two differently."""
    number = int(error.get("error_number") or error.get("error_code") or 0)
    return number, str(error.get("description") or error.get("error") or number)


def _failure(number: int, text: str, detail: str) -> Unreachable | Refused:
    """What an error of slurmrestd means: try again later, renew the token, or a person must act."""
    if number in _AWAY:
        return Unreachable(f"slurmrestd answers, but what is behind it does not: {text}.")
    if number == _BAD_TOKEN or "config is unable to load" in text or "Failed while looking" in text:
        return Refused(
            "Slurm does not accept the token: the token has expired, or belongs to another user. Create a token with"
            " `scontrol token` and set EXECUTOR_SLURM_AUTH_TOKEN."
        )
    more = f" ({detail})" if detail and detail != text else ""
    return Refused(f"Slurm refuses: {text}{more}.")
