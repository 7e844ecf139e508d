"""Finds a quota provider by name, and the quota of a project at the provider that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from django.conf import settings

from accounts.models import Project
from infra.errors import FieldProblem, InvalidInput
from quotas.models import Quota, named_providers
from quotas.providers.base import QuotaProvider, QuotaSheet, SheetProvider
from quotas.providers.local import LocalQuotaProvider

#: Where each provider lives; its module is read when it is first asked for.
PROVIDERS: Final = {
    "local": ("quotas.providers.local", "LocalQuotaProvider"),
    "k8s": ("quotas.providers.k8s", "K8sQuotaProvider"),
    "slurm": ("quotas.providers.slurm.provider", "SlurmQuotaProvider"),
}
#: What a provider of QUOTA_PROVIDERS has to have.
VERBS: Final = ("check_quota", "allocate_quota", "release_quota")


def provider(name: str = "") -> SheetProvider:
    """The provider of this name that comes with Muster, else the one QUOTA_PROVIDER names.

    A provider of QUOTA_PROVIDERS decides about starts beside Muster's own lines: those are answered for it. Raises
    InvalidInput for others.
    """
    name = name or settings.QUOTA_PROVIDER
    if name in named_providers():
        deciding_provider(name)
        lines = LocalQuotaProvider()
        lines.name = name
        return lines
    if name not in PROVIDERS:
        raise _unavailable(name)
    module, class_name = PROVIDERS[name]
    found: SheetProvider = getattr(import_module(module), class_name)()
    return found


def deciding_provider(name: str) -> QuotaProvider:
    """The provider of QUOTA_PROVIDERS with this name; raises InvalidInput, which says why there is none."""
    path = named_providers().get(name)
    if path is None:
        raise _unavailable(name)
    return _loaded(name, path)


def decides(name: str) -> bool:
    """Whether the provider of this name is asked about each start."""
    return name in named_providers()


@cache
def _loaded(name: str, path: str) -> QuotaProvider:
    """One object for a process: it may keep connections."""
    module, _, class_name = path.partition(":")
    try:
        made: Callable[[], Any] = getattr(import_module(module), class_name)
        found = made()
    except Exception as error:
        why = f"{path} cannot be loaded: {type(error).__name__}: {error}"[:300]
        raise _unusable(name, f"{why}.", "Install the package, or correct QUOTA_PROVIDERS.") from error
    if missing := [verb for verb in VERBS if not callable(getattr(found, verb, None))]:
        raise _unusable(
            name,
            f"{path} has no {' and no '.join(missing)}.",
            "Write the methods of quotas.providers.base.QuotaProvider.",
        )
    return cast("QuotaProvider", found)


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


def deciding_projects(project_ids: Iterable[int]) -> dict[int, str]:
    """Which of these projects have a provider that decides about starts, and its name; one query at most.

    A project without lines has the provider of new quotas.
    """
    deciding = named_providers()
    if not deciding:
        return {}
    wanted = set(project_ids)
    kept = dict(
        Quota.objects.plain()
        .filter(project_id__in=wanted)
        .order_by("-id")
        .values_list("project_id", "provider")
    )
    found = {one: kept.get(one, settings.QUOTA_PROVIDER) for one in wanted}
    return {one: name for one, name in found.items() if name in deciding}


def _unusable(name: str, message: str, way_out: str) -> InvalidInput:
    text = f"Quota provider {name}: {message}"
    return InvalidInput(
        text,
        code="provider-unavailable",
        way_out=way_out,
        problems=[FieldProblem("provider", text, "unavailable")],
    )


def _unavailable(name: str) -> InvalidInput:
    message = f"{name[:40]!r} is not a quota provider."
    available = ", ".join([*PROVIDERS, *named_providers()])
    return InvalidInput(
        message,
        code="provider-unavailable",
        way_out=f"Available: {available}.",
        problems=[FieldProblem("provider", f"{message} Available: {available}.", "unavailable")],
    )
