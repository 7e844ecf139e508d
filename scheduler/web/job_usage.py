"""The usage of a job as lines: one small chart for each of CPU, memory, GPU utilisation and GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from accounts.templatetags.ui import duration
from quotas.core.resources import show_cpus
from quotas.templatetags.amounts import mib
from scheduler.services.jobs.usage import JobUsage

WIDTH: Final = 320
HEIGHT: Final = 64
#: Above the highest value.
_AIR: Final = 1.08


@dataclass(frozen=True, slots=True)
class Line:
    """One chart: the points of its polyline, and where the line of what was given is (None: above nothing)."""

    title: str
    points: str
    given_y: float | None
    now: str
    given: str
    label: str


@dataclass(frozen=True, slots=True)
class UsageLines:
    lines: list[Line]
    #: Beginning (in words since the start) and the figures of each point.
    rows: list[tuple[str, list[str]]]
    span: str
    tasks: int
    #: Of the task of a job with one: the highest memory so far, and the cores at the last point.
    peak_memory: str
    cores_now: str


def usage_lines(used: JobUsage) -> UsageLines | None:
    """The charts of an attempt; None where nothing was sampled."""
    if not used.points:
        return None
    kinds: list[tuple[str, list[int | None], int, Callable[[int], str]]] = [
        ("CPU", [p.cpu_millis for p in used.points], used.cpu_millis, _cores),
        ("Memory", [p.memory_mib for p in used.points], used.memory_mib, mib),
    ]
    if used.measures_gpus:
        kinds += [
            ("GPU utilisation", [p.gpu_percent for p in used.points], 100, _percent),
            ("GPU memory", [p.gpu_memory_mib for p in used.points], used.gpu_memory_mib, mib),
        ]
    ends = used.points[-1].at_seconds + used.step_seconds
    middles = [point.at_seconds + used.step_seconds / 2 for point in used.points]
    return UsageLines(
        lines=[_line(*kind, middles, ends) for kind in kinds],
        rows=[
            (
                duration(point.at_seconds),
                [_figure(values[number], show) for _, values, _, show in kinds],
            )
            for number, point in enumerate(used.points)
        ],
        span=duration(ends),
        tasks=used.tasks,
        peak_memory=mib(max(point.memory_mib for point in used.points)),
        cores_now=_cores(used.points[-1].cpu_millis),
    )


def _line(
    title: str,
    values: list[int | None],
    given: int,
    show: Callable[[int], str],
    middles: list[float],
    ends: float,
) -> Line:
    known = [(at, value) for at, value in zip(middles, values, strict=True) if value is not None]
    top = max([given, *(value for _, value in known), 1]) * _AIR
    spots = [(WIDTH * at / ends, HEIGHT * (1 - value / top)) for at, value in known]
    if len(spots) == 1:  # a line has two ends
        spots = [(0.0, spots[0][1]), (float(WIDTH), spots[0][1])]
    now, most = known[-1][1], max(value for _, value in known)
    of = f" of {show(given)}" if given else ""
    return Line(
        title=title,
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in spots),
        given_y=round(HEIGHT * (1 - given / top), 1) if given else None,
        now=show(now),
        given=of,
        label=f"{title}: {show(now)}{of} at last, {show(most)} at most",
    )


def _cores(millis: int) -> str:
    return f"{show_cpus(millis)} core{'' if millis == 1000 else 's'}"


def _percent(value: int) -> str:
    return f"{value} %"


def _figure(value: int | None, show: Callable[[int], str]) -> str:
    return "–" if value is None else show(value)
