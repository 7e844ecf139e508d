"""Where a webhook may connect to: never this machine, private networks or a cloud's metadata, unless listed."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL: Final = 500
#: Global by the registry, but they carry an IPv4 address that is not, or a cloud answers there with credentials.
_NEVER: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2002::/16",
            "2001::/32",
            "::/96",
            "168.63.129.16/32",
            "192.88.99.0/24",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """An address of a webhook, taken apart. `host` is a name or a literal address without brackets."""

    scheme: str
    host: str
    port: int
    path: str


class BadTarget(ValueError):
    """This address is refused; the text says why."""


def parse_target(url: str, *, ports: Collection[int]) -> Target:
    """Take the address of a webhook apart; raises BadTarget where its form alone refuses it."""
    _check_characters(url)
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise BadTarget(f"cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadTarget("must begin with https:// and the name of a host")
    if "@" in parts.netloc:
        raise BadTarget("must not contain a user name or password; the signature proves who sends")
    if parts.fragment:
        raise BadTarget("must not contain #")
    port = port or (443 if parts.scheme == "https" else 80)
    if port not in ports:
        known = ", ".join(map(str, sorted(ports)))
        raise BadTarget(f"uses port {port}; this site allows {known}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host.rstrip("."), port, path)


def _check_characters(url: str) -> None:
    if len(url) > MAX_URL:
        raise BadTarget(f"has {len(url)} characters; the maximum is {MAX_URL}")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadTarget("contains a character that has no place in an address; encode it")


def refusal(address: Address, *, allowed: Sequence[Network]) -> str:
    """Why a resolved address may not be connected to, or "" when it may.

    `allowed` are networks that the site lists although they are not public.
    """
    address = unmapped(address)
    if any(address in network for network in allowed if network.version == address.version):
        return ""
    if any(address in network for network in _NEVER if network.version == address.version):
        return f"{address} stands for another address or a service of a cloud"
    if address.is_loopback or address.is_unspecified:
        return f"{address} is this machine"
    if address.is_link_local:
        return f"{address} is link-local, where clouds answer with credentials"
    if address.is_multicast:
        return f"{address} is multicast"
    if not address.is_global:
        return f"{address} is private or reserved"
    return ""


def is_listed(address: Address, *, allowed: Sequence[Network]) -> bool:
    """Whether the site lists this address as one of its own networks."""
    address = unmapped(address)
    return any(address in network for network in allowed if network.version == address.version)


def unmapped(address: Address) -> Address:
    """The IPv4 address that `::ffff:a.b.c.d` stands for; any other address as it is."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def networks(texts: Collection[str]) -> tuple[Network, ...]:
    """Networks and addresses as a setting lists them; raises ValueError."""
    return tuple(ipaddress.ip_network(text.strip()) for text in texts if text.strip())
