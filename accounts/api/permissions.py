"""Holds tokens to their scopes; what the person behind the token may do is for the services to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import MethodNotAllowed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.models import ApiToken
from accounts.scopes import covers
from accounts.services.audit import Thing
from infra.errors import NotAllowed

if TYPE_CHECKING:
    from rest_framework.views import APIView


class ScopePermission(BasePermission):
    """Signed in, and with a token: that its scopes cover what the view asks for.

    A view says `required_scopes = {"GET": "jobs:read", "POST": "jobs:write"}`; the name of a view set's
    action (`"cancel"`) goes before the method. A method it does not name needs `admin`: forgetting closes. What the
    view has no handler for needs no scope: the answer is 405 for everybody.
    A person signed in with a session has no scopes and needs none.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not (request.user and request.user.is_authenticated):
            return False
        refuse_unsupported(request.method or "GET", view)
        if not isinstance(request.auth, ApiToken):
            return True
        require_scope(request, needed_scope(request.method or "GET", view))
        return True


def require_scope(request: Request, needed: str) -> None:
    """Raise NotAllowed for a token without this scope: for views whose answers are of several."""
    if not isinstance(request.auth, ApiToken) or covers(request.auth.scopes, needed):
        return
    raise NotAllowed(
        f"The token {request.auth.prefix} lacks the scope {needed}.",
        code="scope-missing",
        way_out=f"Create a token with the scope {needed}.",
        extra={"scope": needed},
        refused=("scope", Thing("apitoken", str(request.auth.pk), f"{needed} at {request.path}")),
    )


def refuse_unsupported(method: str, view: Any) -> None:
    """405 for a method that the address does not have: no scope of a token would change that."""
    if method not in view.allowed_methods:
        raise MethodNotAllowed(method)


def needed_scope(method: str, view: Any) -> str:
    """The scope a call needs, `admin` where the view does not say."""
    scopes = getattr(view, "required_scopes", {})
    action = getattr(view, "action", None)
    if action and action in scopes:
        return str(scopes[action])
    if method == "OPTIONS":  # says what the address takes: one of its scopes is enough
        return str(scopes.get("GET") or next(iter(scopes.values()), "admin"))
    return str(scopes.get("GET" if method == "HEAD" else method, "admin"))
