"""Small worlds with the whole plan compared: one rule each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Placement, Plan
from scheduler.core.snapshot.constraints import Requirement, Taint, Toleration
from scheduler.core.snapshot.snapshot import JobGate
from tests.support.applied import applied
from tests.support.builders import (
    MINUTE_MS,
    NOW_MS,
    World,
    a_job,
    a_node,
    a_policy,
    a_queue,
    a_quota,
    a_reservation,
    a_world,
    running,
)


def outcome(world: World, **policy: object) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(job -> nodes of its tasks, job -> why it waits): a whole plan, by name."""
    plan = plan_cycle(world.snapshot, a_policy(**policy))
    return world.starts(plan), world.reasons(plan)


def facts(world: World, job: str) -> dict[str, int | str]:
    plan = plan_cycle(world.snapshot, a_policy())
    return plan.decision_of(world.job(job)).details


# Gangs.


def test_a_gang_waits_until_every_task_fits() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[running(a_job("old", gpus=2), ("n2", [0, 1]), ends_in=30)],
        pending=[a_job("train", tasks=2, gpus=4)],
    )

    assert outcome(world) == ({}, {"train": "WaitingForResources"})
    assert facts(world, "train") == {
        "resource": "gpus", "needs": 8, "free": 6, "total": 8, "ending": 2, "ending_by_ms": NOW_MS + 30 * MINUTE_MS,
    }  # fmt: skip


def test_a_gang_starts_whole_on_as_few_nodes_as_hold_it() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=4), a_node("n3", gpus=8)],
        pending=[a_job("train", tasks=5, gpus=2)],
    )

    assert outcome(world) == ({"train": ["n1", "n3", "n3", "n3", "n3"]}, {})


def test_one_node_is_better_than_several() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2), a_node("n3", gpus=8)],
        pending=[a_job("train", tasks=2, gpus=2)],
    )

    assert outcome(world) == ({"train": ["n3", "n3"]}, {})


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        ({"tasks": 4, "nodes": 2}, ["n1", "n1", "n2", "n2"]),
        ({"tasks": 4, "tasks_per_node": 1}, ["n1", "n2", "n3", "n4"]),
        ({"tasks": 3, "tasks_per_node": 2}, ["n1", "n1", "n2"]),
        ({"tasks": 3, "nodes": 3}, ["n1", "n2", "n3"]),
        ({"tasks": 4, "nodes": 2, "tasks_per_node": 2}, ["n1", "n1", "n2", "n2"]),
    ],
)
def test_nodes_and_tasks_per_node_are_kept_to(shape: dict[str, int], nodes: list[str]) -> None:
    world = a_world(
        nodes=[a_node(f"n{i}", gpus=4) for i in range(1, 5)], pending=[a_job("train", gpus=1, **shape)]
    )

    assert outcome(world) == ({"train": nodes}, {})


def test_a_shape_that_cannot_be_is_the_persons_to_fix() -> None:
    world = a_world(nodes=[a_node("n1")], pending=[a_job("odd", tasks=2, nodes=3)])

    assert outcome(world) == ({}, {"odd": "InvalidSpec"})
    assert facts(world, "odd") == {"kind": "shape", "tasks": 2, "nodes": 3, "tasks_per_node": 0}


# Devices.


def test_devices_come_from_one_numa_domain_when_one_holds_them() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4, numa=2)],
        running=[running(a_job("old", gpus=1), ("n1", [0]))],
        pending=[a_job("pair", gpus=2)],
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert plan.starts[0].placements == (
        Placement(rank=0, node_id=1, device_ids=(102, 103), gpu_millis=1000, numa=1),
    )


def test_a_node_with_a_whole_numa_domain_beats_a_tighter_one_without() -> None:
    world = a_world(
        nodes=[a_node("split", gpus=4, numa=2), a_node("whole", gpus=4, numa=2)],
        running=[running(a_job("a", tasks=2, gpus=1), ("split", [0]), ("split", [2]))],
        pending=[a_job("pair", gpus=2)],
    )

    assert outcome(world) == ({"pair": ["whole"]}, {})


def test_best_fit_takes_the_tightest_node_and_spread_the_emptiest() -> None:
    world = a_world(
        nodes=[a_node("empty", gpus=4), a_node("half", gpus=4)],
        running=[running(a_job("old", gpus=2), ("half", [0, 1]))],
        pending=[a_job("one", gpus=1)],
    )

    assert outcome(world) == ({"one": ["half"]}, {})
    assert outcome(world, placement="spread") == ({"one": ["empty"]}, {})


def test_work_without_gpus_keeps_off_idle_gpus() -> None:
    world = a_world(
        nodes=[a_node("gpu", gpus=8, cpus=4), a_node("plain", cpus=64)], pending=[a_job("cpu", cpus=2)]
    )

    assert outcome(world) == ({"cpu": ["plain"]}, {})


def test_a_share_goes_to_the_fullest_device_that_still_holds_it() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=3)],
        running=[
            running(a_job("third", gpus=1, share=300), ("n1", [0])),
            running(a_job("half", gpus=1, share=500), ("n1", [1])),
        ],
        pending=[
            a_job("more", gpus=1, share=500),
            a_job("again", gpus=1, share=600),
            a_job("big", gpus=1, share=700),
        ],
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert [world.devices_of(start) for start in plan.starts] == [[[("n1", 1)]], [[("n1", 0)]], [[("n1", 2)]]]


def test_a_share_never_lands_on_a_device_held_whole() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        running=[running(a_job("whole", gpus=1), ("n1", [0]))],
        pending=[a_job("tiny", gpus=1, share=1)],
    )

    assert outcome(world) == ({}, {"tiny": "WaitingForResources"})


@pytest.mark.parametrize(
    ("wanted", "have", "fits"),
    [
        ("H100", "H100", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "H100-80GB", True),
        ("H100-80GB", "H100", False),
        ("A10", "A100", False),
        ("NVIDIA A100", "A100-SXM4-40GB", True),
    ],
)
def test_a_gpu_model_is_matched_by_name_or_by_its_first_words(wanted: str, have: str, fits: bool) -> None:
    world = a_world(nodes=[a_node("n1", gpus=1, model=have)], pending=[a_job("one", gpus=1, model=wanted)])

    assert outcome(world) == (({"one": ["n1"]}, {}) if fits else ({}, {"one": "NoMatchingNode"}))


def test_an_unhealthy_device_is_not_given_away() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2, unhealthy=(0,))], pending=[a_job("one", gpus=1), a_job("two", gpus=1)]
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert [world.devices_of(start) for start in plan.starts] == [[[("n1", 1)]]]
    assert world.reasons(plan) == {"two": "WaitingForResources"}


# Gates of nodes.


def test_cordoned_draining_and_silent_nodes_take_nothing() -> None:
    world = a_world(
        nodes=[
            a_node("c", cordoned=True),
            a_node("d", draining=True),
            a_node("s", state="unknown"),
            a_node("ok"),
        ],
        pending=[a_job("one", cpus=64), a_job("two", cpus=64)],
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert world.starts(plan) == {"one": ["ok"]}
    decision = plan.decision_of(world.job("two"))
    assert [(g.gate, g.first, g.alone) for g in decision.gates] == [
        ("state", 1, 1), ("cordoned", 1, 1), ("draining", 1, 1), ("cpu_millis", 1, 1),
    ]  # fmt: skip


def test_a_job_whose_only_nodes_do_not_answer_is_told_so() -> None:
    world = a_world(nodes=[a_node("n1", state="down")], pending=[a_job("one")])

    assert outcome(world) == ({}, {"one": "AgentUnreachable"})


def test_labels_taints_affinity_and_partitions_decide_where() -> None:
    taint = Taint("team", "x")
    world = a_world(
        nodes=[
            a_node("a", labels={"arch": "arm64"}, cpus=1),
            a_node("b", labels={"arch": "amd64"}, taints=(taint,), cpus=1),
            a_node("c", labels={"arch": "amd64", "disk": "7"}, partitions=(9,), cpus=1),
            a_node("d", taints=(Taint("slow", "", "PreferNoSchedule"),), cpus=1),
            a_node("e", cpus=1),
        ],
        pending=[
            a_job("arm", selector={"arch": "arm64"}),
            a_job("team", tolerations=[Toleration("team", "Equal", "x")], selector={"arch": "amd64"}),
            a_job("disk", affinity=[[Requirement("disk", "Gt", ("5",))]], partitions=[9]),
            a_job("any"),
            a_job("last"),
            a_job("none", selector={"arch": "riscv"}),
        ],
    )

    assert outcome(world) == (
        {"arm": ["a"], "team": ["b"], "disk": ["c"], "any": ["e"], "last": ["d"]},
        {"none": "NodesUnavailable"},
    )
    assert facts(world, "none")["labels"] == "arch=riscv"


def test_a_queue_sees_only_its_partitions() -> None:
    world = a_world(
        nodes=[a_node("a", partitions=(1,)), a_node("b", partitions=(2,))],
        pending=[a_job("one", queue="two")],
        queues=[a_queue("two", partitions=(2,))],
    )

    assert outcome(world) == ({"one": ["b"]}, {})


def test_a_reservation_keeps_out_who_would_still_be_there_when_it_begins() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=4)],
        pending=[
            a_job("long", minutes=90),
            a_job("short", minutes=20),
            a_job("endless"),
            a_job("theirs", minutes=90, project="speech"),
        ],
        reservations=[a_reservation("course", "n1", starts_in=30, projects=("speech",))],
    )

    assert outcome(world) == (
        {"short": ["n1"], "theirs": ["n1"]},
        {"long": "Reservation", "endless": "Reservation"},
    )
    # It belongs to a project, so its name is not for those whom it keeps out; when it begins is.
    assert "reservation" not in facts(world, "long")
    assert facts(world, "long")["starts_ms"] == int(world.snapshot.reservations.starts_ms[0])


# Never.


def test_more_than_the_largest_node_has_is_said_with_both_numbers() -> None:
    world = a_world(nodes=[a_node("n1", gpus=8), a_node("n2", gpus=4)], pending=[a_job("huge", gpus=16)])

    assert outcome(world) == ({}, {"huge": "InvalidSpec"})
    assert facts(world, "huge") == {"kind": "node", "resource": "gpus", "needs": 16, "largest": 8}


def test_more_than_the_whole_cluster_has_is_said_with_both_numbers() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8), a_node("n2", gpus=8)], pending=[a_job("huge", tasks=1000, gpus=1)]
    )

    assert facts(world, "huge") == {"kind": "total", "resource": "gpus", "needs": 1000, "total": 16}


def test_a_drained_node_still_counts_as_one_that_could_hold_it() -> None:
    world = a_world(nodes=[a_node("n1", gpus=8, draining=True)], pending=[a_job("big", gpus=8)])

    assert outcome(world) == ({}, {"big": "WaitingForResources"})


def test_free_in_pieces_is_told_from_not_free() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[running(a_job("a", tasks=2, gpus=2), ("n1", [0, 1]), ("n2", [0, 1]))],
        pending=[a_job("four", gpus=4)],
    )

    assert outcome(world) == ({}, {"four": "TopologyFragmented"})
    assert facts(world, "four") == {"resource": "gpus", "needs": 4, "per_task": 4, "free": 4, "largest": 2}


# Limits.


def test_quota_is_kept_on_every_line_up_to_the_root() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[
            a_job("a", gpus=2),
            a_job("b", gpus=2, project="speech"),
            a_job("c", gpus=1, project="speech"),
        ],
        quotas=[
            a_quota("gpu_millis", 4000, projects=("vision",)),
            a_quota("gpu_millis", 3000, projects=("vision", "speech"), owner="lab"),
        ],
    )

    assert outcome(world) == ({"a": ["n1"], "c": ["n1"]}, {"b": "WaitingForQuota"})
    assert facts(world, "b") == {
        "owner": "lab",
        "resource": "gpu_millis",
        "needs": 2000,
        "limit": 3000,
        "used": 3000,
    }


def test_above_a_hard_limit_and_a_limit_of_nothing_are_told_apart_from_waiting() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[a_job("big", gpus=4), a_job("none", gpus=1, project="speech")],
        quotas=[
            a_quota("gpu_millis", 2000, projects=("vision",)),
            a_quota("gpu_millis", 0, projects=("speech",), owner="project speech"),
        ],
    )

    assert outcome(world) == ({}, {"big": "ExceedsMaxQuota", "none": "QuotaZero"})


def test_a_line_that_is_not_enforced_only_reports() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[a_job("big", gpus=4)],
        quotas=[a_quota("gpu_millis", 1000, enforce=False)],
    )

    assert outcome(world) == ({"big": ["n1"]}, {})


def test_a_queue_runs_as_many_jobs_as_it_may() -> None:
    world = a_world(
        nodes=[a_node("n1")],
        running=[running(a_job("old"), "n1")],
        pending=[a_job("one"), a_job("two")],
        queues=[a_queue(max_concurrent_jobs=2)],
    )

    assert outcome(world) == ({"one": ["n1"]}, {"two": "RateLimited"})
    assert facts(world, "two") == {"scope": "queue", "queue": "main", "running": 2, "limit": 2}


def test_an_array_runs_as_many_members_as_it_allows() -> None:
    members = [a_job(f"m{i}", array=5, array_max_running=2) for i in range(4)]
    world = a_world(nodes=[a_node("n1")], pending=[*members, a_job("other")])

    assert outcome(world) == (
        {"m0": ["n1"], "m1": ["n1"], "other": ["n1"]},
        {"m2": "RateLimited", "m3": "RateLimited"},
    )


def test_licences_are_shared_by_the_whole_cluster() -> None:
    world = a_world(
        nodes=[a_node("n1"), a_node("n2")],
        pending=[
            a_job("a", extras={"matlab": 1}),
            a_job("b", extras={"matlab": 1}),
            a_job("c", extras={"matlab": 9}),
        ],
        licences={"matlab": (4, 3)},
    )

    assert outcome(world) == ({"a": ["n1"]}, {"b": "WaitingForResources", "c": "InvalidSpec"})
    assert facts(world, "b") == {"resource": "matlab", "needs": 1, "free": 0, "total": 4}


# Gates of jobs and queues.


def test_what_a_jobs_own_row_says_comes_before_any_node() -> None:
    world = a_world(
        nodes=[a_node("n1")],
        pending=[
            a_job("held", gate=JobGate.HELD_BY_ADMIN),
            a_job("mine", gate=JobGate.HELD_BY_USER),
            a_job("dep", gate=JobGate.DEPENDENCY),
            a_job("never", gate=JobGate.DEPENDENCY_NEVER_SATISFIED),
            a_job("later", begin=10),
            a_job("retry", gate=JobGate.BACKOFF, begin=1),
            a_job("now", gate=JobGate.BACKOFF, begin=-1),
            a_job("long", queue="short", minutes=60),
            a_job("stopped", queue="off"),
            a_job("hopeless", queue="off", cpus=1000),
        ],
        queues=[
            a_queue("short", max_minutes=30),
            a_queue("off", paused="by A. Admin since 09:12: maintenance"),
        ],
    )

    assert outcome(world) == (
        {"now": ["n1"]},
        {
            "held": "HeldByAdmin",
            "mine": "HeldByUser",
            "dep": "Dependency",
            "never": "DependencyNeverSatisfied",
            "later": "BeginTime",
            "retry": "Backoff",
            "long": "ExceedsMaxWalltime",
            "stopped": "QueueStopped",
            "hopeless": "InvalidSpec",
        },
    )
    assert facts(world, "later") == {"begin_ms": NOW_MS + 10 * MINUTE_MS}
    assert facts(world, "stopped") == {"queue": "off", "text": "by A. Admin since 09:12: maintenance"}


# Order.


def test_fifo_goes_by_time_of_submission_and_then_by_number() -> None:
    jobs = [
        a_job("late", cpus=64, submitted=0),
        a_job("tie", cpus=64, submitted=-5),
        a_job("tie2", cpus=64, submitted=-5),
    ]
    world = a_world(nodes=[a_node("n1")], pending=jobs)

    assert outcome(world) == ({"tie": ["n1"]}, {"late": "WaitingForResources", "tie2": "WaitingForResources"})


def test_priority_goes_by_queue_then_job_then_time() -> None:
    world = a_world(
        nodes=[a_node(f"n{i}", cpus=1) for i in range(3)],
        pending=[
            a_job("low", priority=10, submitted=-9),
            a_job("first", queue="vip", priority=0, submitted=0),
            a_job("second", priority=90, submitted=-1),
            a_job("third", priority=90, submitted=0),
            a_job("fourth", priority=90, submitted=0),
        ],
        queues=[a_queue("vip", priority=99)],
    )

    plan = plan_cycle(world.snapshot, a_policy(name="priority"))

    assert list(world.starts(plan)) == ["first", "second", "third"]
    ahead = {name: plan.details_of(world.job(name))["ahead_jobs"] for name in ("fourth", "low")}
    assert ahead == {"fourth": 0, "low": 1}


def test_a_later_job_may_pass_one_that_does_not_fit_unless_the_order_is_strict() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]))],
        pending=[a_job("big", gpus=4), a_job("small", gpus=1), a_job("elsewhere", queue="side")],
    )

    assert outcome(world) == ({"small": ["n1"], "elsewhere": ["n1"]}, {"big": "WaitingForResources"})
    assert outcome(world, strict_order=True) == (
        {"elsewhere": ["n1"]},
        {"big": "WaitingForResources", "small": "Priority"},
    )


def test_a_job_that_can_never_start_does_not_stop_a_strict_queue() -> None:
    world = a_world(nodes=[a_node("n1", gpus=1)], pending=[a_job("hopeless", gpus=9), a_job("small", gpus=1)])

    assert outcome(world, strict_order=True) == ({"small": ["n1"]}, {"hopeless": "InvalidSpec"})


def test_those_ahead_are_counted_with_their_gpus_and_only_if_they_wait_their_turn() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[running(a_job("old", gpus=4), ("n1", [0, 1, 2, 3]))],
        pending=[
            a_job("a", gpus=4),
            a_job("hopeless", gpus=9),
            a_job("held", gpus=4, gate=JobGate.HELD_BY_USER),
            a_job("b", gpus=1, tasks=2),
            a_job("me", gpus=1),
        ],
    )

    details = plan_cycle(world.snapshot, a_policy()).details_of(world.job("me"))

    assert (details["ahead_jobs"], details["ahead_gpus"]) == (2, 6)


# The whole.


def test_an_empty_world_gives_an_empty_plan() -> None:
    assert plan_cycle(a_world().snapshot, a_policy()) == Plan()


def test_a_job_without_any_node_is_not_lost() -> None:
    world = a_world(pending=[a_job("one")])

    assert outcome(world) == ({}, {"one": "NoMatchingNode"})


def test_a_started_job_carries_all_that_the_applier_needs() -> None:
    world = a_world(nodes=[a_node("n1", gpus=2)], pending=[replace(a_job("one", gpus=1), generation=7)])

    start = plan_cycle(world.snapshot, a_policy()).starts[0]

    assert (start.job_id, start.generation, start.queue_id, start.project_id) == (1, 7, 1, 1)
    assert start.per_task.gpus == 1
    assert dict(start.scores).keys() == {"tightness", "total"}


def test_freed_room_is_used_in_the_next_cycle() -> None:
    world = a_world(nodes=[a_node("n1", gpus=1)], pending=[a_job("a", gpus=1), a_job("b", gpus=1)])

    after = applied(world.snapshot, plan_cycle(world.snapshot, a_policy()))

    assert plan_cycle(after, a_policy()).starts == ()
    assert after.running.id.tolist() == [world.job("a")]
