"""What people read: retired phrases do not come back in templates, scripts and strings of the product's code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LIST: Final = Path(__file__).with_name("retired_phrases.txt")
PACKAGES: Final = ("accounts", "config", "infra", "quotas", "scheduler", "notifications")
#: Strings that nobody reads: logs, SQL, names of tasks and of metrics.
_NOT_READ: Final = re.compile(r"\b(SELECT|UPDATE|INSERT|FROM|WHERE|JOIN|DELETE|RAISE|CREATE)\b")


def retired() -> dict[str, str]:
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("\t") for line in lines)


def test_every_line_of_the_list_names_what_to_write_instead() -> None:
    assert all(phrase == phrase.lower() and instead for phrase, instead in retired().items())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_string_of_the_code_has_a_retired_phrase(package: str) -> None:
    assert list(found_in(strings_of(ROOT / package))) == []


def test_no_template_has_a_retired_phrase() -> None:
    assert list(found_in(texts_of(ROOT / "templates"))) == []


def test_no_script_has_a_retired_phrase() -> None:
    scripts = sorted((ROOT / "static/js").glob("*.js"))
    texts = (
        (f"{path.name}:{number}", literal)
        for path in scripts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for literal in re.findall(r'"([^"\n]*)"|`([^`\n]*)`', line.split("//")[0])
        for literal in literal
    )

    assert list(found_in(texts)) == []


def test_a_retired_phrase_is_found() -> None:
    assert list(found_in([("a page", "Put  away this notice.")])) == ["a page: “put away”, say dismiss"]


def found_in(texts: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[str]:
    patterns = {phrase: re.compile(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])") for phrase in retired()}
    for where, text in texts:
        plain = " ".join(text.lower().split())
        for phrase, pattern in patterns.items():
            if pattern.search(plain):
                yield f"{where}: “{phrase}”, say {retired()[phrase]}"


def strings_of(package: Path) -> Iterator[tuple[str, str]]:
    """The string literals of a package with a space in them, f-strings with `…` for what is put in."""
    for path in sorted(package.rglob("*.py")):
        if "migrations" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        docstrings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        inside: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                inside |= set(ast.walk(node)) - {node}
                text = "".join(
                    part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"
                    for part in node.values
                )
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node not in docstrings | inside
            ):
                text = node.value
            else:
                continue
            if " " in text and not _NOT_READ.search(text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """What a template shows: its text and the attributes that are read out or shown."""
    for path in sorted(folder.rglob("*.html")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            for shown in re.findall(
                r'(?:placeholder|title|aria-label|data-label|label|hint|alt)="([^"]*)"', line
            ):
                yield where, re.sub(r"{[{%#].*?[}%#]}", " … ", shown)
            without = re.sub(r"{[{%#].*?[}%#]}", " … ", line)
            yield where, re.sub(r"<(?:[^<>\"]|\"[^\"]*\")*>", " | ", without)


#: Where sentences are made that are stored or answered: a time in them is a value, see `infra.times_in_text`.
SENTENCES: Final = (
    "accounts/services",
    "quotas/services",
    "scheduler/core",
    "scheduler/services",
    "scheduler/state",
)
#: Output of commands, which names the zone itself.
_ON_A_TERMINAL: Final = ("scheduler/state/load/history.py",)


@pytest.mark.parametrize("package", SENTENCES)
def test_no_stored_sentence_has_a_time_as_text(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in _ON_A_TERMINAL
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FormattedValue)
        and re.search(r"%[-#]?[HIbBaAp]", ast.unparse(node.format_spec or ast.Constant("")))
    ]

    assert found == []
