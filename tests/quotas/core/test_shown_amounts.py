"""How amounts of bytes are shown: in the units of all other amounts, whatever their size."""

from __future__ import annotations

import pytest

from quotas.core.resources import show_bytes


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1 KiB"), (1500, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"), (3_000_000, "2.9 MiB"), (1024**3, "1 GiB"), (3 * 1024**4, "3 TiB"),
    ],
)  # fmt: skip
def test_bytes_are_shown_in_binary_units(size: int, said: str) -> None:
    assert show_bytes(size) == said
