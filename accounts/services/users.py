"""Changes of accounts: site roles, disabling, ending sessions; each raises the access version."""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.models import Session
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import ApiToken, SiteRole, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from infra.plain_text import check_lines


def raise_access_version(user: User) -> None:
    """Tell open sockets and caches that this person's rights are no longer what they were."""
    User.objects.filter(pk=user.pk).update(access_version=F("access_version") + 1)
    user.refresh_from_db(fields=["access_version"])


@transaction.atomic
def create_user(*, username: str, by: User, password: str | None = None, **details: Any) -> User:
    """Make an account; `details` are names, email, priority ceiling. Without a password nobody signs in."""
    permissions.require(by, "administer")
    check_lines(username=username, **details)
    try:
        with transaction.atomic():
            user = User.objects.create_user(username, password=password, **details)
    except IntegrityError:
        message = f"There is already a user {username}."
        raise InvalidInput(message, problems=[FieldProblem("username", message)]) from None
    audit.record(by=by, action="user.create", thing=user, after={"username": username, **details})
    return user


@transaction.atomic
def set_site_role(*, user: User, role: str, by: User, reason: str = "") -> User:
    """Give or take a site role; the Django admin opens to operators and admins."""
    permissions.require(by, "administer", user)
    if role not in SiteRole.values:
        message = f"{role!r} is not a site role; they are {', '.join(SiteRole.values)}."
        raise InvalidInput(message, problems=[FieldProblem("site_role", message)])
    before = User.objects.select_for_update(no_key=True).get(pk=user.pk).site_role
    if before == role:
        return user
    if user.pk == by.pk and before == SiteRole.ADMIN:
        raise Conflict("You cannot take the admin role from yourself.", way_out="Ask another admin to do it.")
    user.site_role = role
    user.is_staff = role in (SiteRole.OPERATOR, SiteRole.ADMIN)
    user.save(update_fields=["site_role", "is_staff"])
    raise_access_version(user)
    audit.record(
        by=by,
        action="user.set_site_role",
        thing=user,
        before={"site_role": before},
        after={"site_role": role},
        reason=reason,
    )
    return user


@transaction.atomic
def disable_user(*, user: User, by: User, reason: str = "") -> User:
    """Shut an account: sessions end, tokens are revoked, sockets close; its rows and jobs stay."""
    permissions.require(by, "administer", user)
    if user.pk == by.pk:
        raise Conflict("You cannot disable your own account.", way_out="Ask another admin to do it.")
    locked = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if not locked.is_active:
        return locked
    User.objects.filter(pk=user.pk).update(is_active=False)
    user.is_active = False
    ended = _end_sessions(user)
    revoked = ApiToken.objects.filter(user=user, revoked_at__isnull=True).update(revoked_at=timezone.now())
    raise_access_version(user)
    audit.record(
        by=by,
        action="user.disable",
        thing=user,
        before={"is_active": True},
        after={"is_active": False, "sessions_ended": ended, "tokens_revoked": revoked},
        reason=reason,
    )
    return user


@transaction.atomic
def enable_user(*, user: User, by: User, reason: str = "") -> User:
    """Open an account again; revoked tokens stay revoked."""
    permissions.require(by, "administer", user)
    if User.objects.filter(pk=user.pk, is_active=False).update(is_active=True):
        user.is_active = True
        raise_access_version(user)
        audit.record(
            by=by,
            action="user.enable",
            thing=user,
            before={"is_active": False},
            after={"is_active": True},
            reason=reason,
        )
    return user


@transaction.atomic
def end_sessions(*, user: User, by: User, reason: str = "") -> int:
    """End every session of a person, one's own included; answers how many there were."""
    permissions.require(by, "edit", user)
    ended = _end_sessions(user)
    raise_access_version(user)
    audit.record(
        by=by, action="user.end_sessions", thing=user, after={"sessions_ended": ended}, reason=reason
    )
    return ended


@transaction.atomic
def edit_user(*, user: User, by: User, changes: dict[str, Any], reason: str = "") -> User:
    """Change what describes an account or limits it; not its role, password or whether it is open."""
    permissions.require(by, "edit", user)
    unknown = sorted(changes.keys() - (OWN_FIELDS | ADMIN_FIELDS))
    if unknown:
        raise InvalidInput(
            f"{', '.join(unknown)} cannot be changed here.",
            problems=[FieldProblem(name, "This field cannot be changed here.") for name in unknown],
        )
    if changes.keys() & ADMIN_FIELDS:
        permissions.require(by, "administer", user)
    check_lines(**changes)
    row = User.objects.select_for_update(no_key=True, of=("self",)).get(pk=user.pk)
    before, after = audit.changed({name: getattr(row, name) for name in changes}, changes)
    if not after:
        return user
    for name, value in after.items():
        setattr(user, name, value)
    user.save(update_fields=list(after))
    if after.keys() & ADMIN_FIELDS:
        raise_access_version(user)
    audit.record(by=by, action="user.edit", thing=user, before=before, after=after, reason=reason)
    return user


#: What people may change of themselves; their tastes are in `preferences`.
OWN_FIELDS = frozenset({"first_name", "last_name", "email"})
#: What only admins change.
ADMIN_FIELDS = frozenset({"username", "priority_ceiling", "is_demo"})


def _end_sessions(user: User) -> int:
    """Sessions are stored signed, so finding a person's means opening each; this happens rarely."""
    ended = 0
    for session in Session.objects.filter(expire_date__gte=timezone.now()).iterator():
        if session.get_decoded().get("_auth_user_id") == str(user.pk):
            session.delete()
            ended += 1
    return ended
