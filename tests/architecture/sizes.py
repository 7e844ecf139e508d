"""Sizes of functions, classes and folders of the product: `python -m tests.architecture.sizes` prints them."""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("infra", "accounts", "config", "quotas", "scheduler")
#: Nodes that each add a path through a function (McCabe 1976, boolean operators counted one each).
BRANCHES = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert,
    ast.match_case,
)  # fmt: skip


@dataclass(frozen=True)
class Function:
    """One function: `path:line name`, its lines from `def` to its end, and its cyclomatic complexity."""

    where: str
    lines: int
    branches: int


@dataclass(frozen=True)
class Class:
    """One class: `path:line name`, its methods, and the attributes that it sets on `self`."""

    where: str
    methods: int
    attributes: int


def modules() -> list[Path]:
    """The product's modules, without migrations."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if "migrations" not in path.parts)


def functions_of(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", lines, branches_of(node))


def branches_of(function: ast.AST) -> int:
    """Cyclomatic complexity of a function, with what is nested in it."""
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def classes_of(path: Path) -> Iterator[Class]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
            named = {
                one.attr
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and isinstance(one.value, ast.Name)
                and one.value.id == "self"
            }
            yield Class(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", methods, len(named))


def folders() -> Counter[str]:
    """How many modules each folder holds, `__init__` not counted."""
    return Counter(str(path.parent.relative_to(ROOT)) for path in modules() if path.name != "__init__.py")


def percentile(values: list[int], percent: int) -> int:
    """The value below which so many percent of the values lie."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def report() -> str:
    functions = [one for path in modules() for one in functions_of(path)]
    classes = [one for path in modules() for one in classes_of(path)]
    lines, branches = [one.lines for one in functions], [one.branches for one in functions]
    out = [
        f"functions {len(functions)}: lines median {statistics.median(lines):.0f}, p90 {percentile(lines, 90)}, "
        f"p99 {percentile(lines, 99)}, max {max(lines)}",
        f"complexity median {statistics.median(branches):.0f}, p99 {percentile(branches, 99)}, max {max(branches)}",
        *(f"  {one.lines:4} lines  {one.where}" for one in sorted(functions, key=lambda f: -f.lines)[:10]),
        *(
            f"  {one.branches:4} paths  {one.where}"
            for one in sorted(functions, key=lambda f: -f.branches)[:10]
        ),
        *(
            f"  {one.methods:3} methods, {one.attributes:3} attributes  {one.where}"
            for one in sorted(classes, key=lambda c: -(c.methods + c.attributes))[:10]
        ),
        *(f"  {count:3} modules  {folder}" for folder, count in folders().most_common(8)),
    ]
    return "\n".join(out)


if __name__ == "__main__":
    print(report())
