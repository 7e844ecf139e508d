"""python -m tests.hardware.gpus FOLDER [STAGE,STAGE]: the agent on a real GPU, next to what nvidia-smi says.

Needs a machine with an NVIDIA GPU that nobody uses, PyTorch and nvidia-ml-py; takes three minutes, changes no
setting, and writes FOLDER/gpus.json. Exit code 1 when something did not agree.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scheduler.agent.gpu import usage
from scheduler.agent.gpu.gpus import Gpus
from tests.hardware import programs
from tests.hardware.door import Door, Message
from tests.hardware.recording import everything

ROOT: Final = Path(__file__).resolve().parents[2]
FIELDS: Final = (
    "index", "uuid", "name", "memory.total", "memory.used", "temperature.gpu", "power.draw", "utilization.gpu",
    "mig.mode.current", "pci.bus_id", "compute_mode", "ecc.errors.uncorrected.volatile.total", "driver_version",
)  # fmt: skip
#: Where this machine keeps its driver, if not where programs look anyway.
LIBRARIES: Final = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def main(arguments: list[str]) -> int:
    check = Check(Path(arguments[0]))
    wanted = arguments[1].split(",") if len(arguments) > 1 else []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            check.run(Path(scratch), wanted)
        except Exception:
            check.that("the script ran", False, error=traceback.format_exc()[-2000:])
    bad = [one["name"] for one in check.result["checks"] if not one["ok"]]
    check.say(f"{len(check.result['checks'])} checks, {len(bad)} failed {bad}")
    return 1 if bad else 0


def smi(*fields: str) -> dict[str, str]:
    """The first GPU, as nvidia-smi says."""
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    line = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[
        0
    ]
    return dict(zip(fields, (part.strip() for part in line.split(",")), strict=True))


def programs_on_it() -> list[str]:
    words = [
        "nvidia-smi",
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    ]
    text = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    return [line.strip() for line in text.splitlines() if line.strip()]


def near(mine: Any, theirs: Any, by: float) -> bool:
    return mine is not None and abs(float(mine) - float(theirs)) <= by


def share_of(report: Message) -> float:
    return float(report.get("gpu_busy_ms", 0) / max(1, report.get("gpu_watched_ms", 0)))


class Check:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.began = time.monotonic()
        self.result: dict[str, Any] = {"checks": [], "rows": [], "libraries": LIBRARIES}
        self.door: Door
        #: Beside the agent's own, in this process.
        self.gpus = Gpus(None)

    def say(self, *words: Any) -> None:
        print(f"[{time.monotonic() - self.began:6.1f}]", *words, flush=True)

    def that(self, name: str, good: Any, /, **facts: Any) -> None:
        self.result["checks"].append({"name": name, "ok": bool(good), "facts": facts})
        self.say("ok  " if good else "FAIL", name, json.dumps(facts, default=str)[:500])
        (self.folder / "gpus.json").write_text(json.dumps(self.result, indent=1, default=str))

    def same(self, label: str, mine: Message) -> None:
        """What the agent says against nvidia-smi; what moves may have moved a little in between."""
        theirs = smi(*FIELDS)
        self.result["rows"].append({"label": label, "agent": mine, "nvidia-smi": theirs})
        for name, key, by in (
            ("index", "index", 0), ("memory_mib", "memory.total", 0), ("memory_used_mib", "memory.used", 4),
            ("temperature_c", "temperature.gpu", 4), ("power_watts", "power.draw", 60),
            ("utilisation_percent", "utilization.gpu", 15),
        ):  # fmt: skip
            self.that(
                f"{label}: {name}",
                near(mine.get(name), theirs[key], by),
                agent=mine.get(name),
                smi=theirs[key],
            )
        self.that(f"{label}: uuid", mine["uuid"] == theirs["uuid"], agent=mine["uuid"], smi=theirs["uuid"])
        self.that(f"{label}: model", mine["model"] in theirs["name"], agent=mine["model"], smi=theirs["name"])
        self.that(f"{label}: healthy", mine["healthy"], trouble=mine["trouble"])

    # ------------------------------------------------------------ all of it

    def run(self, scratch: Path, wanted: list[str]) -> None:
        self.result["recorded"] = everything()
        self.say(json.dumps(self.result["recorded"], default=str)[:6000])
        self.alone()
        self.door = Door(scratch, LIBRARIES)
        words = [
            "--server",
            self.door.url,
            "--name",
            "n",
            "--state",
            str(scratch / "agent"),
            "--join-token",
            "t",
        ]
        with (self.folder / "agent.log").open("w") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "scheduler.agent", *words], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            self.that(
                "the agent registers", self.door.wait(lambda: self.door.machine, 60), **self.door.machine
            )
            self.same("agent, idle", self.door.gpu)
            stages = (self.pinned, self.worked, self.killed, self.used_by_others, self.shared, self.failed)
            for stage in stages:
                if not wanted or stage.__name__ in wanted:
                    self._stage(stage)
            self.that("the agent lives and is small", agent.poll() is None, **_size_of(agent.pid))
        finally:
            self.result["reports"] = self.door.reports
            self.result["texts"] = {
                f"{k}": v.decode(errors="replace")[-2000:] for k, v in self.door.texts.items()
            }
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)

    def _stage(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except Exception:
            self.that(f"{stage.__name__} ran", False, error=traceback.format_exc()[-2000:])

    def alone(self) -> None:
        """The reader by itself, and what a look costs."""
        began = time.monotonic()
        self.gpus.poll()
        first_ms = (time.monotonic() - began) * 1000
        self.same("reader, idle", self.gpus.devices()[0])
        mode = smi("mig.mode.current")["mig.mode.current"]
        whole = len(self.gpus.devices()) == 1 and "MIG" not in self.gpus.devices()[0]["model"]
        self.that("it is whole where MIG is off", whole or mode == "Enabled", smi=mode)
        self.that(
            "it sees all processes", usage.sees_all_processes(), namespace=os.readlink("/proc/self/ns/pid")
        )
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(20):
            self.gpus.poll()
        each_ms, cpu_ms = (time.monotonic() - began) * 50, (time.process_time() - cpu) * 50
        self.that("a look is cheap", each_ms < 200, first_ms=first_ms, each_ms=each_ms, cpu_ms=cpu_ms)

    # ------------------------------------------------------------ stages

    def pinned(self) -> None:
        door, uuid = self.door, self.door.gpu["uuid"]
        tasks = [
            door.start(programs.LOOK),
            door.start(programs.LOOK, device_names=[uuid]),
            door.start(programs.LOOK, devices=()),
            door.start(programs.LOOK, device_names=["GPU-00000000-0000-0000-0000-000000000000"]),
        ]
        number, named, none, gone = ([door.ended(task), door.facts(task)][1] for task in tasks)
        seen = "CUDA_VISIBLE_DEVICES"
        self.that(
            "by number it sees one",
            (number["count"], number["uuid"], number[seen]) == (1, uuid, "0"),
            **number,
        )
        self.that(
            "by UUID it sees one", (named["count"], named["uuid"], named[seen]) == (1, uuid, uuid), **named
        )
        self.that("without GPUs it sees none", (none["count"], none[seen]) == (0, ""), **none)
        self.that("a UUID that is gone shows none", gone["count"] == 0, **gone)

    def worked(self) -> None:
        door = self.door
        task = door.start(programs.work(20))
        self.that("it works", door.said(task, "BEGIN"), stderr=door.text(task, "stderr")[-500:])
        self.gpus.poll()
        began, rows, shown = time.monotonic(), [], []
        while door.runs(task) and time.monotonic() < began + 40:
            time.sleep(1.0)
            rows.append(smi("utilization.gpu", "memory.used", "power.draw", "temperature.gpu", "clocks.sm"))
            shown.append(door.gpu.get("utilisation_percent"))
            if len(rows) == 8:
                self.gpus.poll()
                self.same("reader, busy", self.gpus.devices()[0])
        report, done = door.ended(task), door.facts(task, "DONE")
        self.result["busy"] = rows
        enough = share_of(report) > 0.5 and report["gpu_watched_ms"] > 14_000
        self.that(
            "its work is charged to it", enough, share=share_of(report), report=report, done=done, shown=shown
        )
        peak, most = report["peak_gpu_memory_mib"], max(int(row["memory.used"]) for row in rows)
        self.that("its memory is its own", near(peak, most, 700), agent=peak, smi=most)
        time.sleep(2.0)
        self.gpus.poll()
        time.sleep(1.5)
        self.gpus.poll()
        self.same("reader, after", self.gpus.devices()[0])
        after = self.gpus.devices()[0]
        self.that(
            "all is 0 after its end", after["utilisation_percent"] == 0 and after["memory_used_mib"] < 20
        )

    def killed(self) -> None:
        door = self.door
        task = door.start(programs.CLING)
        three = door.said(task, "CHILD", times=2)
        held, running = int(smi("memory.used")["memory.used"]), programs_on_it()
        self.that(
            "three processes hold 30 GiB",
            three and held > 30 * 1024 and len(running) == 3,
            held=held,
            on=running,
        )
        began = time.monotonic()
        door.stop(task)
        report = door.ended(task, 30)
        ended_seconds = time.monotonic() - began
        while (held := int(smi("memory.used")["memory.used"])) > 20 and time.monotonic() < began + 20:
            time.sleep(0.1)
        freed_seconds = time.monotonic() - began
        facts = {
            "held": held,
            "ended_seconds": ended_seconds,
            "freed_seconds": freed_seconds,
            "report": report,
        }
        self.that("killed, all of it is free", held <= 20 and not programs_on_it(), **facts)
        self.that("and no orphan is left", not (orphans := _who_says(b"time.sleep(600.25)")), orphans=orphans)

    def used_by_others(self) -> None:
        door = self.door
        stranger = subprocess.Popen([sys.executable, "-c", programs.STRANGER], stdout=subprocess.PIPE)
        assert stranger.stdout is not None
        stranger.stdout.readline()
        began = time.monotonic()
        sneak = door.start(programs.SNEAK, devices=())
        told = door.wait(lambda: "did not start" in door.gpu["trouble"], 40)
        seconds, on = time.monotonic() - began, programs_on_it()
        self.that(
            "a stranger is told of", told and door.gpu["healthy"], after_seconds=seconds, on=on, **door.gpu
        )
        told = door.wait(lambda: "not given it" in door.gpu["trouble"], 40)
        self.that("so is a job that was not given it", told, **door.gpu)
        careful = Gpus(None, avoid_used=True)
        careful.poll()
        careful.poll()
        self.that("--avoid-used-gpus takes it out", not careful.devices()[0]["healthy"])
        careful.close()
        stranger.kill()
        stranger.wait()
        door.stop(sneak)
        door.ended(sneak, 30)
        self.that("both are forgotten", door.wait(lambda: not door.gpu["trouble"], 40), **door.gpu)

    def shared(self) -> None:
        door = self.door
        tasks = [door.start(programs.work(22, duty)) for duty in (1.0, 0.25)]
        both = all(door.said(task, "BEGIN") for task in tasks)
        reports, done = [door.ended(task) for task in tasks], [door.facts(task, "DONE") for task in tasks]
        more, less = map(share_of, reports)
        apart = both and more > less > 0 and more + less < 1.05
        self.that("two on one GPU are told apart", apart, more=more, less=less, reports=reports, done=done)

    def failed(self) -> None:
        door = self.door
        task = door.start(programs.FAULT)
        report = door.ended(task)
        time.sleep(2.0)
        self.gpus.poll()
        heard = dict(self.gpus._session._xids) if self.gpus._session else {}
        sound = report["state"] == "failed" and self.gpus.devices()[0]["healthy"]
        self.that("a program's own error leaves it sound", sound, xids=heard, report=report)
        following = door.start(programs.LOOK)
        door.ended(following)
        self.that("and the next job sees it", door.facts(following).get("count") == 1)


def _who_says(words: bytes) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def _size_of(pid: int) -> Message:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    rss = next(line.split()[1] for line in status if line.startswith("VmRSS"))
    return {"rss_mib": int(rss) // 1024, "cpu_seconds": (int(times[11]) + int(times[12])) / 100}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
