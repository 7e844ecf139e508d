"""The API's routes of people, projects, tokens and the audit trail, under /api/v1/."""

from __future__ import annotations

from django.urls import path
from rest_framework.routers import SimpleRouter

from accounts.api import views

router = SimpleRouter(trailing_slash=False)
router.register("projects", views.ProjectViewSet, basename="project")
router.register("tokens", views.TokenViewSet, basename="token")
router.register("audit", views.AuditViewSet, basename="audit")

urlpatterns = [path("me", views.MeView.as_view(), name="api-me"), *router.urls]
