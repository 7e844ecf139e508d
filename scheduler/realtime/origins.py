"""From which pages a browser may open the live socket: those of the very origin it is served from, port and all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from infra import client_address

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
#: Scheme, host in small letters, port.
Origin = tuple[str, str, int]

_PORTS: Final = {"http": 80, "https": 443}


class ExactOrigin:
    """Passes on what comes from a page of this origin, or of one named in MUSTER_TRUSTED_ORIGINS; denies the rest."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        app: Any = self.app if may_open(scope) else WebsocketDenier()
        await app(scope, receive, send)


def may_open(scope: Scope) -> bool:
    """Whether the page that asks is one of ours. A scheme, a host or a port that differs makes it another site."""
    given = _header(scope, b"origin")
    origin = read_origin(given) if given is not None else None
    if origin is None:
        return False
    return origin == own_origin(scope) or any(
        _is_like(origin, text) for text in settings.CSRF_TRUSTED_ORIGINS
    )


def own_origin(scope: Scope) -> Origin | None:
    """Where the socket is: the Host it was asked under, with TLS as trusted proxies say; None for no host of ours."""
    host = _header(scope, b"host")
    if not host or not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        return None
    return read_origin(f"{'https' if client_address.of_scope(scope).secure else 'http'}://{host}")


def read_origin(text: str) -> Origin | None:
    """The parts of an Origin; None for `null` and whatever else is none."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path or parts.query or parts.fragment:
        return None
    if parts.username is not None or parts.password is not None:
        return None
    return parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port


def _is_like(origin: Origin, trusted: str) -> bool:
    """`https://portal.example`, or `https://*.example` for all hosts below."""
    scheme, _, rest = trusted.partition("://")
    wild = rest.startswith("*.")
    known = read_origin(f"{scheme}://{rest.removeprefix('*.')}")
    if known is None or (origin[0], origin[2]) != (known[0], known[2]):
        return False
    return is_same_domain(origin[1], f".{known[1]}") if wild else origin[1] == known[1]


def _header(scope: Scope, wanted: bytes) -> str | None:
    """The one header of this name; None where there is none, or several that contradict each other."""
    found = {value.decode("latin1").strip() for name, value in scope.get("headers", ()) if name == wanted}
    return found.pop() if len(found) == 1 else None
