"""Addresses of the pages about shares."""

from __future__ import annotations

from django.urls import path

from quotas.web import shares

urlpatterns = [
    path("shares/", shares.index, name="shares"),
    path("shares/<str:kind>/<int:number>/", shares.edit, name="share-edit"),
]
