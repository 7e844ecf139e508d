"""The limits ledger: what is taken can be given back, and a copy counts for itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.core.resources import Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.limits_ledger import LimitsLedger
from scheduler.core.snapshot.request_classes import request_class
from scheduler.core.snapshot.snapshot import PoolColumns, QueueColumns, QuotaColumns, Snapshot
from tests.support.strategies import a_world_of_lines

LICENCES = request_class(Resources(cpu_millis=1000, extras=(("matlab", 2),)))


def a_ledger(*, hard: int = 10, pool: int = 8, most_jobs: int = 0) -> LimitsLedger:
    """One quota line for jobs, one queue, one pool of licences."""
    snapshot = Snapshot.build(
        now_ms=0,
        queues=QueueColumns(id=[1], name=["main"], max_concurrent_jobs=[most_jobs]),
        quotas=QuotaColumns(id=[1], resource=["running_jobs"], hard=[hard], owner=["a project"]),
        pools=PoolColumns(id=[1], name=["matlab"], capacity=[pool]),
    )
    return LimitsLedger(snapshot, ClusterIndex(snapshot).paths)


def a_job(**words: Any) -> dict[str, Any]:
    return {"queue_row": 0, "array_id": 7, "charges": ((0, 1),), "request": LICENCES, "tasks": 1} | words


def test_a_job_counts_on_its_line_queue_array_and_pool() -> None:
    ledger = a_ledger()

    ledger.take(**a_job(tasks=3))

    assert (ledger.tree.used, ledger.queue_running, ledger.pool_used) == ([1], [1], [6])
    assert (ledger.array_is_full(7, 1), ledger.array_is_full(7, 2), ledger.array_is_full(7, 0)) == (
        True, False, False,
    )  # fmt: skip


def test_each_limit_refuses_on_its_own() -> None:
    charges = ((0, 1),)

    assert a_ledger().admits(0, charges, LICENCES, 4)
    assert not a_ledger().admits(0, charges, LICENCES, 5)
    assert not a_ledger(hard=0).admits(0, charges, LICENCES, 1)
    full = a_ledger(most_jobs=1)
    full.take(**a_job())
    assert not full.admits(0, charges, LICENCES, 1)
    assert a_ledger().short_pool(LICENCES, 5) == ("matlab", 10, 8, 8)


def test_an_extra_without_a_pool_is_short_and_counts_nowhere() -> None:
    ledger = a_ledger()
    unknown = request_class(Resources(cpu_millis=1000, extras=(("ansys", 1),)))

    ledger.take(**a_job(request=unknown))

    assert ledger.short_pool(unknown, 1) == ("ansys", 1, 0, 0)
    assert ledger.pool_used == [0]


def test_a_copy_counts_for_itself() -> None:
    ledger = a_ledger()
    other = ledger.copy()

    other.take(**a_job())

    assert (ledger.tree.used, ledger.queue_running, ledger.pool_used) == ([0], [0], [0])
    assert ledger.array_running == {}


@given(st.integers(0, 300), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_is_taken_and_given_back_leaves_no_trace(seed: int, dice: Any) -> None:
    cluster = ClusterIndex(a_world_of_lines(seed, 3, 8).snapshot)
    pending = cluster.snapshot.pending
    ledger = LimitsLedger(cluster.snapshot, cluster.paths)
    before = ledger.counts()
    jobs = []
    for row in range(len(pending)):
        class_index, tasks = pending.class_index.item(row), pending.tasks.item(row)
        charges = cluster.charges.certain(cluster.paths.pending.item(row), class_index, tasks)
        jobs.append(
            {
                "queue_row": cluster.pending.queue.item(row),
                "array_id": dice.choice([0, 1, 2]),
                "charges": charges,
                "request": cluster.snapshot.classes[class_index],
                "tasks": tasks,
            }
        )

    for job in jobs:
        ledger.take(**job)
    taken = ledger.counts()
    dice.shuffle(jobs)
    for job in jobs:
        ledger.take(**job, sign=-1)

    left = ledger.counts()
    assert left[:4] == before[:4]
    assert not any(left.array_running.get(array, 0) for array in (1, 2))
    ledger.restore(taken)
    assert ledger.counts() == taken
