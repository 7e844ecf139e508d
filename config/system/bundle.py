"""One archive for a person who is asked for help: versions, settings, health, alarms, cycles, nodes and tails of logs.

Nothing in it comes from inside a job: no environment, command, script, output or file. Secrets are left out where
values are read, and each file is searched for them again before it is written.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from config.system import facts
from config.system.masking import site_masker

log = structlog.get_logger(__name__)

#: The end of each log, and the most logs.
TAIL_BYTES: Final = 256 * 1024
MOST_LOGS: Final = 60
README: Final = """\
A support bundle of Muster, made at {at}.

versions.json    Muster, Python, PostgreSQL, packages, the protocols of agents
settings.json    every setting; of secrets only whether there is one
health.json      the checks of /readyz, systems outside that failed lately, faults of policies
alarms.json      what operators were notified of in the last two weeks
database.json    tables with their sizes
migrations.json  applied, and missing
planning.json    the last cycles, leases, and numbers of jobs by state and reason
nodes.json       what agents say of their machines
log/             the end of each service's log

It has no environment, command, script, output or file of a job, and no secret of the site. It has names of nodes
and, in logs, of people and projects: read it before you send it.
"""


def make_bundle(*, by: User | None) -> tuple[str, bytes]:
    """The archive (tar.gz) and its name; for site admins, or `by` None for who runs a command on the machine.

    That one gets it without the database too; a person gets none that the audit trail does not have.
    """
    if by is not None:
        permissions.require(by, "administer")
    now = timezone.now().astimezone(UTC)
    name = f"muster-support-{now:%Y%m%d-%H%M%S}"
    state = state_folder()
    mask = site_masker(settings, state)
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz", compresslevel=6) as archive:
        for path, text in _files(now, state):
            _add(archive, f"{name}/{path}", mask(text))
    try:
        audit.record(
            by=by,
            action="support.bundle",
            thing=audit.Thing("site", label=name),
            after={"bytes": body.tell()},
        )
    except (DatabaseError, InterfaceError) as error:
        if by is not None:
            raise
        log.warning("bundle_not_in_audit_trail", bundle=name, error=str(error))
    return f"{name}.tar.gz", body.getvalue()


def state_folder() -> Path | None:
    """The state folder of `manage.py up`; None where the portal runs under another supervisor."""
    return Path(settings.MUSTER_STATE).expanduser() if settings.MUSTER_STATE else None


def _files(now: datetime, state: Path | None) -> Iterator[tuple[str, str]]:
    yield "README.txt", README.format(at=now.isoformat(timespec="seconds"))
    for part, value in facts.parts().items():
        yield f"{part}.json", json.dumps(value, indent=1, default=_plain, sort_keys=True)
    if state is not None:
        for file in sorted((state / "log").glob("*.log"))[:MOST_LOGS]:
            yield f"log/{file.name}", _tail(file)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _tail(file: Path) -> str:
    """The last lines of a log, each whole: half of a secret would not be known as one."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
            return (data.partition(b"\n")[2] if size > TAIL_BYTES else data).decode(errors="replace")
    except OSError as error:
        return f"This log cannot be read: {error}\n"


def _add(archive: tarfile.TarFile, path: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
