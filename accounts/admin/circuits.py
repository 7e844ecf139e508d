"""Systems outside Muster that failed lately."""

from __future__ import annotations

from django.contrib import admin

from accounts.admin.base import FactsAdmin
from infra.models import Circuit


@admin.register(Circuit)
class CircuitAdmin(FactsAdmin):
    """A system that failed often is left alone until `open until`; then one process tries."""

    list_display = ("name", "label", "failures", "failed_at", "opened_at", "open_until", "text")
    list_filter = ("system",)
    search_fields = ("name", "label", "text")
