"""Takes secrets out of text that leaves the site: those that are known by value, and what looks like one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from config.settings.declared import SETTINGS

MASK: Final = "[secret]"
#: A shorter value would hide ordinary words.
LEAST_LENGTH: Final = 6
#: Files of a state folder that hold secrets are small.
MOST_FILE_BYTES: Final = 64 * 1024
#: Secrets that libraries read from the environment, not we.
_ENVIRONMENT: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD")
_PATTERNS: Final = (
    re.compile(r"\bmuster_(?:pat|agent|join)_[A-Za-z0-9_-]{4,200}"),
    re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]{4,200}"),
    re.compile(r"(?<=://)[^/\s:@\"']{0,200}:[^/\s@\"']{1,200}(?=@)"),
    re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{4,2000}"),
    re.compile(
        r"(?i)(?<=password\": \")[^\"\n]{1,500}|(?<=secret\": \")[^\"\n]{1,500}|(?<=token\": \")[^\"\n]{1,500}"
    ),
)


class Masker:
    """Replaces each of these values, longest first, and what has the form of a token, key or password.

    A value is known as well in the forms in which JSON and addresses write it.
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= LEAST_LENGTH for form in _forms(value)}
        known = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern in _PATTERNS:
            text = pattern.sub(MASK, text)
        return text


def _forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="", errors="replace")


def site_masker(settings: Any, state: Path | None) -> Masker:
    """A masker that knows the secrets of this site: of its settings and of its state folder."""
    return Masker([*_of_settings(settings), *(_of_state(state) if state is not None else ())])


def _of_settings(settings: Any) -> Iterator[str]:
    for setting in SETTINGS.values():
        if setting.secret:
            yield from _texts(getattr(settings, setting.name, None))
            yield from _texts(os.environ.get(setting.name))
    for name in _ENVIRONMENT:
        yield os.environ.get(name, "")
    yield str(settings.SECRET_KEY)
    for database in settings.DATABASES.values():
        yield str(database.get("PASSWORD") or "")


def _texts(value: Any) -> Iterator[str]:
    for text in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(text, str) and text:
            yield text
            if "://" in text and (password := urlsplit(text).password):
                yield from {password, unquote(password)}


def _of_state(state: Path) -> Iterator[str]:
    """What lies in files that only their owner may read: keys, passwords and tokens, those of agents too."""
    for file in [*state.glob("*"), *state.glob("agents/*/identity.json")]:
        try:
            if not file.is_file() or file.is_symlink() or file.stat().st_mode & 0o077:
                continue
            if file.stat().st_size > MOST_FILE_BYTES:
                continue
            text = file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.startswith("{"):
            yield from _of_json(text)
        else:
            yield from text.splitlines()


def _of_json(text: str) -> Iterator[str]:
    try:
        found = json.loads(text)
    except ValueError:
        return
    for name, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, str) and re.search(r"key|password|secret|token|url", name):
            yield from _texts(value)
