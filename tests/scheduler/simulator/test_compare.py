"""The simulator: cluster and pool replay agree, synthetic workloads stay the same, reports add up."""

from __future__ import annotations

import hashlib
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.core.policy import Policy
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import as_cluster
from scheduler.simulator.compare import policy_of
from scheduler.simulator.pool_replay import replay
from scheduler.simulator.report import jain, who_lost
from scheduler.simulator.synthetic import gpu_mix, rigid_jobs
from scheduler.simulator.workload import Workload, WorkloadError, read_swf
from tests.support.traces import trace


def plain_easy(workload: Workload) -> list[int]:
    """EASY in the plainest words: two dicts and a list, one job at a time."""
    jobs = list(zip(workload.jobs.submitted_ms.tolist(), workload.jobs.run_ms.tolist(),
                    workload.jobs.limit_ms.tolist(), workload.jobs.processors.tolist()))  # fmt: skip
    started: dict[int, int] = {}
    ended: set[int] = set()
    queue: list[int] = []
    events = [(submit, 0, number) for number, (submit, *_) in enumerate(jobs)]
    while events:
        events.sort()
        now, kind, number = events.pop(0)
        if kind == 0:
            queue.append(number)
        else:
            ended.add(number)

        def free_at(moment: int, now: int = now) -> int:
            holding = [j for j in started if j not in ended and started[j] + jobs[j][2] > max(moment, now)]
            return workload.processors - sum(jobs[j][3] for j in holding)

        def start(j: int, now: int = now) -> None:
            queue.remove(j)
            started[j] = now
            events.append((now + jobs[j][1], 1, j))

        while queue and jobs[queue[0]][3] <= free_at(now):
            start(queue[0])
        if queue:
            need = jobs[queue[0]][3]
            ends = sorted(started[j] + jobs[j][2] for j in started if j not in ended)
            shadow = next(end for end in ends if end > now and free_at(end) >= need)
            for j in queue[1:]:
                spare = free_at(shadow) - need
                over_in_time = now + jobs[j][2] <= shadow
                if jobs[j][3] <= free_at(now) and (over_in_time or jobs[j][3] <= spare):
                    start(j)
    return [started[j] for j in range(len(jobs))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_synthetic_workload_runs_as_the_plain_planner_says(seed: int) -> None:
    workload = rigid_jobs(seed, jobs=120, processors=64)

    assert replay(workload).started_ms.tolist() == plain_easy(workload)


def test_the_planner_of_clusters_gives_what_the_pool_gives() -> None:
    workload = rigid_jobs(7, jobs=100, processors=64)

    outcome = simulate(as_cluster(workload), Policy(backfill="easy"), each_event=True)

    assert outcome.started_ms.tolist() == replay(workload).started_ms.tolist()


def test_the_planner_of_clusters_gives_the_published_starts() -> None:
    """The first jobs of KTH-SP2 through snapshots and plan_cycle, as on one node with 100 CPUs."""
    some = read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz")).head(200)

    outcome = simulate(as_cluster(some), Policy(backfill="easy"), each_event=True)

    published = some.jobs.submitted_ms + some.waited_ms
    settled = published < some.jobs.submitted_ms[-1]  # later starts depend on jobs that are not among these
    assert settled.sum() > 150
    assert outcome.started_ms[settled].tolist() == published[settled].tolist()


def test_golden_schedules_of_our_own_workloads() -> None:
    rigid = rigid_jobs(1, jobs=2000)
    digests = {
        name: hashlib.sha256(replay(rigid, turns).started_ms.astype("<i8").tobytes()).hexdigest()[:16]
        for name, turns in (("easy", BackfillLimits(1)), ("shortest", BackfillLimits(1, shortest_first=True)))
    }

    assert digests == GOLDEN


GOLDEN = {"easy": "7ef738933be3f6f9", "shortest": "19586c9072fddfc6"}


@pytest.mark.parametrize("words", ["fifo", "fifo+easy", "sjf", "fair_queue+conservative+spread"])
def test_every_job_of_a_gpu_cluster_runs_in_the_end(words: str) -> None:
    workload = gpu_mix(3, jobs=60, nodes=4)

    outcome = simulate(workload, policy_of(words))

    waits = outcome.started_ms - workload.snapshot.pending.submitted_ms
    assert (waits >= 0).all()
    assert 0 <= outcome.idle_while_waiting_percent <= 100


def test_who_lost_and_how_evenly() -> None:
    submitted, users = np.zeros(4, dtype=np.int64), np.array([1, 1, 2, 3])
    before, after = np.array([1000, 3000, 5000, 9000]), np.array([5000, 7000, 1000, 9000])

    assert [
        (one.user_id, one.jobs, one.lost_seconds) for one in who_lost(before, after, submitted, users)
    ] == [(1, 2, 4.0)]
    assert jain(np.array([2.0, 2.0])) == 1.0
    assert jain(np.array([4.0, 0.0])) == 0.5


def test_the_command_compares_profiles(tmp_path: Path) -> None:
    out, page = StringIO(), tmp_path / "page.html"

    call_command("simulate", "rigid:1:200", "--profile", "fifo", "--profile", "fifo+easy", "--json", "--html", page,
                 stdout=out, stderr=StringIO())  # fmt: skip

    found = json.loads(out.getvalue())
    assert [one["policy"] for one in found["policies"]] == ["fifo", "fifo+easy"]
    assert all(one["started"] == 200 for one in found["policies"])
    text = page.read_text()
    assert "<svg" in text
    assert "http" not in text


@pytest.mark.django_db
def test_the_command_says_what_it_cannot_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.swf"
    broken.write_text("; MaxProcs: 4\n1 2 three\n")

    for words, why in (
        (["nowhere.swf"], "no file"),
        ([str(broken)], "line 2"),
        (["rigid:1:9", "--profile", "luck"], "luck"),
    ):
        with pytest.raises(CommandError, match=why):
            call_command("simulate", *words, stdout=StringIO())
    with pytest.raises(WorkloadError):
        read_swf(broken)
