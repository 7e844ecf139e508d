"""The admin page of quotas: each edit has a reason, goes through the service, and shows a conflict."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin.base import ReasonedForm, ServiceAdmin
from quotas.core.resources import show_cpus, show_mib
from quotas.models import Quota, QuotaResource
from quotas.selectors import quota_sheet
from quotas.services.limits import BOUNDS, set_quota
from quotas.services.lines import EDITABLE, Subject, set_line

SUBJECT = ("organization", "project", "user")
WHAT = ("resource", "gpu_model", "job_type")


class QuotaForm(ReasonedForm):
    """Amounts in the line's own units; `seen` is the generation of the quota as the page showed it."""

    reason_required = True
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput())

    class Meta:
        model = Quota
        fields = (*SUBJECT, *WHAT, *EDITABLE)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and "seen" in self.fields:
            self.fields["seen"].initial = _generation(self.instance)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        seen = cleaned.get("seen")
        if self.instance.pk is None:
            _check_subject(self, cleaned)
        if self.instance.pk is None or seen is None:
            return cleaned
        line = Quota.objects.get(pk=self.instance.pk)
        if _generation(line) != seen:
            theirs = ", ".join(f"{name} {_shown(line.resource, getattr(line, name))}" for name in BOUNDS)
            raise forms.ValidationError(
                f"Somebody changed this project's quota while you were looking at it. The line has {theirs};"
                " your values are still in the form. Open the page again to change it from there.",
                code="stale",
            )
        soft, hard = cleaned.get("soft"), cleaned.get("hard")
        if soft is not None and hard is not None and soft > hard:
            self.add_error("soft", "The soft limit cannot be above the hard one.")
        for name in ("borrowing_limit", "lending_limit"):
            if cleaned.get(name) is not None and cleaned.get("nominal") is None:
                self.add_error(name, "It needs a nominal: it says what is above or below it.")
        return cleaned


def _check_subject(form: QuotaForm, cleaned: dict[str, Any]) -> None:
    subject = Subject(**{name: cleaned.get(name) for name in SUBJECT})
    if not subject.is_one:
        form.add_error(None, "Choose an organization, or a project, or a user, or a user in a project.")
    if cleaned.get("gpu_model") and cleaned.get("resource") != QuotaResource.GPU_MILLIS:
        form.add_error("gpu_model", "Only a limit of GPUs may be for one model.")


def _generation(line: Quota) -> int:
    """Plain lines of a project are edited together, so they share one."""
    if line.project is not None and line.is_plain and line.resource in QuotaResource.counted():
        return quota_sheet(line.project).generation
    return line.generation


@admin.register(Quota)
class QuotaAdmin(ServiceAdmin):
    """For operators. A bound below what is in use stops nothing: it keeps new jobs from starting."""

    edit_verb = "operate"
    form = QuotaForm
    list_display = (
        "owner",
        "what",
        "in_use",
        "nominal_shown",
        "soft_shown",
        "hard_shown",
        "mode",
        "provider",
    )
    list_select_related = ("project", "organization", "user")
    list_filter = ("resource", "enforce", "provider", "organization", "project")
    search_fields = ("project__name", "project__slug", "organization__slug", "user__username", "gpu_model")
    autocomplete_fields = SUBJECT
    ordering = ("project__name", "resource")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        rows: tuple[Any, ...] = (
            BOUNDS, ("borrowing_limit", "lending_limit", "converge_after_seconds"), ("enforce", "provider"),
            "reason",
        )  # fmt: skip
        limits = ("Limits", {"fields": (*rows, "seen") if obj else rows})
        facts = ("Facts", {"fields": (("in_use", "generation", "synced_at"),)})
        return [(None, {"fields": (SUBJECT, WHAT)}), limits, *([facts] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*SUBJECT, *WHAT, "in_use", "generation", "synced_at") if obj else ()

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: bool) -> None:
        data = form.cleaned_data
        wanted = form.changed_data if change else EDITABLE
        changes = {name: data[name] for name in EDITABLE if name in wanted}
        if not changes:
            return
        words: dict[str, Any] = {
            "by": request.user,
            "reason": data["reason"],
            "expected_generation": data.get("seen") if change else None,
        }
        if obj.project is not None and obj.is_plain and obj.resource in QuotaResource.counted():
            set_quota(project=obj.project, changes={str(obj.resource): changes}, **words)
            obj.pk = Quota.objects.plain().get(project=obj.project, resource=obj.resource).pk
            return
        subject = Subject(organization=obj.organization, project=obj.project, user=obj.user)
        line = set_line(
            subject=subject,
            resource=str(obj.resource),
            gpu_model=obj.gpu_model,
            job_type=obj.job_type,
            changes=changes,
            **words,
        )
        obj.pk = line.pk

    @display(description="Resource", ordering="resource")
    def what(self, quota: Quota) -> str:
        label = str(QuotaResource(quota.resource).label)
        return " ".join(part for part in (quota.gpu_model, label, quota.job_type) if part)

    @display(description="Of", ordering="project__name")
    def owner(self, quota: Quota) -> str:
        return quota.owner

    @display(description="In use")
    def in_use(self, quota: Quota) -> str:
        return _shown(quota.resource, quota.used)

    @display(description="Nominal", ordering="nominal")
    def nominal_shown(self, quota: Quota) -> str:
        return _shown(quota.resource, quota.nominal)

    @display(description="Soft", ordering="soft")
    def soft_shown(self, quota: Quota) -> str:
        return _shown(quota.resource, quota.soft)

    @display(description="Hard", ordering="hard")
    def hard_shown(self, quota: Quota) -> str:
        return _shown(quota.resource, quota.hard)

    @display(description="Over the limit", label={"blocks": "success", "reports": "warning"})
    def mode(self, quota: Quota) -> str:
        return "blocks" if quota.enforce else "reports"


def _shown(resource: str, amount: int | None) -> str:
    """`8000` of gpu_millis -> `8`; no bound -> `–`."""
    if amount is None:
        return "–"
    if resource.endswith("_mib"):
        return show_mib(amount)
    return show_cpus(amount) if resource.endswith("_millis") else str(amount)
