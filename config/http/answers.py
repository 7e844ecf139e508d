"""What answers of the API carry beside their bodies: limits of requests, ETags of reads, compression.

Only answers to requests with a bearer token are compressed. A browser adds its cookies to requests that another site
makes, and from the sizes of compressed answers such a site could guess secrets in them (BREACH); it never adds a token.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import patch_vary_headers
from django.utils.http import parse_etags

from infra.api.problems import API_PREFIX

#: Smaller answers are sent as they are: they fit into one packet.
LEAST_BYTES: Final = 1_024
#: Of zlib: lists of jobs repeat themselves, so that a low level finds most of it.
LEVEL: Final = 3
#: What `config.http.rates.Throttle` leaves in a request for its answer.
RATE_HEADERS: Final = "rate_headers"


class AnswersMiddleware:
    """Completes answers below /api/; streams are left as they are."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not request.path.startswith(API_PREFIX):
            return response
        for name, value in getattr(request, RATE_HEADERS, {}).items():
            response[name] = value
        if response.streaming or "Content-Encoding" in response:
            return response
        if request.method in ("GET", "HEAD") and response.status_code == 200:
            response = _unless_known(request, response)
        return _compressed(request, response)


def _unless_known(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """304 where the caller has this body already.

    An ETag that a view has set says which version of the editable fields it shows: it is for `If-Match`, and stays the
    same while other figures of the answer change. Such answers are always sent.
    """
    if "ETag" in response or "no-store" in response.get("Cache-Control", "") or not _is_json(response):
        return response
    tag = f'W/"{blake2b(response.content, digest_size=12).hexdigest()}"'
    response["ETag"] = tag
    response.setdefault("Cache-Control", "private, no-cache")
    wanted = request.headers.get("If-None-Match", "").strip()
    if wanted != "*" and tag not in parse_etags(wanted):
        return response
    same = HttpResponseNotModified()
    for name, value in response.items():
        if name not in ("Content-Type", "Content-Length"):
            same[name] = value
    same.cookies = response.cookies
    return same


def _compressed(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if not _by_token(request) or not _is_json(response):
        return response
    patch_vary_headers(response, ["Accept-Encoding"])
    small = len(response.content) < LEAST_BYTES
    if (
        small
        or request.method == "HEAD"
        or "no-store" in response.get("Cache-Control", "")
        or not _takes(request)
    ):
        return response
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # | 16: with gzip's header
    response.content = packer.compress(response.content) + packer.flush()
    response["Content-Encoding"] = "gzip"
    response["Content-Length"] = str(len(response.content))
    return response


def _takes(request: HttpRequest) -> bool:
    """Whether `Accept-Encoding` lists gzip, and not with the weight 0."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _by_token(request: HttpRequest) -> bool:
    return request.headers.get("Authorization", "").lower().startswith("bearer ")


def _is_json(response: Any) -> bool:
    return bool(response.get("Content-Type", "").partition(";")[0].endswith("json"))
