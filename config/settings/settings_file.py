"""The settings file: the same names as in the environment, in YAML; a variable of the environment comes first."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from config.settings.declared.setting import Setting
from config.settings.declared.values import allowed

if TYPE_CHECKING:
    from yaml.nodes import Node

VARIABLE: Final = "MUSTER_SETTINGS_FILE"
#: Read where the variable is not set and this file is there.
DEFAULT: Final = Path("/etc/muster/muster.yaml")


class FileValue(NamedTuple):
    """One line of the file: the text that a variable would have, and where it is written."""

    text: str
    line: int


class SettingsFile(NamedTuple):
    """What a file says, and what is wrong with it."""

    path: Path | None
    values: Mapping[str, FileValue]
    problems: tuple[str, ...]


NO_FILE: Final = SettingsFile(None, {}, ())


def settings_file(environment: Mapping[str, str], settings: Mapping[str, Setting]) -> SettingsFile:
    """The file that MUSTER_SETTINGS_FILE names, else /etc/muster/muster.yaml where that is; an empty name: none."""
    named = environment.get(VARIABLE)
    if named is None and not DEFAULT.exists():
        return NO_FILE
    if named == "":
        return NO_FILE
    path = Path(named).expanduser() if named else DEFAULT
    try:
        body = path.read_text()
        readable_by_all = bool(path.stat().st_mode & 0o004)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return SettingsFile(path, {}, (f"The settings file {path} cannot be read: {why}.",))
    return _read(path, body, settings, readable_by_all=readable_by_all)


def take(found: SettingsFile, environment: MutableMapping[str, str]) -> None:
    """Put what the file says into the environment, where that does not say otherwise: child processes have it too."""
    for name, value in found.values.items():
        environment.setdefault(name, value.text)


def _read(path: Path, body: str, settings: Mapping[str, Setting], *, readable_by_all: bool) -> SettingsFile:
    import yaml  # only where there is a file: the supervisor stays small without

    try:
        root = yaml.compose(body, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        return SettingsFile(path, {}, (f"{where}: not YAML: {getattr(error, 'problem', None) or error}.",))
    if root is None:
        return SettingsFile(path, {}, ())
    if not isinstance(root, yaml.MappingNode):
        return SettingsFile(path, {}, (f"{path}: write one `NAME: value` on each line.",))
    values: dict[str, FileValue] = {}
    problems: list[str] = []
    for key, node in root.value:
        name, line = str(key.value), key.start_mark.line + 1
        text = _text_of(node)
        problem = _problem(name, text, settings, readable_by_all=readable_by_all) or _wrong_shape(
            node, settings[name]
        )
        if name in values:
            problem = f"{name} is there twice, first in line {values[name].line}. Remove one of the lines."
        if problem:
            problems.append(f"{path}, line {line}: {problem}")
        elif text is not None:
            values[name] = FileValue(text, line)
    return SettingsFile(path, values, tuple(problems))


def _problem(name: str, text: str | None, settings: Mapping[str, Setting], *, readable_by_all: bool) -> str:
    """What is wrong with a name, or with a value that has no text; "" where that is nothing."""
    setting = settings.get(name)
    if setting is None or setting.internal or name == VARIABLE:
        near = get_close_matches(name, settings, 1, 0.7)
        return f"there is no setting {name}." + (f" Do you mean {near[0]}?" if near else "")
    if text is None:
        return f"{name} has a value that is neither text, number, list of texts, nor map of numbers."
    if setting.secret and readable_by_all:
        return f"{name} is a secret, and every account of this machine can read the file. Run chmod o-r on the file."
    return ""


def _wrong_shape(node: Node, setting: Setting) -> str:
    """What is wrong with a list or a map that is no value of this setting; "" where that is nothing.

    A list of one item has the same text as the item, so that the value's own check would take it.
    """
    import yaml

    if isinstance(node, yaml.SequenceNode) and setting.kind != "list":
        return (
            f"{setting.name} has a list as its value. Allowed: {allowed(setting)}. "
            "Write the value alone, without [ ]."
        )
    if isinstance(node, yaml.MappingNode) and setting.kind != "dict":
        return f"{setting.name} has a map as its value. Allowed: {allowed(setting)}."
    return ""


def _text_of(node: Node) -> str | None:
    """The value as it would be written in the environment; None for what has no such form."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        items = [
            item.value for item in node.value if isinstance(item, yaml.ScalarNode) and "," not in item.value
        ]
        return ",".join(items) if len(items) == len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        pairs = [(key.value, item.value) for key, item in node.value if isinstance(item, yaml.ScalarNode)]
        return ",".join(f"{key}={item}" for key, item in pairs) if len(pairs) == len(node.value) else None
    return None
