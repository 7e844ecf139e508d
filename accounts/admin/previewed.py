"""Admin forms that show what a change would mean before it is saved, and both values where two people meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst

from accounts.admin.base import ReasonedForm, ServiceAdmin
from accounts.models import AuditEvent, AuditOutcome
from accounts.services import audit
from infra.errors import Conflict, MusterError
from infra.times_in_text import written


@dataclass(frozen=True, slots=True)
class Row:
    """One field: how it is and how it would be; in a conflict, yours and what somebody made of it."""

    label: str
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do: the fields that differ, and its effect in sentences."""

    rows: Sequence[Row]
    sentences: Sequence[str] = ()
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Clash:
    """Somebody else changed the thing since the form was opened: what is so now, beside what was typed."""

    seen: int
    rows: Sequence[Row]
    who: str = ""


class PreviewedForm(ReasonedForm):
    """Valid once its values were shown as a preview and sent again unchanged.

    `seen` is the version of the row as the page showed it. Where it is another by now, the form comes back with
    both values; sent again, the preview tells what it would change of what somebody else made of it.
    """

    reason_required = True
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput())
    previewed = forms.CharField(required=False, widget=forms.HiddenInput(), max_length=64)

    preview: Preview | None = None
    clash: Clash | None = None

    def present(self) -> Any:
        """The row as it is in the database now; None while it is being made."""
        return None if self.instance.pk is None else type(self.instance).objects.get(pk=self.instance.pk)

    def version(self) -> int:
        """Of what is being changed, as it is in the database now."""
        now = self.present()
        return 0 if now is None else int(now.generation)

    def differences(self) -> Sequence[Row]:
        """Before and after, of the fields that this form would change."""
        now = self.present()
        labels = {
            name: capfirst(str(field.label or name.replace("_", " ")))
            for name, field in self.fields.items()
            if name not in ("reason", "seen", "previewed")
        }
        before = {} if now is None else {name: self.shown(name, self.value_of(now, name)) for name in labels}
        after = {name: self.shown(name, self.cleaned_data.get(name)) for name in labels}
        return [
            Row(labels[name], before.get(name, ""), after[name])
            for name in labels
            if before.get(name, "") != after[name]
        ]

    def value_of(self, row: Any, name: str) -> Any:
        return getattr(row, name)

    def shown(self, name: str, value: Any) -> str:
        """A value as people say it; "" for none."""
        return "" if value is None else str(value)

    def effect(self) -> tuple[Sequence[str], bool]:
        """What the change would mean, and whether that is a warning."""
        return (), False

    def theirs(self) -> Sequence[Row]:
        """Yours and theirs, of the fields that differ between the form and the database."""
        return [Row(row.label, row.other, row.one) for row in self.differences()]

    def who(self) -> str:
        """Who changed it last, and why."""
        return ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "seen" in self.fields:
            self.fields["seen"].initial = self.version()

    def is_valid(self) -> bool:
        return super().is_valid() and self._is_settled()

    def _is_settled(self) -> bool:
        if self.preview is not None or self.clash is not None:
            return False
        seen, now = self.cleaned_data.get("seen"), self.version()
        if seen is not None and seen != now:
            self.clash = Clash(now, self.theirs(), self.who())
            self._say(seen=now, previewed="")
            return False
        rows = self.differences()
        shown = self._fingerprint(rows)
        if not rows or self.cleaned_data.get("previewed") == shown:
            return True
        sentences, warns = self.effect()
        self.preview = Preview(rows, sentences, warns)
        self._say(previewed=shown)
        return False

    def _fingerprint(self, rows: Sequence[Row]) -> str:
        """What stands for the values that were shown: others are shown first again."""
        facts = [[row.label, row.one, row.other] for row in rows]
        text = json.dumps([facts, self.cleaned_data.get("seen")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _say(self, **values: Any) -> None:
        """What the hidden fields of the page that comes back carry."""
        data: Any = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
        for name, value in values.items():
            data[self.add_prefix(name)] = str(value)
        self.data = data


class PreviewedAdmin(ServiceAdmin):
    """An admin of a `PreviewedForm`: the first Save shows what it would mean, the second saves."""

    change_form_before_template = "admin/muster_preview.html"

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except _Overtaken:  # between the look and the lock: look again, and show both
            return super().changeform_view(request, *args, **kwargs)

    def refused_form(
        self, request: HttpRequest, error: MusterError, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if isinstance(error, Conflict) and error.code == "stale":
            raise _Overtaken from error
        return super().refused_form(request, error, *args, **kwargs)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        form = context["adminform"].form
        preview, clash = getattr(form, "preview", None), getattr(form, "clash", None)
        context.update(muster_preview=preview, muster_clash=clash)
        if preview is not None or clash is not None:
            context["title"] = "Check before saving" if preview else "Somebody else changed this meanwhile"
        response: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        if clash is not None:
            response.status_code = 409
        return response


class _Overtaken(Exception):
    pass


def last_change(thing: models.Model, *actions: str) -> str:
    """`carol at 10:32 on 28 Nov: “the new grant”`: the last of these changes in the trail."""
    described = audit.describe(thing)
    event = (
        AuditEvent.objects.filter(
            object_type=described.type, object_id=described.id, action__in=actions, outcome=AuditOutcome.DONE
        )
        .order_by("-at", "-id")
        .first()
    )
    if event is None:
        return ""
    why = f": “{event.reason}”" if event.reason else ""
    return f"{event.actor_name or 'the clock'} at {written(event.at)}{why}"
