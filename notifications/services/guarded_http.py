"""Sends one POST to an address that somebody chose, without being led anywhere the site has not allowed.

1. The name is resolved once; every address that it has must be allowed.
2. The connection goes to the address that was checked, and TLS asks for the name: a second answer of the name
   server changes nothing (no rebinding).
3. No redirect is followed, no proxy is asked, no cookie or credential is sent.
4. One deadline for all of it, kept by a clock beside it: a receiver that sends a byte a second holds up nobody.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final

from django.conf import settings

from notifications.core.addresses import (
    Address,
    BadTarget,
    Target,
    is_listed,
    networks,
    parse_target,
    refusal,
)

CONNECT_SECONDS: Final = 5.0
TOTAL_SECONDS: Final = 15.0
#: Of an answer nothing but its status matters; so much is read, for the log.
MAX_ANSWER_BYTES: Final = 4096
TOO_MANY: Final = 429
USER_AGENT: Final = "Muster-Webhooks/1"
_ONLY_HTTPS: Final = "must begin with https://; plain http is for networks that the site lists"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it: the status of the receiver, or 0 and why there is none."""

    status: int
    milliseconds: int
    error: str = ""
    #: The address is not allowed: another try would be refused as well.
    refused: bool = False

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_away(self) -> bool:
        """Whether the receiver does not answer, or is broken or overloaded; the next message would fare no better."""
        return not self.refused and (self.status == 0 or self.status >= 500 or self.status == TOO_MANY)


def check_url(url: str) -> Target:
    """The address taken apart; raises BadTarget where its form refuses it. A name is not looked up here."""
    target = parse_target(url, ports=[int(port) for port in settings.MUSTER_WEBHOOK_PORTS])
    if target.scheme == "http" and not settings.MUSTER_WEBHOOK_NETWORKS:
        raise BadTarget(_ONLY_HTTPS)
    try:
        literal = ipaddress.ip_address(target.host)
    except ValueError:
        return target  # a name
    _check(literal, target)
    return target


def resolve(target: Target) -> Address:
    """The address to connect to; raises BadTarget when any address of the name is not allowed, OSError for no name."""
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found))
    for address in addresses:
        _check(address, target)
    return addresses[0]


def _check(address: Address, target: Target) -> None:
    allowed = networks(settings.MUSTER_WEBHOOK_NETWORKS)
    if why := refusal(address, allowed=allowed):
        raise BadTarget(f"leads to an address that is not allowed: {why}")
    if target.scheme == "http" and not is_listed(address, allowed=allowed):
        raise BadTarget(_ONLY_HTTPS)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """Send it once; every failure is an answer."""
    began = time.monotonic()

    def spent() -> int:
        return int((time.monotonic() - began) * 1000)

    try:
        target = check_url(url)
        address = resolve(target)
        status = _send(target, address, body, headers, began + TOTAL_SECONDS)
    except BadTarget as error:
        return Answer(0, spent(), f"The address {error}.", refused=True)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, spent(), _words(error, spent()))
    return Answer(status, spent(), "" if 200 <= status < 300 else f"The receiver answered {status}.")


def _words(error: Exception, milliseconds: int) -> str:
    if milliseconds >= TOTAL_SECONDS * 1000 or isinstance(error, TimeoutError):
        return f"No answer within {milliseconds / 1000:.0f} s."
    if isinstance(error, socket.gaierror):
        return "The name of the host is not known."
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}."[:200]
    return f"{type(error).__name__}: {error}"[:200]


def _send(target: Target, address: Address, body: bytes, headers: Mapping[str, str], until: float) -> int:
    raw = socket.create_connection((str(address), target.port), timeout=CONNECT_SECONDS)
    watch = threading.Timer(max(0.1, until - time.monotonic()), _cut, [raw])
    watch.daemon = True
    watch.start()
    try:
        raw.settimeout(max(0.1, until - time.monotonic()))
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = (
            _trust().wrap_socket(raw, server_hostname=target.host) if target.scheme == "https" else raw
        )
        sent = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Connection": "close",
            **headers,
        }
        connection.request("POST", target.path, body, sent)
        answer = connection.getresponse()
        answer.read(MAX_ANSWER_BYTES)
        return answer.status
    finally:
        watch.cancel()
        _cut(raw)
        raw.close()


@cache
def _trust() -> ssl.SSLContext:
    """The certificate authorities of this machine, read once."""
    return ssl.create_default_context()


def _cut(raw: socket.socket) -> None:
    """End a connection whatever waits on it."""
    with suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)
