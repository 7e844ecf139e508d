"""The planner that stays: woken by hints, by the clock without any, and one for each cluster."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from config import health
from infra import notifications
from scheduler import metrics, outbox
from scheduler.core.lifecycle import JobState
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import Job, PolicyFault
from scheduler.services.planning import cycles, planner, wakeups
from scheduler.services.planning.planner import Planner
from scheduler.services.planning.residents import resident_of
from scheduler.services.planning.wakeups import WakeUps
from scheduler.state.lease import leases
from tests.scheduler.state.small import SmallWorld
from tests.support.agents import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=64_000)
    return world


@pytest.fixture
def staying(world: SmallWorld, settings) -> Iterator[Planner]:
    """A planner at work in a thread, whose clock asks for nothing after its first cycle."""
    settings.PLAN_SECONDS = 3600.0
    at_work, over = Planner(), threading.Event()

    def work() -> None:
        try:
            at_work.run(3600, over.is_set)
        finally:
            at_work.wakeups.close()
            connections.close_all()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_for(lambda: at_work.wakeups.connected and resident_of(world.cluster.pk).last_token)
    yield at_work
    over.set()
    thread.join(20)


def is_started(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).state == JobState.SCHEDULED


def test_a_hint_starts_a_cycle_at_once_and_memory_goes_on(world: SmallWorld, staying: Planner) -> None:
    wait_for(lambda: staying.wakeups.connected)
    for _ in range(3):
        with transaction.atomic():
            job = world.job()
            outbox.wake_planner(world.cluster.pk, trigger="test")
        wait_for(lambda job=job: is_started(job))

    assert resident_of(world.cluster.pk).full_loads == 1


def test_a_change_of_quotas_asks_every_planner(world: SmallWorld, staying: Planner) -> None:
    from quotas.outbox import wake_planners

    with transaction.atomic():
        job = world.job()
        wake_planners()

    wait_for(lambda: is_started(job))


def test_without_redis_the_planner_stays_and_plans_by_its_clock(
    world: SmallWorld, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    settings.PLAN_SECONDS = 3600.0
    monkeypatch.setattr(wakeups, "WITHOUT_HINTS_SECONDS", 0.05)
    monkeypatch.setattr(planner, "WITHOUT_HINTS_SECONDS", 0.05)
    alone, until = Planner(), time.monotonic() + 30
    job = world.job()
    later: list[Job] = []

    def stop() -> bool:
        if is_started(job) and not later:
            later.append(world.job())
        return bool(later and is_started(later[0])) or time.monotonic() > until

    alone.run(0.0, stop)  # its time is over at once, but nobody could start it anew

    assert is_started(later[0])


def test_a_redis_that_hangs_costs_the_planner_a_moment_and_not_its_silence(settings: Any) -> None:
    """It takes connections and says nothing, as a stopped process does; it kept each cycle for three seconds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        settings.REDIS_URL = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        waiting, began = wakeups.WakeUps(), time.monotonic()

        assert waiting.wait(0.0) == {}
        spent = time.monotonic() - began

    assert not waiting.connected
    assert spent < wakeups.SILENCE_SECONDS


def test_a_cluster_that_fails_holds_up_no_other(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SmallWorld()
    other.node("n1", cpu_millis=7000)
    job = other.job()
    plan_cycle = cycles.plan_cycle

    def fails_here(snapshot: Snapshot, *args: Any, **words: Any) -> Any:
        assert snapshot.nodes.cpu_millis.tolist() == [7000], "the other cluster cannot be planned"
        return plan_cycle(snapshot, *args, **words)

    monkeypatch.setattr(cycles, "plan_cycle", fails_here)
    alone = Planner()

    alone.turn()
    alone.wakeups.close()

    assert is_started(job)
    failing = PolicyFault.objects.filter(subject=PolicyFault.CYCLE)
    assert [fault.cluster_id for fault in failing] == [world.cluster.pk]


def test_while_another_planner_goes_on_this_one_stands_by_and_takes_over_when_it_falls_silent(
    world: SmallWorld, settings
) -> None:
    now, scope = [1000.0], leases.cluster_scope(world.cluster.pk)
    standing_by = Planner(clock=lambda: now[0])

    def tick(*, other: bool) -> bool:
        """One tick of the clock; whether this planner planned."""
        if other:
            lease = leases.acquire(scope, holder="other", seconds=60)
            assert lease
            leases.release(lease)
        before = leases.last_term(scope)
        now[0] += settings.PLAN_SECONDS
        cycles.forget_rests()
        standing_by.turn()
        return leases.last_term(scope) != before

    assert tick(other=False)
    assert [tick(other=True) for _ in range(4)] == [False] * 4
    assert [tick(other=False) for _ in range(3)] == [False, True, True]
    standing_by.wakeups.close()


def test_several_hints_for_one_cluster_make_one_cycle() -> None:
    listening = WakeUps()
    assert listening.wait(0.1) == {None: "connected"}
    for trigger in ("submit", "ended", "submit"):
        notifications.publish_wake(7, trigger)
    notifications.publish_wake(8, "node")

    asked: dict[int | None, str] = {}
    wait_for(lambda: asked.update(listening.wait(0.1)) or len(asked) == 2)

    assert asked == {7: "submit", 8: "node"}
    listening.close()


def test_what_is_in_memory_is_a_metric_and_a_difference_is_on_the_health_page(world: SmallWorld) -> None:
    world.job(cpu_millis=1_000_000)
    world.plan()
    assert health._planner() == "running"
    resident_of(world.cluster.pk).differences = 2
    world.plan()

    assert "differed 2 times" in health._planner()
    found = {
        sample.name: sample.value
        for metric in metrics.read_metrics()
        for sample in metric.samples
        if sample.name.startswith("muster_planner_memory")
    }
    assert found["muster_planner_memory_differences"] == 2
    assert found["muster_planner_memory_pending_jobs"] == 1
    assert found["muster_planner_memory_bytes"] > 0


def test_a_planner_that_takes_over_plans_before_its_worker_has_begun(world: SmallWorld) -> None:
    from config.workers.planner import plan_before_the_worker_begins

    job = world.job()

    plan_before_the_worker_begins()

    assert is_started(job)
    planner._planner.wakeups.close()
