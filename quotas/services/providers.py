"""What people and the clock ask of a provider outside Muster: look, bring over, put right."""

from __future__ import annotations

import structlog

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from quotas.models import ProviderState, ProviderStatus
from quotas.providers import circuit
from quotas.providers.external import one_round
from quotas.providers.registry import deciding_projects
from quotas.services.deciding import checks as provider_checks
from quotas.services.exchange import Outcome, due_projects, exchange

log = structlog.get_logger(__name__)


def exchange_quota(*, project: Project, by: User) -> ProviderState | None:
    """Exchange with the provider now and say how things stand; None where Muster itself keeps the quota."""
    permissions.require(by, "edit_quota", project)
    deciding = deciding_projects([project.pk])
    if deciding:
        circuit.forget_failures()
        provider_checks.probe(deciding[project.pk], project.pk)
    else:
        exchange(project.pk)
    return ProviderState.objects.filter(project=project).first()


def repair_provider(*, project: Project, by: User, reason: str) -> Outcome:
    """Put the provider's limits back to Muster's, whatever somebody has made of them there.

    Raises Conflict where there is nothing outside to put right, or when it cannot be done now.
    """
    permissions.require(by, "edit_quota", project)
    reason = reason.strip()
    if not reason:
        message = "Give a reason; it goes into the audit trail."
        raise InvalidInput(message, problems=[FieldProblem("reason", message, "required")])
    outcome = exchange(project.pk, repair=True)
    if outcome is None:
        if project.pk in deciding_projects([project.pk]):
            message = "This provider decides about starts and keeps no copy of the limits."
            raise Conflict(message, code="kept-here", way_out="There is nothing to repair.")
        if ProviderState.objects.filter(project=project).exists():
            raise Conflict("An exchange with the provider is in progress.", way_out="Try again in a moment.")
        raise Conflict("Muster manages this quota itself; there is no provider to repair.", code="kept-here")
    if outcome.status in (ProviderStatus.UNREACHABLE, ProviderStatus.REFUSED, ProviderStatus.OFF):
        raise Conflict(
            f"The provider could not be repaired: {outcome.text}",
            code=f"provider-{outcome.status.value}",
            status=503 if outcome.status == ProviderStatus.UNREACHABLE else 409,
            way_out="Nothing is lost: the limits are sent to the provider as soon as possible.",
        )
    if outcome.written:
        audit.record(
            by=by,
            action="quota.provider_repair",
            thing=project,
            before={d.key: d.there for d in outcome.written},
            after={d.key: d.here for d in outcome.written},
            reason=reason,
            project=project,
        )
    return outcome


def exchange_due() -> int:
    """A round by the clock: every project that is due, each by itself; one that fails holds up no other."""
    due = due_projects()
    with one_round():
        for project_id in due:
            try:
                exchange(project_id)
            except Exception:  # a fault of ours with one project; its claim runs out and it comes again
                log.exception("quota_exchange_failed", project_id=project_id)
    return len(due)
