"""Quota usage: what projects hold now, from allocations and live attempts, to check quota counters against."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from django.db.models import Count, Sum

from quotas.core.ledger import Entry
from quotas.core.limits import PENDING_JOBS, RUNNING_JOBS
from quotas.models import Quota
from scheduler.models import Allocation, Attempt, Job
from scheduler.services.accounting import holds
from scheduler.state.db.fragments import live_attempts
from scheduler.state.db.sql import Rows, run, select_together
from scheduler.state.load.quota_rows import Lines, amount_held, load_lines

#: What jobs hold at this moment, by who pays.
_HELD: Final = """
SELECT job.project_id, job.user_id, request.job_type, sum(held.cpu_millis), sum(held.memory_mib),
    sum(held.storage_mib), sum(held.gpu_millis)
FROM scheduler_allocation held JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
WHERE held.released_at IS NULL GROUP BY 1, 2, 3
"""
_MODELS: Final = """
SELECT job.project_id, job.user_id, request.job_type, device.model,
    sum(held.gpu_millis / cardinality(held.device_ids))
FROM scheduler_allocation held JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_device device ON device.id = ANY(held.device_ids)
WHERE held.released_at IS NULL AND held.gpu_millis > 0 GROUP BY 1, 2, 3, 4
"""
_RUNNING: Final = f"""
SELECT job.project_id, job.user_id, request.job_type, count(*)
FROM {live_attempts()} JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
GROUP BY 1, 2, 3
"""  # noqa: S608  a constant of ours
_ORGANIZATION_OF: Final = "SELECT id, organization_id FROM accounts_project WHERE id = ANY(%s)"


class _Sum(NamedTuple):
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    gpu_millis: int


class HeldAllocations:
    """A `quotas.usage_source.UsageSource`; two queries, however many projects are asked about."""

    def usage(self, project_ids: Iterable[int]) -> Mapping[int, Mapping[str, int]]:
        wanted = list(project_ids)
        held = (
            Allocation.objects.held()
            .filter(attempt__job__project__in=wanted)
            .order_by()
            .values_list("attempt__job__project")
            .annotate(Sum("cpu_millis"), Sum("memory_mib"), Sum("gpu_millis"), Sum("storage_mib"))
        )
        names = ("cpu_millis", "memory_mib", "gpu_millis", "storage_mib")
        amounts: dict[int, dict[str, int]] = {
            project_id: {name: int(amount) for name, amount in zip(names, sums, strict=True)}
            for project_id, *sums in held
        }
        running = (
            Attempt.objects.all_live()
            .filter(job__project__in=wanted)
            .order_by()
            .values_list("job__project")
            .annotate(jobs=Count("pk"))
        )
        for project_id, jobs in running:
            amounts.setdefault(project_id, {})["running_jobs"] = jobs
        return amounts

    def hold_running(self) -> int:
        return holds.hold_all_running()

    def to_hold(self, project_ids: Iterable[int]) -> list[Entry]:
        """By prices of today, for jobs whose projects have no budget yet."""
        return holds.to_hold(project_ids)

    def line_usage(self, line_ids: Iterable[int]) -> Mapping[int, int]:
        """What each line counts, from allocations, live attempts and pending jobs.

        Everything held is read, by who pays: their number is that of people who have something running.
        """
        wanted = {row.pk: row for row in Quota.objects.filter(pk__in=list(line_ids))}
        held, models, running = select_together((_HELD, []), (_MODELS, []), (_RUNNING, []))
        by_model: defaultdict[tuple[int, int, str], Counter[str]] = defaultdict(Counter)
        for project_id, user_id, job_type, model, millis in models:
            by_model[project_id, user_id, job_type][model] += int(millis)
        projects = {row[0] for row in (*held, *running)}
        people = {row[1] for row in (*held, *running)}
        of = run(_ORGANIZATION_OF, [sorted(projects)])
        lines = load_lines(
            projects, people, projects=[(project, organization) for project, organization in of]
        )
        found = Counter(
            {line: held_sum for line, held_sum in _held_on(lines, held, by_model).items() if line in wanted}
        )
        for *payer, jobs in running:
            for row in lines.of_job(*payer):
                if row.id in wanted and row.resource == RUNNING_JOBS:
                    found[row.id] += jobs
        waiting = [row.pk for row in wanted.values() if row.resource == PENDING_JOBS]
        found.update(self.pending_jobs(waiting) if waiting else {})
        return found

    def pending_jobs(self, line_ids: Iterable[int]) -> Mapping[int, int]:
        """Jobs that wait and count on each of these lines; four queries, however many lines."""
        wanted = list(Quota.objects.filter(pk__in=list(line_ids)))
        payer = ("project_id", "user_id", "job_type")
        groups = Job.objects.pending().order_by().values_list(*payer)
        lost = Job.objects.never_satisfied().order_by().values_list(*payer).annotate(jobs=Count("number"))
        counts = [
            *groups.annotate(jobs=Count("number")),
            *((project, user, kind, -jobs) for project, user, kind, jobs in lost),
        ]
        organizations = {row.organization_id for row in wanted if row.organization_id is not None}
        below: defaultdict[int, set[int]] = defaultdict(set)
        for organization, project in run(_ALL_BELOW, [sorted(organizations)]) if organizations else ():
            below[organization].add(project)
        return {
            row.pk: sum(
                jobs
                for project, user, kind, jobs in counts
                if row.user_id in (None, user)
                and row.job_type in ("", kind)
                and row.project_id in (None, project)
                and (row.organization_id is None or project in below[row.organization_id])
            )
            for row in wanted
        }


def _held_on(
    lines: Lines, held: Rows, by_model: Mapping[tuple[int, int, str], Mapping[str, int]]
) -> Counter[int]:
    """What the held amounts count on each line; `held` and `by_model` are by project, user and job type."""
    found: Counter[int] = Counter()
    for project_id, user_id, job_type, *amounts in held:
        total = _Sum(*(int(amount) for amount in amounts))
        for row in lines.of_job(project_id, user_id, job_type):
            if row.resource != RUNNING_JOBS:
                found[row.id] += amount_held(row, total, by_model[project_id, user_id, job_type])
    return found


#: The projects below an organization.
_BELOW: Final = """
WITH RECURSIVE below(id) AS (
    SELECT %s::bigint
    UNION SELECT organization.id FROM accounts_organization organization JOIN below
        ON organization.parent_id = below.id
) SELECT project.id FROM accounts_project project JOIN below ON below.id = project.organization_id
"""

#: Those below each of several organizations.
_ALL_BELOW: Final = """
WITH RECURSIVE below(top, id) AS (
    SELECT id, id FROM accounts_organization WHERE id = ANY(%s::bigint[])
    UNION SELECT below.top, organization.id FROM accounts_organization organization JOIN below
        ON organization.parent_id = below.id
) SELECT below.top, project.id FROM accounts_project project JOIN below ON below.id = project.organization_id
"""


def pending_jobs_of(line: Quota) -> int:
    """How many jobs wait that count on this line, without those whose dependencies can never be satisfied."""
    jobs = Job.objects.all()
    if line.organization_id is not None:
        jobs = jobs.filter(project__in=[row[0] for row in run(_BELOW, [line.organization_id])])
    if line.project_id is not None:
        jobs = jobs.filter(project=line.project_id)
    if line.user_id is not None:
        jobs = jobs.filter(user=line.user_id)
    if line.job_type:
        jobs = jobs.filter(job_type=line.job_type)
    return jobs.pending().count() - jobs.never_satisfied().count()
