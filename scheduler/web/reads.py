"""What pages ask of rows beyond the selectors: each a fixed number of queries, whatever the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import Q
from django.utils import timezone

from accounts import permissions
from accounts.models import ApiToken, User
from accounts.selectors import visible_projects
from infra.times_in_text import written
from quotas.models import Quota
from scheduler import job_lists, labels
from scheduler.core.lifecycle import PUBLIC, JobState, NodeState, PublicState
from scheduler.core.reason_codes import ReasonCategory
from scheduler.job_lists import Count, JobRow, job_rows
from scheduler.models import Device, Job
from scheduler.models.job import JobQuerySet
from scheduler.selectors import visible_jobs

#: A failure is news for so long.
NEWS_HOURS: Final = 24
TOKEN_WARNING_DAYS: Final = 7
MOST_ATTENTION: Final = 6


@dataclass(frozen=True, slots=True)
class StateCount:
    """One of the seven states with how many jobs are in it, for the strip."""

    state: PublicState
    label: labels.Label
    count: int
    estimated: bool = False

    @property
    def shown(self) -> str:
        return count_words(Count(self.count, self.estimated))

    @property
    def help(self) -> str:
        return f"{self.label.help}; estimated number" if self.estimated else self.label.help


def public_counts(jobs: JobQuerySet) -> list[StateCount]:
    """How many of these jobs are in each of the seven states; those of many that are over are estimated."""
    sums: Counter[PublicState] = Counter()
    estimated: set[PublicState] = set()
    for state, count in job_lists.state_counts(jobs).items():
        public = PUBLIC[JobState(state)]
        sums[public] += count.jobs
        if count.estimated:
            estimated.add(public)
    return [
        StateCount(state, labels.PUBLIC_STATES[state], sums[state], state in estimated)
        for state in PublicState
    ]


def count_words(count: Count) -> str:
    """A number as a page says it: an estimate is rounded, and has a sign before it."""
    if not count.estimated:
        return f"{count.jobs:,}"
    return f"≈ {round(count.jobs, min(2 - len(str(count.jobs)), 0)):,}"


def sum_of(counts: Iterable[StateCount]) -> Count:
    """All states together."""
    some = list(counts)
    return Count(sum(count.count for count in some), any(count.estimated for count in some))


@dataclass(frozen=True, slots=True)
class GpuSupply:
    """One model of GPU over the cluster, in thousandths of devices."""

    model: str
    total: int
    used: int
    off: int
    fake: bool

    @property
    def free(self) -> int:
        return self.total - self.used - self.off


def gpu_supply() -> list[GpuSupply]:
    """GPUs by model: how many there are, are in use, and are out of reach (node off, device faulty)."""
    total: Counter[str] = Counter()
    used: Counter[str] = Counter()
    off: Counter[str] = Counter()
    fake: dict[str, bool] = {}
    rows = Device.objects.filter(kind="gpu", gone=False).values_list(
        "model",
        "used_millis",
        "share_millis",
        "healthy",
        "fake",
        "node__state",
        "node__cordoned",
        "node__draining",
    )
    for model, millis, share, healthy, pretended, state, cordoned, draining in rows:
        total[model] += share
        used[model] += millis
        fake[model] = fake.get(model, True) and pretended
        if not healthy or state != NodeState.UP or cordoned or draining:
            off[model] += share - millis
    return [
        GpuSupply(name or "GPU", total[name], used[name], off[name], fake[name]) for name in sorted(total)
    ]


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing that waits for the person, with where to go."""

    icon: str
    tone: str
    what: str
    why: str
    job: JobRow | None = None
    url_name: str = ""


def attention(user: User) -> list[Attention]:
    """What needs this person: jobs that waiting does not help, fresh failures, tokens about to end."""
    now = timezone.now()
    found: list[Attention] = []
    mine = visible_jobs(user).filter(user=user)  # not those of a project that one has left
    stuck = (
        mine.pending()
        .filter(reason_category__in=[ReasonCategory.FIX, ReasonCategory.ASK])
        .exclude(reason_code="HeldByUser")
        .order_by("-number")
    )
    for job in job_rows(stuck)[:MOST_ATTENTION]:
        found.append(Attention("flag", "blocked", job.name, job.reason_text, job))
    failed = mine.filter(
        unsuccessful=JobState.FAILED, completed_at__gte=now - timedelta(hours=NEWS_HOURS)
    ).order_by("-completed_at", "-number")
    for job in job_rows(failed)[:MOST_ATTENTION]:
        found.append(Attention("cross", "failed", job.name, job.end_text or exit_words(job), job))
    ending = ApiToken.objects.filter(
        user=user,
        revoked_at=None,
        expires_at__gt=now,
        expires_at__lt=now + timedelta(days=TOKEN_WARNING_DAYS),
    ).order_by("expires_at")
    for token in ending[:MOST_ATTENTION]:
        text = f"Expires at {written(token.expires_at)}; create a new token before then."
        found.append(Attention("key", "pending", f"Token {token.name}", text, None, "tokens"))
    return found[:MOST_ATTENTION]


def exit_words(job: Job | JobRow) -> str:
    """How it ended, in words."""
    if job.exit_signal:
        return f"ended by signal {job.exit_signal}"
    return "" if job.exit_code is None else f"ended with exit code {job.exit_code}"


def my_quota_lines(user: User) -> list[Quota]:
    """Lines with a bound of the projects this person is a member of."""
    return list(
        Quota.objects.plain()
        .filter(project__in=permissions.current_memberships().filter(user=user).values("project"))
        .filter(Q(hard__isnull=False) | Q(soft__isnull=False) | Q(nominal__isnull=False))
        .select_related("project")
        .order_by("project__name", "project_id", "resource")
    )


def filter_choices(user: User) -> dict[str, Any]:
    return {"projects": list(visible_projects(user).order_by("name", "id"))}


def jobs_of(user: User, *, numbers: Iterable[int]) -> list[Job]:
    """Those of these jobs that the person may see, in the order they were submitted."""
    return list(visible_jobs(user).filter(number__in=list(numbers)).order_by("number"))
