"""Addresses of the pages about shares and requests."""

from __future__ import annotations

from django.urls import path

from quotas.web import grants, share_rules, shares

urlpatterns = [
    path("quota/ask/", grants.ask, name="grant-ask"),
    path("quota/requests/", grants.index, name="grants"),
    path("quota/requests/<int:grant_id>/", grants.show, name="grant"),
    path("quota/requests/<int:grant_id>/<str:verb>/", grants.decide, name="grant-decide"),
    path("shares/", shares.index, name="shares"),
    path("shares/rules/", share_rules.rules, name="share-rules"),
    path("shares/<str:kind>/<int:number>/", shares.edit, name="share-edit"),
]
