"""The admin pages of budgets, prices and the ledger; amounts as people say them, in hours and in money."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts.admin.base import FactsAdmin, FactsInline
from accounts.admin.previewed import PreviewedAdmin, PreviewedForm, Row, last_change
from accounts.web.pages import reader
from quotas.admin.limits import FIRST_SHOWN
from quotas.models import Budget, BudgetPeriod, BudgetResource, LedgerEntry, OnSpent, PriceRow
from quotas.services.budget_impact import impact_of_budget, impact_of_price
from quotas.services.budgets import EDITABLE, change_budget, make_budget, set_price

#: What is typed in hours or in money is stored in thousandths times seconds, or millionths.
HOURS, MONEY = 3_600_000, 1_000_000


class BudgetForm(PreviewedForm):
    amount = forms.DecimalField(
        min_value=0,
        max_digits=16,
        decimal_places=3,
        help_text="GPU-hours, core-hours, or money, each period.",
    )

    class Meta:
        model = Budget
        fields = ("name", "organization", "project", "resource", "period", "on_spent", "starts_at", "ends_at")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and "amount" in self.fields:
            self.fields["amount"].initial = self.instance.amount / unit_of(self.instance.resource)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if self.instance.pk is None and bool(cleaned.get("organization")) == bool(cleaned.get("project")):
            raise forms.ValidationError("Choose either an organization or a project.")
        return cleaned

    def value_of(self, row: Budget, name: str) -> Any:
        return (
            Decimal(row.amount) / unit_of(row.resource) if name == "amount" else super().value_of(row, name)
        )

    def shown(self, name: str, value: Any) -> str:
        words = {
            "amount": lambda: f"{value:,.3f}".rstrip("0").rstrip("."),
            "on_spent": lambda: str(OnSpent(value).label),
            "resource": lambda: str(BudgetResource(value).label),
        }
        if isinstance(value, datetime):
            return f"{value:%d %b %Y}"
        return words[name]() if name in words and value is not None else super().shown(name, value)

    def effect(self) -> tuple[tuple[str, ...], bool]:
        data, budget = self.cleaned_data, self.present()
        resource = budget.resource if budget else data["resource"]
        found = impact_of_budget(
            budget,
            subject=None if budget else data["project"] or data["organization"],
            resource=resource,
            amount=int(data["amount"] * unit_of(resource)),
            on_spent=data["on_spent"],
        )
        return found.sentences, found.is_spent

    def who(self) -> str:
        return last_change(self.instance, "budget.change", "budget.make")


def unit_of(resource: str) -> int:
    return MONEY if resource == BudgetResource.MONEY else HOURS


class PeriodInline(FactsInline):
    model = BudgetPeriod
    fields = ("starts_at", "ends_at", "amount", "held", "charged", "checked_at")
    readonly_fields = fields
    ordering = ("-starts_at",)
    view_verbs = ("operate", "audit")


@admin.register(Budget)
class BudgetAdmin(PreviewedAdmin):
    """For operators. What is below what was used stops nobody who runs: nothing new starts."""

    edit_verb = "operate"
    form = BudgetForm
    inlines = (PeriodInline,)
    list_display = ("name", "owner", "resource", "amount_shown", "period", "on_spent", "starts_at", "ends_at")
    list_select_related = ("project", "organization")
    list_filter = ("resource", "period", "on_spent", "project", "organization")
    search_fields = ("name", "project__slug", "organization__slug")
    autocomplete_fields = ("organization", "project")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            (None, {"fields": ("name", ("organization", "project"), ("resource", "period"))}),
            (
                "Terms",
                {
                    "fields": ("amount", "on_spent", ("starts_at", "ends_at"), "reason", "seen", "previewed"),
                    "description": FIRST_SHOWN,
                },
            ),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("organization", "project", "resource", "period", "starts_at") if obj else ()

    def save_model(self, request: HttpRequest, obj: Budget, form: Any, change: bool) -> None:
        data = form.cleaned_data
        amount = int(data["amount"] * unit_of(obj.resource))
        if change:
            wanted = {name: data[name] for name in EDITABLE if name in form.changed_data and name != "amount"}
            if "amount" in form.changed_data:
                wanted["amount"] = amount
            if wanted:
                change_budget(
                    budget=obj, changes=wanted, by=reader(request), reason=data["reason"],
                    expected_generation=data.get("seen"),
                )  # fmt: skip
            return
        subject = obj.project or obj.organization
        assert subject is not None
        made = make_budget(
            subject=subject, name=obj.name, resource=obj.resource, amount=amount, period=obj.period,
            on_spent=obj.on_spent, starts_at=obj.starts_at, ends_at=obj.ends_at, by=reader(request),
            reason=data["reason"],
        )  # fmt: skip
        obj.pk = made.pk

    @display(description="Of")
    def owner(self, budget: Budget) -> str:
        return str(budget.project or budget.organization)

    @display(description="Amount", ordering="amount")
    def amount_shown(self, budget: Budget) -> str:
        return f"{budget.amount / unit_of(budget.resource):,.2f}"


class PriceForm(PreviewedForm):
    """`seen` is the newest price there was when the page was opened."""

    per_hour = forms.DecimalField(
        min_value=0, max_digits=16, decimal_places=6, help_text="Of one core, GiB or GPU."
    )

    class Meta:
        model = PriceRow
        fields = ("resource", "gpu_model", "valid_from")

    def version(self) -> int:
        """The newest price of the same thing; of anything, before it is known of what."""
        same = PriceRow.objects.order_by("-pk")
        if self.is_bound and hasattr(self, "cleaned_data"):
            seen = self.cleaned_data.get("seen") or 0
            newer = same.filter(**{name: self.cleaned_data[name] for name in ("resource", "gpu_model")})
            return max(newer.values_list("pk", flat=True).first() or 0, seen)
        return same.values_list("pk", flat=True).first() or 0

    def differences(self) -> list[Row]:
        data, before = self.cleaned_data, self._before()
        was = "" if before is None else shown_price(before.micros_per_hour)
        what = " ".join(part for part in (data["gpu_model"], data["resource"]) if part)
        return [
            Row(f"An hour of {what}", was, shown_price(int(data["per_hour"] * MONEY))),
            Row("From", "" if before is None else f"{before.valid_from:%d %b %Y %H:%M}",
                f"{data['valid_from']:%d %b %Y %H:%M}"),
        ]  # fmt: skip

    def effect(self) -> tuple[tuple[str, ...], bool]:
        data, before = self.cleaned_data, self._before()
        return impact_of_price(
            resource=data["resource"],
            gpu_model=data["gpu_model"],
            before=None if before is None else before.micros_per_hour,
            after=int(data["per_hour"] * MONEY),
        ), False

    def who(self) -> str:
        newest = PriceRow.objects.filter(pk=self.version()).first()
        return "" if newest is None else last_change(newest, "price.set")

    def _before(self) -> PriceRow | None:
        """The price that is in force when this one would begin."""
        data = self.cleaned_data
        return (
            PriceRow.objects.filter(
                resource=data["resource"], gpu_model=data["gpu_model"], valid_from__lte=data["valid_from"]
            )
            .order_by("-valid_from")
            .first()
        )


@admin.register(PriceRow)
class PriceAdmin(PreviewedAdmin):
    """A new price ends the one before it; what was charged stays as it was."""

    edit_verb = "operate"
    form = PriceForm
    fieldsets = (
        (None, {"fields": ("resource", "gpu_model", "per_hour", "valid_from", "reason", "seen", "previewed"),
                "description": FIRST_SHOWN}),
    )  # fmt: skip
    list_display = ("resource", "gpu_model", "shown", "valid_from", "valid_until")
    list_filter = ("resource", "gpu_model")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: PriceRow, form: Any, change: bool) -> None:
        data = form.cleaned_data
        made = set_price(
            resource=obj.resource, gpu_model=obj.gpu_model, micros_per_hour=int(data["per_hour"] * MONEY),
            valid_from=obj.valid_from, by=reader(request), reason=data["reason"],
        )  # fmt: skip
        obj.pk = made.pk

    @display(description="An hour", ordering="micros_per_hour")
    def shown(self, price: PriceRow) -> str:
        return shown_price(price.micros_per_hour)


def shown_price(micros: int) -> str:
    return f"{micros / MONEY:,.6f}".rstrip("0").rstrip(".")


@admin.register(LedgerEntry)
class LedgerAdmin(FactsAdmin):
    """Lines to look at: nobody can alter them, not even here."""

    list_display = (
        "id", "kind", "project", "user", "job_number", "gpu_model", "gpu_millis", "held_seconds",
        "charged_seconds", "starts_at", "reason",
    )  # fmt: skip
    list_select_related = ("project", "user")
    list_filter = ("kind", "project")
    search_fields = ("=job_number", "user__username", "project__slug")
    paginator = InfinitePaginator
    show_full_result_count = False
