"""How a name and a password become a person."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from accounts.models import User
from infra import client_address


class PasswordBackend(ModelBackend):
    """Django's own, but a demo account opens only from this machine: its password is printed for all."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        person = super().authenticate(request, username=username, password=password, **kwargs)
        if person is not None and person.is_demo and not demo_logins_allowed(request):
            if request is not None:
                request.demo_account_refused = True  # type: ignore[attr-defined]
            return None
        return person


def demo_logins_allowed(request: HttpRequest | None) -> bool:
    """From a loopback address, not through a proxy, and never where the settings say no."""
    if not settings.DEMO_LOGINS_ALLOWED or request is None:
        return False
    return client_address.of_request(request).is_this_machine
