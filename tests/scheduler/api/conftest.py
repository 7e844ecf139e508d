"""What the API's tests stand on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import User
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import Cast, a_token

Api = Callable[..., APIClient]


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


@pytest.fixture
def cast(portal: Portal) -> Cast:
    return portal.cast


@pytest.fixture
def api(portal: Portal) -> Api:
    """`api(person)` is a client with a token of that person; `api(person, "jobs:read")` with that scope."""

    def client(person: User | None = None, *scopes: str, **limits: Any) -> APIClient:
        made = APIClient(raise_request_exception=False)
        if person is not None:
            made.credentials(
                HTTP_AUTHORIZATION=f"Bearer {a_token(person, *(scopes or ('admin',)), **limits)}"
            )
        return made

    return client
