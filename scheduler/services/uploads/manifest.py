"""What is in an uploaded folder, as its sender says before the bytes come: checked whole, so that no byte is unpacked.

There is no archive: a manifest has nothing but regular files and folders, so that links, devices and archives that
grow when they are unpacked cannot be said at all. The sizes are known before the first byte is taken.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from infra.errors import FieldProblem, InvalidInput
from quotas.core.resources import MIB, show_mib
from scheduler.agent.protocol import UploadFile, UploadManifest
from scheduler.agent.results.names import BadPath, decode_path, encode_name

MOST_NAME: Final = 200
#: A path within the folder, and one name of it, in bytes: the folder of a task comes before it on a node.
MOST_PATH_BYTES: Final = 1024
MOST_NAME_BYTES: Final = 255
#: Folders within each other.
MOST_DEPTH: Final = 32
#: Problems that one answer names.
_MOST_PROBLEMS: Final = 20
_FILE_FIELDS: Final = frozenset({"path", "size", "executable"})

_Path = tuple[bytes, ...]


def checked_manifest(body: Mapping[str, Any], *, most_mib: int, most_files: int) -> UploadManifest:
    """The manifest of a request, parents before what is in them; raises InvalidInput that names every problem."""
    reading = _Reading(most_files)
    name = reading.name(body.get("name"))
    files = reading.files(body.get("files"))
    folders = reading.folders(body.get("folders", []))
    reading.refuse_unknown("", body, {"name", "files", "folders"})
    reading.check_tree(files.keys(), folders.keys())
    size = sum(one["size"] for one in files.values())
    if most_mib and size > most_mib * MIB:
        reading.wrong(
            "files",
            f"Have {show_mib(-(-size // MIB))} together; an upload has at most {show_mib(most_mib)}.",
            code="too-large",
        )
    if reading.problems:
        raise InvalidInput("The upload is refused.", problems=reading.problems[:_MOST_PROBLEMS])
    parents = {path[:depth] for path in [*files, *folders] for depth in range(1, len(path))}
    all_folders = sorted(parents | set(folders))
    return UploadManifest(
        name=name, size=size, files=[files[path] for path in sorted(files)],
        folders=[_text(path) for path in all_folders], pieces=[],
    )  # fmt: skip


class _Reading:
    def __init__(self, most_files: int) -> None:
        self.problems: list[FieldProblem] = []
        self._most_files = most_files

    def wrong(self, field: str, message: str, *, code: str) -> None:
        self.problems.append(FieldProblem(field, message, code))

    def name(self, given: Any) -> str:
        if not isinstance(given, str) or not given.strip() or len(given) > MOST_NAME:
            self.wrong(
                "name", f"Required: the name of the folder, at most {MOST_NAME} characters.", code="bad-name"
            )
            return ""
        return given.strip()

    def files(self, given: Any) -> dict[_Path, UploadFile]:
        if not isinstance(given, list) or not given:
            self.wrong("files", "Required: a list with at least one file.", code="required")
            return {}
        if len(given) > self._most_files:
            self.wrong(
                "files",
                f"Has {len(given):,} files; an upload has at most {self._most_files:,}.",
                code="too-many",
            )
            return {}
        found: dict[_Path, UploadFile] = {}
        for number, one in enumerate(given):
            at = f"files/{number}"
            if not isinstance(one, Mapping):
                self.wrong(
                    at, 'Must be an object, as {"path": "train.py", "size": 120}.', code="not-an-object"
                )
                continue
            self.refuse_unknown(f"{at}/", one, _FILE_FIELDS)
            size, executable = one.get("size"), one.get("executable", False)
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**53:
                self.wrong(f"{at}/size", "Must be the number of bytes, 0 or more.", code="not-a-number")
            elif not isinstance(executable, bool):
                self.wrong(f"{at}/executable", "Must be true or false.", code="not-a-flag")
            elif path := self._path(f"{at}/path", one.get("path"), known=found):
                found[path] = UploadFile(path=_text(path), size=size, executable=executable)
        return found

    def folders(self, given: Any) -> dict[_Path, None]:
        if not isinstance(given, list) or len(given) > self._most_files:
            self.wrong("folders", f"Must be a list of at most {self._most_files:,} paths.", code="too-many")
            return {}
        found: dict[_Path, None] = {}
        for number, one in enumerate(given):
            if path := self._path(f"folders/{number}", one, known=found):
                found[path] = None
        return found

    def _path(self, at: str, given: Any, *, known: Mapping[_Path, Any]) -> _Path:
        """The names of a path, () for one that is refused."""
        if not isinstance(given, str) or not given:
            self.wrong(at, "Required: a path within the folder.", code="required")
            return ()
        shown = given[:100]
        try:
            path = tuple(decode_path(given))
        except BadPath:
            what = "is absolute" if given.startswith("/") else "does not lead downwards from the folder"
            self.wrong(
                at,
                f"{shown!r} {what}; write for example src/train.py, without .. or //.",
                code="bad-upload-path",
            )
            return ()
        if sum(len(name) + 1 for name in path) > MOST_PATH_BYTES or max(map(len, path)) > MOST_NAME_BYTES:
            self.wrong(
                at,
                f"{shown!r} is longer than {MOST_PATH_BYTES} bytes, or a name of it than {MOST_NAME_BYTES}.",
                code="bad-upload-path",
            )
        elif len(path) > MOST_DEPTH:
            self.wrong(at, f"{shown!r} is deeper than {MOST_DEPTH} folders.", code="bad-upload-path")
        elif _text(path) != given:
            self.wrong(
                at,
                f"{shown!r} has characters that cannot be shown; write their bytes as \\xNN.",
                code="bad-upload-path",
            )
        elif path in known:
            self.wrong(at, f"{shown!r} is there twice; send each file once.", code="same-path")
        else:
            return path
        return ()

    def check_tree(self, files: Collection[_Path], folders: Collection[_Path]) -> None:
        """Refuse a file that is a folder as well, and names that not every file system keeps apart."""
        every = {path[:depth] for path in [*files, *folders] for depth in range(1, len(path) + 1)}
        parents = {path[:-1] for path in every}
        for path in sorted((parents | set(folders)) & set(files)):
            self.wrong("files", f"{_text(path)[:100]!r} is a file and a folder at once.", code="same-path")
        seen: dict[tuple[str, ...], _Path] = {}
        for path in sorted(every):
            other = seen.setdefault(tuple(map(_folded, path)), path)
            if other != path and other[:-1] == path[:-1]:
                self.wrong(
                    "files",
                    f"{_text(other)[:100]!r} and {_text(path)[:100]!r} differ in letter case alone, or in how accents "
                    "are written; rename one.",
                    code="same-path",
                )

    def refuse_unknown(self, under: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
        for name in sorted(map(str, set(given) - set(known)))[:3]:
            message = (
                "An upload has files and folders alone; links are not followed."
                if name in _OTHERS
                else "Unknown."
            )
            self.wrong(f"{under}{name[:60]}", message, code="unknown-field")


#: What somebody may want to say of an entry that is no regular file.
_OTHERS: Final = frozenset({"link", "target", "type", "device", "mode", "linkname"})


def _text(path: _Path) -> str:
    return "/".join(map(encode_name, path))


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFC", name.decode("utf-8", "surrogateescape")).casefold()
