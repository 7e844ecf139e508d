"""Signs people in and out, with the delays, the demo rule and the audit row that belong to it."""

from __future__ import annotations

import math
from typing import NoReturn

from django.contrib.auth import authenticate
from django.core.cache import cache
from django.http import HttpRequest

from accounts.models import User
from accounts.services import audit, signin_attempts
from infra import request_context
from infra.errors import MusterError

#: While they have to wait, one row a minute for each name and address is enough to see who keeps trying.
WAITING_ROW_SECONDS = 60


class SignInRefused(MusterError):
    """Nobody was signed in; `code` is sign-in-failed, locked-out or demo-elsewhere.

    With locked-out, `extra["retry_after_seconds"]` says when the next try is looked at.
    """


def sign_in(*, username: str, password: str, user_agent: str = "", device: str = "") -> User:
    """The person with this name and password; raises SignInRefused with words for the page.

    The caller then opens the session: `login(request, user, backend="accounts.backends.PasswordBackend")`.
    `device` is what the browser kept of an earlier sign-in (`attempts.device_of`). Unknown names and wrong
    passwords look alike.
    """
    username = username.strip()[:150]
    request = _request(user_agent)
    usable = "\x00" not in username + password
    attempt = signin_attempts.begin(
        username=username.replace("\x00", " "), address=request_context.current().address, device=device[:500]
    )
    if isinstance(attempt, signin_attempts.Wait):
        _refuse(_wait(attempt), username if usable else None)
    person = authenticate(request, username=username, password=password) if usable else None
    if isinstance(person, User):
        signin_attempts.succeeded(attempt)
        audit.record(by=person, action="session.sign_in", thing=person)
        return person
    return _refuse(_refusal(request), username if usable else None)


def password_again(*, user: User, password: str, device: str = "") -> bool:
    """Whether it is the password of somebody who is signed in; raises SignInRefused after too many wrong ones."""
    attempt = signin_attempts.begin(
        username=user.username, address=request_context.current().address, device=device[:500]
    )
    if isinstance(attempt, signin_attempts.Wait):
        raise _wait(attempt)
    right = user.check_password(password)
    if right:
        signin_attempts.succeeded(attempt)
    return right


def sign_out(*, user: User) -> None:
    """Write down that somebody signed out; the caller ends the session."""
    audit.record(by=user, action="session.sign_out", thing=user)


def _refuse(refusal: SignInRefused, username: str | None) -> NoReturn:
    known = User.objects.filter(username=username).first() if username is not None else None
    if refusal.code != "locked-out" or cache.add(
        f"locked-out:{username}:{request_context.current().address}", 1, WAITING_ROW_SECONDS
    ):
        # A name that nobody has is left out: it may be a password typed in the wrong field.
        thing = known if known is not None else audit.Thing("user", "", "a name that nobody has")
        audit.record_denied(by=None, action="session.sign_in", thing=thing, reason=refusal.code)
    raise refusal


def _wait(wait: signin_attempts.Wait) -> SignInRefused:
    seconds = math.ceil(wait.seconds)
    said = (
        f"{seconds} second{'' if seconds == 1 else 's'}" if seconds < 120 else f"{-(-seconds // 60)} minutes"
    )
    return SignInRefused(
        "Too many failed attempts for this username or from this address.",
        code="locked-out",
        way_out=f"Wait {said} and try again; the wait grows with each wrong password.",
        status=429,
        extra={"retry_after_seconds": seconds},
    )


def _refusal(request: HttpRequest) -> SignInRefused:
    if getattr(request, "demo_account_refused", False):
        return SignInRefused(
            "Demo accounts sign in only from the machine that Muster runs on.",
            code="demo-elsewhere",
            way_out="Open the portal there, at a 127.0.0.1 address, or use an account of your own.",
            status=403,
        )
    return SignInRefused(
        "Wrong username or password.",
        code="sign-in-failed",
        way_out="Check both, or ask an admin of this site for a new password.",
        status=401,
    )


def _request(user_agent: str) -> HttpRequest:
    """What the demo rule looks at: where from and with what, nothing else."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = request_context.current().address
    request.META["HTTP_USER_AGENT"] = user_agent[:200]
    if request_context.current().proxied:
        request.META["HTTP_FORWARDED"] = "for=unknown"
    request.path = request.path_info = "/signin/"
    return request
