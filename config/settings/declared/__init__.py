"""Every environment variable that Muster reads: name, type, default, unit and meaning; one module for each subject.

The settings files read through `read`; `manage.py settings_reference` writes docs/reference/settings.md from `GROUPS`.
No module here needs Django: the supervisor checks the same declarations before it starts a process.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

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
from config.settings.declared.values import WrongValue, allowed, names_in, value_of
from config.settings.settings_file import SettingsFile, settings_file, take

__all__ = [
    "GROUPS", "REFUSED", "SETTINGS", "Setting", "WrongValue", "allowed", "file_of_settings", "mistyped", "problems",
    "read", "set_here", "source_of",
]  # fmt: skip

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

#: Names that nothing here honours, and what to do instead: a start with one of them ends.
REFUSED: Final[dict[str, str]] = {
    "MUSTER_AUDIT_S3_BUCKET": "Muster writes no checkpoints of the audit trail to S3. Name a file in "
    "MUSTER_AUDIT_CHECKPOINT_FILE on a disk that copies to a bucket with object lock, or a system log in "
    "MUSTER_AUDIT_SYSLOG",
}

#: Settings that act only with packages that not every installation has: the package, and the lock file with it.
EXTRAS: Final[dict[str, tuple[str, str]]] = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("opentelemetry.exporter.otlp.proto.http", "requirements-tracing.txt"),
}

#: How alike, from 0 to 1, a variable is to a setting that it is taken for.
_ALIKE: Final = 0.85


@cache
def file_of_settings() -> SettingsFile:
    """The settings file of this process, whose values are in its environment from the first call on."""
    found = settings_file(os.environ, SETTINGS)
    take(found, os.environ)
    return found


def read(name: str, default: Any = None) -> Any:
    """The value of a declared variable in the environment or the settings file, or its default.

    `default` replaces a computed one. Raises WrongValue, with a sentence that names the variable.
    """
    setting = SETTINGS[name]
    text = _text(setting)
    if text is None:
        return setting.default if setting.default is not None else default
    try:
        return _value_of(setting, text)
    except WrongValue:
        raise WrongValue(_sentence(setting, text)) from None


def source_of(name: str) -> str:
    """Where the value comes from: "environment", "FILE, line N" or "default"."""
    if _text(SETTINGS[name]) is None:
        return "default"
    file = file_of_settings()
    line = file.values.get(name)
    # A child process has the values of the file in its environment.
    return f"{file.path}, line {line.line}" if line and os.environ[name] == line.text else "environment"


def set_here() -> frozenset[str]:
    """The names of all settings that the environment or the settings file sets."""
    return frozenset(name for name in SETTINGS if source_of(name) != "default")


def problems() -> list[str]:
    """A sentence for each thing that is wrong with the settings of this process; empty: it may start."""
    found = list(file_of_settings().problems)
    for setting in SETTINGS.values():
        text = _text(setting)
        if text is not None:
            try:
                _value_of(setting, text)
            except WrongValue:
                found.append(_sentence(setting, text))
    found += [f"{name} is set: {instead}." for name, instead in REFUSED.items() if os.environ.get(name)]
    return found + _missing_packages()


def _missing_packages() -> list[str]:
    """A sentence for each setting that needs an extra that is not installed."""
    return [
        f"{name} is set, and the package {package} is not installed. Install it: "
        f"{sys.executable} -m pip install --require-hashes -r {extra}."
        for name, (package, extra) in EXTRAS.items()
        if os.environ.get(name) and not _is_installed(package)
    ]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def mistyped() -> dict[str, str]:
    """Variables that are no settings and look like one; of each the setting that may be meant."""
    names = [name for name in os.environ if name.startswith("MUSTER_") and name not in (*SETTINGS, *REFUSED)]
    alike = {name: get_close_matches(name, SETTINGS, 1, _ALIKE) for name in sorted(names)}
    return {name: found[0] for name, found in alike.items() if found}


def _text(setting: Setting) -> str | None:
    """The text of a variable; an empty one leaves everything but a text, a list or a map at its default."""
    file_of_settings()
    text = os.environ.get(setting.name)
    if text is None or (not text.strip() and setting.kind not in ("str", "list")):
        return None
    return None if not text and setting.choices else text


def _value_of(setting: Setting, text: str) -> Any:
    """The value; also one of the names that another setting gives. Raises WrongValue."""
    if setting.or_named_in and text in names_in(_text(SETTINGS[setting.or_named_in]) or ""):
        return text
    return value_of(setting, text)


def _sentence(setting: Setting, text: str) -> str:
    shown = "a secret" if setting.secret else repr(text if len(text) <= 100 else text[:100] + "...")
    source = source_of(setting.name)
    where = "" if source == "environment" else f" ({source})"
    return f"{setting.name} is {shown}{where}. Allowed: {allowed(setting)}."
