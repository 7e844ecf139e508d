"""Every environment variable that Muster reads: name, type, default, unit and meaning; one module for each subject.

The settings files read through `read`; `manage.py settings_reference` writes docs/reference/settings.md from `GROUPS`.
"""

from __future__ import annotations

from typing import Any, Final

import environ

from config.settings.declared import (
    audit,
    database,
    nodes,
    notifications,
    portal,
    quota_providers,
    quotas,
    requests,
    retention,
    scheduling,
    sign_in,
    storage,
)
from config.settings.declared.setting import Setting

__all__ = ["GROUPS", "SETTINGS", "Setting", "read"]

#: The sections of the reference, in its order.
GROUPS: Final[tuple[tuple[str, tuple[Setting, ...]], ...]] = (
    ("Portal and processes", portal.SETTINGS),
    ("Database and broker", database.SETTINGS),
    ("Requests", requests.SETTINGS),
    ("Sign-in", sign_in.SETTINGS),
    ("Audit trail", audit.SETTINGS),
    ("Scheduling", scheduling.SETTINGS),
    ("Nodes and logs", (*nodes.SETTINGS, *storage.SETTINGS)),
    ("Fair share, quota and ledger", (*quotas.SETTINGS, *notifications.SETTINGS)),
    ("Quota providers", quota_providers.SETTINGS),
    ("Retention", retention.SETTINGS),
)

SETTINGS: Final[dict[str, Setting]] = {one.name: one for _, group in GROUPS for one in group}

_env = environ.Env()


def read(name: str, default: Any = None) -> Any:
    """The value of a declared variable in the environment, or its default; `default` replaces a computed one."""
    setting = SETTINGS[name]
    fallback = setting.default if setting.default is not None else default
    if setting.kind == "dict":
        return _env.dict(name, cast={"value": float}, default=fallback)
    return getattr(_env, setting.kind)(name, default=fallback)
