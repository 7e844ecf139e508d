"""Finds the quota provider by its name, and the source of the truth about usage."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Final

from django.conf import settings
from django.utils.module_loading import import_string

from accounts.errors import FieldProblem, InvalidInput
from quotas.providers.base import QuotaProvider, UsageSource

#: Where each provider lives; its module is read when it is first asked for.
PROVIDERS: Final = {
    "local": ("quotas.providers.local", "LocalQuotaProvider"),
    "k8s": ("quotas.providers.k8s", "K8sQuotaProvider"),
    "slurm": ("quotas.providers.slurm", "SlurmQuotaProvider"),
}


def provider(name: str = "") -> QuotaProvider:
    """The provider of this name, else the one QUOTA_PROVIDER names (U18); raises InvalidInput for others."""
    name = name or settings.QUOTA_PROVIDER
    if name not in PROVIDERS:
        raise _unavailable(name)
    module, class_name = PROVIDERS[name]
    found: QuotaProvider = getattr(import_module(module), class_name)()
    return found


def require_usable(name: str = "") -> None:
    """Raise InvalidInput for a provider that this installation has no way to; asked before one is chosen."""
    chosen = provider(name)
    if text := str(getattr(chosen, "missing_text", "")):
        raise InvalidInput(
            text, code="provider-unavailable", problems=[FieldProblem("provider", text, "unavailable")]
        )


@lru_cache(maxsize=1)
def usage_source() -> UsageSource:
    source: UsageSource = import_string(settings.QUOTA_USAGE_SOURCE)()
    return source


def _unavailable(name: str) -> InvalidInput:
    message = f"{name[:40]!r} is not a quota provider."
    return InvalidInput(
        message,
        code="provider-unavailable",
        way_out=f"Available: {', '.join(PROVIDERS)}.",
        problems=[FieldProblem("provider", f"{message} Available: {', '.join(PROVIDERS)}.", "unavailable")],
    )
