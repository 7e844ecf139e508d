"""The admin page of retention: what is kept how long, and what each run threw away."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import display

from accounts.admin.base import table
from scheduler.admin.base import FactsAdmin
from scheduler.models import RetentionRun
from scheduler.services.retention import kept_for, rules, said_for


@admin.register(RetentionRun)
class RetentionRunAdmin(FactsAdmin):
    """Runs by themselves every hour; the settings are variables of the environment, in days."""

    list_display = ("started_at", "seconds", "rows", "state", "problem")
    ordering = ("-id",)
    fieldsets = (
        (None, {"fields": (("started_at", "seconds"), "state", "problem")}),
        ("Pruned rows, by kind", {"fields": ("what",)}),
        ("Retention periods", {"fields": ("now",)}),
    )
    readonly_fields = ("seconds", "state", "what", "now")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Before the first run there is no row to look at."""
        if not RetentionRun.objects.exists():
            self.message_user(request, "Not run yet; retention runs every hour.")
        return super().changelist_view(request, extra_context)

    @display(description="Took")
    def seconds(self, run: RetentionRun) -> str:
        return f"{((run.ended_at or timezone.now()) - run.started_at).total_seconds():.1f} s"

    @display(description="Rows removed", ordering="removed")
    def rows(self, run: RetentionRun) -> str:
        return f"{run.removed:,}"

    @display(description="State", label={"done": "success", "failed": "danger", "in progress": "warning"})
    def state(self, run: RetentionRun) -> str:
        if run.problem:
            return "failed"
        return "in progress" if run.ended_at is None else "done"

    @display(description="")
    def what(self, run: RetentionRun) -> SafeString:
        rows = [
            (rule["words"], f"{rule['removed']:,}", said_for(rule["hours"], rule["setting"]))
            for rule in run.rules
        ]
        return table(("What", "Rows removed", "Kept for"), rows, "Nothing yet.")

    @display(description="")
    def now(self, _: RetentionRun) -> SafeString:
        rows = [(rule.words, kept_for(rule), f"at least {rule.at_least_days} days: {rule.why}" if rule.why else "")
                for rule in rules()]  # fmt: skip
        return table(("What", "Kept for", ""), rows, "")
