"""Who is at the other end: the one place that decides which peer is a proxy and what it may say of its caller.

Throttles, sign-in, the audit trail, the rule for demo accounts, health, logs and the live socket all ask here.
Servers in front of the application (uvicorn's `proxy_headers`) have to leave the peer as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from django.conf import settings

if TYPE_CHECKING:
    from django.http import HttpRequest

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Client:
    """Where a request comes from, as far as it can be believed."""

    #: The peer, or what trusted proxies say of theirs; empty where there is none, as on a Unix socket.
    address: str
    #: The peer is named in MUSTER_TRUSTED_PROXIES.
    trusted: bool
    #: Something says that it forwards, trusted or not: then a loopback peer is not the person at the machine.
    proxied: bool
    #: TLS up to the first trusted proxy, or to this process.
    secure: bool

    @property
    def is_this_machine(self) -> bool:
        return not self.proxied and is_loopback(self.address)


def client_of(
    peer: str, *, forwarded_for: str = "", forwarded: str = "", proto: str = "", tls: bool = False
) -> Client:
    """The caller behind a peer and its headers.

    Forwarded addresses are read from the right, for only the last ones were written by proxies we trust. A
    header of any other peer, loopback among them, changes nothing but that the peer says it forwards.
    """
    proxies = networks(tuple(getattr(settings, "MUSTER_TRUSTED_PROXIES", ())))
    trusted = _within(peer, proxies)
    address = peer
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    while hops and _within(address, proxies):
        candidate = hops.pop()
        if not is_address(candidate):
            break
        address = candidate
    said = proto.partition(",")[0].strip().lower()
    return Client(
        address=address,
        trusted=trusted,
        proxied=bool(forwarded_for or forwarded),
        secure=said in ("https", "wss") if trusted and said else tls,
    )


def of_request(request: HttpRequest) -> Client:
    """The caller of a request of Django's."""
    meta = request.META
    return client_of(
        str(meta.get("REMOTE_ADDR") or ""),
        forwarded_for=meta.get("HTTP_X_FORWARDED_FOR", ""),
        forwarded=meta.get("HTTP_FORWARDED", ""),
        proto=meta.get("HTTP_X_FORWARDED_PROTO", ""),
        tls=getattr(request, "_get_scheme", lambda: "http")() == "https",
    )


def of_scope(scope: Mapping[str, Any]) -> Client:
    """The caller of a connection as ASGI describes it."""
    given: dict[bytes, list[str]] = {}
    for name, value in scope.get("headers", ()):
        given.setdefault(name, []).append(value.decode("latin1"))
    client = scope.get("client")
    return client_of(
        str(client[0]) if client else "",
        forwarded_for=",".join(given.get(b"x-forwarded-for", ())),
        forwarded=",".join(given.get(b"forwarded", ())),
        proto=",".join(given.get(b"x-forwarded-proto", ())),
        tls=scope.get("scheme") in ("https", "wss"),
    )


@lru_cache(maxsize=16)
def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """The networks of these texts, single addresses among them; raises ValueError for what is none."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts if text.strip())


def is_loopback(address: str) -> bool:
    """Whether the address is this machine itself."""
    return is_address(address) and _plain(address).is_loopback


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _plain(text: str) -> IPv4Address | IPv6Address:
    """An IPv4 address that came in through a socket for both kinds is an IPv4 address."""
    parsed = ip_address(text)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return mapped or parsed


def _within(text: str, proxies: tuple[Network, ...]) -> bool:
    return is_address(text) and any(_plain(text) in network for network in proxies)
