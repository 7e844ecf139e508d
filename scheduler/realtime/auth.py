"""The viewer at a live socket: identified when it opens, and checked again while it is open."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from channels.auth import AuthMiddlewareStack
from django.contrib.sessions.models import Session
from django.db.models import Q
from django.utils import timezone

from accounts.models import ApiToken, Membership, User
from accounts.scopes import covers
from accounts.services.tokens import authenticate_token
from infra.errors import MusterError
from scheduler.realtime.origins import ExactOrigin

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class BrowserOrProgram:
    """Browsers come with a session cookie from a page of the portal; programs with a token in a header.

    A page of another site can make a browser send its cookies but never that header, so the origin is checked
    for the first and means nothing for the second.
    """

    def __init__(self, app: App) -> None:
        self.browser = ExactOrigin(AuthMiddlewareStack(app))
        self.program = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        app = self.browser if bearer_of(scope) is None else self.program
        await app(scope, receive, send)


def bearer_of(scope: Scope) -> str | None:
    """The token a program gave; None when there is no Authorization header."""
    for name, value in scope.get("headers", []):
        if name == b"authorization":
            kind, _, token = value.decode("latin1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
    return None


@dataclass(frozen=True)
class Viewer:
    """A person at a socket, by session or by token, with the rights they had when last asked."""

    user: User
    project_ids: frozenset[int]
    #: Changes whenever what they may see could have changed.
    rights: str
    session_key: str | None = None
    token_id: int | None = None
    #: None means whatever the person may.
    scopes: frozenset[str] | None = None
    only_project_id: int | None = None

    def has_scope(self, scope: str) -> bool:
        return self.scopes is None or covers(self.scopes, scope)

    @property
    def sees_everything(self) -> bool:
        """Operators and auditors look at all projects; a token tied to one project does not."""
        return self.only_project_id is None and (self.user.is_operator or self.user.is_auditor)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says, now, about several viewers at once."""

    users: dict[int, User]
    memberships: dict[int, frozenset[tuple[int, str]]]
    session_keys: frozenset[str]
    tokens: dict[int, ApiToken]


def look_up(user_ids: Collection[int], session_keys: Collection[str], token_ids: Collection[int]) -> Standing:
    """Four queries, however many people are connected."""
    now = timezone.now()
    memberships: dict[int, set[tuple[int, str]]] = {}
    for user_id, project_id, role in Membership.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=now), user__in=user_ids
    ).values_list("user_id", "project_id", "role"):
        memberships.setdefault(user_id, set()).add((project_id, role))
    sessions = Session.objects.filter(session_key__in=session_keys, expire_date__gt=now)
    tokens = ApiToken.objects.filter(pk__in=token_ids, revoked_at__isnull=True, expires_at__gt=now)
    signed_in = sessions.values_list("session_key", flat=True) if session_keys else ()
    return Standing(
        users=User.objects.filter(is_active=True).in_bulk(user_ids),
        memberships={user_id: frozenset(roles) for user_id, roles in memberships.items()},
        session_keys=frozenset(signed_in),
        tokens={token.pk: token for token in tokens} if token_ids else {},
    )


def look_up_all(viewers: Iterable[Viewer]) -> Standing:
    viewers = list(viewers)
    return look_up(
        {viewer.user.pk for viewer in viewers},
        {viewer.session_key for viewer in viewers if viewer.session_key},
        {viewer.token_id for viewer in viewers if viewer.token_id},
    )


def renew(viewer: Viewer, standing: Standing) -> Viewer | None:
    """The same viewer with today's rights; None when they must sign in again.

    That is after a sign-out, an expiry, a revoked token, a disabled account or a changed password.
    """
    user = standing.users.get(viewer.user.pk)
    if user is None:
        return None
    roles = standing.memberships.get(user.pk, frozenset())
    if viewer.token_id is not None:
        token = standing.tokens.get(viewer.token_id)
        return None if token is None else _viewer_of_token(user, token, roles)
    if viewer.session_key not in standing.session_keys or user.password != viewer.user.password:
        return None
    return _viewer_of_session(user, viewer.session_key, roles)


def identify(scope: Scope, address: str) -> Viewer | None:
    """The viewer who opens this socket, or None when nobody valid does."""
    plain = bearer_of(scope)
    if plain is not None:
        try:
            token = authenticate_token(plain, address)
        except MusterError:
            return None
        standing = look_up([token.user_id], [], [token.pk])
        user, found = standing.users.get(token.user_id), standing.tokens.get(token.pk)
        if user is None or found is None:
            return None
        return _viewer_of_token(user, found, standing.memberships.get(user.pk, frozenset()))
    user = scope.get("user")
    session_key = getattr(scope.get("session"), "session_key", None)
    if user is None or not user.is_authenticated or not session_key:
        return None
    standing = look_up([user.pk], [session_key], [])
    if user.pk not in standing.users or session_key not in standing.session_keys:
        return None
    return _viewer_of_session(
        standing.users[user.pk], session_key, standing.memberships.get(user.pk, frozenset())
    )


def _viewer_of_session(user: User, session_key: str | None, roles: frozenset[tuple[int, str]]) -> Viewer:
    return Viewer(
        user=user,
        project_ids=frozenset(project_id for project_id, _ in roles),
        rights=_rights(user, roles),
        session_key=session_key,
    )


def _viewer_of_token(user: User, token: ApiToken, roles: frozenset[tuple[int, str]]) -> Viewer:
    projects = frozenset(project_id for project_id, _ in roles)
    held = copy(user)  # others look at the same person, by session or by another token
    held.held_by = token
    return Viewer(
        user=held,
        project_ids=projects if token.project_id is None else projects & {token.project_id},
        rights=_rights(user, roles, token.project_id, *sorted(token.scopes)),
        token_id=token.pk,
        scopes=frozenset(token.scopes),
        only_project_id=token.project_id,
    )


def _rights(user: User, roles: frozenset[tuple[int, str]], *more: object) -> str:
    """A digest of everything that decides what somebody sees."""
    facts = (user.access_version, user.site_role, user.is_superuser, sorted(roles), *more)
    return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
