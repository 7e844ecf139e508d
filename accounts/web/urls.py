"""Addresses of the pages about people: sign-in, settings, tokens, projects, audit."""

from __future__ import annotations

from django.urls import path

from accounts.web import audit, auth, projects, secrets, settings, tokens

urlpatterns = [
    path("signin/", auth.signin, name="signin"),
    path("signout/", auth.signout, name="signout"),
    path("settings/", settings.show, name="settings"),
    path("settings/theme/", settings.change_theme, name="theme"),
    path("settings/password/", settings.change_password, name="password"),
    path("settings/secrets/", secrets.set_own, name="secrets"),
    path("settings/secrets/<str:name>/delete/", secrets.delete_own, name="secret-delete"),
    path("tokens/", tokens.show, name="tokens"),
    path("tokens/<int:token_id>/revoke/", tokens.revoke, name="token-revoke"),
    path("projects/", projects.index, name="projects"),
    path("projects/<slug:slug>/", projects.show, name="project"),
    path("projects/<slug:slug>/members/", projects.add, name="member-add"),
    path("projects/<slug:slug>/members/<int:member_id>/", projects.change, name="member-change"),
    path("projects/<slug:slug>/secrets/", secrets.set_of_project, name="project-secrets"),
    path(
        "projects/<slug:slug>/secrets/<str:name>/delete/",
        secrets.delete_of_project,
        name="project-secret-delete",
    ),
    path("audit/", audit.show, name="audit"),
]
