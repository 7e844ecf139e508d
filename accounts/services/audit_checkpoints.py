"""Signed checkpoints of the audit trail, kept outside the database, out of reach of its roles.

A file of which only the end is ever written, one checkpoint a line, and a system log where one is named. Every check
compares the chains with the last line of the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

#: Of the file's end; a checkpoint of all chains has 2 KiB.
_READ_BYTES: Final = 64 * 1024
#: RFC 3164: facility auth, severity notice.
_PRIORITY: Final = 4 * 8 + 5


class Unreachable(Exception):
    """The file of checkpoints cannot be read or written; the message says why and what to do."""


def file() -> Path | None:
    """Where checkpoints are kept; None where they are not."""
    name = settings.MUSTER_AUDIT_CHECKPOINT_FILE
    return Path(name) if name else None


def last() -> str | None:
    """The last whole checkpoint; None before the first. A line that was cut short as it was written is passed over."""
    where = file()
    if where is None:
        return None
    try:
        with where.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _READ_BYTES))
            whole = stream.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreachable(where, error) from error
    lines = [line for line in whole.decode(errors="replace").split("\n") if line.strip()]
    return lines[-1] if lines else None


def keep(checkpoint: str) -> bool:
    """Write a checkpoint to the end of the file, on the disk when this returns, and to the system log.

    False where it says nothing that the last one does not say, or less: two may write at once.
    """
    where = file()
    if where is None:
        return _send(checkpoint)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(where, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unreachable(where, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not _says_more(checkpoint, last()):
            return False
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, (b"\n" if torn else b"") + checkpoint.encode() + b"\n")
        os.fsync(handle)
    except OSError as error:
        raise _unreachable(where, error) from error
    finally:
        os.close(handle)
    _send(checkpoint)
    return True


def _says_more(checkpoint: str, before: str | None) -> bool:
    new, old = _lengths(checkpoint), _lengths(before or "{}")
    return new != old and all(new.get(shard, 0) >= length for shard, length in old.items())


def _lengths(checkpoint: str) -> dict[str, int]:
    try:
        heads: dict[str, Any] = json.loads(checkpoint).get("heads", {})
        return {shard: int(head[0]) for shard, head in heads.items()}
    except (ValueError, TypeError, AttributeError, IndexError):
        return {}


def _send(checkpoint: str) -> bool:
    """To the system log, as one message; a log that is away is said in ours, for the file has it."""
    place = settings.MUSTER_AUDIT_SYSLOG
    if not place:
        return False
    message = f"<{_PRIORITY}>muster-audit: {checkpoint}".encode()
    try:
        if place.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.connect(place)
                out.send(message)
        else:
            host, _, port = place.rpartition(":")
            family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
            with socket.socket(*family[:3]) as out:
                out.sendto(message, family[4])
    except (OSError, ValueError) as error:
        log.error("audit_checkpoint_not_sent", syslog=place, error=str(error))
        return False
    return True


def _unreachable(where: Path, error: OSError) -> Unreachable:
    return Unreachable(
        f"the file of audit checkpoints {where} cannot be used: {error.strerror or error}; make it readable and "
        "writable for Muster's account, or name another in MUSTER_AUDIT_CHECKPOINT_FILE"
    )
