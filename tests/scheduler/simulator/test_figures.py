"""Figures and readers of the simulator where a trace is not as plain as the published ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.core.policy import Policy
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import as_cluster, from_snapshot
from scheduler.simulator.compare import open_workload, run
from scheduler.simulator.fragmentation import Fragmentation
from scheduler.simulator.synthetic import rigid_jobs
from scheduler.simulator.workload import WorkloadError, read_swf
from tests.support.builders import a_job, a_node, a_world, running

SWF_LINE = "1 0 5 60 4 -1 -1 4 120 -1 1 7 -1 -1 -1 -1 -1 -1"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(backfill="easy"),
        Policy(backfill="conservative", backfill_scan=5),
        Policy(backfill="deadline"),
        Policy(backfill="aggressive", backfill_delay_seconds=1800),
        Policy(backfill="easy", backfill_max_priority=10),
    ],
    ids=lambda policy: policy.backfill,
)
def test_a_log_goes_as_the_planner_of_clusters_would_have_it(policy: Policy) -> None:
    workload = rigid_jobs(4, jobs=40, processors=32)
    crowded = replace(workload.jobs, submitted_ms=np.sort(workload.jobs.submitted_ms // 6 // 1000 * 1000))
    workload = replace(workload, jobs=crowded)

    played = run(workload, "x", policy).schedule.started_ms

    assert played.tolist() == simulate(as_cluster(workload), policy).started_ms.tolist()


def test_a_recorded_cycle_is_measured_from_its_own_moment_on() -> None:
    """One of two GPUs is held for another hour, and a job that waits for a day has to run for as long on the other."""
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[running(a_job("old", gpus=1), ("n1", [0]), started=-300, ends_in=60)],
        pending=[a_job("waits", gpus=1, minutes=60, submitted=-24 * 60)],
    )

    report = run(from_snapshot(world.snapshot, "cycle 1"), "fifo", Policy()).report

    assert report.wait_max_seconds == 24 * 3600
    assert report.makespan_seconds == 3600
    assert round(report.utilisation_percent) == 100


def test_what_is_idle_on_a_node_that_takes_nobody_is_no_waste() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2, draining=True), a_node("n3", gpus=2, state="down"),
               a_node("n4", gpus=2, unhealthy=(0,))],
        pending=[a_job("whole", gpus=2)],
    )  # fmt: skip
    used = world.snapshot.devices.used_millis
    free = {"cpu_millis": np.zeros(4, dtype=np.int64), "memory_mib": np.zeros(4, dtype=np.int64)}

    fragmentation = Fragmentation(world.snapshot)

    assert fragmentation.idle(used) == 3 / 8  # both of n1, and the one of n4 that works
    assert fragmentation.fragmented(used, free) == 1 / 8  # which is of no use to a job of two


@pytest.mark.parametrize(
    "line",
    [
        SWF_LINE.replace("60", "nan", 1), SWF_LINE.replace("60", "inf", 1), SWF_LINE.replace("60", "1e300", 1),
        "1 0 5 60", "one 0 5 60 4 -1 -1 4 120 -1 1 7", SWF_LINE.replace("4 ", "-1 ").replace("60", "-1"),
    ],
    ids=["nan", "inf", "huge", "short", "words", "nobody ran"],
)  # fmt: skip
def test_a_log_that_cannot_be_read_says_where(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"; MaxProcs: --5\n{line}\n")

    with pytest.raises(WorkloadError, match=r"log\.swf"):
        read_swf(path)


def test_a_header_that_is_set_in_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"  ; MaxProcs: 64\n; MaxNodes: --5\n{SWF_LINE}\n")

    workload = read_swf(path)

    assert (workload.processors, workload.jobs.run_ms.tolist()) == (64, [60_000])


@pytest.mark.parametrize(
    ("nodes", "pods"),
    [
        ("n1,1000,1024,two,A100\n", "p1,1000,1024,1,1000,,BE,0,60\n"),
        ("n1,1000\n", "p1,1000,1024,1,1000,,BE,0,60\n"),
        ("n1,1000,1024,-2,A100\n", "p1,1000,1024,1,1000,,BE,0,60\n"),
        ("n1,1000,1024,2,A100\n", "p1,1000\n"),
        ("n1,1000,1024,2,A100\n", "p1,1000,1024,1,1000,,BE,inf,60\n"),
        ("n1,1000,1024,2,A100\n", "p1,1000,1024,1,1000,,BE,0,inf\n"),
    ],
    ids=["gpu count", "short node", "less than nothing", "short pod", "never created", "never deleted"],
)
def test_a_table_of_pods_that_cannot_be_read_says_where(tmp_path: Path, nodes: str, pods: str) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES + nodes)
    (tmp_path / "pods.csv").write_text(PODS + pods)

    with pytest.raises(WorkloadError, match="line 2"):
        open_workload(str(tmp_path / "pods.csv"))
