"""How the admin looks and what its side bar lists; only pages that exist and that the person may open are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse


def _link(model: str) -> Callable[[HttpRequest], str]:
    def link(request: HttpRequest) -> str:
        try:
            return reverse(f"admin:{model.replace('.', '_')}_changelist")
        except NoReverseMatch:
            return "#"

    return link


def _permission(model: str) -> Callable[[HttpRequest], bool]:
    def may_open(request: HttpRequest) -> bool:
        from django.contrib import admin

        try:
            page = admin.site._registry.get(apps.get_model(model))
        except LookupError:
            return False
        return page is not None and page.has_view_permission(request)

    return may_open


def _group(title: str, *items: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "separator": True,
        "items": [
            {"title": name, "icon": icon, "link": _link(model), "permission": _permission(model)}
            for name, icon, model in items
        ],
    }


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Muster",
    "SITE_HEADER": "Muster",
    "SITE_SUBHEADER": "Administration",
    "SITE_SYMBOL": "grid_view",
    "SITE_URL": "/",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("img/mark.svg")},
    ],
    "SHOW_HISTORY": False,  # the audit trail has it, with the reason
    "SHOW_VIEW_ON_SITE": False,
    "COLORS": {
        # The blue of the portal.
        "primary": {
            "50": "#eef5ff",
            "100": "#d9e8ff",
            "200": "#bcd7ff",
            "300": "#8ebeff",
            "400": "#6cb0ff",
            "500": "#2f76e0",
            "600": "#1558c0",
            "700": "#12479b",
            "800": "#143d7f",
            "900": "#16356a",
            "950": "#112247",
        }
    },
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
        "navigation": [
            _group(
                "Cluster",
                ("Clusters", "dns", "scheduler.cluster"),
                ("Partitions", "splitscreen", "scheduler.partition"),
                ("Policy faults", "extension_off", "scheduler.policyfault"),
                ("Nodes", "computer", "scheduler.node"),
                ("Devices", "memory", "scheduler.device"),
                ("Reservations", "event", "scheduler.reservation"),
                ("Join tokens", "key", "scheduler.jointoken"),
            ),
            _group(
                "Queues",
                ("Queues", "stacks", "scheduler.queue"),
                ("Priority classes", "sort", "scheduler.priorityclass"),
                ("Scheduler profiles", "tune", "scheduler.schedulerprofile"),
            ),
            _group(
                "Work",
                ("Jobs", "work", "scheduler.job"),
                ("Attempts", "play_circle", "scheduler.attempt"),
                ("Tasks", "checklist", "scheduler.task"),
                ("Allocations", "pie_chart", "scheduler.allocation"),
                ("Events", "history", "scheduler.jobevent"),
                ("Datasets", "database", "scheduler.dataset"),
            ),
            _group(
                "Planning",
                ("Cycles", "autorenew", "scheduler.cycle"),
                ("Leases", "lock_clock", "scheduler.lease"),
            ),
            _group(
                "Quotas",
                ("Quotas", "speed", "quotas.quota"),
                ("Quota providers", "sync_alt", "quotas.providerstate"),
                ("Refused starts", "block", "quotas.refusedstart"),
                ("Provider allocations", "fact_check", "quotas.providerallocation"),
            ),
            _group(
                "People",
                ("Users", "person", "accounts.user"),
                ("Organizations", "account_tree", "accounts.organization"),
                ("Projects", "folder", "accounts.project"),
                ("Memberships", "group", "accounts.membership"),
                ("API tokens", "vpn_key", "accounts.apitoken"),
                ("Audit trail", "policy", "accounts.auditevent"),
            ),
            _group(
                "System",
                ("Periodic tasks", "schedule", "django_celery_beat.periodictask"),
                ("Retention", "auto_delete", "scheduler.retentionrun"),
                ("Circuits", "power_off", "infra.circuit"),
            ),
        ],
    },
}
