"""What a person sets for themselves: colours, time zone, the project their jobs go to, the password."""

from __future__ import annotations

import zoneinfo
from typing import Any, Final

from django.db import transaction

from accounts import permissions
from accounts.models import User
from accounts.models.user import Theme
from accounts.selectors import submit_projects
from accounts.services import audit
from infra.errors import FieldProblem, InvalidInput

FIELDS: Final = ("theme", "time_zone", "default_project_id")


@transaction.atomic
def change_preferences(*, user: User, by: User, changes: dict[str, Any]) -> User:
    """Set some of FIELDS; raises InvalidInput naming each value that is none of the allowed ones."""
    permissions.require(by, "edit", user)
    problems = []
    if "theme" in changes and changes["theme"] not in Theme.values:
        problems.append(FieldProblem("theme", f"Must be one of {', '.join(Theme.values)}.", "unknown"))
    if "time_zone" in changes and changes["time_zone"] not in zoneinfo.available_timezones():
        problems.append(
            FieldProblem("time_zone", "Not a time zone; write for example Europe/Berlin.", "unknown")
        )
    project_id = changes.get("default_project_id")
    if project_id is not None and not submit_projects(user).filter(pk=project_id).exists():
        problems.append(FieldProblem("default_project", "Not a project you may submit to.", "unknown"))
    if problems:
        raise InvalidInput("Nothing was changed.", problems=problems)

    before = {name: getattr(user, name) for name in changes if name in FIELDS}
    after = {name: changes[name] for name in before}
    if before == after:
        return user
    User.objects.filter(pk=user.pk).update(**after)
    for name, value in after.items():
        setattr(user, name, value)
    before, after = audit.changed(before, after)
    audit.record(by=by, action="user.preferences", thing=user, before=before, after=after)
    return user


@transaction.atomic
def change_password(*, user: User, by: User, password: str) -> User:
    """Set a checked password; the audit row says that it changed and never what it is."""
    permissions.require(by, "edit", user)
    user.set_password(password)
    user.save(update_fields=["password"])
    audit.record(by=by, action="user.password", thing=user)
    return user
