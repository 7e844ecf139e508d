"""The table of what is tried when something fails: every row has a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/reference/failure-tests.md"
ROWS = [f"T{number:02}" for number in range(1, 41)]


def rows() -> dict[str, list[str]]:
    """By number, the tests that a row of the table names."""
    found: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines():
        if match := re.match(r"\| (T\d\d) \|", line):
            assert match[1] not in found, f"{match[1]} has two rows"
            found[match[1]] = re.findall(r"`(tests/\S+?::\w+)`", line.rsplit("|", 2)[1])
    return found


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def problems(table: dict[str, list[str]]) -> list[str]:
    found = [f"{row} has no test" for row in ROWS if not table.get(row)]
    for row, tests in table.items():
        for test in tests:
            path, _, name = test.partition("::")
            if not (ROOT / path).exists() or name not in functions_of(ROOT / path):
                found.append(f"{row}: there is no {test}")
            elif not name.startswith(f"test_{row.lower()}_"):
                found.append(f"{row}: {test} is not named after it")
    return found


def test_each_row_has_tests_that_exist_and_are_named_after_it() -> None:
    assert problems(rows()) == []


def test_a_test_that_was_renamed_or_is_another_rows_is_noticed() -> None:
    table = rows() | {
        "T01": [],
        "T02": ["tests/nowhere.py::test_t02_x"],
        "T03": [rows()["T03"][0] + "_once"],
        "T04": rows()["T05"],
    }

    assert [line.split(":")[0].split(" ")[0] for line in problems(table)] == ["T01", "T02", "T03", "T04"]
