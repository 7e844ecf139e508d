"""Admin pages of the audit trail: to search and to look at, never to edit."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import FieldTextFilter
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts.admin.base import FactsAdmin, table
from accounts.models import AuditChain, AuditCheck, AuditEvent


class TrailAdmin(FactsAdmin):
    """For auditors and admins who have an account here."""

    view_verbs = ("audit",)


@admin.register(AuditEvent)
class AuditEventAdmin(TrailAdmin):
    list_display = ("at", "actor_name", "action", "result", "thing", "reason", "address", "token_prefix")
    list_filter = (
        "outcome",
        "at",
        ("actor_name", FieldTextFilter),
        ("action", FieldTextFilter),
        ("object_type", FieldTextFilter),
        ("object_id", FieldTextFilter),
    )
    list_filter_submit = True
    search_fields = ("actor_name", "action", "object_label", "reason", "request_id")
    ordering = ("-id",)
    # A trail has millions of rows: neither counted nor sorted by what has no index.
    paginator = InfinitePaginator
    show_full_result_count = False
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("at", "actor_name", "action", "result", "thing", "project_name", "reason")}),
        ("Change", {"fields": ("diff",)}),
        ("From", {"fields": (("address", "request_id"), ("token_prefix", "on_behalf_of"))}),
        ("Chain", {"fields": (("shard", "number"), "previous_hash", "hash")}),
    )

    @display(description="Outcome", label={"done": "success", "denied": "danger"})
    def result(self, event: AuditEvent) -> str:
        return event.outcome

    @display(description="Object")
    def thing(self, event: AuditEvent) -> str:
        return f"{event.object_type} {event.object_label or event.object_id}"

    @display(description="Project")
    def project_name(self, event: AuditEvent) -> str:
        return str(event.project or "")

    @display(description="Before and after")
    def diff(self, event: AuditEvent) -> SafeString | str:
        before, after = event.before or {}, event.after or {}
        names = sorted({*before, *after})
        if not names:
            return "Nothing was changed."
        rows: list[tuple[Any, ...]] = [(n, _shown(before, n), _shown(after, n)) for n in names]
        return table(("", "Before", "After"), rows)


def _shown(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return ""
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


@admin.register(AuditChain)
class AuditChainAdmin(TrailAdmin):
    list_display = ("shard", "length", "head")


@admin.register(AuditCheck)
class AuditCheckAdmin(TrailAdmin):
    list_display = ("checked_at", "result", "rows", "problem")
    ordering = ("-id",)

    @display(description="Result", label={"intact": "success", "broken": "danger"})
    def result(self, check: AuditCheck) -> str:
        return "intact" if check.ok else "broken"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self._may_look(request)
