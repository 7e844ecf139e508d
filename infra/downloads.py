"""Files as answers: pulled piece by piece as fast as the caller takes them, with ranges, and never shown as a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from infra.archives import Content, archive
from infra.plain_text import without_hidden

#: Of archives, by their kind.
CONTENT_TYPES: Final = {"tar": "application/x-tar", "zip": "application/zip"}

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class PulledResponse(StreamingHttpResponse):
    """An answer whose pieces come from elsewhere, slowly: the server takes one when the last one has been sent.

    The pieces are made outside of the request, in a thread that waits for them. They ask for no rights.
    """


#: Gives the bytes of a file from one offset up to another.
ReadOn = Callable[[int, int], Iterator[bytes]]


def wanted_range(request: HttpRequest, version: str) -> tuple[int | None, int | None] | None:
    """What `Range` asks for: (first, last), (first, None), or (None, number of last bytes); None = all.

    Several ranges at once, and a range of another version of the file (`If-Range`), are all of it, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None or match[0] == "bytes=-":
        return None
    if request.headers.get("If-Range", f'"{version}"') != f'"{version}"':
        return None
    first, last = (int(text) if text else None for text in match.groups())
    if first is not None and last is not None and last < first:
        return None
    return first, last


def file_download(
    request: HttpRequest, *, name: str, size: int, version: str, rest_of: ReadOn
) -> HttpResponseBase:
    """A file of known size, or the range of it that was asked for; 416 for a range that lies outside of it."""
    wanted = wanted_range(request, version)
    start, stop = 0, size
    if wanted is not None:
        first, last = wanted
        if first is None:
            start = max(0, size - (last or 0))
        else:
            start, stop = first, size if last is None else min(size, last + 1)
        if start >= size:
            refused = HttpResponse(status=416, content_type="text/plain")
            refused["Content-Range"] = f"bytes */{size}"
            return refused
    response: HttpResponseBase
    if request.method == "HEAD":
        response = HttpResponse(content_type="application/octet-stream")
    else:
        response = PulledResponse(rest_of(start, stop), content_type="application/octet-stream")
    if wanted is not None:
        response.status_code = 206
        response["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    response["Content-Length"] = str(stop - start)
    response["Accept-Ranges"] = "bytes"
    response["ETag"] = f'"{version}"'
    return as_attachment(response, name)


def archive_download(content: Content, *, kind: str, name: str) -> HttpResponseBase:
    """All of it as one `tar` or `zip` file, which is called `name` and its kind."""
    response = PulledResponse(archive(kind, content), content_type=CONTENT_TYPES[kind])
    return as_attachment(response, f"{name}.{kind}")


def as_attachment(response: HttpResponseBase, name: str) -> HttpResponseBase:
    """Saved under this name, and by no browser taken for a page, whatever is in it."""
    shown = without_hidden(name).replace("/", "_").strip() or "file"
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", shown)[-150:]
    response["Content-Disposition"] = (
        f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(shown[-150:], safe='')}"
    )
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response["Cache-Control"] = "private, no-store"
    return response
