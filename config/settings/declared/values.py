"""Values: the text of a variable as the value of its kind, or a sentence that says what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from config.settings.declared.setting import Setting

_BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class WrongValue(ValueError):
    """A value that a setting does not allow; the message says what it allows."""


def value_of(setting: Setting, text: str) -> Any:
    """The value of this text; raises WrongValue."""
    value = _PARSERS[setting.kind](setting, text)
    if setting.kind == "str" and value and setting.form and not _FORMS[setting.form](value):
        raise WrongValue(allowed(setting))
    return value


def allowed(setting: Setting) -> str:
    """What may be written, as the end of a sentence: "a whole number from 0 to 3600"."""
    choices = ", ".join(setting.choices)
    if setting.kind in ("int", "float"):
        number = "a whole number" if setting.kind == "int" else "a number"
        if setting.unit:
            number += f" of {'seconds' if setting.unit == 's' else setting.unit}"
        if setting.most is None:
            return f"{number}, {setting.least:g} or more"
        return f"{number} from {setting.least:g} to {setting.most:g}"
    if setting.kind == "bool":
        return "true or false"
    if setting.kind == "list":
        items = choices or _ITEM_WORDS[setting.form]
        return f"a list separated by commas, of {items}" if items else "a list separated by commas"
    if setting.kind == "dict":
        return f"name=number, separated by commas; the names are {choices}" if choices else "name=number, ..."
    if setting.or_named_in:
        choices += f", or a name of {setting.or_named_in}"
    return f"one of {choices}" if choices else _FORM_WORDS[setting.form]


_FORM_WORDS: Final[Mapping[str, str]] = {
    "": "a text",
    "url": "an address that begins with http:// or https://",
    "address": "an address such as scheme://user:password@host:port/name",
    "folder": "the absolute path of a folder",
    "code": "a code of three capital letters",
}


_ITEM_WORDS: Final[Mapping[str, str]] = {
    "": "",
    "url": "addresses that begin with http:// or https://",
    "network": "addresses and networks such as 10.0.0.0/8",
    "port": "whole numbers from 1 to 65535",
    "provider": "name=module:Class, each name once, of at most 16 small letters, digits and -, not local, k8s or slurm",
}


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= 65535


def _is_provider(text: str) -> bool:
    name, _, path = text.partition("=")
    if name.strip() in ("local", "k8s", "slurm"):
        return False
    return bool(re.fullmatch(r"[a-z][a-z0-9-]{0,15}", name.strip())) and bool(
        re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", path.strip())
    )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


_FORMS: Final[Mapping[str, Callable[[str], bool]]] = {
    "url": _is_url,
    "address": lambda text: "://" in text,
    "folder": lambda text: text.startswith(("/", "~")),
    "network": _is_network,
    "port": _is_port,
    "provider": _is_provider,
    "code": lambda text: re.fullmatch(r"[A-Z]{3}", text) is not None,
}


def _text(setting: Setting, text: str) -> str:
    if setting.choices and text not in setting.choices:
        raise WrongValue(allowed(setting))
    return text


def _number(setting: Setting, text: str) -> int | float:
    try:
        value: int | float = int(text, 10) if setting.kind == "int" else float(text)
    except ValueError:
        raise WrongValue(allowed(setting)) from None
    if not math.isfinite(value) or not setting.least <= value <= setting.upper:
        raise WrongValue(allowed(setting))
    return value


def _boolean(setting: Setting, text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise WrongValue(allowed(setting))
    return _BOOLEANS[text.strip().lower()]


def _items(setting: Setting, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if setting.choices and not set(items) <= set(setting.choices):
        raise WrongValue(allowed(setting))
    if setting.form and not all(map(_FORMS[setting.form], items)):
        raise WrongValue(allowed(setting))
    if setting.form == "provider" and len(names_in(text)) < len(items):
        raise WrongValue(allowed(setting))
    return items


def names_in(text: str) -> set[str]:
    """The names of a list of `name=...`."""
    return {item.partition("=")[0].strip() for item in text.split(",") if item.strip()}


def _numbers_by_name(setting: Setting, text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = (part.strip() for part in item.partition("="))
        if not equals or name in found or (setting.choices and name not in setting.choices):
            raise WrongValue(allowed(setting))
        found[name] = float(_number(setting, number))
    return found


_PARSERS: Final[Mapping[str, Callable[[Setting, str], Any]]] = {
    "str": _text,
    "int": _number,
    "float": _number,
    "bool": _boolean,
    "list": _items,
    "dict": _numbers_by_name,
}
