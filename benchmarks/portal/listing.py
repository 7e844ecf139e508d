"""Pages of jobs with a million of them in the table."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Final

from benchmarks.portal.scratch_portal import Client, portal
from benchmarks.registry import Figures, benchmark

if TYPE_CHECKING:
    from accounts.models import User

JOBS: Final = 1_000_000
PROJECTS, PEOPLE = 40, 100
REPEATS = 20

#: What people ask for: a page of their own, of a state, of a project, by a word, the next page.
FILTERS: Final = (
    "", "state=running", "state=failed", "state=queued", "project=list-7", "project=list-7&state=completed",
    "user=list-11", "user=list-11&state=failed", "queue=listed", "name=train-77",
)  # fmt: skip

#: Copies of one job that the API took, as if they had come one every three seconds and most had gone well.
_FILL: Final = """
WITH requests AS (
    INSERT INTO scheduler_jobrequest ({asked}, number, uuid, name, created_at)
    SELECT {asked}, nextval('scheduler_jobrequest_number_seq'), gen_random_uuid(), 'train-' || n %% 5000,
        now() - make_interval(secs => ({jobs} - n) * 3)
    FROM scheduler_jobrequest request, generate_series(1, {jobs}) n WHERE request.number = %s ORDER BY n
    RETURNING number
)
INSERT INTO scheduler_job ({moving}, number, user_id, project_id, state, unsuccessful, eligible_at, completed_at)
SELECT {moving}, requests.number, (%s::bigint[])[1 + n %% {people}], (%s::bigint[])[1 + n %% {projects}],
    (ARRAY['completed','completed','completed','completed','completed','completed','completed','failed',
        'cancelled','failed'])[1 + n %% 10],
    (ARRAY[NULL,NULL,NULL,NULL,NULL,NULL,NULL,'failed','cancelled','failed'])[1 + n %% 10],
    now() - make_interval(secs => ({jobs} - n) * 3), now() - make_interval(secs => ({jobs} - n) * 3 - 60)
FROM scheduler_job job, (SELECT number, row_number() OVER (ORDER BY number) AS n FROM requests) requests
WHERE job.number = %s ORDER BY n
"""
_OWN: Final = frozenset(
    {"number", "uuid", "name", "user_id", "project_id", "state", "outcome", "unsuccessful", "created_at", "eligible_at",
     "completed_at"}
)  # fmt: skip


@benchmark("list_jobs_ms_p95_1m", "list_jobs_ms_p50_1m")
def listing() -> Figures:
    """From the request to the whole answer of 50 jobs, by an administrator and a member, over all filters."""
    running = portal()
    from accounts.services.tokens import issue_token

    waits = []
    for person in people_and_jobs():
        token = issue_token(user=person, by=person, name="bench", scopes=["jobs:read"], days=1)[1]
        client = Client(running.stack.base_url, token)
        for words in FILTERS:
            client.get(f"jobs?{words}")
            for _ in range(REPEATS):
                began = time.perf_counter()
                client.get(f"jobs?{words}")
                waits.append((time.perf_counter() - began) * 1000)
    waits.sort()
    yield "list_jobs_ms_p50_1m", waits[len(waits) // 2]
    yield "list_jobs_ms_p95_1m", waits[len(waits) * 95 // 100]


@cache
def people_and_jobs() -> tuple[User, User]:
    """Put a million jobs of a hundred people in forty projects into the table; an administrator and one of them."""
    running = portal()
    from django.db import connection

    from accounts.models import Membership, Organization, Project, User
    from scheduler.models import Cluster, Job, JobRequest, Queue

    cluster = Cluster.objects.order_by("id").first()
    assert cluster is not None
    queue = Queue.objects.create(cluster=cluster, name="listed", slug="listed", paused=True)
    number = running.client().post("jobs", {"command": "true", "queue": queue.slug})["number"]
    organization = Organization.objects.create(name="List", slug="list")
    projects = Project.objects.bulk_create(
        Project(organization=organization, name=f"List {n}", slug=f"list-{n}") for n in range(PROJECTS)
    )
    people = User.objects.bulk_create(User(username=f"list-{n}") for n in range(PEOPLE))
    Membership.objects.bulk_create(
        Membership(user=person, project=projects[(n + more) % PROJECTS], role="member")
        for n, person in enumerate(people)
        for more in range(3)
    )
    asked, moving = (
        ", ".join(field.column for field in model._meta.local_concrete_fields if field.column not in _OWN)
        for model in (JobRequest, Job)
    )
    sql = _FILL.format(asked=asked, moving=moving, people=PEOPLE, projects=PROJECTS, jobs=JOBS)
    with connection.cursor() as cursor:
        cursor.execute(
            sql, [number, [person.pk for person in people], [project.pk for project in projects], number]
        )
    running.as_owner("VACUUM ANALYZE scheduler_job, scheduler_jobrequest")
    root = User.objects.create(username="list-root", is_superuser=True, is_staff=True)
    return root, people[11]
