"""What a name, a label or any other text of one line may hold; every door asks here.

A line feed or an escape sequence in a name writes lines of its own into a terminal and a log; a mark that turns
the direction of writing shows another text than is stored; a mark without width makes two names look alike.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

from infra.errors import FieldProblem, InvalidInput

#: Control characters, marks of format (direction, zero width, tags), separators of lines, halves of surrogates.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
#: Letters and marks by category that show nothing all the same.
_BLANKS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")

#: Fields of a request that may have several lines; all others are one line.
SEVERAL_LINES: Final = frozenset({"command", "script", "env", "description", "yaml"})


def is_hidden(character: str) -> bool:
    """Whether a character cannot be seen where it stands, or changes how others are shown."""
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or character in _BLANKS


def line_problem(text: str) -> str:
    """What keeps a text from being one line that reads as it is stored, or "" when nothing does."""
    if text.isascii() and text.isprintable():
        return ""
    found = next((character for character in text if is_hidden(character)), None)
    if found is None:
        return ""
    what = "a line break" if found in "\n\r\u2028\u2029\x85" else "a character that cannot be seen"
    return f"Contains {what} (U+{ord(found):04X}); remove it."


def lines_problem(text: str) -> str:
    """The same for a text of several lines: line breaks and tabs are fine."""
    return line_problem(text.replace("\r\n", " ").replace("\n", " ").replace("\t", " "))


def without_hidden(text: str) -> str:
    """The text without such characters, for a name that is made from something else."""
    return text if text.isprintable() and text.isascii() else "".join(c for c in text if not is_hidden(c))


def check_line(text: str, field: str) -> None:
    """Raises InvalidInput for a text that is not one plain line."""
    if trouble := line_problem(text):
        message = f"{field.replace('_', ' ').capitalize()}: {trouble[:1].lower()}{trouble[1:]}"
        raise InvalidInput(
            message=message, problems=[FieldProblem(field, trouble, "bad-text")],
            way_out="Correct it and send it again; nothing was written.",
        )  # fmt: skip


def check_lines(**texts: Any) -> None:
    """`check_line` for each of these that is text."""
    for field, text in texts.items():
        if isinstance(text, str):
            check_line(text, field)


def reason_of(text: str, *, most: int) -> str:
    """Why somebody does something, from a form or a query: one line of at most `most` characters."""
    check_line(text, "reason")
    return text.strip()[:most]


def one_line(value: Any) -> None:
    """The same as a validator of Django's forms."""
    if isinstance(value, str) and (trouble := line_problem(value)):
        raise ValidationError(trouble, code="bad-text")


def check_row(row: models.Model) -> None:
    """Raises InvalidInput for a row with a short text that is not one plain line, or such a label."""
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if isinstance(field, models.CharField):
            check_lines(**{field.name: value})
        elif field.name in ("labels", "node_labels") and isinstance(value, dict):
            for item in value.items():
                for text in item:
                    check_lines(**{field.name: text})
