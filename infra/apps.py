"""The app below the others: rows that belong to none of them."""

from __future__ import annotations

from django.apps import AppConfig


class InfraConfig(AppConfig):
    name = "infra"
    verbose_name = "Outside systems"
    default_auto_field = "django.db.models.BigAutoField"
