"""What a browser may load and run on our pages: our own files, and scripts that carry the page's nonce."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

# No outside host appears anywhere: a cluster portal often lives where there is no internet.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'nonce-{nonce}'",
    "style-src": "'self' 'nonce-{nonce}'",
    "style-src-attr": "'unsafe-inline'",  # the width of a bar is data
    "img-src": "'self' data:",
    "font-src": "'self' data:",
    "connect-src": "'self'",  # 'self' covers the websocket of the same host
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
# The admin theme is built on Alpine, which evaluates its attributes, and on inline scripts.
ADMIN_POLICY = POLICY | {
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
}
ADMIN_PREFIX = "/admin/"
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


def content_policy(path: str, nonce: str) -> str:
    """The content policy of an answer at this path."""
    policy = ADMIN_POLICY if path.startswith(ADMIN_PREFIX) else POLICY
    return "; ".join(f"{name} {value}" for name, value in policy.items()).replace("{nonce}", nonce)


def new_nonce() -> str:
    """What the scripts of one answer carry."""
    return secrets.token_urlsafe(16)


class ContentPolicyMiddleware:
    """Sets the content policy; templates write `nonce="{{ csp_nonce }}"` on an inline script or style."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        nonce = new_nonce()
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", content_policy(request.path, nonce))
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response


def csp_nonce(request: HttpRequest) -> dict[str, Any]:
    """For templates: the nonce of this answer."""
    return {"csp_nonce": SimpleLazyObject(lambda: getattr(request, "csp_nonce", ""))}
