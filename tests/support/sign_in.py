"""A test client signed in by one row of a session, where Django's `force_login` takes eighteen statements."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client
from django.utils.crypto import get_random_string

from accounts.models import User

asked = Client.force_login


def force_login(client: Client, user: User, backend: str | None = None) -> None:
    """Stands in for Client.force_login; a client that has a session goes on with it, as Django lets it."""
    if backend is None or settings.SESSION_COOKIE_NAME in client.cookies:
        asked(client, user, backend)
        return
    session = SessionStore()
    content: dict[str, Any] = {
        SESSION_KEY: user._meta.pk.value_to_string(user),
        BACKEND_SESSION_KEY: backend,
        HASH_SESSION_KEY: user.get_session_auth_hash(),
    }
    key = get_random_string(32)
    session.model.objects.create(
        session_key=key, session_data=session.encode(content), expire_date=session.get_expiry_date()
    )
    client.cookies[settings.SESSION_COOKIE_NAME] = key
    client.cookies[settings.SESSION_COOKIE_NAME].update(
        {"max-age": None, "path": "/", "domain": settings.SESSION_COOKIE_DOMAIN,
         "secure": settings.SESSION_COOKIE_SECURE or None, "expires": None}
    )  # fmt: skip
