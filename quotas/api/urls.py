"""The API's routes of quotas, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from quotas.api.views import QuotaSyncView, QuotaView

urlpatterns = [
    path("queues/quota/<str:project_id>", QuotaView.as_view(), name="api-quota"),
    path("queues/quota/<str:project_id>/sync", QuotaSyncView.as_view(), name="api-quota-sync"),
]
