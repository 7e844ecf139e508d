"""The scheduler app."""

from __future__ import annotations

from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"
    verbose_name = "Scheduling"
    default_auto_field = "django.db.models.BigAutoField"
