"""What `manage.py check` says about settings; with `--deploy` about the role, the audit trail and the storage."""

from __future__ import annotations

import io
import secrets
from typing import Any

import psycopg
from django.conf import settings
from django.core import checks
from django.db import connection

from config.settings.declared import mistyped
from infra.storage import StorageError, configured_storage

GUIDE = "docs/guides/running.md, under The roles of the database, has the SQL."
#: Of a database that may be far away; `check` must not hang.
SECONDS = 3

_ROLE = """
SELECT current_user, rolsuper,
    (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND pg_has_role(current_user, relowner, 'MEMBER')),
    has_schema_privilege('public', 'CREATE'),
    (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relname IN ('accounts_auditevent', 'accounts_auditcheckpoint', 'quotas_ledgerentry')
        AND has_table_privilege(oid, 'UPDATE, DELETE, TRUNCATE')),
    CASE WHEN current_setting('server_version_num')::int >= 150000
        THEN has_parameter_privilege('session_replication_role', 'SET') ELSE false END
FROM pg_roles WHERE rolname = current_user
"""


def register() -> None:
    checks.register(check_silence)
    checks.register(check_names)
    checks.register(check_storage, deploy=True)
    checks.register(check_role, deploy=True)
    checks.register(check_audit, deploy=True)


def check_silence(**_: Any) -> list[checks.CheckMessage]:
    """A node that waits for orders is not heard of until the server answers."""
    silent, hold = settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_SYNC_HOLD_SECONDS
    if silent > hold:
        return []
    return [
        checks.Error(
            f"MUSTER_NODE_SILENT_SECONDS is {silent:g} and MUSTER_SYNC_HOLD_SECONDS is {hold:g}: a node that has "
            "nothing to do would count as unknown between two calls, and get no jobs.",
            hint="Let MUSTER_NODE_SILENT_SECONDS be at least a few seconds longer than MUSTER_SYNC_HOLD_SECONDS.",
            id="muster.E003",
        )
    ]


def check_names(**_: Any) -> list[checks.CheckMessage]:
    """Variables that look like settings and are none."""
    return [
        checks.Warning(
            f"{name} is no setting and has no effect.", hint=f"Do you mean {meant}?", id="muster.W004"
        )
        for name, meant in mistyped().items()
    ]


def check_storage(**_: Any) -> list[checks.CheckMessage]:
    """Whether the storage of artefacts takes an object and gives it back; every start checks its settings."""
    if not settings.MUSTER_STORAGE:
        return []
    key = f"check/{secrets.token_hex(8)}"
    try:
        storage = configured_storage()
        storage.put(key, io.BytesIO(b"muster"))
        with storage.open(key) as found:
            found.read()
        storage.delete(key)
    except StorageError as error:
        return [checks.Error(error.message, hint=error.way_out, id="muster.E002")]
    return []


def check_role(**_: Any) -> list[checks.CheckMessage]:
    """The role of DATABASE_URL, as the database itself knows it."""
    parameters = {**connection.get_connection_params(), "connect_timeout": SECONDS}
    parameters = {
        name: value for name, value in parameters.items() if name not in ("cursor_factory", "context", "pool")
    }
    try:
        with psycopg.connect(**parameters) as asked:
            row = asked.execute(_ROLE).fetchone()
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0]
        return [checks.Info(f"The database was not asked what its role may do: {said}", id="muster.I001")]
    assert row is not None
    name, superuser, owned, creates, edits, replicates = row
    if superuser:
        found = [f"is a superuser of PostgreSQL: none of its actions is checked, {_TRIGGERS}"]
    elif owned:
        found = [f"owns {owned} of the tables: who has its password can drop them, and {_TRIGGERS}"]
    else:
        found = [
            words
            for true, words in (
                (creates, "may make tables in the schema public"),
                (edits, "may change or delete rows of the audit trail or the ledger"),
                (replicates, "may set session_replication_role, which turns triggers off"),
            )
            if true
        ]
    return [
        checks.Warning(f"The role {name} of DATABASE_URL {words}.", hint=_HINT, id="muster.W001")
        for words in found
    ]


_TRIGGERS = "turn the triggers off that guard the audit trail"
_HINT = (
    "Let a second role own the tables, name it in MUSTER_OWNER_DATABASE_URL for `manage.py migrate` alone, and give "
    f"DATABASE_URL's role the rights it needs: {GUIDE}"
)


def check_audit(**_: Any) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    if not settings.MUSTER_AUDIT_KEY:
        found.append(
            checks.Warning(
                "The audit trail is signed with the secret key: once that is changed, no row verifies any more.",
                hint="Set MUSTER_AUDIT_KEY to random characters of its own, and name the secret key once in "
                "MUSTER_AUDIT_OLD_KEYS.",
                id="muster.W002",
            )
        )
    if not (settings.MUSTER_AUDIT_CHECKPOINT_FILE or settings.MUSTER_AUDIT_SYSLOG):
        found.append(
            checks.Warning(
                "No checkpoint of the audit trail is kept outside the database: an older trail that is put back is "
                "not found.",
                hint="Name a file in MUSTER_AUDIT_CHECKPOINT_FILE, on a disk that the database's server does not have.",
                id="muster.W003",
            )
        )
    return found
