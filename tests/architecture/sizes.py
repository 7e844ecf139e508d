"""Sizes of functions, classes and folders of the product, and the list of those that may pass a bound.

`python -m tests.architecture.sizes` prints the measures, the largest of each kind, and what is wrong with the list in
`allowed_sizes.toml`: entries that are missing (as lines to paste; each needs its reason), that have grown, and that are
no longer needed. It exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("infra", "accounts", "config", "quotas", "scheduler", "notifications")
ALLOWED: Final = Path(__file__).with_name("allowed_sizes.toml")
#: Kind -> the largest value that needs no entry in the list.
BOUNDS: Final = {
    "function lines p99": 45,
    "function lines": 80,
    "function complexity": 15,
    "class methods": 25,
    "class attributes": 20,
    "folder modules": 15,
}
#: Nodes that each add a path through a function (McCabe 1976); each `and` and `or` adds another.
BRANCHES: Final = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert,
    ast.match_case,
)  # fmt: skip
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Size:
    """One measure: its kind (a key of `BOUNDS`), where it was taken (`path name` or a folder), and its value."""

    kind: str
    where: str
    value: int

    @property
    def passes_bound(self) -> bool:
        return self.value > BOUNDS[self.kind]


@dataclass(frozen=True)
class Allowed:
    """One entry of the list: a size that may pass its bound up to `value`, and the reason in one sentence."""

    kind: str
    where: str
    value: int
    why: str


def modules(root: Path = ROOT) -> list[Path]:
    """The product's modules, without migrations."""
    found = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return sorted(path for path in found if "migrations" not in path.parts)


def measure(root: Path = ROOT) -> list[Size]:
    """Every size of the product that has a bound."""
    sizes = [size for path in modules(root) for size in sizes_of(path.relative_to(root), path.read_text())]
    lines = [size.value for size in sizes if size.kind == "function lines"]
    folders = Counter(
        path.parent.relative_to(root).as_posix() for path in modules(root) if path.name != "__init__.py"
    )
    sizes += [Size("folder modules", folder, count) for folder, count in folders.items()]
    return [*sizes, Size("function lines p99", "all functions", percentile(lines, 99))]


def sizes_of(path: Path, source: str) -> Iterator[Size]:
    """The sizes of the functions and classes of one module, each under its qualified name."""
    todo: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while todo:
        prefix, parent = todo.pop()
        for node in _scopes_in(parent):
            name = f"{prefix}{node.name}"
            where = f"{path.as_posix()} {name}"
            todo.append((f"{name}.", node))
            if isinstance(node, ast.ClassDef):
                yield Size("class methods", where, sum(isinstance(one, FUNCTIONS) for one in node.body))
                yield Size("class attributes", where, len(attributes_of(node)))
            else:
                yield Size("function lines", where, (node.end_lineno or node.lineno) - node.lineno + 1)
                yield Size("function complexity", where, complexity_of(node))


def _scopes_in(parent: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and classes directly inside a node, also under an `if` or `with`."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _scopes_in(node)


def complexity_of(function: ast.AST) -> int:
    """Cyclomatic complexity of a function, with the functions inside it."""
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What a class keeps in its objects: names assigned on `self`, and the fields of a dataclass that may change."""
    found = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    if any(_is_mutable_dataclass(decorator) for decorator in node.decorator_list):
        found |= {
            one.target.id
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
    return found


def _is_mutable_dataclass(decorator: ast.expr) -> bool:
    words = ast.unparse(decorator)
    return words.startswith("dataclass") and "frozen=True" not in words


def percentile(values: list[int], percent: int) -> int:
    """The value below which `percent` percent of the values lie."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def allowed(path: Path = ALLOWED) -> list[Allowed]:
    """The list. Raises ValueError for an entry of unknown kind or without a reason."""
    entries = []
    for kind, table in tomllib.loads(path.read_text()).items():
        if kind not in BOUNDS:
            raise ValueError(f"{path.name}: there is no bound on {kind!r}")
        for where, entry in table.items():
            if not entry.get("why", "").strip():
                raise ValueError(f"{path.name}: {where} has no reason")
            entries.append(Allowed(kind, where, entry["at_most"], entry["why"]))
    return entries


def missing(sizes: Iterable[Size], entries: Iterable[Allowed]) -> list[Size]:
    """Sizes that pass their bound and have no entry, or have grown since their entry was written."""
    most = {(entry.kind, entry.where): entry.value for entry in entries}
    over = [size for size in sizes if size.passes_bound and size.value > most.get((size.kind, size.where), 0)]
    return sorted(over, key=lambda size: (list(BOUNDS).index(size.kind), -size.value, size.where))


def needless(sizes: Iterable[Size], entries: Iterable[Allowed]) -> list[Allowed]:
    """Entries for something that keeps its bound, or that is no longer there."""
    over = {(size.kind, size.where) for size in sizes if size.passes_bound}
    return [entry for entry in entries if (entry.kind, entry.where) not in over]


def as_entries(sizes: Iterable[Size]) -> str:
    """Sizes as lines of the list, with the reason still to be written."""
    lines, kind = [], ""
    for size in sizes:
        if size.kind != kind:
            kind = size.kind
            lines.append(f'["{kind}"]')
        lines.append(f'"{size.where}" = {{ at_most = {size.value}, why = "" }}')
    return "\n".join(lines)


def report(sizes: list[Size], *, largest: int = 8) -> str:
    """The measures in a few lines, and the largest of each kind."""
    values = {kind: [size.value for size in sizes if size.kind == kind] for kind in BOUNDS}
    lines, paths = values["function lines"], values["function complexity"]
    out = [
        f"functions {len(lines)}: lines median {statistics.median(lines):.0f}, p90 {percentile(lines, 90)}, "
        f"p99 {percentile(lines, 99)}, max {max(lines)}",
        f"complexity median {statistics.median(paths):.0f}, p99 {percentile(paths, 99)}, max {max(paths)}",
        f"classes {len(values['class methods'])}: methods max {max(values['class methods'])}, "
        f"attributes max {max(values['class attributes'])}",
        f"folders {len(values['folder modules'])}: modules max {max(values['folder modules'])}",
    ]
    for kind in BOUNDS:
        some = sorted((size for size in sizes if size.kind == kind), key=lambda size: -size.value)[:largest]
        out += ["", f"{kind}, at most {BOUNDS[kind]}:", *(f"  {size.value:4}  {size.where}" for size in some)]
    return "\n".join(out)


def main() -> int:
    sizes, entries = measure(), allowed()
    absent, spare = missing(sizes, entries), needless(sizes, entries)
    print(report(sizes))
    print(f"\nallowed in {ALLOWED.name}: {len(entries)}")
    for entry in entries:
        print(f"  {entry.kind} {entry.value}: {entry.where}: {entry.why}")
    if absent:
        print(f"\nmissing or grown: {len(absent)}\n{as_entries(absent)}")
    if spare:
        print(f"\nno longer needed: {len(spare)}", *(f"  {one.kind}: {one.where}" for one in spare), sep="\n")
    return 1 if absent or spare else 0


if __name__ == "__main__":
    sys.exit(main())
