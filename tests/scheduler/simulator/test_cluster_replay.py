"""Simulated clusters: openb tables, preemption, fragmentation, profiles and users by name."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import ClusterWorkload
from scheduler.simulator.compare import PREEMPT, losers, policy_of, run
from scheduler.simulator.fragmentation import Fragmentation
from scheduler.simulator.openb import read_openb
from scheduler.simulator.workload import WorkloadError
from tests.support.builders import NOW_MS, a_job, a_node, a_world, running
from tests.support.factories import SchedulerProfileFactory
from tests.support.traces import trace

MINUTE_MS = 60_000

NODES = """sn,cpu_milli,memory_mib,gpu,model
n1,64000,262144,2,P100
n2,64000,262144,1,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1000,1024,1,460,,LS,Running,100,400,100
b,1000,1024,2,1000,P100,BE,Running,0,300,0
c,1000,1024,1,540,,LS,Running,110,410,
d,1000,1024,0,0,,LS,Running,120,150,130
"""


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "openb_node_list_gpu_node.csv.gz", "wt") as file:
        file.write(NODES)
    (tmp_path / "some_pods.csv").write_text(PODS)
    return tmp_path / "some_pods.csv"


def test_openb_tables_are_a_cluster_with_shares_models_and_times(pods: Path) -> None:
    workload = read_openb(pods)

    assert (workload.capacity, workload.amounts.tolist()) == (3000, [460, 2000, 540, 0])
    assert workload.run_ms.tolist() == [300_000, 300_000, 300_000, 20_000]
    assert workload.snapshot.devices.model == ("P100", "P100", "T4")
    outcome = simulate(workload, Policy())
    assert outcome.started_ms.tolist() == [100_000, 0, 110_000, 120_000]  # two shares of the one T4
    assert workload.head(2).snapshot.pending.id.tolist() == [1, 2]  # b comes first, a second


def test_tables_that_are_no_openb_trace_are_refused(pods: Path, tmp_path: Path) -> None:
    broken = tmp_path / "more.csv"
    broken.write_text(PODS.replace("b,1000", "b,many"))
    with pytest.raises(WorkloadError, match=r"more.csv, line 3"):
        read_openb(broken)
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "pods.csv"
    alone.write_text(PODS)
    with pytest.raises(WorkloadError, match="--nodes"):
        read_openb(alone)
    assert read_openb(alone, tmp_path / "openb_node_list_gpu_node.csv.gz").capacity == 3000


def test_the_real_openb_trace_is_read_whole() -> None:
    workload = read_openb(trace("openb-fgd", "openb_pod_list_default.csv.gz"))

    assert (len(workload.run_ms), len(workload.snapshot.nodes), workload.capacity) == (8152, 1213, 6_212_000)


def played(snapshot: Snapshot, minutes: list[int], policy: Policy) -> tuple[list[int], ClusterWorkload]:
    workload = ClusterWorkload(
        "made",
        snapshot,
        np.array(minutes) * MINUTE_MS,
        np.full(len(minutes), 1000),
        1000,
        users={1: "ann", 2: "ben"},
    )
    outcome = simulate(workload, policy)
    return ((outcome.started_ms - NOW_MS) // MINUTE_MS).tolist(), workload


def test_a_preempted_job_waits_again_and_loses_its_work() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        pending=[
            a_job("low", gpus=1, priority=10, minutes=60, user=1),
            a_job("high", gpus=1, priority=90, minutes=10, submitted=20, user=2),
        ],
    )
    policy = Policy(name="priority", preemption=PREEMPT)

    starts, workload = played(world.snapshot, [60, 10], policy)

    assert starts == [31, 21]  # one minute of notice, ten of the other, and once more from the beginning
    outcome = simulate(workload, policy)
    assert (outcome.preemptions, outcome.lost_ms // MINUTE_MS, outcome.stopped) == (1, 21, (0,))
    result = run(workload, "stops", policy)
    assert (result.report.preemptions, round(result.report.lost_gpu_hours, 2)) == (1, 0.35)
    before = run(workload, "waits", Policy(name="priority"))
    assert [(one.name, one.jobs) for one in losers(before, result)] == [("ann", 1)]


def test_a_job_that_runs_at_the_beginning_can_be_preempted() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        running=[running(a_job("old", gpus=1, priority=10), ("n1", [0]), ends_in=100, started=-20)],
        pending=[a_job("high", gpus=1, priority=90, minutes=10)],
    )

    starts, workload = played(world.snapshot, [10], Policy(name="priority", preemption=PREEMPT))

    assert starts == [1]
    assert simulate(workload, Policy(name="priority", preemption=PREEMPT)).preemptions == 1


def test_fragmentation_is_idle_gpus_of_no_use_to_the_usual_requests() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2, cpus=1)],
        pending=[a_job("whole", gpus=1, cpus=4), a_job("half", gpus=1, share=500, cpus=1)],
    )
    fragmentation = Fragmentation(world.snapshot)
    used = {"cpu_millis": np.zeros(2, dtype=np.int64), "memory_mib": np.zeros(2, dtype=np.int64)}

    # Of 4 idle GPUs the whole one cannot use two, where CPUs are missing; the half can use all.
    assert fragmentation.fragmented(np.array([0, 0, 0, 0]), used) == pytest.approx(0.25)
    # 0.4 of a device is of no use to either; 0.6 only to the half.
    assert fragmentation.fragmented(np.array([600, 1000, 1000, 1000]), used) == pytest.approx(0.1)
    assert fragmentation.fragmented(np.array([400, 1000, 1000, 1000]), used) == pytest.approx(0.075)
    assert fragmentation.idle(np.array([400, 1000, 1000, 1000])) == pytest.approx(0.15)


@pytest.mark.django_db
def test_a_stored_profile_is_played_by_its_name(pods: Path) -> None:
    SchedulerProfileFactory(name="Night", policy="priority", backfill="easy", options={"backfill_scan": 5})
    SchedulerProfileFactory(name="fifo", policy="sjf")
    out = StringIO()

    call_command("simulate", str(pods), "--profile", "Night", "--profile", "profile:fifo", "--json", "--jobs", "3",
                 stdout=out, stderr=StringIO())  # fmt: skip

    found = json.loads(out.getvalue())["policies"]
    assert [(one["policy"], one["jobs"]) for one in found] == [("Night", 3), ("profile:fifo", 3)]
    with pytest.raises(CommandError, match="no profile 'Day'"):
        call_command("simulate", str(pods), "--profile", "Day", stdout=StringIO())


def test_preemption_is_a_word() -> None:
    assert policy_of("priority+easy+preempt") == replace(policy_of("priority+easy"), preemption=PREEMPT)
