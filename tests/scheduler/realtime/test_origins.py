"""Which pages may open the live socket: of this scheme, this host and this port, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.realtime.origins import may_open, read_origin


def a_scope(
    origin: str | None, host: str = "testserver:8000", peer: str = "10.0.0.9", **more: str
) -> dict[str, Any]:
    headers = [(b"host", host.encode())]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return {"type": "websocket", "scheme": "ws", "headers": headers, "client": (peer, 4711)}


@pytest.mark.parametrize(
    ("origin", "opens"),
    [
        ("http://testserver:8000", True),
        ("http://TESTSERVER:8000", True),
        ("http://testserver:9000", False),
        ("http://testserver", False),
        ("https://testserver:8000", False),
        ("ws://testserver:8000", False),
        ("http://evil.example:8000", False),
        ("http://testserver:8000.evil.example", False),
        ("http://evil@testserver:8000", False),
        ("http://testserver:8000/", False),
        ("http://testserver:99999", False),
        ("null", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_page_of_the_same_scheme_host_and_port_opens_it(origin: str | None, opens: bool) -> None:
    assert may_open(a_scope(origin)) is opens


@pytest.mark.parametrize(
    ("origin", "host", "opens"),
    [
        ("http://testserver", "testserver", True),
        ("http://testserver:80", "testserver", True),
        ("http://testserver", "testserver:80", True),
        ("http://testserver:8000", "testserver", False),
    ],
)
def test_the_usual_port_need_not_be_written(origin: str, host: str, opens: bool) -> None:
    assert may_open(a_scope(origin, host)) is opens


def test_a_host_that_is_not_ours_opens_nothing_even_for_its_own_pages() -> None:
    assert not may_open(a_scope("http://rebound.example:8000", "rebound.example:8000"))


def test_two_origins_are_none() -> None:
    scope = a_scope("http://testserver:8000")
    scope["headers"].append((b"origin", b"http://evil.example"))

    assert not may_open(scope)


def test_tls_is_believed_from_a_trusted_proxy_only(settings: Any) -> None:
    scope = a_scope("https://testserver", "testserver", x_forwarded_proto="https")
    assert not may_open(scope)
    assert may_open(a_scope("http://testserver", "testserver", x_forwarded_proto="https"))

    settings.MUSTER_TRUSTED_PROXIES = ["10.0.0.0/8"]
    assert may_open(scope)
    assert not may_open(a_scope("http://testserver", "testserver", x_forwarded_proto="https"))


def test_origins_that_are_named_may_open_it(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://portal.example:8443", "https://*.lab.example"]

    assert may_open(a_scope("https://portal.example:8443"))
    assert not may_open(a_scope("https://portal.example"))
    assert may_open(a_scope("https://a.lab.example"))
    assert not may_open(a_scope("http://a.lab.example"))
    assert not may_open(a_scope("https://a.lab.example:444"))
    assert not may_open(a_scope("https://alab.example"))


def test_an_origin_has_three_parts() -> None:
    assert read_origin("https://a.example") == ("https", "a.example", 443)
    assert read_origin("http://[::1]:8000") == ("http", "::1", 8000)
