"""Answers what the server asks about files of a job: a page of the list, or pieces of files; all may come twice."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from scheduler.agent.protocol import FileAnswer
from scheduler.agent.results.folder import Entry, Unreadable, list_files, opened, read_piece
from scheduler.agent.results.kept import KeptFolders
from scheduler.agent.results.names import BadPath

#: What one answer carries at most: in base64 it still goes over the stream.
PIECE_BYTES: Final = 256 * 1024
#: Entries of a page of the list.
MOST_ENTRIES: Final = 500
#: Files of which one request reads.
MOST_READS: Final = 256


def answer(kept: KeptFolders, request: Mapping[str, Any]) -> FileAnswer:
    """The answer to a request; one that cannot be met says why."""
    number = str(request.get("id", ""))
    try:
        whose = int(request["job"]), int(request["epoch"]), int(request["rank"])
        found = kept.folder_of(*whose, int(request.get("task", 0)))
        with opened(found) as folder:
            if request.get("op") == "list":
                return _list(number, folder, request)
            if request.get("op") == "read":
                return _read(number, folder, request)
        return FileAnswer(id=number, code="unknown", text="The node's agent is too old for that.")
    except (Unreadable, BadPath) as error:
        return FileAnswer(id=number, code=getattr(error, "code", "refused"), text=str(error))
    except (KeyError, TypeError, ValueError):
        return FileAnswer(id=number, code="refused", text="The request cannot be read.")
    except OSError as error:
        return FileAnswer(id=number, code="refused", text=f"The folder cannot be read: {error.strerror}.")


def _list(number: str, folder: int, request: Mapping[str, Any]) -> FileAnswer:
    most = max(1, min(int(request.get("most", MOST_ENTRIES)), MOST_ENTRIES))
    path, after = str(request.get("path", "")), str(request.get("after", ""))
    entries, more = list_files(folder, path=path, after=after, most=most)
    return FileAnswer(id=number, entries=[list(entry) for entry in entries], more=more)


def _read(number: str, folder: int, request: Mapping[str, Any]) -> FileAnswer:
    """Pieces of files, [path, offset, length, version] each, until the answer is full; the rest is asked for again."""
    left = PIECE_BYTES
    pieces: list[list[Any]] = []
    for path, offset, length, version in request["files"][:MOST_READS]:
        entry, data = _piece(folder, str(path), int(offset), min(int(length), left), str(version))
        pieces.append([list(entry), base64.b64encode(data).decode()])
        left -= len(data)
        if left <= 0:
            break
    return FileAnswer(id=number, pieces=pieces)


def _piece(folder: int, path: str, offset: int, length: int, version: str) -> tuple[Entry, bytes]:
    if offset < 0 or length < 0:
        raise ValueError("a piece begins and ends within its file")
    return read_piece(folder, path, offset=offset, length=length, version=version)
