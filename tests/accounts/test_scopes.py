"""The list of scopes is the one that is written down."""

from __future__ import annotations

import re
from pathlib import Path

from accounts.scopes import SCOPES

PAGE = Path(__file__).parents[2] / "docs/reference/access.md"


def test_the_reference_lists_every_scope_with_the_same_words() -> None:
    rows = dict(re.findall(r"^\| `([a-z:]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))

    assert rows == SCOPES
