"""The API's routes of people, projects, tokens, secrets and the audit trail, under /api/v1/."""

from __future__ import annotations

from django.urls import path
from rest_framework.routers import SimpleRouter

from accounts.api import secrets, views

router = SimpleRouter(trailing_slash=False)
router.register("projects", views.ProjectViewSet, basename="project")
router.register("tokens", views.TokenViewSet, basename="token")
router.register("audit", views.AuditViewSet, basename="audit")

urlpatterns = [
    path("me", views.MeView.as_view(), name="api-me"),
    path("secrets", secrets.OwnSecrets.as_view(), name="api-secrets"),
    path("secrets/<str:name>", secrets.OwnSecret.as_view(), name="api-secret"),
    path("projects/<str:ref>/secrets", secrets.ProjectSecrets.as_view(), name="api-project-secrets"),
    path("projects/<str:ref>/secrets/<str:name>", secrets.ProjectSecret.as_view(), name="api-project-secret"),
    *router.urls,
]
