"""Finds a quota provider by name, and the quota of a project at the provider that keeps it."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from django.conf import settings

from accounts.models import Project
from infra.errors import FieldProblem, InvalidInput
from quotas.models import Quota
from quotas.providers.base import QuotaProvider, QuotaSheet

#: Where each provider lives; its module is read when it is first asked for.
PROVIDERS: Final = {
    "local": ("quotas.providers.local", "LocalQuotaProvider"),
    "k8s": ("quotas.providers.k8s", "K8sQuotaProvider"),
    "slurm": ("quotas.providers.slurm.provider", "SlurmQuotaProvider"),
}


def provider(name: str = "") -> QuotaProvider:
    """The provider of this name, else the one QUOTA_PROVIDER names; raises InvalidInput for others."""
    name = name or settings.QUOTA_PROVIDER
    if name not in PROVIDERS:
        raise _unavailable(name)
    module, class_name = PROVIDERS[name]
    found: QuotaProvider = getattr(import_module(module), class_name)()
    return found


def quota_sheet(project: Project) -> QuotaSheet:
    """The whole quota of a project, from the provider that keeps it."""
    row = Quota.objects.plain().filter(project=project).only("provider").first()
    return provider(row.provider if row else "").get_quota(project.pk)


def require_usable(name: str = "") -> None:
    """Raise InvalidInput for a provider that this installation has no way to; asked before one is chosen."""
    chosen = provider(name)
    if text := str(getattr(chosen, "missing_text", "")):
        raise InvalidInput(
            text, code="provider-unavailable", problems=[FieldProblem("provider", text, "unavailable")]
        )


def _unavailable(name: str) -> InvalidInput:
    message = f"{name[:40]!r} is not a quota provider."
    return InvalidInput(
        message,
        code="provider-unavailable",
        way_out=f"Available: {', '.join(PROVIDERS)}.",
        problems=[FieldProblem("provider", f"{message} Available: {', '.join(PROVIDERS)}.", "unavailable")],
    )
