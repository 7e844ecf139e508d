"""Lets Django find the commands that live beside the wiring, and Celery its app; the admin loads its pages late."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class AdminConfig(SimpleAdminConfig):
    """The admin, whose pages are loaded by config.urls and by the checks: most commands and workers show no page."""

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(check_admin, checks.Tags.admin)


def check_admin(app_configs: Any, **words: Any) -> list[checks.CheckMessage]:
    admin.autodiscover()
    return list(check_admin_app(app_configs, **words))


class ConfigConfig(AppConfig):
    default = True
    name = "config"
    verbose_name = "Muster"

    def ready(self) -> None:
        """Every thread sends to our broker; by itself Celery would fall back to one on localhost."""
        from config.celery import app
        from config.checks import register as register_checks
        from config.field_names import name_fields

        app.set_default()
        register_checks()
        name_fields()
