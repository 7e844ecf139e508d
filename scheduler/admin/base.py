"""What these admin pages have in common: who may look, facts nobody edits, edits that say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from unfold.admin import ModelAdmin, TabularInline
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from accounts import permissions
from accounts.admin.base import OneLineFields, RefusedInForm
from accounts.admin.times import ReadableTimes
from accounts.services import audit
from infra.errors import MusterError
from infra.plain_text import one_line
from scheduler.services.cluster.settings import remove_settings, save_settings, settings_of

#: An action is for a few rows that somebody looked at, not for a table.
MOST_CHOSEN: Final = 200


class OperatorPages:
    """Operators, auditors and site admins look; nobody changes anything unless a page says so."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self._may_look(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_look(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "operate")

    @staticmethod
    def _may_look(request: HttpRequest) -> bool:
        user = request.user
        return permissions.may(user, "operate") or permissions.may(user, "audit")


@dataclass(frozen=True, slots=True)
class Verb:
    """Something an operator does to chosen rows: a service that takes the row, who, and why."""

    title: str
    #: Said above the form: what it does to those who use the thing.
    effect: str
    service: Callable[..., Any]
    #: The service's name for the row.
    argument: str
    icon: str = "bolt"
    needs_reason: bool = True


class FactsAdmin(ReadableTimes, OneLineFields, OperatorPages, RefusedInForm, ModelAdmin):
    """A table of facts: searched, filtered, looked at; never edited."""

    verbs: dict[str, Verb] = {}
    list_per_page = 50
    show_full_result_count = False
    list_filter_submit = False
    compressed_fields = True
    actions_on_top = True

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Each verb, as an action on the chosen rows."""
        if not self.verbs or not self.has_operate_permission(request):
            return {}
        return {name: (self._chosen(name), name, f"{verb.title} chosen") for name, verb in self.verbs.items()}

    def _chosen(self, name: str) -> Callable[..., HttpResponse]:
        def choose(_: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse:
            keys = [str(key) for key in queryset.values_list("pk", flat=True)[: MOST_CHOSEN + 1]]
            return HttpResponseRedirect(f"{self.verb_url(name)}?ids={','.join(keys)}")

        return choose

    def verb_url(self, name: str) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_verb", args=[name])

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        own = [path("do/<slug:name>/", self.admin_site.admin_view(self.do_verb), name=name)]
        return own + super().get_urls() if self.verbs else super().get_urls()

    def do_verb(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask why, then do it to each chosen row; what is refused is said, what is done stays done."""
        verb = self.verbs.get(name)
        if verb is None or not self.has_operate_permission(request):
            raise PermissionDenied
        keys = [key for key in request.GET.get("ids", "").split(",") if key.isdecimal() and len(key) < 19]
        rows = list(self.get_queryset(request).filter(pk__in=keys[:MOST_CHOSEN]))
        back = request.GET.get("next") or reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        )
        if not rows or len(keys) > MOST_CHOSEN:
            messages.error(request, f"Choose 1 to {MOST_CHOSEN} rows.")
            return HttpResponseRedirect(
                reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            )
        form = ReasonForm(request.POST or None, needed=verb.needs_reason)
        if request.method == "POST" and form.is_valid():
            self._do(request, verb, rows, form.cleaned_data["reason"])
            return HttpResponseRedirect(
                reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            )
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"{verb.title} {len(rows)} {self._word(len(rows))}",
            "verb": verb,
            "rows": rows,
            "form": form,
            "back": back if back.startswith("/admin/") else "",
        }
        return render(request, "admin/muster_verb.html", context)

    def _do(self, request: HttpRequest, verb: Verb, rows: Sequence[Any], reason: str) -> None:
        done = []
        for row in rows:
            try:
                verb.service(**{verb.argument: row, "by": request.user, "reason": reason})
                done.append(str(row))
            except MusterError as error:
                audit.record_refusal(error, by=request.user)
                messages.error(request, f"{row}: {error}")
        if done:
            named = ", ".join(done[:5]) + (f" and {len(done) - 5} more" if len(done) > 5 else "")
            messages.success(request, f"{verb.title}: {named}.")

    def _word(self, count: int) -> str:
        return str(self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The verbs as links above the row."""
        extra = dict(extra_context or {})
        if self.verbs and self.has_operate_permission(request):
            extra["muster_verbs"] = [
                (verb, f"{self.verb_url(name)}?ids={object_id}") for name, verb in self.verbs.items()
            ]
        return super().change_view(request, object_id, form_url, extra)

    change_form_outer_before_template = "admin/muster_verbs.html"


class LongTable(FactsAdmin):
    """A table that may have millions of rows: no count of them, no sorting by what has no index."""

    paginator = InfinitePaginator
    list_per_page = 50
    sortable_by: Sequence[str] = ()
    #: A search for a number asks for exactly this, by index.
    number_field = ""

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        term = search_term.strip()
        if self.number_field and term.isascii() and term.isdecimal():
            return queryset.filter(**{self.number_field: int(term[:18])}), False
        return super().get_search_results(request, queryset, search_term)


class ReasonForm(forms.Form):
    """Why."""

    reason = forms.CharField(
        max_length=200,
        label="Reason",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        help_text="Shown to the people concerned and recorded in the audit trail.",
    )

    def __init__(self, *args: Any, needed: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = needed

    def clean_reason(self) -> str:
        """One line, however it was wrapped while it was typed."""
        reason = " ".join(self.cleaned_data["reason"].split())
        one_line(reason)
        return reason


class SettingsForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that asks why, and notices when somebody else has changed one of its fields since."""

    reason = forms.CharField(
        max_length=200,
        label="Reason for this change",
        validators=[one_line],
        widget=UnfoldAdminTextInputWidget(),
        help_text="Recorded in the audit trail.",
    )
    seen = forms.CharField(required=False, widget=forms.HiddenInput())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            row = settings_of(type(self.instance)._default_manager.get(pk=self.instance.pk))
            # What jobs and agents change of a row says nothing about this form.
            self._now = {name: value for name, value in row.items() if name in self.fields}
            self.fields["seen"].initial = _digest(self._now)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        seen = cleaned.get("seen")
        if self.instance.pk is not None and seen and seen != _digest(self._now):
            shown = {name: value for name, value in self._now.items() if name in self.changed_data}
            now = (
                "; ".join(f"{name} is now {value}" for name, value in shown.items()) or "other fields differ"
            )
            raise forms.ValidationError(
                f"Changed since you opened the page: {now}. Open the page again and repeat your change."
            )
        return cleaned


def _digest(values: dict[str, Any]) -> str:
    import hashlib

    return hashlib.blake2b(repr(sorted(values.items())).encode(), digest_size=8).hexdigest()


class SettingsAdmin(FactsAdmin):
    """Rows that operators edit: each save gives a reason, is one service call and one audit row."""

    form = SettingsForm
    site_verb = "operate"
    removable = False

    def _may_edit(self, request: HttpRequest) -> bool:
        return permissions.may(request.user, self.site_verb)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_edit(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_edit(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.removable and permissions.may(request.user, "administer")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Written in save_related, where the row and its relations are one transaction and one audit row."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        save_settings(
            thing=form.instance,
            changed_fields=form.changed_data,
            by=request.user,  # type: ignore[arg-type]
            reason=form.cleaned_data["reason"],
            save_relations=lambda: super(SettingsAdmin, self).save_related(request, form, formsets, change),
        )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        remove_settings(thing=obj, by=request.user)  # type: ignore[arg-type]

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """The audit trail has it, with the reason; a second log would be a second truth."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """As log_change."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        """As log_change."""


class FactsInline(OperatorPages, TabularInline):
    """Rows that belong to the one shown; the newest few, read-only."""

    extra = 0
    can_delete = False
    show_change_link = True
    max_num = 0
    tab = True


def milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f} ms"


def cores(millis: int | None) -> str:
    return "–" if millis is None else f"{millis / 1000:g}"
