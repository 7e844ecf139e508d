"""A working folder as the content of one tar or zip file, read from its node as it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from infra.archives import Content, Member
from scheduler.agent.results.names import decode_path
from scheduler.agent.results.requests import PIECE_BYTES
from scheduler.services.results.reading import FileEntry, Folder, all_entries, batches, rest_of, small_files


def content_of(folder: Folder, *, then: Callable[[], None] = lambda: None) -> Content:
    """All files and folders in their order, each with its bytes; `then` is called once all of it was given.

    Links, devices and pipes are left out, as they are for single files.
    """
    for entry, pieces in _contents(folder):
        # Names that are no UTF-8 are written as in the list where they have to be text.
        path = b"/".join(decode_path(entry.path))
        text = entry.path if "\\" in entry.path else path.decode("utf-8", "surrogateescape")
        folder_here = entry.kind == "folder"
        size = 0 if folder_here else entry.size_bytes
        yield Member(path, text, entry.modified_at, size, is_folder=folder_here), pieces
    then()


def _contents(folder: Folder) -> Iterator[tuple[FileEntry, Iterator[bytes]]]:
    """Files and folders in their order, each with its bytes."""
    entries = (entry for entry in all_entries(folder) if entry.kind in ("file", "folder"))
    for batch in batches(entries):
        if batch[0].size_bytes >= PIECE_BYTES:
            yield batch[0], rest_of(folder, batch[0], 0, batch[0].size_bytes)
            continue
        files = [entry for entry in batch if entry.kind == "file" and entry.size_bytes]
        data = dict(zip([file.path for file in files], small_files(folder, files), strict=True))
        for entry in batch:
            yield entry, iter([data[entry.path]] if entry.path in data else [])
