"""Lists of jobs: the rows of a page, by statements written by hand, and how many jobs there are in all.

A list shows a hundred rows of sixty columns. As objects of the ORM, with an empty list of relations each, a row costs
half a millisecond; as a tuple, a tenth of that. A list is still asked for as a query set: who may see what, and
what narrows a list, is said once (`selectors.listed_jobs`, the filters of the API and of the pages).
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet
from django.db.models.query import BaseIterable

from infra.db.prepared import ask, ask_together
from scheduler.core.lifecycle import JobState, PublicState
from scheduler.models import Job, JobRequest
from scheduler.models.job import OVER, JobQuerySet, said_number


class Called(NamedTuple):
    """A queue or project by its names."""

    slug: str
    name: str


class Person(NamedTuple):
    username: str


class LikelyStart(NamedTuple):
    """The last forecast of a waiting job, as `StartForecast` has it."""

    p10_at: datetime | None
    p50_at: datetime | None
    p90_at: datetime | None
    unknown: str
    computed_at: datetime


class _Columns(NamedTuple):
    """What a list shows of a job: its columns by the names of the model, then what is joined to them."""

    number: int
    uuid: uuid.UUID
    name: str
    state: str
    reason_code: str
    reason_category: str
    reason_text: str
    reason_details: dict[str, Any]
    priority: int
    boost: int
    boost_until_at: datetime | None
    job_type: str
    tasks: int
    nodes: int | None
    tasks_per_node: int | None
    min_tasks: int | None
    elastic: bool
    on_task_failure: str
    pack: str
    pack_required: bool
    assembly_timeout_seconds: int | None
    assembly_until_at: datetime | None
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    cpu_limit_millis: int | None
    memory_limit_mib: int | None
    gpus: int
    gpu_model: str
    gpu_slice: str
    gpu_millis: int
    numa: str
    extras: dict[str, int]
    time_limit_seconds: int | None
    working_dir: str
    image: str | None
    artifacts: list[str]
    output_path: str
    error_path: str
    open_mode: str
    mail_types: str | None
    labels: dict[str, str]
    node_selector: dict[str, str]
    tolerations: list[Any]
    affinity: dict[str, Any]
    depends_until_at: datetime | None
    depends_on_timeout: str
    saved_at: datetime | None
    saved_path: str
    array_id: uuid.UUID | None
    array_number: int | None
    array_index: int | None
    array_max_running: int | None
    restart_policy: str
    max_restarts: int
    restart_rules: list[Any]
    probes: list[Any]
    restart_delay_seconds: int | None
    restart_delay_max_seconds: int | None
    checkpoint: dict[str, Any]
    limit_signal: dict[str, Any]
    preemptible: bool
    created_at: datetime
    begin_at: datetime | None
    deadline_at: datetime | None
    deadline_action: str
    wait_limit_seconds: int | None
    eligible_at: datetime | None
    scheduled_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    expected_start_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    end_text: str
    failure_class: str
    epoch: int
    submitted_via: str
    queue_slug: str
    queue_name: str
    project_slug: str
    project_name: str
    username: str
    likely_p10_at: datetime | None
    likely_p50_at: datetime | None
    likely_p90_at: datetime | None
    likely_unknown: str | None
    likely_computed_at: datetime | None


class JobRow(_Columns):
    """A job as lists show it: reads like a `Job`, and cannot be changed or saved."""

    __slots__ = ()

    # What follows from the columns is said once, by the properties of the model.
    public_state: PublicState = Job.public_state  # type: ignore[assignment]
    said_number: str = Job.said_number  # type: ignore[assignment]
    boost_now: int = Job.boost_now  # type: ignore[assignment]
    is_terminal: bool = Job.is_terminal  # type: ignore[assignment]
    is_pending: bool = Job.is_pending  # type: ignore[assignment]
    is_active: bool = Job.is_active  # type: ignore[assignment]

    @property
    def pk(self) -> int:
        return self.number

    @property
    def queue(self) -> Called:
        return Called(self.queue_slug, self.queue_name)

    @property
    def project(self) -> Called:
        return Called(self.project_slug, self.project_name)

    @property
    def user(self) -> Person:
        return Person(self.username)

    @property
    def likely_start(self) -> LikelyStart | None:
        if self.state != JobState.QUEUED or self.likely_computed_at is None:
            return None
        return LikelyStart(
            self.likely_p10_at,
            self.likely_p50_at,
            self.likely_p90_at,
            self.likely_unknown or "",
            self.likely_computed_at,
        )


#: Columns that are not the job's own: those of its queue, project and person ...
_NAMES: Final = {
    "queue_slug": "queue.slug",
    "queue_name": "queue.name",
    "project_slug": "project.slug",
    "project_name": "project.name",
    "username": "person.username",
}
#: ... and those of its forecast.
_FORECAST: Final = {
    "likely_p10_at": "forecast.p10_at",
    "likely_p50_at": "forecast.p50_at",
    "likely_p90_at": "forecast.p90_at",
    "likely_unknown": "forecast.unknown",
    "likely_computed_at": "forecast.computed_at",
}
#: Places of the columns that hold JSON, which the driver gives as text.
_JSON: Final = [
    place
    for place, name in enumerate(_Columns._fields)
    if name
    in (
        "reason_details",
        "extras",
        "labels",
        "node_selector",
        "tolerations",
        "affinity",
        "restart_rules",
        "probes",
        "checkpoint",
        "limit_signal",
        "artifacts",
    )
]


def _column(name: str) -> str:
    """A column of a row where it is stored: with the request, with what moves, or elsewhere."""
    return _FORECAST.get(name) or (f'request."{name}"' if name in _REQUESTED else f'job."{name}"')


_REQUESTED: Final = {field.name for field in JobRequest._meta.local_concrete_fields} - {"number"}
#: The search is done first and by itself, with its own order and limit; then each row is found by its number. What
#: belongs to the job by its number is found before the names of its queue, project and person (`OFFSET 0`): of seven
#: tables the server would look for the best order in which to join them for longer than it takes to read them.
_ROWS: Final = f"""
SELECT {", ".join(_NAMES.get(name) or f'row."{name}"' for name in _Columns._fields)}
FROM (
    SELECT page.place, job.queue_id, job.project_id, job.user_id,
        {", ".join(f'{_column(name)} AS "{name}"' for name in _Columns._fields if name not in _NAMES)}
    FROM unnest(ARRAY({{search}})) WITH ORDINALITY AS page(number, place)
        JOIN scheduler_job job ON job.number = page.number
        JOIN scheduler_jobrequest request ON request.number = page.number
        LEFT JOIN scheduler_startforecast forecast ON forecast.job_id = page.number
    OFFSET 0
) AS row
    JOIN scheduler_queue queue ON queue.id = row.queue_id
    JOIN accounts_project project ON project.id = row.project_id
    JOIN accounts_user person ON person.id = row.user_id
ORDER BY row.place
"""  # noqa: S608  nothing but names of columns


class _RowsOfSearch(BaseIterable):  # type: ignore[type-arg]  # not generic when it runs  # type: ignore[type-arg]  # not generic when it runs
    """Runs the query of a query set inside `_ROWS`."""

    def __iter__(self) -> Iterator[JobRow]:
        try:
            search, parameters = self.queryset.query.sql_with_params()
        except EmptyResultSet:
            return
        with connection.cursor() as cursor:
            cursor.execute(_ROWS.format(search=search), parameters)
            found = cursor.fetchall()
        # Most values of JSON are empty, or the same in many rows: each is read once, and rows that have it share it.
        read: dict[str, Any] = {}
        for row in found:
            values = list(row)
            for place in _JSON:
                text = values[place]
                if text not in read:
                    read[text] = json.loads(text)
                values[place] = read[text]
            yield JobRow._make(values)


def job_rows(jobs: QuerySet[Job, Any]) -> QuerySet[Job, JobRow]:
    """The same jobs in the same order, as `JobRow`: to be narrowed, ordered, sliced and paged as any query set."""
    rows: Any = jobs.select_related(None).prefetch_related(None).values("number")
    rows._iterable_class = _RowsOfSearch
    return cast("QuerySet[Job, JobRow]", rows)


# ---------------------------------------------------------------- what belongs to the jobs of a page


class OtherJob(NamedTuple):
    uuid: uuid.UUID
    said_number: str


class DependencyRow(NamedTuple):
    """What a job waits for; reads like a `JobDependency`."""

    job_id: int
    on_id: int | None
    on_uuid: uuid.UUID | None
    on_array_number: int | None
    on_array_index: int | None
    on_array: int | None
    data: str
    kind: str
    group: int
    need: int
    satisfied: bool | None

    @property
    def on(self) -> OtherJob | None:
        if self.on_uuid is None or self.on_id is None:
            return None
        return OtherJob(self.on_uuid, said_number(self.on_id, self.on_array_number, self.on_array_index))


class NodeName(NamedTuple):
    name: str


class AllocationRow(NamedTuple):
    """What one task of a job's latest attempt holds or held; reads like an `Allocation`."""

    job_id: int
    rank: int
    node_name: str
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    gpu_millis: int
    device_ids: list[int]
    numa_domain: int | None
    held_at: datetime
    released_at: datetime | None

    @property
    def node(self) -> NodeName:
        return NodeName(self.node_name)


class ListedJob(NamedTuple):
    """One job of a page with what belongs to it."""

    row: JobRow
    dependencies: Sequence[DependencyRow]
    allocations: Sequence[AllocationRow]


_DEPENDENCIES: Final = """
SELECT d.job_id, d.on_id, other.uuid, other.array_number, other.array_index, d.on_array, d.data, d.kind, d."group",
    d.need, d.satisfied
FROM scheduler_jobdependency d LEFT JOIN scheduler_jobrequest other ON other.number = d.on_id
WHERE d.job_id = ANY(%s::bigint[]) ORDER BY d.id
"""
_ALLOCATIONS: Final = """
SELECT job.number, a.rank, node.name, a.cpu_millis, a.memory_mib, a.storage_mib, a.gpu_millis, a.device_ids,
    a.numa_domain, a.held_at, a.released_at
FROM scheduler_job job
    JOIN scheduler_attempt attempt ON attempt.job_id = job.number AND attempt.epoch = job.epoch
    JOIN scheduler_allocation a ON a.attempt_id = attempt.id
    JOIN scheduler_node node ON node.id = a.node_id
WHERE job.number = ANY(%s::bigint[]) ORDER BY a.attempt_id, a.rank
"""


def with_relations(rows: Sequence[JobRow]) -> list[ListedJob]:
    """The rows with their dependencies and allocations, in one round trip; none for an empty page."""
    if not rows:
        return []
    numbers = [row.number for row in rows]
    started = [row.number for row in rows if row.epoch]
    depends, holds = ask_together((_DEPENDENCIES, [numbers]), (_ALLOCATIONS, [started]))
    dependencies: dict[int, list[DependencyRow]] = defaultdict(list)
    for one in map(DependencyRow._make, depends):
        dependencies[one.job_id].append(one)
    allocations: dict[int, list[AllocationRow]] = defaultdict(list)
    for held in map(AllocationRow._make, holds):
        allocations[held.job_id].append(held)
    return [ListedJob(row, dependencies.get(row.number, ()), allocations.get(row.number, ())) for row in rows]


# ---------------------------------------------------------------- how many


class Count(NamedTuple):
    """How many jobs there are: counted, or above a bound as the database estimates from its statistics."""

    jobs: int
    estimated: bool = False


#: Jobs are counted one by one up to here: beyond it the exact number says little and takes long.
MOST_COUNTED: Final = 1000


def how_many(jobs: QuerySet[Job, Any]) -> Count:
    """How many these are; two statements at most."""
    counted = jobs.order_by().values("number")[:MOST_COUNTED].count()
    return Count(counted) if counted < MOST_COUNTED else estimate(jobs)


def estimate(jobs: QuerySet[Job, Any]) -> Count:
    """How many these are, where they are known to be `MOST_COUNTED` at least; no row is read."""
    plan = json.loads(jobs.order_by().values("number").explain(format="json"))
    return Count(max(int(plan[0]["Plan"]["Plan Rows"]), MOST_COUNTED), estimated=True)


def state_counts(jobs: JobQuerySet) -> dict[str, Count]:
    """How many of these are in each internal state that any is in; one query, and one for each estimate."""
    counted = cast("JobQuerySet", jobs.order_by().values("state"))
    of_each = counted
    few = jobs.are_few
    if not few:
        counted = of_each.not_over().union(
            *(of_each.in_states([state])[:MOST_COUNTED] for state in OVER), all=True
        )
    try:
        sql, parameters = counted.query.sql_with_params()
    except EmptyResultSet:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT state, count(*) FROM ({sql}) AS counted GROUP BY state", parameters)  # noqa: S608
        found = cursor.fetchall()
    return {
        state: estimate(jobs.in_states([state]))
        if not few and state in OVER and rows >= MOST_COUNTED
        else Count(rows)
        for state, rows in found
    }


#: Up to a bound in each queue, through an index. The bound is in the text, so that a plan is made for it.
_OF_QUEUES: Final = """
SELECT queue, (SELECT count(*) FROM (SELECT FROM scheduler_job WHERE queue_id = queue LIMIT {most}) AS few)
FROM unnest(%s::bigint[]) AS queue
"""


def queue_totals(queue_ids: Sequence[int]) -> dict[int, Count]:
    """How many jobs of any state are or were in each queue; one query, and one for each estimate."""
    return {
        queue: Count(rows) if rows < MOST_COUNTED else estimate(Job.objects.filter(queue_id=queue))
        for queue, rows in ask(_OF_QUEUES.format(most=MOST_COUNTED), [list(queue_ids)])
    }


# ---------------------------------------------------------------- where they run


#: The nodes of latest attempts, in the order of ranks.
_NODES: Final = """
SELECT job.number, node.name
FROM scheduler_job job
    JOIN scheduler_attempt attempt ON attempt.job_id = job.number AND attempt.epoch = job.epoch
    JOIN scheduler_allocation a ON a.attempt_id = attempt.id
    JOIN scheduler_node node ON node.id = a.node_id
WHERE job.number = ANY(%s::bigint[]) ORDER BY a.attempt_id, a.rank
"""


def node_names(rows: Sequence[JobRow]) -> dict[int, list[str]]:
    """Node names of each job's latest attempt, in rank order; one query, also for an empty page."""
    names: dict[int, dict[str, None]] = defaultdict(dict)
    for number, name in ask(_NODES, [[row.number for row in rows if row.epoch]]):
        names[number][name] = None
    return {number: list(of_job) for number, of_job in names.items()}
