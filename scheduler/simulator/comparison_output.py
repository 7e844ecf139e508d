"""A comparison of policies for people and programs: as a table, as JSON, or as a page with charts."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from scheduler.simulator.compare import Result, losers
from scheduler.simulator.report import Floats, Loser, PlayedSchedule, Report

#: Field of a report, heading of its column, format of a cell.
_COLUMNS: Final = (
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
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed")
#: Inner width of a chart, and the left edge of its curves, in units of its view box.
_WIDTH: Final = 760
_LEFT: Final = 40
_STYLE: Final = (
    "body{font:15px system-ui;max-width:70rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse}th,td{padding:.3rem .7rem;text-align:right;"
    "border-bottom:1px solid #ccc}.wide{overflow-x:auto}th:first-child,td:first-child{text-align:left}"
)


def cells(reports: Sequence[Report]) -> list[list[str]]:
    """The table: a heading, then a row for each policy."""
    rows = [[shape.format(getattr(report, field)) for field, _, shape in _COLUMNS] for report in reports]
    return [[title for _, title, _ in _COLUMNS], *rows]


def as_text(results: Sequence[Result]) -> str:
    """The table, and for each policy after the first the users who wait longer than under the first."""
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
            lines.append(f"\n{_longer(results[0], result)}:")
            lines += [f"  {_loss(one, '->')}" for one in lost]
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


def as_html(workload: str, results: Sequence[Result]) -> str:
    """A page that loads nothing else: the table, the waits and the utilisation as curves, and who waits longer."""
    table = cells([result.report for result in results])
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:]
    )
    lost = "".join(_losers_section(results[0], result) for result in results[1:])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(workload)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(workload)}</h1><div class=wide><table><tr>{head}</tr>{body}</table></div>"
        f"<h2>Share of jobs that waited at most this long</h2>{_wait_chart(results)}"
        f"<h2>Share of the machine in use over time</h2>{_utilisation_chart(results)}{lost}</html>"
    )


def _longer(first: Result, second: Result) -> str:
    return f"Who waits longer under {second.report.policy} than under {first.report.policy}"


def _loss(one: Loser, arrow: str) -> str:
    return (
        f"{one.name}: {one.jobs:,} jobs, {one.wait_before_seconds:,.0f} s {arrow} "
        f"{one.wait_after_seconds:,.0f} s"
    )


def _losers_section(first: Result, second: Result) -> str:
    items = "".join(f"<li>{html.escape(_loss(one, '→'))}</li>" for one in losers(first, second))
    return f"<h2>{html.escape(_longer(first, second))}</h2>" + (
        f"<ul>{items}</ul>" if items else "<p>Nobody.</p>"
    )


def _wait_chart(results: Sequence[Result]) -> str:
    """The cumulative share of jobs over their wait, on a logarithmic axis from 1 second."""
    height = 300
    waits = [_sorted_waits(result.schedule) for result in results]
    longest = max((float(wait.max(initial=10.0)) for wait in waits), default=10.0)
    span = float(np.log10(max(longest, 10.0)))
    parts = [_opening(height, "waits")]
    for power in range(int(span) + 1):
        x = _LEFT + power / span * _WIDTH
        parts.append(f'<line x1="{x:.0f}" y1="10" x2="{x:.0f}" y2="{height}" stroke="#ddd"/>')
        parts.append(_label(f"{10**power:,} s", x, height + 16, "middle"))
    parts += [_label(f"{share} %", 34, _y(share / 100, height) + 4, "end") for share in (0, 50, 100)]
    for number, (result, wait) in enumerate(zip(results, waits, strict=True)):
        if len(wait):
            picked = np.unique(np.linspace(0, len(wait) - 1, 200).astype(int)).tolist()
            points = [
                (_LEFT + float(np.log10(wait[at])) / span * _WIDTH, _y((at + 1) / len(wait), height))
                for at in picked
            ]
            parts.append(_curve(points, number, result.report.policy, height - 20 - 18 * number))
    return "".join([*parts, "</svg>"])


def _sorted_waits(schedule: PlayedSchedule) -> Floats:
    """Seconds that jobs waited, ascending; at least 1, for the logarithmic axis."""
    waited = np.maximum(schedule.started_ms - schedule.submitted_ms, 1000)[schedule.ran]
    seconds: Floats = np.sort(waited) / 1000
    return seconds


def _utilisation_chart(results: Sequence[Result]) -> str:
    """The share of the machine in use, in 200 equal spans of the time that all results together took."""
    height, spans = 240, 200
    schedules = [result.schedule for result in results]
    first = min((int(one.submitted_ms.min()) for one in schedules if len(one.submitted_ms)), default=0)
    ends = [(one.started_ms + one.run_ms)[one.ran] for one in schedules]
    last = max((int(end.max(initial=first + 1)) for end in ends), default=first + 1)
    edges = np.linspace(first, last, spans + 1)
    parts = [_opening(height, "use")]
    for share in (0, 50, 100):
        y = _y(share / 100, height)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_WIDTH + _LEFT}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(_label(f"{share} %", 34, y + 4, "end"))
    for part in (0, 0.5, 1):
        hours = f"{part * (last - first) / 3_600_000:,.0f} h"
        parts.append(_label(hours, _LEFT + part * _WIDTH, height + 16, "middle"))
    for number, result in enumerate(results):
        shares = _utilisation(result.schedule, edges)
        points = [
            (_LEFT + (place + 0.5) / spans * _WIDTH, _y(share, height))
            for place, share in enumerate(shares.tolist())
        ]
        parts.append(_curve(points, number, result.report.policy, 24 + 18 * number, stroke=1.5))
    return "".join([*parts, "</svg>"])


def _utilisation(schedule: PlayedSchedule, edges: Floats) -> Floats:
    """The part of the capacity that jobs hold between each two edges, 0 to 1."""
    ran = schedule.ran
    started, ended, held = (
        column[ran].astype(np.float64)
        for column in (schedule.started_ms, schedule.started_ms + schedule.run_ms, schedule.amounts)
    )
    until_edge = np.array([(np.clip(edge - started, 0, ended - started) * held).sum() for edge in edges])
    shares: Floats = np.clip(np.diff(until_edge) / np.diff(edges) / max(schedule.capacity, 1), 0, 1)
    return shares


def _y(share: float, height: int) -> float:
    return height - share * (height - 10)


def _opening(height: int, label: str) -> str:
    return f'<svg viewBox="-12 0 {_WIDTH + 90} {height + 40}" role="img" aria-label="{label}" width="100%">'


def _label(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" text-anchor="{anchor}">{text}</text>'


def _curve(
    points: Iterable[tuple[float, float]], number: int, policy: str, name_y: int, *, stroke: float = 2
) -> str:
    """A line through the points in the colour of the policy's number, and the policy's name in that colour."""
    colour = _COLOURS[number % len(_COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>'
        f'<text x="{_WIDTH - 100}" y="{name_y}" font-size="13" fill="{colour}">{html.escape(policy)}</text>'
    )
