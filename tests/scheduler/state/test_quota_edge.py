"""T22: 64 people's submissions at once at the edge of nested quotas, planners at work, and a limit cut amid it.

`MUSTER_EDGE_ROUNDS=20` runs it so many times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from accounts.models import Organization, Project, User
from quotas.models import Quota
from quotas.services.quota_lines import Subject, drifting_lines, set_line
from scheduler.models import Attempt, Cluster, Job
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning.cycles import run_cycle
from tests.scheduler.state.small import a_queue
from tests.support.factories import (
    ClusterFactory,
    MembershipFactory,
    NodeFactory,
    OperatorFactory,
    OrganizationFactory,
    ProjectFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db(transaction=True)

SUBMITS = 64
ROUNDS = int(os.environ.get("MUSTER_EDGE_ROUNDS", "1"))


class Edge:
    """A university that has 40 GPUs, a lab in it with 30, two projects in that, and a person with 25."""

    def __init__(self) -> None:
        self.operator = OperatorFactory()
        self.root: Organization = OrganizationFactory()
        self.lab: Organization = OrganizationFactory(parent=self.root)
        self.projects: list[Project] = [ProjectFactory(organization=self.lab) for _ in range(2)]
        self.people: list[User] = [UserFactory() for _ in range(4)]
        for project in self.projects:
            for person in self.people:
                MembershipFactory(project=project, user=person, role="member")
        self.cluster: Cluster = ClusterFactory()
        self.queue = a_queue(self.cluster, "edge")
        for _ in range(8):
            NodeFactory(cluster=self.cluster, gpus=8, cpu_millis=64_000, memory_mib=262_144)
        self.top = self.set("gpu_millis", organization=self.root, nominal=40_000)
        self.middle = self.set("gpu_millis", organization=self.lab, nominal=20_000, borrowing_limit=10_000)
        self.own = [
            self.set("gpu_millis", project=self.projects[0], nominal=4000, hard=24_000),
            self.set("gpu_millis", project=self.projects[1], nominal=12_000),
        ]
        self.persons = self.set("running_jobs", user=self.people[0], hard=5)

    def set(self, resource: str, **words: Any) -> Quota:
        names = ("organization", "project", "user")
        subject = Subject(**{name: words.pop(name) for name in names if name in words})
        return set_line(subject=subject, resource=resource, changes=words, by=self.operator, reason="edge")

    def submit(self, number: int) -> None:
        asked = {"command": "sleep 9", "gpu_count": 1, "queue": self.queue.slug,
                 "project": self.projects[number % 2].slug}  # fmt: skip
        submit_job(payload=asked, by=self.people[number % 4])

    def plan(self) -> None:
        run_cycle(cluster_id=self.cluster.pk, trigger="test", patience_seconds=0)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_exactly_the_limit_is_admitted_whoever_comes_at_once(round_number: int) -> None:
    edge = Edge()
    seen: list[int] = []
    failed: list[BaseException] = []
    start, over = threading.Barrier(SUBMITS + 3), threading.Event()

    def apart(do: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                start.wait(30)
                do()
            except BaseException as error:
                failed.append(error)
            finally:
                connection.close()

        return threading.Thread(target=run)

    def plan_on() -> None:
        while not over.is_set():
            edge.plan()

    def cut() -> None:
        while not seen and not over.is_set():
            if Attempt.objects.live().count() >= 8:  # amid it
                row = edge.set("gpu_millis", organization=edge.lab, nominal=16_000, borrowing_limit=2000)
                seen.append(row.used)

    submits = [apart(lambda n=number: edge.submit(n)) for number in range(SUBMITS)]  # type: ignore[misc]
    others = [apart(plan_on), apart(plan_on), apart(cut)]
    for thread in (*submits, *others):
        thread.start()
    for thread in submits:
        thread.join(60)
    others[2].join(60)
    edge.plan()
    over.set()
    for thread in others:
        thread.join(60)
    for _ in range(3):
        edge.plan()

    assert failed == []
    assert len(seen) == 1
    # 1. As many as the cut limit, or those that were there before it, and not one more.
    running = Attempt.objects.live().count()
    assert running == max(18, seen[0] // 1000)
    # 2. Every line counts just those that run below it, and none is passed.
    counted = {line.pk: line.used for line in Quota.objects.all()}
    assert counted[edge.top.pk] == counted[edge.middle.pk] == running * 1000
    assert sum(counted[line.pk] for line in edge.own) == running * 1000
    assert counted[edge.own[0].pk] <= 24_000
    assert counted[edge.persons.pk] <= 5
    assert drifting_lines() == []
    # 3. No submission was lost and none was made up.
    assert Job.objects.count() == SUBMITS
    assert Job.objects.pending().count() == SUBMITS - running
    # 4. Who waits is told of the line that is full.
    told = set(Job.objects.pending().values_list("reason_code", flat=True))
    assert told == {"WaitingForQuota"}
