"""Names of files as text: a name on disk is any bytes, JSON and addresses take text.

UTF-8 that can be shown stays as it is. Each other byte is written `\\xNN`, and a backslash `\\\\`, as `ls -b` does:
every name has one text, and every text that `decode_path` takes is one path.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: What no name on Linux is longer than, whole path included.
MAX_PATH_BYTES: Final = 4096
_ESCAPE: Final = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")
#: Controls, separators of lines, marks of direction: what would change how text around it looks.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cn", "Co", "Cs"})


class BadPath(ValueError):
    """The text is no path below a folder."""


def encode_name(name: bytes) -> str:
    """The text of one name."""
    parts = []
    for character in name.decode("utf-8", "surrogateescape"):
        if character == "\\":
            parts.append("\\\\")
        elif unicodedata.category(character) in _HIDDEN:
            parts.extend(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
        else:
            parts.append(character)
    return "".join(parts)


def decode_path(text: str) -> list[bytes]:
    """The names of a path below a folder, outermost first; [] is the folder. Raises BadPath.

    No `..`, no `.`, no empty name, no NUL: what is left can only lead downwards.
    """
    if not text:
        return []
    if len(text) > 4 * MAX_PATH_BYTES:
        raise BadPath("The path is too long.")
    names = [_decode(part) for part in text.split("/")]
    if any(name in (b"", b".", b"..") or b"\0" in name or b"/" in name for name in names):
        raise BadPath("The path has to be inside the working folder.")
    if sum(len(name) + 1 for name in names) > MAX_PATH_BYTES:
        raise BadPath("The path is too long.")
    return names


def _decode(text: str) -> bytes:
    parts: list[bytes] = []
    at = 0
    try:
        while (back := text.find("\\", at)) >= 0:
            parts.append(text[at:back].encode())
            escape = _ESCAPE.match(text, back)
            if escape is None:
                raise BadPath("A backslash in a path is written \\\\, and a byte \\xNN.")
            parts.append(bytes.fromhex(escape[1]) if escape[1] else b"\\")
            at = escape.end()
        parts.append(text[at:].encode())
    except UnicodeEncodeError as error:
        raise BadPath("The path is not text.") from error
    return b"".join(parts)
