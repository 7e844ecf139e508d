"""How a request to the API says whose it is: a bearer token, or the portal's own session."""

from __future__ import annotations

from django.core.cache import cache
from rest_framework.authentication import BaseAuthentication
from rest_framework.authentication import SessionAuthentication as DrfSessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from accounts.models import ApiToken, User
from accounts.services import audit
from accounts.services.tokens import TokenRefused, authenticate_token
from infra import client_address, request_context

REALM = "muster"
#: One row a minute for each address and cause: a program that retries forever must not fill the trail.
QUIET_SECONDS = 60


class TokenNotAccepted(AuthenticationFailed):
    """A 401 that says why, with the same `code` as the service's error."""

    def __init__(self, refusal: TokenRefused) -> None:
        super().__init__(detail=f"{refusal.message} {refusal.way_out}".strip(), code=refusal.code)
        self.code = refusal.code


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer muster_pat_…`; from then on the token's limits narrow every permission."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, plain = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        address = client_address.of_request(request._request).address
        try:
            token = authenticate_token(plain.strip(), address)
        except TokenRefused as refusal:
            _record(refusal, address)
            raise TokenNotAccepted(refusal) from refusal
        request_context.use_token(token)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return f'Bearer realm="{REALM}"'


class SessionAuthentication(DrfSessionAuthentication):
    """The portal's session, CSRF token and all."""

    def authenticate_header(self, request: Request) -> str:
        return f'Bearer realm="{REALM}"'


def _record(refusal: TokenRefused, address: str) -> None:
    thing = refusal.refused[1] if refusal.refused else audit.Thing("apitoken")
    described = audit.describe(thing)  # type: ignore[arg-type]
    if cache.add(f"denied-token:{address}:{refusal.code}:{described.id}", 1, QUIET_SECONDS):
        actor = thing.user if isinstance(thing, ApiToken) else None
        audit.record_denied(by=actor, action="token.use", thing=described, reason=refusal.message)
