"""Every HTTP route of Django: pages at /, the API under /api/v1/, the admin, health checks and metrics.

/livez is answered by a middleware, before any of these.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from accounts.admin.login_views import row_of_any_table
from config import error_pages, health, metrics
from config.system.api import SystemView

admin.autodiscover()  # see config.apps.AdminConfig

handler500 = "config.error_pages.server_error"

urlpatterns = [
    path("readyz", health.readyz, name="readyz"),
    path("healthz", health.readyz, name="healthz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("metrics/slurm", metrics.slurm_metrics, name="slurm-metrics"),
    path("admin/r/<path:path>", row_of_any_table),
    path("admin/", admin.site.urls),
    path("api/v1/system", SystemView.as_view(), name="api-system"),
    path("api/v1/", include("notifications.api.urls")),  # before the last, which answers whatever is unknown
    path("api/v1/", include("scheduler.api.urls")),
    path("", include(error_pages)),
    path("", include("config.system.urls")),
    path("", include("accounts.web.urls")),
    path("", include("quotas.web.urls")),
    path("", include("scheduler.web.urls")),
    path("", include("notifications.web.urls")),
]
