"""Addresses that a webhook is never sent to, however they are written."""

from __future__ import annotations

import ipaddress

import pytest

from notifications.core.addresses import BadTarget, networks, parse_target, refusal

PORTS = (443, 8443)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
        "169.254.169.254", "fe80::1", "fd00:ec2::254", "fc00::1", "224.0.0.1", "ff02::1", "255.255.255.255",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1",
        "::7f00:1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "168.63.129.16",
        "240.0.0.1", "2001::1", "64:ff9b:1::1", "100.100.100.200",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused(address: str) -> None:
    assert refusal(ipaddress.ip_address(address), allowed=())


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111"])
def test_what_is_public_is_taken(address: str) -> None:
    assert refusal(ipaddress.ip_address(address), allowed=()) == ""


def test_a_site_may_list_networks_of_its_own() -> None:
    allowed = networks(["10.20.0.0/16", "fd12::/16"])

    assert refusal(ipaddress.ip_address("10.20.3.4"), allowed=allowed) == ""
    assert refusal(ipaddress.ip_address("::ffff:10.20.3.4"), allowed=allowed) == ""
    assert refusal(ipaddress.ip_address("fd12::1"), allowed=allowed) == ""
    assert refusal(ipaddress.ip_address("10.21.0.1"), allowed=allowed)
    assert refusal(ipaddress.ip_address("169.254.169.254"), allowed=allowed)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "https"),
        ("file:///etc/passwd", "https"),
        ("example.org/hook", "https"),
        ("https:///path", "https"),
        ("https://user:secret@example.org/", "password"),
        ("https://example.org:22/", "port 22"),
        ("https://example.org:99999/", "cannot be read"),
        ("https://example.org/#x", "#"),
        ("https://example.org/a b", "character"),
        ("https://example.org\\@evil.example/", "character"),
        ("https://ex\u00e4mple.org/", "character"),
        ("https://[::1/", "cannot be read"),
        ("https://example.org/" + "a" * 500, "maximum"),
        ("https://example.org/\r\nHost: other", "character"),
    ],
)
def test_an_address_of_a_wrong_form_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(BadTarget, match=why):
        parse_target(url, ports=PORTS)


def test_an_address_is_taken_apart() -> None:
    found = parse_target("https://Example.org.:8443/hook?key=1", ports=PORTS)

    assert (found.scheme, found.host, found.port, found.path) == ("https", "example.org", 8443, "/hook?key=1")
    assert parse_target("https://[2606:4700::1]/", ports=PORTS).host == "2606:4700::1"
