"""python -m benchmarks.run [NAME ...]: measure, print a table, write var/bench/latest.json, compare with the bars."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tomllib
import traceback
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks import ROOT
from benchmarks.reference import core_ratio
from benchmarks.registry import BENCHMARKS, Benchmark, NotMeasuredError

HERE: Final = Path(__file__).parent

#: Modules of benchmarks; each registers its own when it is imported.
MODULES: Final = (
    "core.cycles", "core.explaining", "core.mixed", "core.fairness", "replays.openb", "replays.sim",
    "replays.start_ranges", "portal.at_rest", "node.keeper", "portal.state", "portal.e2e", "portal.elements",
    "portal.written", "portal.cpu", "peers.versus_slurm", "peers.versus_peers", "portal.live", "portal.listing",
    "portal.pages", "portal.pending",
)  # fmt: skip


#: How often a figure that is judged on the reference core is measured.
PAIRS: Final = 5


def main(arguments: list[str] | None = None) -> int:
    """Run the named benchmarks (all by default); exit 1 when one fails, with --check also when a bar is missed."""
    left_out = _load()
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--output", type=Path, default=_output())
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure misses its bar")
    words = parser.parse_args(arguments)
    unknown = [name for name in words.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")

    limits = tomllib.loads((HERE / "limits.toml").read_text())
    missed: list[str] = []
    failed: list[str] = [] if words.names else left_out
    print(
        f"This core takes {core_ratio():.2f} times as long as the reference core just now; bars of the core are "
        "judged on that one, each figure by the ratio beside it."
    )
    print(f"{'key':<38} {'measured':>12} {'there':>12}   bar")
    for name in words.names or BENCHMARKS:
        # Written one by one, so that an interrupted run keeps its figures.
        figures: dict[str, float] = {}
        print(f"{name}: {BENCHMARKS[name].says}", flush=True)
        try:
            of_the_core = {key for key in BENCHMARKS[name].keys if limits.get(key, {}).get("of_the_core")}
            for key, value, quotient in measured(BENCHMARKS[name], of_the_core):
                figures[key] = round(value, 4)
                limit, judged, there = limits.get(key, {}), value, ""
                if quotient is not None:
                    judged, there = quotient, f"{quotient:,.2f}"
                    figures[f"{key}_there"] = round(quotient, 4)
                bar, holds = judge(judged, limit)
                print(
                    f"{key:<38} {value:>12,.2f} {there:>12}   {bar}{'' if holds else '   MISSED'}", flush=True
                )
                if not holds:
                    missed.append(key)
            lacking = set(BENCHMARKS[name].keys) - figures.keys()
            if lacking:
                raise RuntimeError(f"it did not yield {', '.join(sorted(lacking))}")
        except NotMeasuredError as absent:
            print(f"{name:<38} NOT MEASURED   {absent}", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"{name:<38} FAILED", flush=True)
            failed.append(name)
        write(words.output, figures)
    print(f"written to {words.output}")
    if missed:
        print(f"bars missed: {', '.join(missed)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or (missed and words.check) else 0


def _load() -> list[str]:
    """Import the benchmarks; those of the core need NumPy alone, and so run where the rest is not installed."""
    left_out = []
    for module in MODULES:
        try:
            importlib.import_module(f"benchmarks.{module}")
        except ModuleNotFoundError as missing:
            print(f"benchmarks.{module} is left out: {missing.name} is not installed", file=sys.stderr)
            left_out.append(module)
    # In the order of MODULES, whichever imported another first: some are meant to come before the portal was used.
    places = {f"benchmarks.{module}": place for place, module in enumerate(MODULES)}
    for name in sorted(BENCHMARKS, key=lambda name: places.get(BENCHMARKS[name].measure.__module__, 0)):
        BENCHMARKS[name] = BENCHMARKS.pop(name)
    return left_out


def measured(
    one: Benchmark, of_the_core: Collection[str], *, pairs: int = PAIRS
) -> Iterator[tuple[str, float, float | None]]:
    """(key, figure, the figure on the reference core) of one benchmark; None where the core does not decide it.

    A core is slower in some minutes than in others. So a figure of the core is measured several times, each time
    between two measurements of the speed of the core; the result are medians of figures and of quotients.
    """
    if not of_the_core:
        yield from ((key, value, None) for key, value in one.measure())
        return
    figures: dict[str, list[float]] = {}
    quotients: dict[str, list[float]] = {}
    for _ in range(pairs):
        before = core_ratio()
        for key, value in one.measure():
            after = core_ratio()
            figures.setdefault(key, []).append(value)
            quotients.setdefault(key, []).append(value * 2 / (before + after))
            before = after
    for key, values in figures.items():
        there = statistics.median(quotients[key]) if key in of_the_core else None
        yield key, statistics.median(values), there


def judge(value: float, limit: dict[str, Any]) -> tuple[str, bool]:
    """The bar in words, and whether a figure holds it; a figure without a bar always does."""
    if "at_most" in limit:
        return f"<= {limit['at_most']:,}", value <= limit["at_most"]
    if "at_least" in limit:
        return f">= {limit['at_least']:,}", value >= limit["at_least"]
    return "", True


def write(path: Path, figures: dict[str, float]) -> None:
    """One flat object: the figures, and what they were measured on. Figures of other runs are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    latest = {**before, **figures, **_machine()}
    path.write_text(json.dumps(latest, indent=2, sort_keys=True) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "measured_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "system": platform.system(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _output() -> Path:
    state = os.environ.get("MUSTER_STATE")
    return (Path(state) if state else ROOT / "var") / "bench" / "latest.json"


if __name__ == "__main__":
    raise SystemExit(main())
