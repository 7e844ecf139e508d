"""Lets Django find the commands that live beside the wiring, and Celery its app."""

from __future__ import annotations

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    verbose_name = "Muster"

    def ready(self) -> None:
        """Every thread sends to our broker; by itself Celery would fall back to one on localhost."""
        from config import checks
        from config.celery import app
        from config.field_names import name_fields

        app.set_default()
        checks.register()
        name_fields()
