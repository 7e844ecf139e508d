"""Issues, checks and revokes API tokens; the secret is seen once, by the person who asked for it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import permissions
from accounts.models import ApiToken, Project, User
from accounts.scopes import SCOPES, implied
from accounts.services import audit
from infra import client_address, request_context
from infra.db import prepared
from infra.db.row_loader import RowLoader
from infra.errors import FieldProblem, InvalidInput, MusterError, NotAllowed
from infra.plain_text import check_line
from infra.times_in_text import written

DEFAULT_DAYS: Final = 90
MAX_DAYS: Final = 365
#: How often a token in use is marked as such: a write for each request would be a write for each read.
LAST_USED_SECONDS: Final = 60

PREFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
SECRET_LETTERS: Final = PREFIX_LETTERS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PREFIX_LENGTH: Final = 10
SECRET_LENGTH: Final = 40  # 238 bits: a plain SHA-256 of it cannot be guessed back
SHAPE: Final = re.compile(rf"muster_pat_([a-z0-9]{{{PREFIX_LENGTH}}})_([A-Za-z0-9]{{{SECRET_LENGTH}}})")


class TokenRefused(MusterError):
    """The token does not sign anybody in; `code` says whether it is unknown, expired, revoked or disabled."""


#: More than there are.
MOST_SCOPES: Final = 40


def issue_token(
    *,
    user: User,
    by: User,
    name: str,
    scopes: Iterable[str],
    days: int = DEFAULT_DAYS,
    project: Project | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for a person; answers its row and the plain token, which is nowhere else.

    A token that makes a token gives away no more than it has: no further scope, no other project.
    """
    scopes = list(dict.fromkeys(scopes))
    _check(name=name, scopes=scopes, days=days)
    name = name.strip()
    permissions.require(by, "edit", user)
    if project is not None:
        permissions.require(user, "view", project)
    _refuse_escalation(by, scopes, project)

    prefix = "".join(secrets.choice(PREFIX_LETTERS) for _ in range(PREFIX_LENGTH))
    secret = "".join(secrets.choice(SECRET_LETTERS) for _ in range(SECRET_LENGTH))
    plain = f"muster_pat_{prefix}_{secret}"
    with transaction.atomic():
        token = ApiToken.objects.create(
            user=user,
            name=name,
            prefix=prefix,
            digest=_digest(plain),
            scopes=scopes,
            project=project,
            expires_at=timezone.now() + timedelta(days=days),
        )
        audit.record(
            by=by,
            action="token.issue",
            thing=token,
            after={
                "for": user.username,
                "scopes": scopes,
                "expires_at": token.expires_at,
                "project": project,
            },
        )
    return token, plain


@transaction.atomic
def revoke_token(*, token: ApiToken, by: User, reason: str = "") -> ApiToken:
    """End a token at once; revoking one that has been revoked changes nothing."""
    permissions.require(by, "revoke", token)
    now = timezone.now()
    if ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now):
        token.revoked_at = now
        audit.record(
            by=by, action="token.revoke", thing=token, after={"for": token.user.username}, reason=reason
        )
    else:
        token.refresh_from_db(fields=["revoked_at"])
    return token


def authenticate_token(plain: str, address: str = "") -> ApiToken:
    """The token behind a plain one, with its person; raises TokenRefused otherwise.

    Only a caller who knows the secret learns why a token is refused.
    """
    (found,) = authenticate_tokens([(plain, address)])
    if isinstance(found, TokenRefused):
        raise found
    return found


def authenticate_tokens(
    shown: Sequence[tuple[str, str]], *, kept: KeptTokens | None = None
) -> list[ApiToken | TokenRefused]:
    """The same for several plain tokens and the addresses they come from, looked up together.

    Their rows are read each time, so that a token ends at once; objects of unchanged rows may be `kept`.
    """
    statement = tokens_statement([plain for plain, _ in shown])
    return authenticate_found(shown, prepared.ask(*statement) if statement[1][0] else [], kept=kept)


def tokens_statement(shown: Sequence[str]) -> prepared.Statement:
    """What reads the rows of these plain tokens; `authenticate_found` takes the answer."""
    return _by_prefix()[0], [list({prefix for plain in shown if (prefix := _prefix(plain))})]


def authenticate_found(
    shown: Sequence[tuple[str, str]], rows: prepared.Rows, *, kept: KeptTokens | None = None
) -> list[ApiToken | TokenRefused]:
    """`authenticate_tokens` with the rows that `tokens_statement` has found just now."""
    tokens = _read(rows, kept)
    found: list[ApiToken | TokenRefused] = []
    for plain, address in shown:
        try:
            found.append(_admitted(plain, tokens.get(_prefix(plain)), address))
        except TokenRefused as refused:
            found.append(refused)
    return found


def _prefix(plain: str) -> str:
    """The prefix of a plain token; "" of what has not the form of one."""
    match = SHAPE.fullmatch(plain)
    return match[1] if match else ""


def _admitted(plain: str, token: ApiToken | None, address: str) -> ApiToken:
    # Compare in constant time, and compare something when there is no such row.
    if not hmac.compare_digest(_digest(plain), token.digest if token else "-" * 64) or token is None:
        raise TokenRefused("Unknown token.", code="token-unknown", way_out=WAY_OUT, status=401)
    _refuse_ended(token)
    _mark_used(token, address)
    return token


#: Prefix -> a row as it was read, and the token that was made of it.
KeptTokens = dict[str, tuple[Sequence[Any], ApiToken]]
MOST_KEPT: Final = 500


def kept_token(plain: str, kept: KeptTokens) -> ApiToken | None:
    """The object that was made of this token's row when it was read last; it may have ended since."""
    found = kept.get(_prefix(plain))
    return found[1] if found else None


def _read(rows: prepared.Rows, kept: KeptTokens | None) -> dict[str, ApiToken]:
    """Tokens with their people and projects, by prefix."""
    _, tokens, users, projects = _by_prefix()
    found: dict[str, ApiToken] = {}
    for row in rows:
        prefix = row[-1]
        before = kept.get(prefix) if kept is not None else None
        if before is not None and before[0] == row:
            found[prefix] = before[1]
            continue
        token, user = tokens.read(row), users.read(row, tokens.width)
        assert token is not None
        assert user is not None  # a token has a person, by its foreign key
        token.user = user
        token.project = projects.read(row, tokens.width + users.width)
        found[prefix] = token
        if kept is not None:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[prefix] = (row, token)
    return found


@cache
def _by_prefix() -> tuple[str, RowLoader[ApiToken], RowLoader[User], RowLoader[Project]]:
    """The statement that finds tokens with their people and projects, and who reads its columns."""
    tokens, users, projects = RowLoader(ApiToken, "t"), RowLoader(User, "u"), RowLoader(Project, "p")
    sql = f"""
        SELECT {tokens.columns}, {users.columns}, {projects.columns}, t.prefix
          FROM accounts_apitoken t
          JOIN accounts_user u ON u.id = t.user_id
          LEFT JOIN accounts_project p ON p.id = t.project_id
         WHERE t.prefix = ANY(%s)
        """  # noqa: S608  nothing but names of columns
    return sql, tokens, users, projects


WAY_OUT: Final = "Create a new one under Tokens in the portal, or with `manage.py token`."


def _refuse_ended(token: ApiToken) -> None:
    if token.revoked_at is not None:
        raise TokenRefused(
            f"The token {token.prefix} was revoked at {written(token.revoked_at)}.",
            code="token-revoked", way_out=WAY_OUT, status=401, refused=("use", token),
        )  # fmt: skip
    if token.expires_at <= timezone.now():
        raise TokenRefused(
            f"The token {token.prefix} expired at {written(token.expires_at)}.",
            code="token-expired", way_out=WAY_OUT, status=401, refused=("use", token),
        )  # fmt: skip
    if not token.user.is_active:
        raise TokenRefused(
            "The account of this token is disabled.",
            code="account-disabled", way_out="Ask an admin of this site.", status=401, refused=("use", token),
        )  # fmt: skip


def _mark_used(token: ApiToken, address: str) -> None:
    now = timezone.now()
    if token.last_used_at is not None and (now - token.last_used_at).total_seconds() < LAST_USED_SECONDS:
        return
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - timedelta(seconds=LAST_USED_SECONDS))
    where = address if client_address.is_address(address) else None
    ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now, last_used_address=where)
    token.last_used_at = now


def _check(*, name: str, scopes: list[str], days: int) -> None:
    check_line(name, "name")
    problems = []
    if not name.strip() or len(name) > 120:
        problems.append(
            FieldProblem("name", "Give the token a name of 1 to 120 characters that describes its use.")
        )
    for scope in scopes[:MOST_SCOPES]:
        if scope not in SCOPES:
            close = get_close_matches(str(scope), SCOPES, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            problems.append(
                FieldProblem(
                    "scopes", f"{str(scope)[:40]!r} is not a scope.{hint} Scopes are {', '.join(SCOPES)}."
                )
            )
    if len(scopes) > MOST_SCOPES:
        problems.append(
            FieldProblem("scopes", f"There are {len(scopes)}; a token has at most {MOST_SCOPES}.")
        )
    if not scopes:
        problems.append(
            FieldProblem("scopes", f"Name at least one scope: {', '.join(SCOPES)}.", code="required")
        )
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_DAYS:
        problems.append(FieldProblem("days", f"A token expires after 1 to {MAX_DAYS} days."))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)


def _refuse_escalation(by: User, scopes: list[str], project: Project | None) -> None:
    known = request_context.current()
    if known.token_scopes is None or known.token_user_id != by.pk:
        return
    extra = sorted(implied(scopes) - implied(known.token_scopes))
    if extra:
        raise NotAllowed(
            f"Your token cannot grant scopes that it does not have: {', '.join(extra)}.",
            code="token-escalation",
            way_out="Leave these scopes out, or create the token while signed in to the portal.",
            refused=("issue_token", audit.Thing("apitoken", known.token_prefix)),
        )
    if known.token_project_id is not None and (project is None or project.pk != known.token_project_id):
        raise NotAllowed(
            "Your token is limited to one project, so a new token must be limited to the same project.",
            code="token-escalation",
            way_out="Name that project, or create the token while signed in to the portal.",
            refused=("issue_token", audit.Thing("apitoken", known.token_prefix)),
        )


def _digest(plain: str) -> str:
    return hashlib.sha256(plain.encode("utf-8", "replace")).hexdigest()
