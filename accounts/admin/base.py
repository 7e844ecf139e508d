"""What the admin pages of people and limits share: services save, reasons are asked for, facts stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin, TabularInline
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts import permissions
from accounts.admin.times import ReadableTimes
from accounts.services import audit
from infra.errors import MusterError
from infra.plain_text import one_line
from infra.request_cost import check_rows, count_up_to


class Rights:
    """Who may look and who may edit, in the words of `accounts.permissions`; deleting is for nobody."""

    view_verbs: tuple[str, ...] = ("operate", "audit")
    edit_verb: str | None = None

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self._may_look(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_look(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_edit(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_edit(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_edit_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """For `@action(permissions=["edit"])`."""
        return self._may_edit(request)

    def _may_look(self, request: HttpRequest) -> bool:
        return any(permissions.may(request.user, verb) for verb in self.view_verbs)

    def _may_edit(self, request: HttpRequest) -> bool:
        return self.edit_verb is not None and permissions.may(request.user, self.edit_verb)


class RefusedInForm:
    """What a service refuses while a form is saved stands in that form, beside what was typed; and in the trail."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[misc]
        except MusterError as error:  # raised in the admin's transaction, which is rolled back by now
            if request.method != "POST":
                raise
            return self.refused_form(request, error, *args, **kwargs)

    def refused_form(
        self, request: HttpRequest, error: MusterError, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        audit.record_refusal(error, by=request.user)
        request.muster_refused = error  # type: ignore[attr-defined]
        return super().changeform_view(request, *args, **kwargs)  # type: ignore[misc]

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, **kwargs)  # type: ignore[misc]
        error: MusterError | None = getattr(request, "muster_refused", None)
        return form if error is None else type(form.__name__, (_Refused, form), {"refused": error})


class _Refused:
    """A form that a service has refused once: it says so, and is not saved again."""

    refused: MusterError
    fields: dict[str, Any]

    def clean(self) -> Any:
        cleaned = super().clean()  # type: ignore[misc]
        self.add_error(None, str(self.refused))  # type: ignore[attr-defined]
        for problem in self.refused.problems:
            if problem.message != self.refused.message:
                field = problem.field if problem.field in self.fields else None
                said = (
                    problem.message if field or not problem.field else f"{problem.field}: {problem.message}"
                )
                self.add_error(field, said)  # type: ignore[attr-defined]
        return cleaned


class OneLineFields:
    """Short texts of a row are one line, and so says the form beside each."""

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)  # type: ignore[misc]
        if isinstance(db_field, models.CharField) and isinstance(field, forms.CharField):
            field.validators = [*field.validators, one_line]
        return field

    def response_action(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """An action on more rows than one request may change is refused before its first."""
        if request.POST.get("select_across") == "1":
            check_rows(count_up_to(queryset, settings.MUSTER_MAX_ROWS), what="changes or more", field="rows",
                       way_out="Choose fewer rows, with a filter.")  # fmt: skip
        return super().response_action(request, queryset)  # type: ignore[misc]


class ServiceAdmin(ReadableTimes, OneLineFields, RefusedInForm, Rights, ModelAdmin):
    """Saves through services, in a subclass's `save_model`; refusals stand in the form and in the trail."""

    list_per_page = 50
    compressed_fields = True
    warn_unsaved_form = True

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().delete_view(request, *args, **kwargs)
        except MusterError as error:
            return self.refused(request, error)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changelist_view(request, *args, **kwargs)
        except MusterError as error:  # of an action
            return self.refused(request, error)

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        """What belongs to a row is shown once there is one."""
        return super().get_inlines(request, obj) if obj is not None else []

    def refused(self, request: HttpRequest, error: MusterError) -> HttpResponse:
        audit.record_refusal(error, by=request.user)
        messages.error(request, str(error))
        return HttpResponseRedirect(request.get_full_path())

    # The audit trail has who, what and why; a second log would be a second truth.
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None: ...

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None: ...

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None: ...

    def construct_change_message(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


class FactsAdmin(ServiceAdmin):
    """Rows that nobody edits here."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class FactsInline(Rights, TabularInline):
    """Rows that belong to the one shown, to look at."""

    extra = 0
    max_num = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReasonedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that asks why; `reason_required` where the answer must not be empty."""

    reason_required = False
    reason = forms.CharField(
        max_length=1000,
        required=False,
        validators=[one_line],
        widget=UnfoldAdminTextInputWidget(),
        help_text="Recorded in the audit trail.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "reason" in self.fields:
            self.fields["reason"].required = self.reason_required


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], empty: str = "") -> SafeString:
    """A small table for a read-only field; without rows, what is said instead of it."""
    if not rows and empty:
        return format_html("<p>{}</p>", empty)
    head = format_html_join(
        "", '<th class="px-3 py-2 text-left font-semibold">{}</th>', ((h,) for h in headings)
    )
    body = format_html_join(
        "",
        '<tr class="border-t border-base-200 dark:border-base-800">{}</tr>',
        (
            (format_html_join("", '<td class="px-3 py-1.5 align-top">{}</td>', ((c,) for c in row)),)
            for row in rows
        ),
    )
    return format_html(
        '<div style="overflow-x: auto; max-width: calc(100vw - 3.5rem)">'
        '<table class="w-full"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>",
        head,
        body,
    )
