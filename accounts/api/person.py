"""The person behind a request of the API."""

from __future__ import annotations

from rest_framework.request import Request

from accounts.models import User


def person(request: Request) -> User:
    """The signed-in user of a request; the permission classes have refused anonymous requests before."""
    assert isinstance(request.user, User)
    return request.user
