"""Signs people in and out, with the lock-out, the demo rule and the audit row that belong to it."""

from __future__ import annotations

from django.contrib.auth import authenticate
from django.core.cache import cache
from django.http import HttpRequest

from accounts import context
from accounts.errors import MusterError
from accounts.models import User
from accounts.services import audit

#: Locked out, one row a minute for each name and address is enough to see who keeps trying.
LOCKED_ROW_SECONDS = 60


class SignInRefused(MusterError):
    """Nobody was signed in; `code` is sign-in-failed, locked-out or demo-elsewhere."""


def sign_in(*, username: str, password: str, user_agent: str = "") -> User:
    """The person with this name and password; raises SignInRefused with words for the page.

    The caller then opens the session: `login(request, user, backend="accounts.backends.PasswordBackend")`,
    which also clears the count of failures. Unknown names and wrong passwords look alike.
    """
    username = username.strip()[:150]
    request = _request(user_agent)
    usable = "\x00" not in username + password
    person = authenticate(request, username=username, password=password) if usable else None
    if isinstance(person, User):
        audit.record(by=person, action="session.sign_in", thing=person)
        return person
    refusal = _refusal(request)
    known = User.objects.filter(username=username).first() if usable else None
    if refusal.code != "locked-out" or cache.add(
        f"locked-out:{username}:{_address()}", 1, LOCKED_ROW_SECONDS
    ):
        # A name that nobody has is left out: it may be a password typed in the wrong field.
        thing = known if known is not None else audit.Thing("user", "", "a name that nobody has")
        audit.record_denied(by=None, action="session.sign_in", thing=thing, reason=refusal.code)
    raise refusal


def sign_out(*, user: User) -> None:
    """Write down that somebody signed out; the caller ends the session."""
    audit.record(by=user, action="session.sign_out", thing=user)


def _refusal(request: HttpRequest) -> SignInRefused:
    if getattr(request, "axes_locked_out", False):
        return SignInRefused(
            "There were too many failed attempts for this name from this address.",
            code="locked-out",
            way_out="Wait 15 minutes, or ask an admin of this site to unlock it.",
            status=429,
        )
    if getattr(request, "demo_account_refused", False):
        return SignInRefused(
            "Demo accounts sign in only from the machine that Muster runs on.",
            code="demo-elsewhere",
            way_out="Open the portal there, at a 127.0.0.1 address, or use an account of your own.",
            status=403,
        )
    return SignInRefused(
        "The name or the password is wrong.",
        code="sign-in-failed",
        way_out="Check both, or ask an admin of this site for a new password.",
        status=401,
    )


def _request(user_agent: str) -> HttpRequest:
    """What django-axes and the demo rule look at: where from and with what, nothing else."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = _address()
    request.META["HTTP_USER_AGENT"] = user_agent[:200]
    if context.current().proxied:
        request.META["HTTP_FORWARDED"] = "for=unknown"
    request.path = request.path_info = "/signin/"
    return request


def _address() -> str:
    return context.current().address
