"""Compare policies on one workload: run each, and show the figures as a table, as JSON or as a page."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from scheduler.core.backfill.backfill import limits_of
from scheduler.core.columns import Ints
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.policy import BACKFILL_ORDERS, BACKFILLS, PLACEMENTS, POLICIES, Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.simulator.cluster import ClusterWorkload, simulate
from scheduler.simulator.made import as_cluster, gpu_mix, rigid_jobs
from scheduler.simulator.openb import is_pods, read_openb
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
    run_ms: Ints
    amounts: Ints
    capacity: int
    users: Mapping[int, str] = field(default_factory=dict)

    __hash__ = None  # type: ignore[assignment]


def open_workload(name: str, nodes: Path | None = None) -> Workload | ClusterWorkload:
    """A log or a table of openb pods by its path, or one of our own: `rigid[:seed[:jobs]]`, `gpu[:seed[:jobs]]`.

    `nodes` is the table of nodes of openb pods, where it does not lie beside them. Raises WorkloadError.
    """
    kind, *numbers = name.split(":")
    if kind in {"rigid", "gpu"} and len(numbers) <= 2 and all(number.isdigit() for number in numbers):
        seed, jobs = [*map(int, numbers), *([1, 500][len(numbers) :])]
        return rigid_jobs(seed, jobs=jobs) if kind == "rigid" else gpu_mix(seed, jobs=jobs)
    path = Path(name)
    if not path.is_file():
        raise WorkloadError(
            f"there is no file {name}; a workload of our own is rigid:SEED:JOBS or gpu:SEED:JOBS"
        )
    return read_openb(path, nodes) if is_pods(path) else read_swf(path)


#: Low, normal and high priorities: each may stop those below.
PREEMPT: Final = PreemptionPolicy(enabled=True, classes=((0, ()), (34, (0,)), (67, (0, 34))))


def policy_of(words: str) -> Policy:
    """`fifo+easy`, `sjf`, `fifo+easy+shortest`, `priority+conservative+spread`: a policy in words."""
    given: dict[str, Any] = {}
    for word in words.split("+"):
        if word == "preempt":
            given["preemption"] = PREEMPT
            continue
        for part, known in (
            ("name", POLICIES), ("backfill", BACKFILLS), ("placement", PLACEMENTS),
            ("backfill_order", BACKFILL_ORDERS),
        ):  # fmt: skip
            if word in known:
                given[part] = word
                break
        else:
            every = ", ".join((*POLICIES, *BACKFILLS, *PLACEMENTS, *BACKFILL_ORDERS, "preempt"))
            raise ValueError(f"{word!r} is no part of a policy; there are {every}")
    return Policy(**given)


#: Backfill that a pool plays as the planner does: deadlines and what was promised before are of jobs on nodes.
_POOLED: Final = ("none", "easy", "conservative")


def _fits_pool(policy: Policy) -> bool:
    """Whether all that the policy says is what a pool of processors knows as well."""
    same = policy == replace(
        Policy(), backfill=policy.backfill, backfill_order=policy.backfill_order,
        backfill_promises=policy.backfill_promises, backfill_scan=policy.backfill_scan,
        placement=policy.placement, weights=policy.weights, packing=policy.packing, tenant=policy.tenant,
        factors=policy.factors, age_cap_seconds=policy.age_cap_seconds, shares=policy.shares,
        assemblies=policy.assemblies, resize_seconds=policy.resize_seconds,
        preemption=replace(policy.preemption, enabled=False),
    )  # fmt: skip
    return same and policy.backfill in _POOLED


def run(
    workload: Workload | ClusterWorkload,
    name: str,
    policy: Policy,
    *,
    plugins: Plugins = NO_PLUGINS,
    progress: Progress = lambda name, ended, jobs: None,
) -> Result:
    """Play a workload under a policy. A log in order of arrival with backfill goes through one pool, which is fast."""
    more: dict[str, Any] = {}
    names: Mapping[int, str] = {}
    if isinstance(workload, Workload) and _fits_pool(policy):
        jobs = workload.jobs
        schedule = replay(
            workload, limits_of(policy), progress=lambda ended: progress(name, ended, len(jobs))
        )
        submitted, started, run_ms = jobs.submitted_ms, schedule.started_ms, jobs.run_ms
        amounts, capacity, users = jobs.processors, workload.processors, jobs.user_id
    else:
        cluster = as_cluster(workload) if isinstance(workload, Workload) else workload
        pending = cluster.snapshot.pending
        outcome = simulate(
            cluster, policy, plugins=plugins, progress=lambda ended: progress(name, ended, len(pending))
        )
        submitted, started, run_ms = pending.submitted_ms, outcome.started_ms, cluster.run_ms
        amounts, capacity, users = cluster.amounts, cluster.capacity, pending.user_id
        names = cluster.users
        more = {
            "idle_while_waiting_percent": outcome.idle_while_waiting_percent,
            "fragmentation_percent": outcome.fragmentation_percent,
            "preemptions": outcome.preemptions,
            "lost_gpu_hours": outcome.lost_ms / 3_600_000,
            "suspensions": outcome.suspensions,
            "resizes": outcome.resizes,
            "ended_ms": outcome.ended_ms,
            "begin_ms": cluster.snapshot.now_ms,
            "busy_before": outcome.busy_before,
        }
    report = summarise(
        name, submitted_ms=submitted, started_ms=started, run_ms=run_ms, amounts=amounts, capacity=capacity,
        user_id=users, **more,
    )  # fmt: skip
    return Result(report, submitted, started, users, run_ms, amounts, capacity, names)


def as_it_was(workload: ClusterWorkload) -> Result:
    """What really happened, to compare with. Raises ValueError where that is not known."""
    if workload.started_ms is None:
        raise ValueError(f"it is not known how {workload.name} went")
    pending = workload.snapshot.pending
    report = summarise(
        "as it was", submitted_ms=pending.submitted_ms, started_ms=workload.started_ms, run_ms=workload.run_ms,
        amounts=workload.amounts, capacity=workload.capacity, user_id=pending.user_id,
        ended_ms=workload.ended_ms,
    )  # fmt: skip
    return Result(
        report, pending.submitted_ms, workload.started_ms, pending.user_id, workload.run_ms, workload.amounts,
        workload.capacity, workload.users,
    )  # fmt: skip


def losers(first: Result, second: Result) -> tuple[Loser, ...]:
    """Who waits longer under the second, by name where it is known."""
    found = who_lost(first.started_ms, second.started_ms, first.submitted_ms, first.user_id)
    return tuple(replace(one, name=first.users.get(one.user_id, f"user {one.user_id}")) for one in found)


_COLUMNS = (
    ("policy", "policy", "{}"),
    ("started", "started", "{:,}"),
    ("wait_mean_seconds", "mean wait s", "{:,.0f}"),
    ("wait_p50_seconds", "P50 s", "{:,.0f}"),
    ("wait_p95_seconds", "P95 s", "{:,.0f}"),
    ("bounded_slowdown_mean", "slowdown", "{:,.2f}"),
    ("utilisation_percent", "used %", "{:.1f}"),
    ("idle_while_waiting_percent", "idle while wanted %", "{:.1f}"),
    ("fragmentation_percent", "fragments %", "{:.1f}"),
    ("fairness", "fairness", "{:.3f}"),
    ("preemptions", "preempted", "{:,}"),
    ("lost_gpu_hours", "lost GPU-h", "{:,.1f}"),
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
                f"  {one.name}: {one.jobs:,} jobs, {one.wait_before_seconds:,.0f} s -> "
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
        f"<h2>Who waits longer under {html.escape(result.report.policy)} than under"
        f" {html.escape(results[0].report.policy)}</h2>"
        + (
            "<ul>"
            + "".join(
                f"<li>{html.escape(one.name)}: {one.jobs:,} jobs, {one.wait_before_seconds:,.0f} s → "
                f"{one.wait_after_seconds:,.0f} s</li>"
                for one in found
            )
            + "</ul>"
            if found
            else "<p>Nobody.</p>"
        )
        for result in results[1:]
        for found in [losers(results[0], result)]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(workload)}</title><style>body{{font:15px system-ui;max-width:70rem;margin:2rem auto;"
        "padding:0 1rem}table{border-collapse:collapse}th,td{padding:.3rem .7rem;text-align:right;"
        "border-bottom:1px solid #ccc}.wide{overflow-x:auto}th:first-child,td:first-child{text-align:left}</style>"
        f"<h1>{html.escape(workload)}</h1><div class=wide><table><tr>{head}</tr>{body}</table></div>"
        f"<h2>Share of jobs that waited at most so long</h2>{_curves(results)}"
        f"<h2>Share of the machine in use over time</h2>{_use(results)}{lost}</html>"
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
    parts = [f'<svg viewBox="-12 0 {width + 90} {height + 40}" role="img" aria-label="waits" width="100%">']
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


def _use(results: Sequence[Result]) -> str:
    """How much of the machine was in use, in 200 equal spans of the time that all of them took."""
    width, height, spans = 760, 240, 200
    first = min((int(result.submitted_ms.min()) for result in results if len(result.submitted_ms)), default=0)
    last = max(
        (
            int((result.started_ms + result.run_ms)[result.started_ms >= 0].max(initial=first + 1))
            for result in results
        ),
        default=first + 1,
    )
    edges = np.linspace(first, last, spans + 1)
    parts = [f'<svg viewBox="-12 0 {width + 90} {height + 40}" role="img" aria-label="use" width="100%">']
    for share in (0, 50, 100):
        y = height - share / 100 * (height - 10)
        parts.append(f'<line x1="40" y1="{y:.0f}" x2="{width + 40}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="34" y="{y + 4:.0f}" font-size="12" text-anchor="end">{share} %</text>')
    for days in (0, 0.5, 1):
        label = f"{days * (last - first) / 3_600_000:,.0f} h"
        parts.append(
            f'<text x="{40 + days * width:.0f}" y="{height + 16}" font-size="12" text-anchor="middle">{label}</text>'
        )
    for number, result in enumerate(results):
        ran = result.started_ms >= 0
        started, ended, held = (
            column[ran].astype(np.float64)
            for column in (result.started_ms, result.started_ms + result.run_ms, result.amounts)
        )
        # What was held in all until each edge: of each job, what of it lies before.
        until = np.array([(np.clip(edge - started, 0, ended - started) * held).sum() for edge in edges])
        shares = np.clip(np.diff(until) / np.diff(edges) / max(result.capacity, 1), 0, 1)
        points = " ".join(
            f"{40 + (place + 0.5) / spans * width:.1f},{height - share * (height - 10):.1f}"
            for place, share in enumerate(shares.tolist())
        )
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{width - 100}" y="{24 + 18 * number}" font-size="13" fill="{colour}">'
            f"{html.escape(result.report.policy)}</text>"
        )
    return "".join([*parts, "</svg>"])
