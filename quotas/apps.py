"""The quotas app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks


class QuotasConfig(AppConfig):
    name = "quotas"
    verbose_name = "Quotas"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(check_provider)


def check_provider(**_: Any) -> list[checks.CheckMessage]:
    """A provider that this installation does not have must stop the start, not the first edit or the first job."""
    from infra.errors import InvalidInput
    from quotas.models import named_providers
    from quotas.providers.registry import deciding_provider, require_usable

    found: list[checks.CheckMessage] = []
    for name in named_providers():
        try:
            deciding_provider(name)
        except InvalidInput as error:
            found.append(
                checks.Error(f"QUOTA_PROVIDERS: {error.message}", hint=error.way_out, id="quotas.E002")
            )
    try:
        require_usable()
    except InvalidInput as error:
        found.append(checks.Error(f"QUOTA_PROVIDER: {error.message}", hint=error.way_out, id="quotas.E001"))
    return found
