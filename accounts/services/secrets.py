"""Secrets set, deleted, encrypted anew, and opened for the tasks that are started; no door ever answers a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, ProjectRole, Secret, User
from accounts.models.secret import SECRET_NAME
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput, NotAllowed, NotFound
from infra.storage.sealed import CannotOpen, is_current, seal, unseal

#: A shorter value would turn ordinary words of a log into asterisks, so it could not be masked there.
LEAST_BYTES: Final = 8
#: One variable of an environment; keys and certificates are far below.
MOST_BYTES: Final = 32_768
#: Of one person, or of one project.
MOST_SECRETS: Final = 100
#: Rows that are encrypted anew in one transaction.
_BATCH: Final = 100

_NAME: Final = re.compile(SECRET_NAME)


# ---------------------------------------------------------------- set and delete


@transaction.atomic
def set_secret(*, owner: User | Project, name: str, value: Any, by: User) -> Secret:
    """Keep a value under a name, in the place of one that is there; running jobs keep what they were given.

    Raises InvalidInput, whose messages never repeat the value.
    """
    _require_to_manage(owner, by)
    _check(name, value)
    now = timezone.now()
    row = of_owner(owner).select_for_update(of=("self",)).filter(name=name).first()
    if row is not None:
        row.version, row.set_at, row.set_by = row.version + 1, max(now, row.created_at), by
        row.sealed = seal(value, row.about)
        row.save(update_fields=["version", "set_at", "set_by", "sealed"])
    else:
        row = _create(owner, name, value, by)
    audit.record(
        by=by,
        action="secret.set",
        thing=row,
        after={"name": name, "of": _word(row), "version": row.version},
        project=row.project,
    )
    return row


def _create(owner: User | Project, name: str, value: str, by: User) -> Secret:
    if of_owner(owner).count() >= MOST_SECRETS:
        raise InvalidInput(
            f"There are already {MOST_SECRETS} secrets, the maximum of one owner.",
            way_out="Delete one that is not used any more.",
            problems=[FieldProblem("name", f"There are {MOST_SECRETS} secrets already.", "too-many")],
        )
    now = timezone.now()
    whose = {"project": owner} if isinstance(owner, Project) else {"user": owner}
    row = Secret(**whose, name=name, created_at=now, set_at=now, set_by=by)
    row.sealed = seal(value, row.about)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise Conflict(
            f"Secret {name} was created by another request at the same time.", way_out="Set the secret again."
        ) from None
    return row


@transaction.atomic
def delete_secret(*, owner: User | Project, name: str, by: User) -> None:
    """Remove a secret: jobs that name it and have not started will fail, and say why. Raises NotFound."""
    _require_to_manage(owner, by)
    row = of_owner(owner).select_for_update(of=("self",)).filter(name=name.replace("\0", "")).first()
    if row is None:
        raise NotFound(f"There is no secret {name[:63]!r}.", way_out="See the list of secrets.")
    thing = audit.Thing("secret", str(row.pk), row.name)
    word, project = _word(row), row.project
    row.delete()
    audit.record(
        by=by, action="secret.delete", thing=thing, before={"name": name, "of": word}, project=project
    )


def of_owner(owner: User | Project) -> QuerySet[Secret]:
    """All secrets of this person or project, without a look at who asks."""
    whose = Q(project=owner) if isinstance(owner, Project) else Q(user=owner)
    return Secret.objects.filter(whose).select_related("set_by", "project")


def listed(owner: User | Project, by: User) -> QuerySet[Secret]:
    """The secrets of a person or project for who may know their names; the values are not loaded."""
    if isinstance(owner, Project):
        permissions.require(by, "see_secrets", owner)
    else:
        _require_own(owner, by)
    return of_owner(owner).defer("sealed")


def _require_to_manage(owner: User | Project, by: User) -> None:
    if isinstance(owner, Project):
        permissions.require(by, "manage", owner)
    else:
        _require_own(owner, by)


def _require_own(owner: User, by: User) -> None:
    """A person's secrets are that person's alone: no admin sets them, and no token that is held to one project."""
    if owner.pk != by.pk:
        raise NotAllowed(
            "Personal secrets are managed by their owner alone.", way_out="Use a project's secret."
        )
    if permissions.token_project_id(by) is not None:
        raise NotAllowed(
            "Your token is limited to one project, and personal secrets belong to no project.",
            way_out="Use a token without that limit, or a secret of the project.",
        )


def _word(row: Secret) -> str:
    return "project" if row.project_id else "user"


def _check(name: Any, value: Any) -> None:
    problems = []
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(
            FieldProblem(
                "name",
                "Must be letters, digits, dots, dashes and underscores, at most 63, a letter or digit first.",
                "bad-name",
            )
        )
    if trouble := _value_trouble(value):
        problems.append(trouble)
    if problems:
        raise InvalidInput(
            "The secret was not stored.", problems=problems, way_out="Correct the value and send it again."
        )


def _value_trouble(value: Any) -> FieldProblem | None:
    """What keeps a value from being a secret; the message has no part of the value."""
    if not isinstance(value, str):
        message = "Must be text; encode other bytes, for instance with base64."
        return FieldProblem("value", message, code="not-text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return FieldProblem(
            "value", "Contains half a surrogate pair, which is not valid Unicode.", code="bad-text"
        )
    if "\0" in value:
        return FieldProblem(
            "value", "Contains a NUL character, which a variable cannot contain.", code="bad-text"
        )
    if len(value.strip().encode()) < LEAST_BYTES:
        message = (
            f"Has fewer than {LEAST_BYTES} bytes: too short to be masked in logs. Choose a longer value."
        )
        return FieldProblem("value", message, code="too-short")
    if size > MOST_BYTES:
        message = f"Has {size} bytes; the maximum is {MOST_BYTES}. Store larger values in a file."
        return FieldProblem("value", message, code="too-long")
    return None


# ---------------------------------------------------------------- what a job may name

#: (whose, name): "user" or "project".
Ref = tuple[str, str]


def usable(user: User, project: Project, names: Iterable[str]) -> set[Ref]:
    """Which secrets of these names a job of this person in this project may have."""
    whose = Q(project=project)
    if permissions.token_project_id(user) is None:
        whose |= Q(user=user)
    found = Secret.objects.filter(whose, name__in=list(names)).values_list("project_id", "name")
    return {("project" if project_id else "user", name) for project_id, name in found}


def elsewhere(user: User, name: str) -> str:
    """The slug of another project of this person that has a secret of that name; empty where there is none."""
    known = permissions.roles_of(user)
    member = [pk for pk, role in known.items() if role != ProjectRole.VIEWER]
    slugs = Secret.objects.filter(project__in=member, name=name).values_list("project__slug", flat=True)
    return slugs.order_by("project__slug").first() or ""


class JobOwner(NamedTuple):
    """Whose job it is, by number of the person and of the project."""

    user_id: int
    project_id: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The values for one job by their ref; or why it cannot have them, and whether that is the site's fault."""

    values: Mapping[Ref, str]
    trouble: str = ""
    is_fault: bool = False


def open_for(jobs: Mapping[int, tuple[JobOwner, Iterable[Ref]]]) -> dict[int, Opened]:
    """The present values of what these jobs (by number) name, for the agents that start them and for nobody else."""
    wanted = {number: (owner, list(refs)) for number, (owner, refs) in jobs.items()}
    owners = {owner for owner, _ in wanted.values()}
    names = {name for _, refs in wanted.values() for _, name in refs}
    rows = Secret.objects.filter(
        Q(user__in={owner.user_id for owner in owners})
        | Q(project__in={owner.project_id for owner in owners}),
        name__in=names,
    )
    known = {(row.user_id, row.project_id, row.name): row for row in rows}
    members = set(
        permissions.current_memberships()
        .filter(
            project__in={owner.project_id for owner in owners},
            user__in={owner.user_id for owner in owners},
            role__in=[ProjectRole.MEMBER, ProjectRole.LEAD],
        )
        .values_list("user_id", "project_id")
    )
    return {
        number: _opened(owner, refs, known, is_member=owner in members)
        for number, (owner, refs) in wanted.items()
    }


def _opened(owner: JobOwner, refs: Iterable[Ref], known: Mapping[Any, Secret], *, is_member: bool) -> Opened:
    values: dict[Ref, str] = {}
    for of, name in refs:
        if of == "project" and not is_member:
            return Opened(
                {}, f"The job names secret {name} of the project, and its owner is no longer a member."
            )
        row = known.get((None, owner.project_id, name) if of == "project" else (owner.user_id, None, name))
        if row is None:
            whose = "of its project" if of == "project" else "of its owner"
            return Opened({}, f"The secret {name} {whose} was deleted. Set it again, and requeue the job.")
        try:
            values[of, name] = unseal(bytes(row.sealed), row.about)
        except CannotOpen as error:
            return Opened({}, f"The secret {name} cannot be decrypted: {error}. Tell an operator.", True)
    return Opened(values)


# ---------------------------------------------------------------- rotation of the key


@dataclass(slots=True)
class Reencrypted:
    """How many secrets were encrypted anew, were current already, and could not be opened (as `project/name`)."""

    done: int = 0
    current: int = 0
    failed: list[str] = field(default_factory=list)


def reencrypt_all() -> Reencrypted:
    """Encrypt with the current key what other keys have encrypted; may be broken off and begun again."""
    found = Reencrypted()
    last = 0
    while True:
        with transaction.atomic():
            rows = list(
                Secret.objects.select_for_update(of=("self",))
                .select_related("project", "user")
                .filter(pk__gt=last)
                .order_by("pk")[:_BATCH]
            )
            if not rows:
                break
            last = rows[-1].pk
            for row in rows:
                _reencrypt(row, found)
    if found.done:
        audit.record(
            by=None, action="secret.reencrypt", thing=audit.Thing("secret"), after={"secrets": found.done}
        )
    return found


def _reencrypt(row: Secret, found: Reencrypted) -> None:
    try:
        if is_current(bytes(row.sealed)):
            found.current += 1
            return
        sealed = seal(unseal(bytes(row.sealed), row.about), row.about)
    except CannotOpen as error:
        found.failed.append(f"{row.project or row.user}/{row.name}: {error}")
        return
    Secret.objects.filter(pk=row.pk).update(sealed=sealed)
    found.done += 1
