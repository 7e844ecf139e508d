"""The API's routes of quotas, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from quotas.api.budgets import BudgetsView, BudgetView
from quotas.api.grants import GrantsView, GrantVerbView, GrantView, ImpactView
from quotas.api.ledger import LedgerView, UsageView
from quotas.api.lines import LinesView, LineView
from quotas.api.notices import DriftView, NoticeReadView, NoticesView
from quotas.api.share_rules import ShareRulesPreviewView, ShareRulesView
from quotas.api.shares import SharesView, ShareView
from quotas.api.views import QuotaRepairView, QuotaSyncView, QuotaView

urlpatterns = [
    path("quotas/requests", GrantsView.as_view(), name="api-grants"),
    path("quotas/requests/<int:grant_id>", GrantView.as_view(), name="api-grant"),
    path("quotas/requests/<int:grant_id>/<str:verb>", GrantVerbView.as_view(), name="api-grant-verb"),
    path("quotas/impact/<str:project_id>", ImpactView.as_view(), name="api-impact"),
    path("quotas/lines", LinesView.as_view(), name="api-lines"),
    path("quotas/lines/<int:line_id>", LineView.as_view(), name="api-line"),
    path("quotas/ledger", LedgerView.as_view(), name="api-ledger"),
    path("quotas/usage", UsageView.as_view(), name="api-usage"),
    path("quotas/notices", NoticesView.as_view(), name="api-notices"),
    path("quotas/notices/<int:notice_id>/read", NoticeReadView.as_view(), name="api-notice-read"),
    path("quotas/drift", DriftView.as_view(), name="api-drift"),
    path("quotas/budgets", BudgetsView.as_view(), name="api-budgets"),
    path("quotas/budgets/<int:budget_id>", BudgetView.as_view(), name="api-budget"),
    path("shares", SharesView.as_view(), name="api-shares"),
    path("shares/rules", ShareRulesView.as_view(), name="api-share-rules"),
    path("shares/rules/preview", ShareRulesPreviewView.as_view(), name="api-share-rules-preview"),
    path("shares/<str:kind>/<int:number>", ShareView.as_view(), name="api-share"),
    path("queues/quota/<str:project_id>", QuotaView.as_view(), name="api-quota"),
    path("queues/quota/<str:project_id>/sync", QuotaSyncView.as_view(), name="api-quota-sync"),
    path("queues/quota/<str:project_id>/repair", QuotaRepairView.as_view(), name="api-quota-repair"),
]
