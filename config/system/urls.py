"""The routes of the page System."""

from __future__ import annotations

from django.urls import path

from config.system import pages

urlpatterns = [
    path("system/", pages.show, name="system"),
    path("system/try/", pages.try_system, name="system-try"),
    path("system/support-bundle/", pages.support_bundle, name="support-bundle"),
]
