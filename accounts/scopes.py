"""What an API token may be allowed to do: a closed list, and what each scope includes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Scope -> what it lets a token do, in words. A token never may more than its person.
SCOPES: Final[dict[str, str]] = {
    "jobs:read": "see jobs, logs, results, pending reasons and queues",
    "jobs:write": "submit, change, cancel, hold and requeue jobs, upload folders, remove results, trigger planning",
    "projects:read": "see projects and their members",
    "projects:write": "manage projects and their members",
    "quota:read": "see quotas and usage",
    "quota:write": "change quotas",
    "nodes:read": "see nodes, GPUs and reservations",
    "nodes:write": "cordon and drain nodes, pause queues, make and request reservations",
    "notifications:read": "see notifications, preferences and webhooks",
    "notifications:write": "mark notifications as read, change preferences and webhooks",
    "audit:read": "read the audit trail",
    "secrets:write": "list the names of secrets, set and delete secrets",
    "tokens:write": "list, create and revoke tokens",
    "admin": "everything that the account may do",
}


def implied(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes with all they include: `x:write` includes `x:read`, `admin` includes every one."""
    held = frozenset(scopes)
    if "admin" in held:
        return frozenset(SCOPES)
    reads = {scope.replace(":write", ":read") for scope in held if scope.endswith(":write")}
    return held | (reads & SCOPES.keys())


def covers(scopes: Iterable[str], needed: str) -> bool:
    return needed in implied(scopes)
