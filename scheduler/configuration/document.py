"""The document: YAML as plain values, each mapping with the lines of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from infra.errors import FieldProblem, InvalidInput

MAX_BYTES: Final = 4 * 1024 * 1024


class Lines(dict[str, Any]):
    """A mapping of the document: where it begins, and in which line each key is (1 = the first)."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        """The line of a key, or of the mapping where the key is not there."""
        return self.lines.get(key, self.line)


def parse(text: str) -> Lines:
    """The document as values; raises InvalidInput that names the line."""
    if len(text.encode()) > MAX_BYTES:
        raise InvalidInput(
            f"The document is longer than {MAX_BYTES // (1024 * 1024)} MiB.", way_out="Apply it in parts."
        )
    try:
        root = yaml.compose(text, Loader=_Loader)
        value = Lines(1) if root is None else _value(root, yaml.SafeLoader(""), depth=0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _wrong(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _wrong(1, f"not YAML: {error}") from None
    if not isinstance(value, Lines):
        raise _wrong(1, "write sections such as `queues:`, each with a list")
    return value


_DEEPEST: Final = 20


class _Loader(yaml.SafeLoader):
    """Without aliases: a short document with aliases of aliases becomes a very long one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias (*name); write the value again", problem_mark=mark)
        return super().compose_node(parent, index)


def _value(node: yaml.Node, loader: yaml.SafeLoader, *, depth: int) -> Any:
    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise _wrong(line, f"more than {_DEEPEST} levels")
    if isinstance(node, yaml.MappingNode):
        found = Lines(line)
        for key, item in node.value:
            at = key.start_mark.line + 1
            name = loader.construct_object(key) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                raise _wrong(at, "a key has to be text")
            if name in found:
                raise _wrong(at, f"{name} is there twice, first in line {found.lines[name]}")
            found.lines[name] = at
            found[name] = _value(item, loader, depth=depth + 1)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, loader, depth=depth + 1) for item in node.value]
    return loader.construct_object(node)


def _wrong(line: int, message: str) -> InvalidInput:
    return InvalidInput(
        f"Line {line}: {message}.",
        code="bad-document",
        way_out="Nothing was changed. Mend the line and apply the document again.",
        problems=[FieldProblem(f"line {line}", message[:1].upper() + message[1:] + ".", "bad-document")],
    )


def items_of(section: Any, name: str, line: int) -> Iterator[Lines]:
    """The entries of a section, each a mapping; raises InvalidInput for another form."""
    if not isinstance(section, list):
        raise _wrong(line, f"{name} has to be a list")
    for item in section:
        if not isinstance(item, Lines):
            raise _wrong(line, f"{name} has to be a list of mappings, such as `- name: ...`")
        yield item


def written(document: dict[str, Any]) -> str:
    """The document as text."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return text
