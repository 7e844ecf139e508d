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
from quotas.services.limits import BOUNDS, EDITABLE, set_quota


class QuotaForm(ReasonedForm):
    """Amounts in the line's own units; `seen` is the generation of the quota as the page showed it."""

    reason_required = True
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput())

    class Meta:
        model = Quota
        fields = ("project", "resource", *EDITABLE)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and "seen" in self.fields:
            self.fields["seen"].initial = quota_sheet(self.instance.project).generation

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        seen = cleaned.get("seen")
        if self.instance.pk is None or seen is None:
            return cleaned
        now = quota_sheet(self.instance.project)
        if now.generation != seen:
            line = now.line(self.instance.resource)
            theirs = ", ".join(f"{name} {_shown(line.resource, getattr(line, name))}" for name in BOUNDS)
            raise forms.ValidationError(
                f"Somebody changed this project's quota while you were looking at it. The line has {theirs};"
                " your values are still in the form. Open the page again to change it from there.",
                code="stale",
            )
        soft, hard = cleaned.get("soft"), cleaned.get("hard")
        if soft is not None and hard is not None and soft > hard:
            self.add_error("soft", "The soft limit cannot be above the hard one.")
        return cleaned


@admin.register(Quota)
class QuotaAdmin(ServiceAdmin):
    """For operators. A bound below what is in use stops nothing: it keeps new jobs from starting."""

    edit_verb = "operate"
    form = QuotaForm
    list_display = (
        "project",
        "what",
        "in_use",
        "nominal_shown",
        "soft_shown",
        "hard_shown",
        "mode",
        "provider",
    )
    list_select_related = ("project",)
    list_filter = ("resource", "enforce", "provider", "project")
    search_fields = ("project__name", "project__slug")
    autocomplete_fields = ("project",)
    ordering = ("project__name", "resource")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        limits = ("Limits", {"fields": (BOUNDS, ("enforce", "provider"), "reason", "seen")})
        if obj is None:
            limits = ("Limits", {"fields": (BOUNDS, ("enforce", "provider"), "reason")})
        facts = ("Facts", {"fields": (("in_use", "generation", "synced_at"),)})
        return [(None, {"fields": (("project", "resource"),)}), limits, *([facts] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("project", "resource", "in_use", "generation", "synced_at") if obj else ()

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: bool) -> None:
        data = form.cleaned_data
        wanted = form.changed_data if change else EDITABLE
        changes = {name: data[name] for name in EDITABLE if name in wanted}
        if changes:
            set_quota(
                project=obj.project,
                changes={str(obj.resource): changes},
                by=request.user,  # type: ignore[arg-type]
                reason=data["reason"],
                expected_generation=data.get("seen") if change else None,
            )
        obj.pk = Quota.objects.get(project=obj.project, resource=obj.resource).pk

    @display(description="Resource", ordering="resource")
    def what(self, quota: Quota) -> str:
        return str(QuotaResource(quota.resource).label)

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
