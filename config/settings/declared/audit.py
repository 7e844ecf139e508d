"""Keys of the audit trail and where its checkpoints go."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_AUDIT_KEY",
        "str",
        "",
        "Key that signs the audit trail. Empty: the secret key; `make run` creates one in the state folder.",
        secret=True,
    ),
    Setting("MUSTER_AUDIT_OLD_KEYS", "list", [], "Earlier keys, which verify older rows.", secret=True),
    Setting(
        "MUSTER_AUDIT_CHECKPOINT_FILE",
        "str",
        "",
        "File outside the database for signed checkpoints; `make run` uses one in the state folder.",
    ),
    Setting(
        "MUSTER_AUDIT_SYSLOG",
        "str",
        "",
        "System log for checkpoints: `/dev/log` or `host:port` (UDP).",
    ),
)
