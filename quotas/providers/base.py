"""The interface of a quota provider: what a project may use, checked, allocated and released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from quotas.core.resources import Resources


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a project's quota as it is now; amounts in the units of its resource, null = no bound."""

    resource: str
    nominal: int | None
    soft: int | None
    hard: int | None
    enforce: bool
    used: int
    generation: int
    synced_at: datetime | None

    @property
    def available(self) -> int | None:
        """What is left under the hard bound; 0 when a cut of it left more in use than it allows."""
        return None if self.hard is None else max(self.hard - self.used, 0)

    @property
    def usage_percent(self) -> float | None:
        """Of the hard bound; above 100 where usage is older than the bound, null where there is none."""
        if self.hard is None:
            return None
        if self.hard == 0:
            return 100.0 if self.used else 0.0
        return round(100 * self.used / self.hard, 1)

    @property
    def over(self) -> bool:
        """More is in use than may be: grandfathered, and nothing new starts until it has gone down."""
        return self.hard is not None and self.used > self.hard


@dataclass(frozen=True, slots=True)
class QuotaSheet:
    """A project's whole quota: a line for each resource, in the order of QuotaResource."""

    project_id: int
    provider: str
    lines: tuple[LineView, ...]

    def line(self, resource: str) -> LineView:
        return next(line for line in self.lines if line.resource == resource)

    @property
    def generation(self) -> int:
        """Rises with each edit of any line; usage does not touch it."""
        return sum(line.generation for line in self.lines)

    @property
    def enforced(self) -> bool:
        """Whether every bound blocks; with no bound at all, whether one would."""
        bounded = [line.enforce for line in self.lines if line.hard is not None]
        return all(bounded or [line.enforce for line in self.lines])

    @property
    def synced_at(self) -> datetime | None:
        """When the counters were last compared with what is held; null = never."""
        return min((line.synced_at for line in self.lines if line.synced_at), default=None)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A line that does not let a request through; `hard` is the most that may be in use there."""

    resource: str
    needed: int
    hard: int
    used: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class QuotaCheck:
    """May it start now, could it ever, and which soft limits would it pass?"""

    allowed: bool
    possible: bool
    shortfalls: tuple[Shortfall, ...] = ()
    soft_passed: tuple[str, ...] = ()
    #: Why the provider outside Muster keeps it from starting now, whatever the lines say.
    provider_text: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that was not what is really held, and is now."""

    resource: str
    was: int
    found: int


class Unreachable(Exception):
    """It did not answer, answered too late, or asked to be left alone; trying again may help."""

    def __init__(self, text: str, *, retry_after_seconds: int = 0) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class Refused(Exception):
    """It answered, and will not: credentials, rights, a limit that it does not know, or a start that it refuses."""


@dataclass(frozen=True, slots=True)
class QuotaStart:
    """One job that is to start: what a provider is asked about.

    `resources` are those of one task; `devices` are thousandths of GPUs by model where the job has been given
    devices. `key` names the attempt: allocate and release have the same one, however often they are repeated.
    Before the attempt there is none, and no job number before the job is submitted.
    """

    project_id: int
    resources: Resources
    job_type: str = "batch"
    tasks: int = 1
    user_id: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    job_number: int = 0
    key: str = ""


class QuotaProvider(Protocol):
    """Decides whether jobs of a project may start, and counts them: in Muster's own rows, or outside.

    `resources` are those of one task; `user_id` is the owner of the job, `devices` the thousandths of GPUs by model
    that it has been given. A provider that is named in QUOTA_PROVIDERS is asked outside any transaction, in a
    thread of its own and for a limited time: it raises Unreachable where it cannot say, and Refused for no. Muster's
    own lines hold beside it.

    A start is allocated once for each `key`: a call that is repeated, after a process died, counts nothing more.
    A release of a key that was never allocated is no error.
    """

    def check_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
    ) -> QuotaCheck: ...

    def allocate_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None: ...

    def release_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None: ...


class ChecksTogether(Protocol):
    """A provider that answers for all starts of a cycle in one call, each in its place.

    A start that is let through counts for those behind it.
    """

    def check_starts(self, starts: Sequence[QuotaStart]) -> Sequence[QuotaCheck]: ...


class SheetProvider(QuotaProvider, Protocol):
    """One that comes with Muster: Muster's own lines, kept here or also outside."""

    name: str

    def get_quota(self, project_id: int) -> QuotaSheet: ...

    def sync(self, project_id: int) -> tuple[Drift, ...]:
        """Recount what the project holds and correct Muster's own counters; answers what was wrong."""
        ...
