"""The journal survives the process that writes it, and a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.agent.shim import journal
from scheduler.agent.shim.journal import Journal


def test_a_torn_line_says_nothing_and_harms_nothing(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.write_bytes(b'{"a":1}\n{"b":2')

    found = Journal(file)
    found.append({"c": 3})

    assert list(found.replay()) == [{"a": 1}, {"c": 3}]
    found.compact(lambda: [{"d": 4}], now=True)
    found.append({"e": 5})
    assert list(found.replay()) == [{"d": 4}, {"e": 5}]
    found.close()


def test_on_a_full_disk_a_journal_stays_whole_and_nothing_starts_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Journal(tmp_path / "journal.jsonl")
    book.append({"a": 1})
    real = os.write
    monkeypatch.setattr(journal.os, "write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(OSError, match="No space"):
        book.append({"b": 2})
    book.compact(lambda: [{"a": 1}], now=True)
    monkeypatch.undo()

    book.append({"c": 3})

    assert list(book.replay()) == [{"a": 1}, {"c": 3}]
    book.close()
