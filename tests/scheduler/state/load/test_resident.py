"""Pending jobs in memory: whatever happens to the rows, what is in memory says the same as loading them all."""

from __future__ import annotations

import random
import re
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.db import connection, transaction
from django.utils import timezone
from structlog.testing import capture_logs

from infra.errors import MusterError
from quotas.models import Quota
from quotas.services.quota_lines import Subject, set_line
from scheduler.agent.protocol import Report
from scheduler.core.lifecycle import JobState, TaskState
from scheduler.models import ChangedJob, Job, Queue, Task
from scheduler.services.cluster import nodes, queues
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs import boosts, verbs
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.residents import forget_residents, resident_of
from scheduler.state.load.job_rows import PENDING_COLUMNS
from scheduler.state.load.resident import cluster
from scheduler.state.load.resident.cluster import ResidentCluster, differences
from scheduler.state.load.resident.jobs import ResidentJobs
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.locks import Apart

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def portal() -> Portal:
    return a_portal()


class Planner:
    """A planner's memory under a lease whose terms follow each other."""

    def __init__(self, portal: Portal, **words: Any) -> None:
        self.cluster_id = portal.cluster.pk
        self.memory = ResidentCluster(self.cluster_id, words.pop("check_seconds", 1e9), **words)
        self.token = 0

    def load(self) -> list[int]:
        """Bring memory up to date; the pending jobs it has."""
        self.token += 1
        return self.memory.load(self.token).folded.ids.tolist()

    def differences(self) -> dict[str, list[int]]:
        """What memory says otherwise than a planner that has just begun reads."""
        self.load()
        fresh = ResidentCluster(self.cluster_id, 1e9)
        fresh.load(1)
        mine, theirs = self.memory._memory, fresh._memory
        assert mine is not None
        assert theirs is not None
        return differences(mine.jobs, mine.classes, theirs.jobs, theirs.classes)


def test_what_was_changed_is_read_and_nothing_else(portal: Portal) -> None:
    planner = Planner(portal)
    first, second = portal.submit(name="a"), portal.submit(name="b")
    assert planner.load() == [first.number, second.number]
    verbs.cancel_job(job=first, by=portal.cast.owner)
    third = portal.submit(name="c")

    assert planner.load() == [second.number, third.number]
    assert planner.memory.full_loads == 1


def test_a_transaction_that_commits_after_a_later_one_is_not_missed(portal: Portal) -> None:
    """A picture is taken while it is under way, and sees one that began after it."""
    job, other = portal.submit(), portal.submit()
    planner = Planner(portal)
    planner.load()

    def change_slowly() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            Job.objects.filter(pk=job.pk).update(assemblies_failed=11)
            cursor.execute("SELECT pg_advisory_xact_lock(11)")

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(11)")
        apart = Apart(change_slowly)
        try:
            apart.until_it_waits()
            Job.objects.filter(pk=other.pk).update(assemblies_failed=12)
            planner.load()
            seen = failures_of(planner)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(11)")
    apart.end()
    planner.load()

    assert seen == {job.number: 0, other.number: 12}
    assert failures_of(planner) == {job.number: 11, other.number: 12}
    assert planner.memory.full_loads == 1


def failures_of(planner: Planner) -> dict[int, int]:
    """What a planner has in memory of how often each job had to give its nodes back."""
    assert planner.memory._memory is not None
    own = planner.memory._memory.jobs.columns()
    return dict(zip(own["id"].tolist(), own["assemblies_failed"].tolist(), strict=True))


def test_after_another_planner_or_on_another_connection_everything_is_read_anew(portal: Portal) -> None:
    portal.submit()
    planner = Planner(portal)
    planner.load()
    planner.load()
    assert planner.memory.full_loads == 1

    planner.token += 1  # somebody else's term
    planner.load()
    assert planner.memory.full_loads == 2

    connection.close()
    planner.load()
    assert planner.memory.full_loads == 3


def test_a_difference_is_an_alarm_counted_and_put_right(portal: Portal) -> None:
    job = portal.submit()
    planner = Planner(portal, check_seconds=0)
    planner.load()
    planner.memory.note("own_priority", np.array([job.number]), np.array([99]))

    with capture_logs() as logs:
        planner.load()

    assert (planner.memory.checks, planner.memory.differences) == (1, 1)
    (said,) = [line for line in logs if line["event"] == "resident_jobs_differ"]
    assert (said["log_level"], said["own_priority"]) == ("error", [job.number])
    planner.load()
    assert (planner.memory.checks, planner.memory.differences) == (2, 1)


def test_the_feed_keeps_what_the_next_picture_needs_and_no_more(portal: Portal) -> None:
    now = [0.0]
    planner = Planner(portal, clock=lambda: now[0])
    planner.load()
    portal.submit()
    assert ChangedJob.objects.count() == 1
    now[0] += 60
    planner.load()
    planner.load()
    now[0] += 60
    planner.load()

    assert ChangedJob.objects.count() == 0


def test_a_job_that_comes_back_has_its_row_again_and_rows_stay_in_order(portal: Portal) -> None:
    jobs = submit_many(payloads=[{"command": "true"}] * 5, by=portal.cast.owner)
    numbers = [job.number for job in jobs]
    planner = Planner(portal)
    Job.objects.filter(pk=numbers[1]).update(state=JobState.HELD)
    planner.load()
    Job.objects.filter(pk__in=[numbers[1], numbers[3]]).update(state=JobState.HELD)
    assert planner.load() == [numbers[0], numbers[2], numbers[4]]
    Job.objects.filter(pk__in=[numbers[1], numbers[3]]).update(state=JobState.QUEUED)

    assert planner.load() == numbers
    assert planner.differences() == {}


def test_free_rows_are_given_back() -> None:
    own = {name: np.arange(5000, dtype=np.int64) for name in a_row()}
    jobs = ResidentJobs(own)
    jobs.merge(np.arange(4000), {name: column[:0] for name, column in own.items()})
    before = jobs.nbytes
    jobs.merge(np.array([6000]), {name: np.array([6000]) for name in own})

    assert len(jobs) == 1001
    assert jobs.nbytes < before / 2
    assert jobs.columns()["id"].tolist() == [*range(4000, 5000), 6000]


def a_row() -> tuple[str, ...]:
    from scheduler.state.load.job_rows import OWN_NAMES

    return OWN_NAMES


def test_the_triggers_watch_every_column_that_the_planner_reads_and_does_not_write_itself() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname FROM pg_trigger JOIN pg_attribute ON attrelid = tgrelid AND attnum = ANY(tgattr)"
            " WHERE tgname = 'job_changed'"
        )
        watched = {name for (name,) in cursor.fetchall()}
    read = set(re.findall(r"\bjob\.(\w+)", " ".join(PENDING_COLUMNS.values())))

    assert read - {"number", "reason_code", "reason_text", "expected_start_at"} <= watched


# ------------------------------------------------------------------ a random hour


class Hour:
    """People, nodes and operators who do what comes to their mind; refusals are part of life."""

    def __init__(self, portal: Portal, seed: int, *, begin_later: bool = True) -> None:
        self.portal, self.dice, self.begin_later = portal, random.Random(seed), begin_later
        self.night = Queue.objects.create(cluster=portal.cluster, name="night", slug="night")
        self.done: dict[str, int] = {}

    def something(self) -> None:
        verb = self.dice.choice(
            [
                self.submit, self.submit, self.submit_array, self.cancel, self.hold, self.release, self.requeue,
                self.boost, self.pause, self.resume, self.cordon, self.uncordon, self.cut_a_quota, self.plan,
                self.plan, self.report, self.report, self.close_an_account, self.move_the_clock,
                self.in_the_shell, self.roll_back,
            ]
        )  # fmt: skip
        try:
            verb()
        except MusterError:
            return
        self.done[verb.__name__] = self.done.get(verb.__name__, 0) + 1

    def _a_job(self, **which: Any) -> Job:
        found = list(Job.objects.filter(**which).order_by("number"))
        if not found:
            raise MusterError("there is none")
        return self.dice.choice(found)

    def submit(self) -> None:
        self.portal.submit(
            cpu_cores=self.dice.choice([1, 2, 8, 64]),
            gpu_count=self.dice.choice([0, 0, 1, 4]),
            queue=self.dice.choice([self.portal.queue.slug, "night"]),
            priority=self.dice.choice([40, 50]),
            tasks=self.dice.choice([1, 1, 2]),
            **(
                {"begin_at": (timezone.now() + timedelta(minutes=5)).isoformat()}
                if self.begin_later and self._rarely()
                else {}
            ),
        )

    def _rarely(self) -> bool:
        return self.dice.random() < 0.2

    def submit_array(self) -> None:
        payload = {"command": "true", "queue": self.dice.choice([self.portal.queue.slug, "night"])}
        submit_many(payloads=[payload] * self.dice.randint(2, 6), by=self.portal.cast.owner)

    def cancel(self) -> None:
        verbs.cancel_job(job=self._a_job(), by=self.portal.cast.owner)

    def hold(self) -> None:
        verbs.hold_job(job=self._a_job(state=JobState.QUEUED), by=self.portal.cast.owner)

    def release(self) -> None:
        verbs.release_job(job=self._a_job(state=JobState.HELD), by=self.portal.cast.owner)

    def requeue(self) -> None:
        verbs.requeue_job(job=self._a_job(), by=self.portal.cast.owner)

    def boost(self) -> None:
        boosts.boost_job(
            job=self._a_job(state=JobState.QUEUED), by=self.portal.cast.operator, points=7, reason="soon",
            seconds=self.dice.choice([60, 3600]),
        )  # fmt: skip

    def pause(self) -> None:
        queues.pause_queue(queue=self._a_queue(), by=self.portal.cast.operator, reason="work")

    def resume(self) -> None:
        queues.resume_queue(queue=self._a_queue(), by=self.portal.cast.operator)

    def _a_queue(self) -> Queue:
        return self.dice.choice([self.portal.queue, self.night])

    def cordon(self) -> None:
        nodes.cordon_node(node=self._a_node(), by=self.portal.cast.operator, reason="fan")

    def uncordon(self) -> None:
        nodes.uncordon_node(node=self._a_node(), by=self.portal.cast.operator)

    def _a_node(self) -> Any:
        return self.dice.choice([self.portal.n1, self.portal.n2])

    def cut_a_quota(self) -> None:
        set_line(
            subject=Subject(project=self.portal.cast.project), resource="cpu_millis",
            changes={"hard": self.dice.choice([4000, 16_000, 64_000])}, by=None, reason="a new year",
        )  # fmt: skip

    def plan(self) -> None:
        run_cycle(cluster_id=self.portal.cluster.pk, trigger="test")

    def report(self) -> None:
        """A task that was given to a node begins or ends there."""
        live = [TaskState.ASSIGNED, TaskState.STARTING, TaskState.RUNNING]
        tasks = list(Task.objects.filter(state__in=live).select_related("attempt", "node").order_by("pk"))
        if not tasks:
            raise MusterError("nothing runs")
        task = self.dice.choice(tasks)
        state = self.dice.choice(["succeeded", "failed"]) if task.state == TaskState.RUNNING else "running"
        report: Report = {"task": task.pk, "epoch": task.attempt.epoch, "state": state}
        if state != "running":
            report["exit_code"] = int(state == "failed")
        apply_reports(node=task.node, reports=[report])

    def close_an_account(self) -> None:
        person = self.portal.cast.owner
        type(person).objects.filter(pk=person.pk).update(is_active=self._rarely())
        type(person).objects.filter(pk=person.pk).update(is_active=True)

    def move_the_clock(self) -> None:
        """Time goes on for everybody: what was to come later is due."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduler_job SET eligible_at = eligible_at - interval '5 minutes',"
                " boost_until_at = boost_until_at - interval '5 minutes' WHERE state = 'queued'"
            )

    def in_the_shell(self) -> None:
        """Somebody changes rows by hand."""
        job = self._a_job(state=JobState.QUEUED)
        Job.objects.filter(pk=job.pk).update(
            **self.dice.choice([{"assemblies_failed": 2}, {"generation": 40}, {"queue": self.night}])
        )

    def roll_back(self) -> None:
        with transaction.atomic():
            self.submit()
            transaction.set_rollback(True)


#: What no trigger watches; the planner that writes it notes it.
WRITTEN_BY_THE_PLANNER = {"reason_mark", "promised_ms"}


@pytest.mark.parametrize("seed", range(3))
def test_after_a_random_hour_memory_and_a_full_load_say_the_same(
    portal: Portal, settings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of a planner that plans all the while, checks itself in every cycle and prunes the feed."""
    settings.PLANNER_CHECK_SECONDS = 0.0
    monkeypatch.setattr(cluster, "PRUNE_SECONDS", 0.0)
    forget_residents()
    hour = Hour(portal, seed)
    for _ in range(160):
        hour.something()
    hour.plan()

    own = resident_of(portal.cluster.pk)
    assert len(hour.done) > 12, hour.done
    assert own.checks > 5
    assert own.differences == 0
    assert Quota.objects.exists()


@pytest.mark.parametrize("seed", range(3, 5))
def test_after_a_random_hour_of_small_steps_memory_and_a_full_load_say_the_same(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of a memory that was filled once, beside a planner at work; neither prunes what the other has not read."""
    monkeypatch.setattr(cluster, "PRUNE_SECONDS", 1e9)
    hour = Hour(portal, seed)
    looks_on = Planner(portal)
    looks_on.load()
    for step in range(160):
        hour.something()
        if step % 3 == 0:
            looks_on.load()
        if step % 16 == 0:
            found = looks_on.differences()
            assert found.keys() <= WRITTEN_BY_THE_PLANNER, f"{found} after {step} steps: {hour.done}"

    assert looks_on.differences().keys() <= WRITTEN_BY_THE_PLANNER
    assert looks_on.memory.full_loads == 1


def test_the_whole_snapshot_is_the_one_of_a_full_load(portal: Portal) -> None:
    hour = Hour(portal, 7, begin_later=False)
    planner = Planner(portal)
    for _ in range(60):
        hour.something()
    planner.load()
    for _ in range(20):
        hour.something()
    Queue.objects.update(paused=False)
    Job.objects.filter(state=JobState.QUEUED).update(eligible_at=None)

    planner.token += 1
    found = planner.memory.load(planner.token)

    whole = load_snapshot(cluster_id=portal.cluster.pk)
    assert len(found.folded.folded_ids) == 0
    for name in ("pending", "running", "classes", "nodes", "queues", "quotas", "projects"):
        assert getattr(found.loaded.snapshot, name) == getattr(whole.snapshot, name), name
