"""Compare policies on one workload: run each, and show the figures as a table, as JSON or as a page."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from scheduler.core.backfill import turns_of
from scheduler.core.columns import Ints
from scheduler.core.policy import BACKFILL_ORDERS, BACKFILLS, PLACEMENTS, POLICIES, Policy
from scheduler.simulator.cluster import ClusterWorkload, simulate
from scheduler.simulator.made import as_cluster, gpu_mix, rigid_jobs
from scheduler.simulator.pool import replay
from scheduler.simulator.report import Loser, Report, summarise, who_lost
from scheduler.simulator.workload import Workload, WorkloadError, read_swf

#: name of the policy, jobs ended, jobs in all
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one workload."""

    report: Report
    submitted_ms: Ints
    started_ms: Ints
    user_id: Ints

    __hash__ = None  # type: ignore[assignment]


def open_workload(name: str) -> Workload | ClusterWorkload:
    """A log by its path, or one of our own: `rigid[:seed[:jobs]]`, `gpu[:seed[:jobs]]`. Raises WorkloadError."""
    kind, *numbers = name.split(":")
    if kind in {"rigid", "gpu"} and len(numbers) <= 2 and all(number.isdigit() for number in numbers):
        seed, jobs = [*map(int, numbers), *([1, 500][len(numbers) :])]
        return rigid_jobs(seed, jobs=jobs) if kind == "rigid" else gpu_mix(seed, jobs=jobs)
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(
            f"there is no file {name}; a workload of our own is rigid:SEED:JOBS or gpu:SEED:JOBS"
        )
    return read_swf(path)


def policy_of(words: str) -> Policy:
    """`fifo+easy`, `sjf`, `fifo+easy+shortest`, `priority+conservative+spread`: a policy in words."""
    given: dict[str, str] = {}
    for word in words.split("+"):
        for field, known in (
            ("name", POLICIES), ("backfill", BACKFILLS), ("placement", PLACEMENTS),
            ("backfill_order", BACKFILL_ORDERS),
        ):  # fmt: skip
            if word in known:
                given[field] = word
                break
        else:
            every = ", ".join((*POLICIES, *BACKFILLS, *PLACEMENTS, *BACKFILL_ORDERS))
            raise ValueError(f"{word!r} is no part of a policy; there are {every}")
    return Policy(**given)


def run(
    workload: Workload | ClusterWorkload,
    name: str,
    policy: Policy,
    *,
    progress: Progress = lambda name, ended, jobs: None,
) -> Result:
    """Play a workload under a policy. A log in order of arrival with backfill goes through one pool, which is fast."""
    idle = 0.0
    if (
        isinstance(workload, Workload)
        and policy.name == "fifo"
        and not policy.tie_breakers
        and not policy.strict_order
    ):
        jobs = workload.jobs
        schedule = replay(workload, turns_of(policy), progress=lambda ended: progress(name, ended, len(jobs)))
        submitted, started, run_ms = jobs.submitted_ms, schedule.started_ms, jobs.run_ms
        amounts, capacity, users = jobs.processors, workload.processors, jobs.user_id
    else:
        cluster = as_cluster(workload) if isinstance(workload, Workload) else workload
        pending = cluster.snapshot.pending
        outcome = simulate(cluster, policy, progress=lambda ended: progress(name, ended, len(pending)))
        submitted, started, run_ms = pending.submitted_ms, outcome.started_ms, cluster.run_ms
        amounts, capacity, users = cluster.amounts, cluster.capacity, pending.user_id
        idle = outcome.idle_while_waiting_percent
    report = summarise(
        name, submitted_ms=submitted, started_ms=started, run_ms=run_ms, amounts=amounts, capacity=capacity,
        user_id=users, fragmentation_percent=idle,
    )  # fmt: skip
    return Result(report, submitted, started, users)


def losers(first: Result, second: Result) -> tuple[Loser, ...]:
    """Who waits longer under the second."""
    return who_lost(first.started_ms, second.started_ms, first.submitted_ms, first.user_id)


_COLUMNS = (
    ("policy", "policy", "{}"),
    ("started", "started", "{:,}"),
    ("wait_mean_seconds", "mean wait s", "{:,.0f}"),
    ("wait_p50_seconds", "P50 s", "{:,.0f}"),
    ("wait_p95_seconds", "P95 s", "{:,.0f}"),
    ("bounded_slowdown_mean", "slowdown", "{:,.2f}"),
    ("utilisation_percent", "used %", "{:.1f}"),
    ("fragmentation_percent", "idle while wanted %", "{:.1f}"),
    ("fairness", "fairness", "{:.3f}"),
    ("preemptions", "preempted", "{:,}"),
)


def cells(reports: Sequence[Report]) -> list[list[str]]:
    """The table: a heading, then a row a policy."""
    rows = [[shape.format(getattr(report, field)) for field, _, shape in _COLUMNS] for report in reports]
    return [[title for _, title, _ in _COLUMNS], *rows]


def as_text(results: Sequence[Result]) -> str:
    table = cells([result.report for result in results])
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(row, widths)))
        for row in table
    ]  # fmt: skip
    for result in results[1:]:
        lost = losers(results[0], result)
        if lost:
            lines.append(
                f"\nWho waits longer under {result.report.policy} than under {results[0].report.policy}:"
            )
            lines += [
                f"  user {one.user_id}: {one.jobs:,} jobs, {one.wait_before_seconds:,.0f} s -> "
                f"{one.wait_after_seconds:,.0f} s"
                for one in lost
            ]
    return "\n".join(lines)


def as_json(workload: str, results: Sequence[Result]) -> str:
    return json.dumps(
        {
            "workload": workload,
            "policies": [result.report.as_dict() for result in results],
            "who_lost": {
                result.report.policy: [asdict(one) for one in losers(results[0], result)]
                for result in results[1:]
            },
        },
        indent=2,
        sort_keys=True,
    )


_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed")


def as_html(workload: str, results: Sequence[Result]) -> str:
    """A page that needs nothing from anywhere: the table, and the waits as a curve a policy."""
    table = cells([result.report for result in results])
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:]
    )
    lost = "".join(
        f"<h2>Who waits longer under {html.escape(result.report.policy)}</h2><ul>"
        + "".join(
            f"<li>user {one.user_id}: {one.jobs:,} jobs, {one.wait_before_seconds:,.0f} s → "
            f"{one.wait_after_seconds:,.0f} s</li>"
            for one in losers(results[0], result)
        )
        + "</ul>"
        for result in results[1:]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{html.escape(workload)}</title><style>body{{font:15px system-ui;max-width:70rem;margin:2rem auto;"
        "padding:0 1rem}table{border-collapse:collapse}th,td{padding:.3rem .7rem;text-align:right;"
        "border-bottom:1px solid #ccc}th:first-child,td:first-child{text-align:left}</style>"
        f"<h1>{html.escape(workload)}</h1><table><tr>{head}</tr>{body}</table>"
        f"<h2>Share of jobs that waited at most so long</h2>{_curves(results)}{lost}</html>"
    )


def _curves(results: Sequence[Result]) -> str:
    """Cumulative share of jobs over their wait, on a logarithmic axis from 1 second."""
    width, height = 760, 300
    waits = [
        np.sort(np.maximum(result.started_ms - result.submitted_ms, 1000)[result.started_ms >= 0]) / 1000
        for result in results
    ]
    longest = max((float(wait.max(initial=10.0)) for wait in waits), default=10.0)
    span = float(np.log10(max(longest, 10.0)))
    parts = [f'<svg viewBox="0 0 {width + 60} {height + 40}" role="img" aria-label="waits" width="100%">']
    for power in range(int(span) + 1):
        x = 40 + power / span * width
        parts.append(f'<line x1="{x:.0f}" y1="10" x2="{x:.0f}" y2="{height}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x:.0f}" y="{height + 16}" font-size="12" text-anchor="middle">{10**power:,} s</text>'
        )
    for share in (0, 50, 100):
        y = height - share / 100 * (height - 10)
        parts.append(f'<text x="34" y="{y + 4:.0f}" font-size="12" text-anchor="end">{share} %</text>')
    for number, (result, wait) in enumerate(zip(results, waits, strict=True)):
        if not len(wait):
            continue
        picked = np.unique(np.linspace(0, len(wait) - 1, 200).astype(int))
        points = " ".join(
            f"{40 + float(np.log10(wait[at])) / span * width:.1f},"
            f"{height - (at + 1) / len(wait) * (height - 10):.1f}"
            for at in picked.tolist()
        )
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{width - 100}" y="{height - 20 - 18 * number}" font-size="13" fill="{colour}">'
            f"{html.escape(result.report.policy)}</text>"
        )
    return "".join([*parts, "</svg>"])
