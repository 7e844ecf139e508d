"""What every provider outside Muster does: keep a copy of the limits, be read, be written, and fail in two ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.conf import settings
from django.utils import timezone

from quotas.core.external_limits import Bound, Mapped
from quotas.core.resources import Resources
from quotas.models import ProviderState
from quotas.providers.base import QuotaCheck
from quotas.providers.local import LocalQuotaProvider
from quotas.providers.waiting import holding_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scope:
    """The project as a provider needs to know it. Members are those who may submit, by account name."""

    project_id: int
    slug: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a provider keeps of one project now. `raw` is for its own `write` only."""

    limits: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    raw: Any = None


class ExternalQuotaProvider(LocalQuotaProvider, ABC):
    """Muster's own counters decide as they do everywhere; the provider gets the limits and enforces them too.

    Calls of `read` and `write` go over a network: never inside a transaction.
    """

    @abstractmethod
    def values(self, bounds: Sequence[Bound], scope: Scope) -> Mapped:
        """What is to be kept there for these lines."""

    @abstractmethod
    def read(self, scope: Scope) -> Found:
        """What is there now. Raises Unreachable or Refused."""

    @abstractmethod
    def write(self, scope: Scope, found: Found, changes: Mapping[str, int | None]) -> None:
        """Set these values and no others; None takes a limit away. May be repeated. Raises as `read` does."""

    @abstractmethod
    def show(self, key: str, value: int | None) -> str:
        """A value in the provider's own words."""

    @property
    def missing_text(self) -> str:
        """Why this installation has no way to the provider at all; empty when it has one."""
        return ""

    @property
    def off_text(self) -> str:
        """Why nothing is written there, by a setting; empty when it is."""
        return ""

    def check_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
    ) -> QuotaCheck:
        """As Muster's own lines say, and not now while the provider is away and the installation waits for it."""
        check = super().check_quota(
            project_id, resources, job_type, tasks=tasks, user_id=user_id, devices=devices
        )
        state = ProviderState.objects.filter(project_id=project_id).first()
        text = holding_text(state, now=timezone.now()) if state is not None else ""
        if not text:
            return check
        return QuotaCheck(
            allowed=False,
            possible=check.possible,
            shortfalls=check.shortfalls,
            soft_passed=check.soft_passed,
            provider_text=text,
        )


_round: ContextVar[dict[str, Any] | None] = ContextVar("round_of_exchanges", default=None)


@contextmanager
def one_round() -> Iterator[None]:
    """While many projects are exchanged one after another, what is the same for all of them is read once."""
    token = _round.set({})
    try:
        yield
    finally:
        _round.reset(token)


def once_a_round(key: str, read: Callable[[], T]) -> T:
    """What `read` answers; in a round, what it answered the first time under this key."""
    known = _round.get()
    if known is None:
        return read()
    if key not in known:
        known[key] = read()
    found: T = known[key]
    return found


def timeout_seconds() -> float:
    return float(settings.QUOTA_PROVIDER_TIMEOUT_SECONDS)
