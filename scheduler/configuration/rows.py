"""Rows of a kind, filled in by the names of their fields and saved: one row of the document, or one of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import IntegrityError, models, transaction
from django.forms import ModelMultipleChoiceField

from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from scheduler.admin.base import SettingsForm
from scheduler.configuration.kinds import Kind, WrongType, initial, plain, posted
from scheduler.core.lifecycle import NodeState
from scheduler.models import Cluster, Node, Queue
from scheduler.services.cluster.settings import save_settings
from scheduler.state.records.profile_versions import Origin


@dataclass(slots=True)
class Change:
    """One row that is created, changed or deleted: its fields before and after; empty where there is no row."""

    kind: str
    name: str
    action: str
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


class Wrong(NamedTuple):
    """What is wrong with a field; "" is the row as a whole."""

    name: str
    message: str


class Refused(Exception):
    """A row that cannot be saved as it is given."""

    def __init__(self, problems: Iterable[Wrong]) -> None:
        super().__init__()
        self.problems = tuple(problems)


def blank(kind: Kind, given: Mapping[str, Any], scope: Mapping[str, Any]) -> models.Model:
    """A new row with its name and cluster, not saved."""
    row = kind.model(**{kind.key: given[kind.key]})
    if kind.within:
        row.cluster = scope["cluster"]  # type: ignore[attr-defined]
    if isinstance(row, Node):
        row.state = NodeState.DOWN  # until its agent registers: a node that was declared gets no jobs
    elif isinstance(row, (Cluster, Queue)):
        row.name = given.get("name", given[kind.key])
    return row


def save(
    kind: Kind,
    given: Mapping[str, Any],
    row: models.Model,
    *,
    by: User,
    reason: str,
    scope: Mapping[str, Any],
    without: str = "",
    origin: Origin | None = None,
) -> tuple[models.Model, Change | None]:
    """Save the fields that are given and differ, as the form of the admin page does; None = nothing differs.

    Raises Refused, and what `save_settings` raises.
    """
    new = row.pk is None
    differ = differing(kind, given, row, without)
    if not differ and not new:
        return row, None
    before = {} if new else shown(kind, row)
    form = filled_form(kind, given, row, differ, reason=reason, scope=scope)
    form.save(commit=False)
    try:
        with transaction.atomic():
            saved = save_settings(
                thing=form.instance, changed_fields=form.changed_data, by=by, reason=reason,
                save_relations=form.save_m2m, origin=origin,
            )  # fmt: skip
    except IntegrityError as error:
        raise Refused([Wrong("", f"the database refuses this: {str(error).splitlines()[0]}.")]) from error
    after = shown(kind, saved)
    if not new:
        before, after = audit.changed(before, after)
    name = str(given.get(kind.key) or getattr(row, kind.key))
    return saved, Change(kind.section, name, "create" if new else "change", before, after) if after else None


def differing(kind: Kind, given: Mapping[str, Any], row: models.Model, without: str = "") -> list[str]:
    """The given fields whose values are not those of the row; of a new row all."""
    names = [
        name for name in kind.form.base_fields if name in given and name not in ("reason", "seen", without)
    ]
    return [name for name in names if row.pk is None or not _same(kind, row, name, given[name])]


def filled_form(
    kind: Kind,
    given: Mapping[str, Any],
    row: models.Model,
    names: Iterable[str],
    *,
    reason: str,
    scope: Mapping[str, Any],
) -> SettingsForm:
    """The form of the admin page with the row and these of the given fields; raises Refused where it is not valid."""
    data = initial(kind, row, [name for name in kind.form.base_fields if name not in ("reason", "seen")])
    wrong = []
    for name in names:
        try:
            data[name] = posted(kind.form.base_fields[name], given[name], scope)
        except WrongType as error:
            wrong.append(Wrong(name, f"{name} {error}."))
    if wrong:
        raise Refused(wrong)
    form = kind.form({**data, "reason": reason, "seen": ""}, instance=row)
    if not form.is_valid():
        raise Refused(
            Wrong("", str(message)) if name == "__all__" else Wrong(name, f"{name}: {message}")
            for name, messages in form.errors.items()
            for message in messages
        )
    return form


def shown(kind: Kind, row: models.Model) -> dict[str, Any]:
    """The fields of the row as the database has it."""
    fresh = kind.model._default_manager.get(pk=row.pk)
    return {name: plain(fresh, name) for name in kind.fields}


def _same(kind: Kind, row: models.Model, name: str, wanted: Any) -> bool:
    """Whether a value is the one that the row has; names of other rows have no order."""
    there = plain(row, name)
    many = isinstance(kind.form.base_fields[name], ModelMultipleChoiceField)
    if many and isinstance(wanted, list) and all(isinstance(one, str) for one in wanted):
        wanted = sorted(wanted)
    return bool(there == wanted) and isinstance(there, bool) == isinstance(wanted, bool)


def put(
    kind: Kind,
    given: Mapping[str, Any],
    row: models.Model,
    *,
    by: User,
    reason: str,
    scope: Mapping[str, Any],
    origin: Origin | None = None,
) -> models.Model:
    """One row of the API: as `save`; raises InvalidInput that names the fields, or Conflict."""
    check_names(kind, given)
    try:
        with transaction.atomic():
            return save(kind, given, row, by=by, reason=reason, scope=scope, origin=origin)[0]
    except Refused as refused:
        raise invalid(refused) from None


def check_names(kind: Kind, given: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a field that rows of the kind do not have."""
    unknown = next((name for name in given if name not in kind.fields), None)
    if unknown is not None:
        message = f"There is no field {unknown[:60]}; there are {', '.join(kind.fields)}."
        raise InvalidInput(message, problems=[FieldProblem(unknown[:60], message, "unknown-field")])


def invalid(refused: Refused) -> InvalidInput:
    """The refusal as the API says it, with the fields."""
    problems = [FieldProblem(one.name, _sentence(one.message), "invalid") for one in refused.problems]
    return InvalidInput(
        problems[0].message,
        problems=problems,
        way_out="Nothing was changed. Correct the fields that are named.",
    )


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:]


def refuse_existing(kind: Kind, name: str) -> Conflict:
    """What creating a row is refused with whose name is taken."""
    return Conflict(
        f"There is already a {kind.model._meta.verbose_name} {name}.",
        code="there-already",
        way_out="Change the existing one, or choose another name.",
    )
