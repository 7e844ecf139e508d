"""Tests replace parts of the product at its public seams: a private name can be renamed without touching a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Calls that replace an attribute named by a string.
REPLACE = ("setattr", "delattr", "setitem", "object")


def private_names_replaced(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each `monkeypatch.setattr(thing, "_name", …)`, `patch("module._name")` and the like."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if called not in (*REPLACE, "patch"):
            continue
        for argument in node.args[:2]:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                continue
            name = argument.value.rpartition(".")[2]
            if name.startswith("_") and not name.startswith("__"):
                yield node.lineno, name


def test_no_test_replaces_a_private_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_names_replaced(path.read_text())
    ]
    assert found == []


def test_the_check_sees_each_way_to_replace_a_name() -> None:
    source = """
monkeypatch.setattr(shares, "_recount", run)
monkeypatch.setattr("quotas.services.shares._recount", run)
patch.object(shares, "_recount")
patch("quotas.services.shares._recount")
setattr(shares, "_recount", run)
monkeypatch.setattr(shares, "recount", run)
monkeypatch.setattr(shares, "__doc__", "")
"""
    assert [line for line, _ in private_names_replaced(source)] == [2, 3, 4, 5, 6]
