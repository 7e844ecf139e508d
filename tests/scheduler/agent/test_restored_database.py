"""A database that goes back to an older state, with real agents that run what it does not know any more."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from accounts.models import AuditEvent
from scheduler.agent import processes
from scheduler.models import DRAINED_BY_UNKNOWN_TASKS, Job, KeptResult, Node, Task, UnknownTask
from scheduler.services.cluster.nodes import uncordon_node
from scheduler.services.jobs.verbs import release_job
from scheduler.services.results.reading import FileEntry, Folder, folders_of, list_entries
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for
from tests.support.backups import Backup
from tests.support.factories import MembershipFactory, OperatorFactory, UserFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def isolation() -> str:
    """The processes are watched from outside."""
    return "off"


@pytest.fixture
def backups() -> Iterator[list[Backup]]:
    made: list[Backup] = []
    yield made
    for backup in made:
        backup.drop()


def test_t06_a_standby_that_lost_the_last_second_runs_no_job_twice(
    world: World, start_agent: StartAgent, backups: list[Backup]
) -> None:
    """The job is known and its attempt is not: it is held, and its node out of service until that has ended."""
    start_agent()
    world.submit("true")
    job = world.submit("sleep 60")
    backups.append(Backup())
    world.run_until(job, "running")
    pid, lost = world.task(job).pid, world.task(job).pk

    backups[0].restore()
    operator = OperatorFactory()
    wait_for(lambda: UnknownTask.objects.filter(job=job.number).exists())

    node = Node.objects.get()
    assert (node.draining, node.drained_by) == (True, DRAINED_BY_UNKNOWN_TASKS)
    assert "does not know" in node.drain_reason
    assert AuditEvent.objects.filter(action="node.unknown_tasks").count() == 1
    job = Job.objects.get(pk=job.pk)
    assert (job.state, job.held_by, job.epoch) == ("held", "admin", 0)
    assert "runs on n1" in job.reason_text
    release_job(job=job, by=operator)  # and even so it does not start beside the other
    world.plan()
    time.sleep(0.5)
    assert not Task.objects.filter(attempt__job=job).exists()
    assert processes.start_ticks(pid), "nobody has decided that it ends"

    uncordon_node(node=node, by=operator)

    wait_for(lambda: not UnknownTask.objects.exists())
    assert not processes.start_ticks(pid)
    wait_for(lambda: Node.objects.get().schedulable)
    job.refresh_from_db()
    if job.state == "held":
        release_job(job=job, by=operator)
    world.run_until(job, "running")
    assert world.task(job).pk > lost


def test_t06_an_attempt_of_a_job_that_runs_elsewhere_is_ended(
    world: World, start_agent: StartAgent, backups: list[Backup]
) -> None:
    start_agent("n1")
    job = world.submit("sleep 60")
    backups.append(Backup())
    world.run_until(job, "running")
    lost = world.task(job)
    backups[0].restore()
    Node.objects.update(cordoned=True)  # as if its agent had not called yet
    start_agent("n2")
    UnknownTask.objects.all().delete()
    release = Job.objects.get(pk=job.pk)
    if release.state == "held":
        release_job(job=release, by=OperatorFactory())

    world.run_until(release, "running")

    assert world.task(release).node.name == "n2"
    wait_for(lambda: not processes.start_ticks(lost.pid))
    assert processes.start_ticks(world.task(release).pid)


def test_t39_numbers_that_are_handed_out_again_mix_nothing_up(
    world: World, start_agent: StartAgent, backups: list[Backup]
) -> None:
    """Yesterday's backup in a live fleet: a running task, a kept folder and output of numbers that begin again."""
    agent = start_agent()
    first = world.run_until(world.submit("true"), "completed")
    backups.append(Backup())
    ended = world.submit("echo private > diary; echo said by the first")
    world.run_until(ended, "completed")
    wait_for(lambda: KeptResult.objects.filter(job=ended).exists())
    kept = {path.name for path in (agent.state / "results").iterdir()}
    lost = world.run_until(world.submit("while sleep 0.1; do echo lost; done"), "running")
    task = world.task(lost)

    backups[0].restore()
    alice, world.user = world.user, UserFactory(username="mallory", default_project=world.project)
    MembershipFactory(project=world.project, user=world.user)
    same = world.submit("ls; cat diary; echo from another > note; echo said by another")
    assert same.number == ended.number, "the database gives the numbers out again"
    wait_for(lambda: UnknownTask.objects.filter(job=lost.number).exists())

    assert processes.start_ticks(task.pid)
    uncordon_node(node=Node.objects.get(), by=OperatorFactory())
    world.run_until(same, "completed")

    assert world.output(same, stream="stdout") == b"said by another\n"
    wait_for(lambda: KeptResult.objects.filter(job=same).exists())
    (folder,) = folders_of(same, by=world.user)
    assert folder.task == world.task(same).pk
    (entry,) = wait_for(lambda: _entries(folder))
    assert entry.name == "note"
    assert not processes.start_ticks(task.pid)
    # What the agent has said moved the counter on: no later job gets the number of the lost one.
    assert world.submit("true").number > lost.number
    # Whose the kept folder is, nobody knows any more: it stays on its node, and is shown to nobody.
    wait_for(lambda: len(list((agent.state / "results").iterdir())) == 2)
    assert kept < {path.name for path in (agent.state / "results").iterdir()}
    assert [job.number for job in Job.objects.filter(user=alice)] == [first.number]


def _entries(folder: Folder) -> list[FileEntry]:
    return [entry for entry in list_entries(folder)[0] if entry.kind == "file"]
