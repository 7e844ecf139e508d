"""Systems outside Muster with their circuits: all that this site uses, and receivers that failed lately."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import InvalidInput, NotFound
from infra.models import Circuit, System
from infra.storage import storage_setting
from notifications.services.mail import mail_circuit
from notifications.services.occurrences import mail_is_on
from quotas.models import Quota, named_providers
from quotas.providers.circuit import circuit_of
from scheduler.services.cluster.inventory_service import inventory_circuit


@dataclass(frozen=True, slots=True)
class Outside:
    """One system: `state` is that of its circuit, `closed` where it answers or was not called yet."""

    name: str
    title: str
    state: str = "closed"
    failures: int = 0
    text: str = ""
    opened_at: datetime | None = None
    open_until: datetime | None = None

    @property
    def word(self) -> str:
        """The state for people."""
        if self.state == "closed":
            return "failed lately" if self.failures else "no trouble"
        return "not called" if self.state == "open" else "tried with the next call"


def outside_systems() -> list[Outside]:
    """Those that the settings name, then webhook receivers that failed lately."""
    rows = {row.name: row for row in Circuit.objects.all()}
    found = [_of(name, title, rows.pop(name, None)) for name, title in _configured()]
    return found + [_of(row.name, str(row), row) for row in rows.values()]


def _configured() -> list[tuple[str, str]]:
    known: list[tuple[str, str]] = []
    storage = storage_setting(settings.MUSTER_STORAGE, settings.MUSTER_STORAGE_KEYS)
    if storage is not None and storage.bucket:
        known.append((f"{System.STORAGE.value}:{storage.bucket}", f"Storage of artefacts, {storage.words}"))
    if mail_is_on():
        circuit = mail_circuit()
        known.append((circuit.name, f"Mail server {circuit.label}"))
    if settings.INVENTORY_SERVICE_URL:
        known.append((inventory_circuit().name, f"Inventory service {settings.INVENTORY_SERVICE_URL}"))
    providers = {
        settings.QUOTA_PROVIDER,
        *named_providers(),
        *Quota.objects.plain().values_list("provider", flat=True).distinct(),
    }
    known += [
        (circuit_of(name).name, f"Quota provider {circuit_of(name).label}")
        for name in sorted(providers - {"local"})
    ]
    return known


def _of(name: str, title: str, row: Circuit | None) -> Outside:
    if row is None:
        return Outside(name, title)
    return Outside(name, title, row.state, row.failures, row.text, row.opened_at, row.open_until)


def try_now(*, name: str, by: User) -> None:
    """Let the next call go to this system, whatever it did before; the trail says who asked for it.

    Raises InvalidInput without a name, NotFound where the system did not fail lately.
    """
    permissions.require(by, "operate")
    if not name or len(name) > 120 or "\0" in name:
        raise InvalidInput("Name a system, as GET /api/v1/system lists it.")
    with transaction.atomic():
        row = Circuit.objects.select_for_update().filter(pk=name).first()
        if row is None:
            raise NotFound(f"{name} has no failures.", way_out="It is called whenever it is needed.")
        audit.record(
            by=by, action="circuit.close", thing=row, before={"failures": row.failures, "text": row.text}
        )
        row.delete()
