"""Patterns of files: what they match, what they refuse, and that no pattern takes long."""

from __future__ import annotations

import time

import pytest

from scheduler.agent.results.patterns import BadPattern, FilePattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("model.pt", ["model.pt"], ["a/model.pt", "model.pts", "xmodel.pt"]),
        ("./model.pt", ["model.pt"], ["a/model.pt"]),
        ("out/*.csv", ["out/a.csv", "out/.csv"], ["a.csv", "out/a.txt", "out/b/a.csv"]),
        ("out", ["out", "out/a", "out/b/c"], ["outer", "a/out"]),
        ("out/", ["out/a", "out/b/c"], ["outer"]),
        ("**", ["a", "a/b"], []),
        ("**/*.log", ["a.log", "x/a.log", "x/y/a.log"], ["a.logs", "x/a"]),
        ("x/**/z", ["x/z", "x/y/z", "x/y/y/z", "x/z/z/q"], ["z", "x/y", "y/x/z"]),
        ("logs/**", ["logs/a", "logs/a/b"], ["logs", "log/a"]),
        ("run-?.txt", ["run-1.txt", "run-é.txt"], ["run-.txt", "run-12.txt"]),
        ("run-[0-9a].txt", ["run-1.txt", "run-a.txt"], ["run-b.txt", "run--.txt"]),
        ("[!a-c]x", ["dx", "-x"], ["ax", "cx", "x"]),
        ("[]x]", ["]", "x"], ["y"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("a*b*c", ["abc", "axxbyyc", "abbcc"], ["ab", "acb"]),
        ("*", ["a", "a/b"], []),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_it_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    found = FilePattern.of(pattern)

    assert [path for path in matching if not found.matches(path)] == []
    assert [path for path in others if found.matches(path)] == []


@pytest.mark.parametrize(
    "pattern", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "/", "a[b", "x" * 301, "a\0b", "a\nb"]
)
def test_it_refuses(pattern: str) -> None:
    with pytest.raises(BadPattern):
        FilePattern.of(pattern)


def test_no_pattern_takes_long() -> None:
    """A search that goes back for every star would not end here."""
    began = time.perf_counter()
    for pattern, path in (("*a" * 100 + "b", "a" * 250), ("**/a/" * 50 + "b", "a/" * 400 + "a")):
        assert not FilePattern.of(pattern).matches(path)

    assert time.perf_counter() - began < 1
