"""Signatures of Standard Webhooks 1.0.0 (https://www.standardwebhooks.com), symmetric scheme v1."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "whsec_"
#: The specification asks for 24 to 64 bytes.
SECRET_BYTES: Final = 32


def secret_of(key: str, endpoint: str, version: int) -> str:
    """The secret of an endpoint in its present form, `whsec_` and base64.

    It is derived (HMAC-SHA256) from the key of the installation and stored nowhere: who reads the tables has none.
    """
    message = f"muster webhook secret, version 1|{endpoint}|{version}".encode()
    return PREFIX + base64.b64encode(hmac.new(key.encode(), message, hashlib.sha256).digest()).decode()


def fingerprint(key: str) -> str:
    """Says which key an endpoint's secret was derived from, without giving the key away."""
    return hmac.new(key.encode(), b"muster webhook key", hashlib.sha256).hexdigest()[:16]


def headers(message_id: str, timestamp: int, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """The three headers of a message; with several secrets, as while one is rotated, a signature by each."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(message_id, timestamp, body, secret) for secret in secrets),
    }


def sign(message_id: str, timestamp: int, body: bytes, secret: str) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id, timestamp and body, joined by full stops."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
