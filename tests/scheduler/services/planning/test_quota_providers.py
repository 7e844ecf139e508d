"""A quota provider that a site has written decides: before the start, at the start, and after the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from infra.errors import InvalidInput
from quotas.models import ProviderAllocation, ProviderState, RefusedStart
from quotas.providers import calls, circuit
from scheduler.core.lifecycle import JobState
from scheduler.core.plan import Plan, Preempt, Reserve
from scheduler.models import Attempt, Cycle, Job, JobEvent, Task
from scheduler.services.accounting.provider_starts import decided_by_providers
from scheduler.services.execution.dispatch import end_unstarted
from scheduler.services.execution.quota_starts import tell_providers
from scheduler.services.jobs.submit import submit_job
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.job_preview import preview_job
from scheduler.services.planning.replay import replay
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.state.small import SmallWorld, broken_invariants
from tests.support.quota_providers import goes_away, is_slow, script

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(settings) -> Iterator[SmallWorld]:
    """A project whose starts the provider `lab` decides about; a node with room for all."""
    settings.QUOTA_PROVIDERS = ["lab=tests.support.quota_providers:ScriptedProvider"]
    settings.QUOTA_PROVIDER_CHECK_SECONDS = 0.2
    settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 0.2
    script.restart()
    world = SmallWorld()
    world.node("n1", cpu_millis_capacity=64_000)
    world.quota("cpu_millis", None, provider="lab")
    yield world
    script.restart()
    assert broken_invariants() == []


def again(job: Job) -> Job:
    job.refresh_from_db()
    return job


def ask_again() -> None:
    """As if the time had come: refused jobs and providers that were away are asked about again."""
    earlier = timezone.now() - timedelta(seconds=1)
    RefusedStart.objects.update(refused_at=earlier - timedelta(seconds=1), until=earlier)
    ProviderState.objects.filter(status="unreachable").update(next_try_at=earlier)
    ProviderAllocation.objects.exclude(next_try_at=None).update(next_try_at=earlier)
    circuit.forget_failures()


def end(job: Job) -> None:
    """Cancel a job that no agent has taken yet."""
    cancel_job(job=again(job), by=job.user)
    end_unstarted(Attempt.objects.filter(job=job).values_list("pk", flat=True))


# ---------------------------------------------------------------- before the start


def test_a_provider_decides_what_starts_and_its_words_are_the_reason(world: SmallWorld) -> None:
    script.most_tasks = 2
    large, small = world.job(tasks=3), world.job(tasks=2)

    result = world.plan()

    assert result.started_jobs == (small.number,)
    assert result.rounds == 2, "the place of what was refused is given to others at once"
    assert again(large).reason_code == "QuotaProviderRefuses"
    assert again(large).reason_text == "lab refuses the start: 3 tasks asked for, 2 of 2 free."
    assert script.asked[0][0] == world.project.pk
    assert script.asked[0][2:] == ("batch", 3, world.person.pk, {})
    refused = [one for cycle in Cycle.objects.all() for one in cycle.refused]
    assert [(one["job"], one["code"]) for one in refused] == [(large.number, "QuotaProviderRefuses")]
    assert "lab refuses" in explain_job(job=large, by=world.person).headline
    for cycle in Cycle.objects.all():
        assert replay(cycle_id=cycle.pk).identical, "what a provider said is part of what is planned from"


def test_what_was_refused_is_asked_about_again_later_each_time_and_at_once_when_it_was_changed(
    world: SmallWorld,
) -> None:
    script.most_tasks = 1
    job = world.job(tasks=2)
    world.plan()
    assert script.calls["check"] == 1
    world.plan()
    assert script.calls["check"] == 1, "it waits before it is asked about again"

    RefusedStart.objects.update(possible=True)
    Job.objects.filter(pk=job.pk).update(generation=job.generation + 1)
    world.plan()
    assert script.calls["check"] == 2
    ask_again()
    world.plan()
    row = RefusedStart.objects.get()
    assert (row.times, row.possible, script.calls["check"]) == (2, False, 3)

    script.most_tasks = 2
    ask_again()
    assert world.plan().started == 1
    assert not RefusedStart.objects.exists()


def test_all_starts_of_a_cycle_are_one_call_where_the_provider_offers_that(
    settings, world: SmallWorld
) -> None:
    settings.QUOTA_PROVIDERS = ["lab=tests.support.quota_providers:TogetherProvider"]
    script.most_tasks = 3
    jobs = [world.job() for _ in range(5)]

    assert world.plan().started == 3
    assert script.calls == {"together": 1}
    assert [again(job).reason_code for job in jobs] == ["", "", "", *["QuotaProviderRefuses"] * 2]


def test_projects_of_muster_are_not_asked_about(world: SmallWorld) -> None:
    world.project = SmallWorld(cluster=world.cluster).project
    assert not script.calls
    world.job(user=world.person)
    assert world.plan().started == 1
    assert not script.calls


def test_no_other_job_is_stopped_for_one_that_is_refused(world: SmallWorld) -> None:

    script.most_tasks = 0
    job = world.job()
    snapshot = load_snapshot(cluster_id=world.cluster.pk).snapshot
    plan = Plan(
        preempts=(Preempt(1, 1, job.number, job.generation, 0, 9, 0, 30), Preempt(2, 2, 0, 0, 0, 0, 0, 30)),
        reserves=(Reserve(job.number, job.generation, (1,), 9),),
    )

    decided = decided_by_providers(plan, snapshot)

    assert [one.job_id for one in decided.plan.preempts] == [2]
    assert decided.plan.reserves == ()
    assert [one.job for one in decided.refused] == [job.number]


# ---------------------------------------------------------------- a provider that fails


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (goes_away, "the site's service is down"),
        (is_slow, "No answer within 0.2 s."),
        (lambda: 1 / 0, "It failed with ZeroDivisionError"),
        (lambda: "yes", "It answered 'yes', which is no QuotaCheck."),
    ],
)
def test_without_an_answer_jobs_wait_with_the_reason_and_the_provider_is_left_alone(
    world: SmallWorld, what, words: str
) -> None:
    script.instead["check"] = what
    job = world.job()
    assert world.plan().started == 0
    assert again(job).reason_code == "QuotaProviderAway"
    assert job.reason_text.startswith("lab, the provider of this quota, is unreachable: ")
    assert words in job.reason_text
    asked = script.calls["check"]
    world.plan()
    assert script.calls["check"] == asked
    state = ProviderState.objects.get()
    assert (state.provider, state.status) == ("lab", "unreachable")

    script.instead.clear()
    script.let_hung_calls_return()
    ask_again()
    assert world.plan().started == 1
    assert ProviderState.objects.get().status == "ok"


def test_a_provider_that_hangs_has_one_thread_and_opens_its_circuit(settings, world: SmallWorld) -> None:
    settings.QUOTA_PROVIDER_FAILURES = 2
    script.instead["check"] = is_slow
    world.job()
    for _ in range(3):
        world.plan()
        ask_again()

    assert script.calls["check"] == 1, "no second call while the first has not returned"
    assert circuit.circuit_of("lab").look().open_until is not None


def test_jobs_run_without_an_answer_where_the_site_says_so_and_what_is_refused_still_waits(
    settings, world: SmallWorld
) -> None:
    settings.QUOTA_PROVIDER_WHEN_AWAY = "run"
    script.instead["check"] = goes_away
    job = world.job()

    assert world.plan().started == 1
    assert ProviderAllocation.objects.get().job_number == job.number

    script.instead.clear()
    script.most_tasks = 0
    ask_again()
    refused = world.job()
    world.plan()
    assert again(refused).reason_code == "QuotaProviderRefuses"


# ---------------------------------------------------------------- the start and the end


def test_an_attempt_is_allocated_once_and_released_once(world: SmallWorld) -> None:
    job = world.job(tasks=2)
    world.plan()
    attempt = Attempt.objects.get()
    row = ProviderAllocation.objects.get()
    assert (row.attempt_id, row.provider, row.state, row.job_number) == (
        attempt.pk,
        "lab",
        "asked",
        job.number,
    )

    assert tell_providers() == 1
    assert tell_providers() == 0
    assert ProviderAllocation.objects.get().state == "held"
    assert script.counted == {str(attempt.pk): (world.project.pk, 2)}

    end(job)
    assert tell_providers() == 1
    assert tell_providers() == 0
    assert (ProviderAllocation.objects.get().state, script.counted) == ("released", {})


def test_a_release_lets_refused_jobs_be_asked_about_at_once(settings, world: SmallWorld) -> None:
    settings.QUOTA_PROVIDERS = ["lab=tests.support.quota_providers:TogetherProvider"]
    script.most_tasks = 1
    first, second = world.job(), world.job()
    world.plan()
    tell_providers()
    assert again(second).reason_code == "QuotaProviderRefuses"

    end(first)
    tell_providers()

    assert world.plan().started_jobs == (second.number,)


@pytest.mark.parametrize("taken", [False, True])
def test_a_refusal_at_the_start_sends_the_job_back_with_the_words(world: SmallWorld, taken: bool) -> None:
    job = world.job()
    world.plan()
    if taken:
        Task.objects.update(state="starting")
    script.most_tasks = 0

    tell_providers()
    tell_providers()

    attempt = Attempt.objects.get()
    assert attempt.stop_reason == "quota_refused"
    event = JobEvent.objects.get(job=job.number, kind="job.preempting")
    assert event.because == "lab refused the start: used up by others in between"
    assert ProviderAllocation.objects.get().state == "refused"
    if taken:
        assert again(job).state == JobState.PREEMPTING, "its agent is asked to end it"
        return
    assert again(job).state == JobState.QUEUED
    assert attempt.end_text == event.because
    assert script.calls["release"] == 0
    assert world.plan().started == 0, "it waits longer each time"


@pytest.mark.parametrize("verb", ["allocate", "release"])
def test_a_worker_that_dies_after_the_call_and_before_writing_is_followed_by_another(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    job = world.job()
    world.plan()
    if verb == "release":
        tell_providers()
        end(job)

    call = getattr(calls, verb)

    def dies_after_it(*arguments: Any, **words: Any) -> None:
        call(*arguments, **words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(calls, verb, dies_after_it)
        with pytest.raises(KeyboardInterrupt):
            tell_providers()
    assert script.calls[verb] == 1
    assert tell_providers() == 0, "the row is still taken"
    ask_again()
    assert tell_providers() == 1

    assert script.calls[verb] == 2
    assert len(script.counted) == (verb == "allocate")
    assert ProviderAllocation.objects.get().state == ("held" if verb == "allocate" else "released")


@pytest.mark.parametrize("what", [goes_away, is_slow, lambda: 1 / 0])
@pytest.mark.parametrize("verb", ["allocate", "release"])
def test_a_call_that_fails_is_repeated_until_it_works_and_the_job_runs_on(
    world: SmallWorld, verb: str, what
) -> None:
    job = world.job()
    world.plan()
    if verb == "release":
        tell_providers()
        end(job)
    script.instead[verb] = what

    tell_providers()
    assert tell_providers() == 0, "not at once"
    row = ProviderAllocation.objects.get()
    assert (row.state, row.next_try_at is not None) == ("asked" if verb == "allocate" else "held", True)
    assert row.text
    script.let_hung_calls_return()
    script.instead.clear()
    ask_again()
    tell_providers()

    assert ProviderAllocation.objects.get().state == ("held" if verb == "allocate" else "released")


def test_an_attempt_that_ends_before_it_was_allocated_is_released(world: SmallWorld) -> None:
    job = world.job()
    world.plan()
    end(job)

    assert tell_providers() == 1

    assert script.calls == {"check": 1, "release": 1}
    assert ProviderAllocation.objects.get().state == "released"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "held"},
        {"state": "refused", "answered_at": None},
        {"next_try_at": None},
        {"state": "released", "released_at": timezone.now()},
        {"state": "lost"},
    ],
)
def test_the_database_refuses_what_must_never_be(world: SmallWorld, change) -> None:
    world.job()
    world.plan()
    with pytest.raises(DatabaseError), transaction.atomic():
        ProviderAllocation.objects.update(**change)


def test_what_was_released_is_never_held_again(world: SmallWorld) -> None:
    job = world.job()
    world.plan()
    end(job)
    tell_providers()
    with pytest.raises(DatabaseError, match="Invalid transition"), transaction.atomic():
        ProviderAllocation.objects.update(state="held", answered_at=timezone.now(), released_at=None)


# ---------------------------------------------------------------- before the job exists


def test_a_request_that_the_provider_never_allows_is_refused_and_one_that_waits_is_previewed_so(
    world: SmallWorld,
) -> None:
    script.most_tasks = 2
    asked = {"name": "train", "command": "true", "project": world.project.slug, "queue": world.queue.slug}

    with pytest.raises(InvalidInput) as refused:
        submit_job(payload=asked | {"tasks": 3}, by=world.person)
    (problem,) = refused.value.problems
    assert (problem.field, problem.code) == ("project", "exceeds-quota")
    assert problem.message == "lab refuses the start: 3 tasks asked for, 2 of 2 free."
    assert not Job.objects.exists()
    assert preview_job(payload=asked | {"tasks": 3}, by=world.person).verdict == "never"

    script.counted["of others"] = (world.project.pk, 1)
    preview = preview_job(payload=asked | {"tasks": 2}, by=world.person)
    assert (preview.verdict, preview.reason_code) == ("would_wait", "QuotaProviderRefuses")
    assert preview.headline == "lab refuses the start: 2 tasks asked for, 1 of 2 free."
    assert preview_job(payload=asked, by=world.person).verdict == "starts_now"

    script.instead["check"] = goes_away
    assert submit_job(payload=asked | {"tasks": 3}, by=world.person).state == JobState.QUEUED, "it waits"
    assert preview_job(payload=asked, by=world.person).reason_code == "QuotaProviderAway"
