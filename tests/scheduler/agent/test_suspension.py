"""Jobs that make way for others, with real processes: suspended, taken back, and ended by a limit that was cut."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from accounts.models import Project
from quotas.models import Quota
from quotas.services.quota_lines import Subject, set_line
from scheduler.models import Attempt, Job, JobEvent, SchedulerProfile
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, is_stopped, wait_for
from tests.support.factories import MembershipFactory, OperatorFactory, OrganizationFactory, ProjectFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def isolation() -> str:
    """The jobs here are watched by files that they write outside their own folders."""
    return "off"


#: Until the file is there.
WAITS = "while [ ! -e {} ]; do sleep 0.05; done"


def rules(**words: object) -> None:
    """Victims need not have run for long, and have a moment to end."""
    words = {"protected_seconds": 0, "grace_seconds": 5} | words
    SchedulerProfile.objects.update(preemption_enabled=True, preemption=words)


def notice(job: Job) -> str:
    return JobEvent.objects.filter(job=job, kind="job.preempting").latest("id").because


def test_a_counter_stands_still_for_another_and_goes_on(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    rules(mode="suspend")
    agent = start_agent()
    counter = tmp_path / "counter"
    count = (
        f"i=0; while [ ! -e {tmp_path}/stop ]; do i=$((i+1)); echo $i >> {counter}; sleep 0.02; done; exit 3"
    )
    victim = world.submit(count, priority=10, cpu_cores=8, time_limit=3600)
    world.run_until(victim, "running")
    wait_for(lambda: counter.exists() and counter.stat().st_size > 0)
    pid = world.task(victim).pid

    urgent = world.submit(WAITS.format(tmp_path / "done"), priority=90, cpu_cores=8)
    world.plan()
    world.run_until(victim, "suspended")
    wait_for(lambda: is_stopped(pid))
    reached = counter.read_text()
    world.run_until(urgent, "running")

    agent.kill()  # with -9
    agent.start()
    wait_for(lambda: "adopted" in agent.log())
    assert is_stopped(pid)
    assert counter.read_text() == reached

    (tmp_path / "done").touch()
    world.run_until(urgent, "completed")
    world.plan()
    world.run_until(victim, "running")
    wait_for(lambda: len(counter.read_text()) > len(reached))
    assert counter.read_text().startswith(reached)

    (tmp_path / "stop").touch()
    world.run_until(victim, "failed")
    assert (victim.exit_code, victim.epoch) == (3, 1)
    numbers = [int(line) for line in counter.read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1))  # nothing was done twice, nothing left out
    world.assert_nothing_is_held()


def a_tree(world: World, **shares: int) -> Project:
    """Vision and a second project share 8 CPUs of an organization; answers the second."""
    university = OrganizationFactory()
    other = ProjectFactory(slug="speech", organization=university)
    MembershipFactory(project=other, user=world.user)
    world.project.organization = university
    world.project.save()
    operator = OperatorFactory()
    for subject, nominal in ((university, 8000), (world.project, 4000), (other, 4000)):
        place = {"organization": subject} if subject is university else {"project": subject}
        set_line(
            subject=Subject(**place),
            resource="cpu_millis",
            changes={"nominal": nominal},
            by=operator,
            reason="x",
        )
    return other


def test_who_lent_its_quota_has_it_back_and_the_borrower_is_queued_again(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    rules(reclaim=1)
    start_agent()
    speech = a_tree(world)
    own = world.submit(WAITS.format(tmp_path / "done"), cpu_cores=4, project="speech")
    world.run_until(own, "running")
    # The last to start is the first to make way, so it starts only now.
    borrows = world.submit(WAITS.format(tmp_path / "done"), cpu_cores=4, project="speech")
    world.run_until(borrows, "running")

    back = world.submit(WAITS.format(tmp_path / "done"), cpu_cores=4)
    world.plan()

    assert notice(borrows) == (
        f"stopped for job {back.number} of project vision, which reclaims what project {speech.slug} had "
        "borrowed; the job has 5 s to end and is requeued"
    )
    world.run_until(borrows, "queued")
    world.run_until(back, "running")
    own.refresh_from_db()
    borrows.refresh_from_db()
    assert (own.state, borrows.state, borrows.epoch) == ("running", "queued", 1)
    (tmp_path / "done").touch()
    for job in (own, back, borrows):
        world.run_until(job, "completed")
    world.assert_nothing_is_held()


def test_a_limit_that_was_cut_ends_the_last_to_start_when_its_time_has_come(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    rules()
    start_agent()
    operator = OperatorFactory()
    place = Subject(project=world.project)
    line = set_line(subject=place, resource="cpu_millis", changes={"hard": 8000}, by=operator, reason="x")
    first = world.submit(WAITS.format(tmp_path / "done"), cpu_cores=4)
    world.run_until(first, "running")
    last = world.submit(WAITS.format(tmp_path / "done"), cpu_cores=4)  # surely started later
    world.run_until(last, "running")

    cut = {"hard": 4000, "converge_after_seconds": 3600}
    set_line(subject=place, resource="cpu_millis", changes=cut, by=operator, reason="a machine is given back")
    world.plan()
    assert not Attempt.objects.exclude(stop_asked_at=None).exists()  # its hour has not passed

    Quota.objects.filter(pk=line.pk).update(over_since=timezone.now() - timedelta(hours=2))
    world.plan()

    assert notice(last) == (
        "stopped because a limit of project vision was cut below what is in use; "
        "the job has 5 s to end and is requeued"
    )
    world.run_until(last, "queued")
    first.refresh_from_db()
    assert first.state == "running"
    (tmp_path / "done").touch()
    for job in (first, last):
        world.run_until(job, "completed")
    world.assert_nothing_is_held()
