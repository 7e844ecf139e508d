"""Kinds of rows that the document has: which fields, which form checks them, and by what name others refer to a row.

The forms are those of the admin pages: a value is refused here exactly where it is refused there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

from django import forms
from django.db import models

from accounts.models import Project
from scheduler.admin.base import SettingsForm
from scheduler.admin.cluster import ClusterForm, NodeForm
from scheduler.admin.queues import ProfileForm, QueueForm
from scheduler.models import Cluster, Node, Partition, PriorityClass, Queue, SchedulerProfile

#: Of these the name in the document is another field than `name`.
_REFERENCES: Final[Mapping[type[models.Model], str]] = {Cluster: "slug", Project: "slug"}
#: What the page of a node adds to a taint, and an operator does not write.
_TAINT: Final = ("key", "value", "effect")


def _form(model: type[models.Model], *fields: str) -> type[SettingsForm]:
    return cast(type[SettingsForm], forms.modelform_factory(model, form=SettingsForm, fields=fields))


@dataclass(frozen=True, slots=True)
class Kind:
    """A section of the document. `within`: rows are written below their cluster."""

    section: str
    model: type[models.Model]
    form: type[SettingsForm]
    key: str
    within: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of an entry, in the order in which they are exported."""
        names = tuple(
            name for name in self.form.base_fields if name not in ("reason", "seen", "cluster", self.key)
        )
        return (self.key, *names)


CLASSES: Final = Kind(
    "priority_classes",
    PriorityClass,
    _form(PriorityClass, "name", "value", "aliases", "boost_per_hour", "description", "preempts"),
    "name",
)
PROFILES: Final = Kind("profiles", SchedulerProfile, ProfileForm, "name")
CLUSTERS: Final = Kind("clusters", Cluster, ClusterForm, "slug")
PARTITIONS: Final = Kind(
    "partitions",
    Partition,
    _form(
        Partition,
        "cluster",
        "name",
        "max_wall_seconds",
        "cpu_overcommit_percent",
        "memory_overcommit_percent",
    ),
    "name",
    within=True,
)
QUEUES: Final = Kind("queues", Queue, QueueForm, "slug", within=True)
NODES: Final = Kind("nodes", Node, NodeForm, "name", within=True)

SITE: Final = (CLASSES, PROFILES, CLUSTERS)
OF_CLUSTER: Final = (PARTITIONS, QUEUES, NODES)


class WrongType(ValueError):
    """A value of another type than its field has; the message says which."""


def plain(row: models.Model, name: str) -> Any:
    """The value of a field as the document has it."""
    value = getattr(row, name)
    if hasattr(value, "all"):
        return sorted(str(getattr(one, _REFERENCES.get(type(one), "name"))) for one in value.all())
    if isinstance(value, models.Model):
        return getattr(value, _REFERENCES.get(type(value), "name"))
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if name == "taints":
        return [{key: taint[key] for key in _TAINT if taint.get(key)} for taint in value]
    return value


def posted(field: forms.Field, value: Any, scope: Mapping[str, Any]) -> Any:
    """A value of the document as the form gets it from a browser; raises WrongType.

    `scope`: the cluster that partitions are looked up in.
    """
    if isinstance(field, forms.ModelMultipleChoiceField):
        names = [] if value is None else expect(value, list, "a list of names")
        return [_pk(field, name, scope) for name in names]
    if isinstance(field, forms.ModelChoiceField):
        return "" if value is None else _pk(field, value, scope)
    if isinstance(field, forms.JSONField):
        return "" if value is None else json.dumps(value, default=str)
    if isinstance(field, forms.NullBooleanField):
        return "" if value is None else str(expect(value, bool, "true, false or null"))
    if isinstance(field, forms.BooleanField):
        return "on" if expect(value, bool, "true or false") else ""
    if value is None:
        return ""
    if isinstance(field, (forms.DecimalField, forms.FloatField)):
        return str(expect(value, (int, float), "a number"))
    if isinstance(field, forms.IntegerField):
        return str(expect(value, int, "a whole number"))
    return expect(value, str, "a text; put it in quotes")


def expect(value: Any, kind: type | tuple[type, ...], words: str) -> Any:
    """The value, where it is of this type; raises WrongType. True is no number."""
    wrong_number = isinstance(value, bool) and kind is not bool
    if not isinstance(value, kind) or wrong_number:
        raise WrongType(f"has to be {words}")
    return value


def _pk(field: forms.ModelChoiceField[Any], name: Any, scope: Mapping[str, Any]) -> Any:
    name = expect(name, str, "a name")
    assert field.queryset is not None
    model = field.queryset.model
    rows = field.queryset.filter(**{_REFERENCES.get(model, "name"): name})
    if model is Partition:
        rows = rows.filter(cluster=scope["cluster"])
    found = rows.values_list("pk", flat=True).first()
    if found is None:
        raise WrongType(f"names the {model._meta.verbose_name} {name!r}, which does not exist")
    return found


def initial(kind: Kind, row: models.Model, fields: Sequence[str]) -> dict[str, Any]:
    """What a form of this row shows before anything is changed."""
    shown: dict[str, Any] = {}
    for name in fields:
        field = kind.form.base_fields[name]
        value: Any = getattr(row, name) if row.pk or not _is_many(row, name) else None
        if isinstance(field, forms.ModelMultipleChoiceField):
            shown[name] = [one.pk for one in value.all()] if row.pk else []
        elif isinstance(field, forms.ModelChoiceField):
            shown[name] = value.pk if value is not None else ""
        elif isinstance(field, forms.JSONField):
            shown[name] = json.dumps(value)
        elif isinstance(field, forms.BooleanField) and not isinstance(field, forms.NullBooleanField):
            shown[name] = "on" if value else ""
        else:
            shown[name] = "" if value is None else str(value)
    return shown


def _is_many(row: models.Model, name: str) -> bool:
    return bool(row._meta.get_field(name).many_to_many)
