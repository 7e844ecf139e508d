"""Published schedules of real logs: every start of EASY, and the slowdown of its variants; minutes in all."""

from __future__ import annotations

import csv
import time
from typing import Final

import numpy as np

from benchmarks.registry import Figures, benchmark
from benchmarks.replays.conservative_reserved import replay_reserved
from benchmarks.replays.traces import trace_folder
from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.simulator.pool_replay import EASY, Schedule, replay
from scheduler.simulator.predicted_replay import replay_predicted
from scheduler.simulator.report import bounded_slowdown
from scheduler.simulator.workload import Workload, read_swf

LOGS: Final = ("KTH-SP2", "CTC-SP2", "SDSC-SP2", "SDSC-BLUE", "CEA-Curie")

#: The policy as `expected.csv` names it: limits of its backfill, and whether run times are known.
VARIANTS: Final = {
    "EASY clairvoyant (actual run times)": (EASY, True),
    "EASY-SJBF (requested times)": (BackfillLimits(promises=1, shortest_first=True), False),
    "EASY-SJBF clairvoyant": (BackfillLimits(promises=1, shortest_first=True), True),
}


def published(policy: str) -> dict[str, float]:
    """The mean slowdown of each log under a policy of `expected.csv`."""
    with (trace_folder("swf-easy-gold") / "expected.csv").open(encoding="utf-8") as lines:
        return {row["log"]: float(row["avebsld"]) for row in csv.DictReader(lines) if row["policy"] == policy}


def mean_slowdown(workload: Workload, schedule: Schedule) -> float:
    jobs = workload.jobs
    return float(bounded_slowdown(schedule.started_ms - jobs.submitted_ms, jobs.run_ms).mean())


@benchmark("easy_mismatches", "easy_sjbf_off")
def published_schedules() -> Figures:
    """All five logs: starts that differ, and variants whose mean slowdown differs in the fourth decimal."""
    folder = trace_folder("swf-easy-gold")
    expected = {name: published(name) for name in VARIANTS}
    mismatches = off = 0
    began = time.process_time()
    jobs = 0
    for log in LOGS:
        workload = read_swf(folder / f"{log}.easy.swf.gz")
        schedule = replay(workload)
        waits = schedule.started_ms - workload.jobs.submitted_ms
        mismatches += int(np.count_nonzero(waits != workload.waited_ms))
        jobs += len(workload.jobs)
        yield f"easy_avebsld_{log}", mean_slowdown(workload, schedule)
        for name, (limits, clairvoyant) in VARIANTS.items():
            found = mean_slowdown(workload, replay(workload, limits, clairvoyant=clairvoyant))
            off += round(found, 4) != round(expected[name][log], 4)
            if not clairvoyant:
                yield f"easy_sjbf_avebsld_{log}", found
        jobs += len(workload.jobs) * len(VARIANTS)
    yield "easy_mismatches", mismatches
    yield "easy_sjbf_off", off
    yield "easy_jobs_per_cpu_s", jobs / (time.process_time() - began)


#: Logs of which `expected.csv` has a mean slowdown of EASY++.
PREDICTED: Final = "EASY++ (Tsafrir average-of-2 prediction, SJBF)"


@benchmark("easy_plus_plus_off")
def predicted_schedules() -> Figures:
    """EASY++ on all five logs: mean slowdowns that differ in the fourth decimal, and how good its predictions are."""
    folder, expected, off = trace_folder("swf-easy-gold"), published(PREDICTED), 0
    for log in LOGS:
        workload = read_swf(folder / f"{log}.easy.swf.gz")
        schedule = replay_predicted(workload)
        started, submitted, runs = schedule.started_ms, workload.jobs.submitted_ms, workload.jobs.run_ms
        found = float(bounded_slowdown(started - submitted, runs).mean())
        off += log in expected and round(found, 4) != round(expected[log], 4)
        yield f"easy_plus_plus_avebsld_{log}", found
        yield f"prediction_too_short_percent_{log}", 100 * float((schedule.predicted_ms < runs).mean())
        for name, planned in (("prediction", schedule.predicted_ms), ("requested", workload.jobs.limit_ms)):
            low, high = np.maximum(np.minimum(planned, runs), 1), np.maximum(np.maximum(planned, runs), 1)
            yield f"{name}_accuracy_percent_{log}", 100 * float((low / high).mean())
            for part in (10, 50, 90):
                ratio = np.quantile(planned / np.maximum(runs, 1), part / 100)
                yield f"{name}_by_run_p{part}_{log}", float(ratio)
    yield "easy_plus_plus_off", off


#: Logs whose replay with reservations takes seconds.
RESERVED_LOGS: Final = ("KTH-SP2", "SDSC-SP2")


@benchmark("conservative_avebsld_KTH-SP2", "conservative_jobs_per_cpu_s", "conservative_kept_off")
def conservative() -> Figures:
    """A reserved start for every waiting job: planned anew in each pass as Muster does, and with reservations kept.

    The figures of `expected.csv` were measured with reservations that jobs keep (`docs/explanation/conservative.md`).
    """
    folder = trace_folder("swf-easy-gold")
    workload = read_swf(folder / "KTH-SP2.easy.swf.gz")
    began = time.process_time()
    schedule = replay(workload, BackfillLimits(promises=len(workload.jobs)))
    spent = time.process_time() - began
    yield "conservative_avebsld_KTH-SP2", mean_slowdown(workload, schedule)
    yield "conservative_jobs_per_cpu_s", len(workload.jobs) / spent
    measured = published("Conservative (requested times)")
    off = 0
    for log in RESERVED_LOGS:
        workload = read_swf(folder / f"{log}.easy.swf.gz")
        found = mean_slowdown(workload, replay_reserved(workload))
        off += round(found, 4) != round(measured[log], 4)
        yield f"conservative_kept_avebsld_{log}", found
    yield "conservative_kept_off", off
