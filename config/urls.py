"""Every address of the portal: pages at /, the API under /api/v1/, the admin, and what probes ask."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

from config import health, metrics

urlpatterns = [
    path("readyz", health.readyz, name="readyz"),
    path("healthz", health.readyz, name="healthz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("admin/", admin.site.urls),
]
for prefix, module in [
    ("api/v1/", "scheduler.api.urls"),
    ("", "accounts.web.urls"),
    ("", "quotas.web.urls"),
    ("", "scheduler.web.urls"),
]:
    if find_spec(module):
        urlpatterns.append(path(prefix, include(module)))
