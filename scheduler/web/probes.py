"""The probes of a job and their last results, as its page says them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from accounts.templatetags.ui import duration
from scheduler.models import Job, Task

#: Results of a probe that are shown, those that failed first; a gang has one of each task.
MOST_RESULTS: Final = 4


@dataclass(frozen=True, slots=True)
class Result:
    """The last result of one task."""

    rank: int
    ok: bool
    failures: int
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ShownProbe:
    words: str
    results: list[Result]


def probes_of(job: Job, tasks: Iterable[Task]) -> list[ShownProbe]:
    """The job's probes, each with the results of its latest attempt; nothing for most jobs."""
    if not job.probes:
        return []
    results: dict[int, list[Result]] = {}
    for task in tasks:
        for one in task.probe_results or ():
            at = datetime.fromisoformat(one["at"])
            result = Result(task.rank, one["ok"], one["failures"], one["text"], at)
            results.setdefault(one["number"], []).append(result)
    return [
        ShownProbe(words_of(probe), sorted(results.get(number, ()), key=_failed_first)[:MOST_RESULTS])
        for number, probe in enumerate(job.probes)
    ]


def _failed_first(result: Result) -> tuple[bool, int]:
    return result.ok, result.rank


def words_of(probe: Mapping[str, Any]) -> str:
    """`file heartbeat, at most 10m old, every 30 s`."""
    kind = probe["kind"]
    limit = duration(probe.get("limit", 0))
    what = {
        "command": lambda: f"command {probe['command'][:80]}",
        "http": lambda: f"HTTP port {probe['port']}, {probe['path'][:80]}",
        "file": lambda: f"file {probe['path'][:80]}, at most {limit} old",
        "output": lambda: f"output at least every {limit}",
        "gpu": lambda: f"GPUs idle for at most {limit}",
    }[kind]()
    name = f"{probe['name']}: " if probe.get("name") else ""
    return f"{name}{what}, every {duration(probe['every'])}"
