"""The admin page of quotas: each edit has a reason, goes through the service, and shows a conflict."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.admin.previewed import PreviewedAdmin, PreviewedForm, last_change
from quotas.core.amounts import EXAMPLES, RESOURCE_WORDS, exact_amount, parse_amount
from quotas.core.resources import BadAmount, show_cpus, show_mib
from quotas.models import Quota, QuotaResource, provider_label
from quotas.providers.registry import quota_sheet
from quotas.selectors.fair_share_report import span
from quotas.services.impact import impact_of_line, shown
from quotas.services.project_quota import BOUNDS, set_quota
from quotas.services.quota_lines import AMOUNTS, EDITABLE, Subject, set_line

FIRST_SHOWN = "The first save shows the impact; save again to confirm."
SUBJECT = ("organization", "project", "user")
WHAT = ("resource", "gpu_model", "job_type")
SHOWN = ("nominal_shown", "soft_shown", "hard_shown")


def _amount(help_text: str) -> forms.CharField:
    return forms.CharField(
        required=False, max_length=40, widget=UnfoldAdminTextInputWidget(), help_text=help_text
    )


class QuotaForm(PreviewedForm):
    """Amounts as people write them; `seen` is the generation of the quota as the page showed it."""

    nominal = _amount(
        "Nominal share: usage above it is borrowed. Borrowed amounts are taken back by stopping jobs only where the"
        ' profile\'s preemption says "reclaim": 1.'
    )
    soft = _amount("Advice: above this amount the bar turns and leads get an alert; no job waits for it.")
    hard = _amount("Blocks new jobs above this amount.")
    borrowing_limit = _amount("Amount that may be borrowed above the nominal share; empty: all that is idle.")
    lending_limit = _amount("Amount of the idle share that others may borrow; empty: all.")

    class Meta:
        model = Quota
        fields = (*SUBJECT, *WHAT, *EDITABLE)
        help_texts = {
            "converge_after_seconds": (
                "After the limit is lowered: seconds until jobs are stopped to keep it; empty: never."
            ),
            "enforce": "On: jobs wait. Off: only reported.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "resource" in self.fields:
            choices: Any = self.fields["resource"]
            choices.choices = [("", "---------"), *RESOURCE_WORDS.items()]
        resource = self.instance.resource
        for name in AMOUNTS:
            if name not in self.fields:
                continue
            if self.instance.pk is not None:
                value = getattr(self.instance, name)
                self.initial[name] = "" if value is None else exact_amount(resource, value)
            written = EXAMPLES.get(resource, "16 cores, 4 GPUs or 64 GiB") if name == AMOUNTS[0] else ""
            if written:
                self.fields[name].help_text += (
                    f" Written in {written}." if resource else f" For example {written}."
                )

    def version(self) -> int:
        """Plain lines of a project are edited together, so they share one."""
        line = self.present()
        if line is None:
            return 0
        if line.project is not None and line.is_plain and line.resource in QuotaResource.counted():
            return quota_sheet(line.project).generation
        return int(line.generation)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if self.instance.pk is None:
            _check_subject(self, cleaned)
        resource = str(cleaned.get("resource") or self.instance.resource)
        for name in AMOUNTS:
            text = cleaned.get(name) or ""
            try:
                cleaned[name] = parse_amount(resource, text) if text and resource else None
            except BadAmount as bad:
                self.add_error(name, f"{bad}.")
        soft, hard = cleaned.get("soft"), cleaned.get("hard")
        if soft is not None and hard is not None and soft > hard:
            self.add_error("soft", "The soft limit cannot be above the hard one.")
        for name in ("borrowing_limit", "lending_limit"):
            if cleaned.get(name) is not None and cleaned.get("nominal") is None:
                self.add_error(name, "Needs a nominal share.")
        return cleaned

    def shown(self, name: str, value: Any) -> str:
        if value is None:
            return ""
        if name in AMOUNTS:
            return shown(self.cleaned_data.get("resource") or self.instance.resource, value)
        words = {
            "enforce": lambda: "blocks" if value else "reports only",
            "converge_after_seconds": lambda: span(value) if value else "at once",
            "provider": lambda: provider_label(value),
            "resource": lambda: RESOURCE_WORDS[value],
        }
        return words[name]() if name in words else str(value)

    def effect(self) -> tuple[tuple[str, ...], bool]:
        line = self.present() or Quota(
            **{name: self.cleaned_data.get(name) or None for name in SUBJECT},
            **{name: self.cleaned_data.get(name) or "" for name in WHAT},
        )
        found = impact_of_line(line, {name: self.cleaned_data.get(name) for name in EDITABLE})
        return found.sentences, found.over_headroom or bool(found.over_by_cut)

    def who(self) -> str:
        line = self.present()
        return last_change(line.project or line, "quota.set")


def _check_subject(form: QuotaForm, cleaned: dict[str, Any]) -> None:
    subject = Subject(**{name: cleaned.get(name) for name in SUBJECT})
    if not subject.is_one:
        form.add_error(None, "Choose an organization, or a project, or a user, or a user in a project.")
    if cleaned.get("gpu_model") and cleaned.get("resource") != QuotaResource.GPU_MILLIS:
        form.add_error("gpu_model", "Only a limit of GPUs may be for one model.")


@admin.register(Quota)
class QuotaAdmin(PreviewedAdmin):
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
            *BOUNDS, "borrowing_limit", "lending_limit", "converge_after_seconds", ("enforce", "provider"),
            "reason", "seen", "previewed",
        )  # fmt: skip
        if obj and not self.has_change_permission(request, obj):
            rows = (*SHOWN, ("enforce", "provider"))
        limits = ("Limits", {"fields": rows, "description": FIRST_SHOWN if "reason" in rows else ""})
        facts = ("Facts", {"fields": (("in_use", "generation", "synced_at"),)})
        whose: tuple[Any, ...] = ("owner", "what") if obj else (*SUBJECT, *WHAT)
        return [(None, {"fields": whose}), limits, *([facts] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*SUBJECT, *WHAT, *SHOWN, "owner", "what", "in_use", "generation", "synced_at") if obj else ()

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
        label = RESOURCE_WORDS[quota.resource]
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
