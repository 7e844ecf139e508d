"""The driver of backends without agents: one Celery task that stays, and drives each such cluster twice a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from django.db import close_old_connections

from infra.errors import MusterError
from scheduler.backends.registry import UnknownBackend, capabilities_of
from scheduler.models import Cluster
from scheduler.services.execution import backend_driver
from scheduler.state.lease import leases
from scheduler.state.lease.lease_holder import new_holder

log = structlog.get_logger(__name__)

#: The task ends after so long, so that its worker can look after itself; beat starts it anew.
STAY_SECONDS: Final = 50.0
ROUND_SECONDS: Final = 0.5
#: Another driver takes over when the one before it has not renewed its lease for so long.
LEASE_SECONDS: Final = 15.0


def stay(*, seconds: float = STAY_SECONDS, stop: Callable[[], bool] = lambda: False) -> None:
    """Drive all clusters until `seconds` are over; returns at once where there is none for it."""
    ends_at = time.monotonic() + seconds
    driver = Driver()
    try:
        while not stop() and time.monotonic() < ends_at:
            began = time.monotonic()
            if not driver.round():
                return
            time.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - began)))
    finally:
        driver.release()


class Driver:
    """Drives the clusters whose lease it holds."""

    def __init__(self) -> None:
        self._holder = new_holder()
        self._leases: dict[int, leases.HeldLease] = {}
        #: Clusters whose last round failed, so that a fault is logged once.
        self._failing: dict[int, str] = {}

    def round(self) -> bool:
        """One round over all clusters; False where another driver has them all, or each has agents."""
        held = [
            cluster
            for cluster in Cluster.objects.order_by("id")
            if _is_driven(cluster) and self._holds(cluster)
        ]
        for cluster in held:
            self._drive(cluster)
        return bool(held)

    def _drive(self, cluster: Cluster) -> None:
        """A cluster that fails delays no other cluster."""
        try:
            if backend_driver.is_due(cluster):
                backend_driver.follow_machines(cluster)
            backend_driver.drive_backend(cluster)
            if self._failing.pop(cluster.pk, None) is not None:
                log.info("backend_available", cluster=cluster.slug)
        except (ConnectionError, UnknownBackend, MusterError) as error:
            self._note(cluster, str(error))
        except Exception as error:
            log.exception("backend_failed", cluster=cluster.slug)
            self._note(cluster, f"{type(error).__name__}: {error}")
            close_old_connections()

    def _note(self, cluster: Cluster, why: str) -> None:
        if self._failing.get(cluster.pk) != why:
            log.warning("backend_unavailable", cluster=cluster.slug, error=why)
            self._failing[cluster.pk] = why

    def _holds(self, cluster: Cluster) -> bool:
        """Whether this driver has, or gets, the lease of the cluster: no two start the same task at once."""
        lease = self._leases.get(cluster.pk)
        if lease is not None and lease.trusted_seconds > LEASE_SECONDS / 2:
            return True
        try:
            lease = (
                leases.renew(lease, seconds=LEASE_SECONDS)
                if lease is not None
                else self._acquire(f"backend:{cluster.pk}")
            )
        except leases.LeaseLost:
            lease = None
        if lease is None:
            self._leases.pop(cluster.pk, None)
            return False
        self._leases[cluster.pk] = lease
        return True

    def _acquire(self, scope: str) -> leases.HeldLease | None:
        leases.end_if_gone(scope)
        return leases.acquire(scope, holder=self._holder, seconds=LEASE_SECONDS)

    def release(self) -> None:
        for lease in self._leases.values():
            with suppress(Exception):
                leases.release(lease)
        self._leases.clear()


def _is_driven(cluster: Cluster) -> bool:
    try:
        return capabilities_of(str(cluster.backend)).is_driven
    except UnknownBackend:
        return False
