"""Downloads of results, the same for pages and the API: one file with ranges, or the whole folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from infra.db.connections import unit_of_work
from infra.downloads import archive_download, file_download, wanted_range
from scheduler.agent.results.names import BadPath, decode_path
from scheduler.services.results.archives import content_of
from scheduler.services.results.kept import mark_fetched
from scheduler.services.results.reading import Folder, list_entries, open_file, rest_of


def download_file(request: HttpRequest, folder: Folder, path: str) -> HttpResponseBase:
    """One file of a folder that its caller may read, whole or a range of it.

    The first bytes are read before the answer begins, so that what cannot be read is said in words. Raises NodeAway,
    NotFound, Conflict, InvalidInput.
    """
    asked = wanted_range(request, request.headers.get("If-Range", '""').strip('"'))
    begin = asked[0] if asked is not None and asked[0] is not None else 0
    file, first = open_file(folder, path, offset=begin)

    def read(start: int, stop: int) -> Iterator[bytes]:
        if start != begin:
            return rest_of(folder, file, start, stop)
        head = first[: stop - start]
        return itertools.chain([head] if head else [], rest_of(folder, file, start + len(head), stop))

    return file_download(
        request, name=name_of(file.path), size=file.size_bytes, version=file.version, rest_of=read
    )


def download_archive(request: HttpRequest, folder: Folder, kind: str) -> HttpResponseBase:
    """The whole folder as a `tar` or `zip` file; raises NodeAway and NotFound."""
    list_entries(folder, most=1)  # what cannot be read is said before the answer begins
    kept = folder.kept

    def fetched() -> None:
        if kept is not None:
            with unit_of_work():
                mark_fetched(kept.pk)

    name = f"job-{folder.job}-attempt-{folder.epoch}-rank-{folder.rank}"
    return archive_download(content_of(folder, then=fetched), kind=kind, name=name)


def name_of(path: str) -> str:
    """The last name of a path, for a file that is saved; what is no UTF-8 as the list shows it."""
    name = path.rpartition("/")[2]
    try:
        return decode_path(name)[0].decode()
    except (BadPath, IndexError, UnicodeDecodeError):
        return name
