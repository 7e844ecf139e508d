"""A node's keeper (the shim and its guards) by itself: no portal, no network, tasks as an agent orders them.

The isolation is what an agent of this account chooses here (`--isolation auto`). What the agent does for each running
task, whatever the server says, is measured too: it looks for new output and samples what tasks use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import ROOT
from benchmarks.registry import Figures, NotMeasuredError, benchmark, note
from scheduler.agent import processes
from scheduler.agent.agent import LOG_SECONDS
from scheduler.agent.isolation.probe import Site, choose
from scheduler.agent.protocol import TaskOrder, TaskRecord
from scheduler.agent.server.client import ServerClient
from scheduler.agent.server.log_upload import LogUploader
from scheduler.agent.shim_link import ShimLink
from scheduler.agent.tasks.task_table import TaskTable
from scheduler.agent.tasks.usage import UsageSampler

#: Tasks that run at a time, and tasks of `true` one after another.
RUNNING: Final = 500
STARTS: Final = 1000
#: As many of `true` are under way at a time as a node of 16 CPUs has.
AT_A_TIME: Final = 16
REPEATS: Final = 5
#: From the last start until what a guard does early is done, and how long CPU time is measured.
SETTLE_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 20.0


@benchmark(
    "keeper_starts_per_s", "keeper_cpu_ms_per_start", "keeper_pss_mib_per_job", "keeper_cpu_pct_per_job"
)
def keeper() -> Figures:
    """1,000 tasks of `true`, 16 at a time, five times over; then 500 of `sleep` at once: one node without a portal."""
    with _node() as node:
        node.run_true(200)
        rounds = [node.run_true(STARTS) for _ in range(REPEATS)]
        yield "keeper_starts_per_s", statistics.median(rate for rate, _ in rounds)
        yield "keeper_cpu_ms_per_start", statistics.median(cpu_ms for _, cpu_ms in rounds)
    with _node() as node:
        node.start(["exec sleep 1000"] * RUNNING)
        node.wait_running(RUNNING)
        time.sleep(SETTLE_SECONDS)
        yield "keeper_pss_mib_per_job", node.pss_mib() / RUNNING
        yield "keeper_cpu_pct_per_job", node.cpu_percent(WATCH_SECONDS) / RUNNING


class Node:
    """A shim in a folder of its own, and the table of tasks that an agent would have."""

    def __init__(self, state: Path) -> None:
        self._state, self._number = state, 0
        self.means = choose(Site(), state)
        self._table = TaskTable()
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._ended: dict[str, TaskRecord] = {}
        self.link = ShimLink(state, watch_pid=0, on_records=self._take, means=self.means)
        self.link.start()

    def _take(self, records: list[TaskRecord], complete: bool) -> None:
        self._table.update(records, complete=complete)
        with self._changed:
            for record in records:
                if record["state"] == "running":
                    self._running.add(record["key"])
                elif record["state"] == "ended":
                    self._running.discard(record["key"])
                    self._ended[record["key"]] = record
            self._changed.notify_all()

    # ------------------------------------------------------------ tasks

    def start(self, commands: list[str]) -> None:
        self.link.start_tasks([self._order(command) for command in commands])

    def _order(self, command: str) -> TaskOrder:
        self._number += 1
        key = f"{self._number}-1"
        folder = f"{self._state}/tasks/{key}"
        self._table.add(self._number, 1, job=self._number, folder=folder)
        meta = {"task": self._number, "epoch": 1, "job": self._number, "devices": [], "memory_mib": 16}
        return TaskOrder(
            key=key, folder=folder, cwd=f"{folder}/work", script="", argv=["/bin/sh", "-c", command],
            env={"PATH": os.defpath, "MUSTER_JOB_ID": str(self._number)}, limit_seconds=3600, grace_seconds=1,
            meta=meta, process_limit=1024, user="bench", own_variables=[], cpu_millis=1000,
        )  # fmt: skip

    def wait_running(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._running) >= count, 300):
                raise TimeoutError(
                    f"{len(self._running)} of {count} tasks run: {list(self._ended.values())[:1]}"
                )

    def run_true(self, count: int) -> tuple[float, float]:
        """(tasks a second, CPU time in ms of a task with its own processes), from the first order to the last end."""
        cpu_before, began = self._cpu_ms(), time.perf_counter()
        sent = ended = 0
        while ended < count:
            if (free := min(AT_A_TIME - (sent - ended), count - sent)) > 0:
                self.start(["true"] * free)
                sent += free
            done = self._wait_ended()
            ended += len(done)
            self.link.forget(list(done))
        took = time.perf_counter() - began
        return count / took, (self._cpu_ms() - cpu_before) / count

    def _wait_ended(self) -> dict[str, TaskRecord]:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._ended), 60):
                raise TimeoutError("a task of `true` does not end")
            done, self._ended = self._ended, {}
        if failed := [record for record in done.values() if record["exit_code"] != 0]:
            raise RuntimeError(f"a task of `true` failed: {failed[0]}")
        return done

    # ------------------------------------------------------------ figures

    def _cpu_ms(self) -> float:
        """CPU time of the shim and of all below it, with that of the children that they have reaped."""
        pids = [self.link.shim_pid, *processes.descendants_of(self.link.shim_pid)]
        return sum(map(processes.cpu_ms_of, pids))

    def pss_mib(self) -> float:
        """PSS of the shim and of its children: guards, and what forks them; tasks are below the guards."""
        pids = [self.link.shim_pid, *processes.children_of(self.link.shim_pid)]
        sizes = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                try:
                    sizes.append(psutil.Process(pid).memory_full_info().pss / 2**20)
                except (psutil.AccessDenied, AttributeError) as problem:
                    raise NotMeasuredError(
                        f"the memory of a guard cannot be read here: {problem!r}"
                    ) from problem
        note(f"shim {sizes[0]:.1f} MiB, the larger of {len(sizes) - 1} guards {max(sizes[1:]):.2f} MiB")
        return sum(sizes)

    def cpu_percent(self, seconds: float) -> float:
        """Of one core: the shim, its guards, the tasks, and what an agent does for tasks that run."""
        uploader = LogUploader(self._table, ServerClient("http://127.0.0.1:1"))
        sampler = UsageSampler(self._table)
        before, own = self._cpu_ms(), time.thread_time()
        began = time.monotonic()
        sample_at = began + sampler.wait_seconds
        while (now := time.monotonic()) < began + seconds:
            uploader.upload_batch()
            uploader.truncate_capped()
            if now >= sample_at:
                sampler.take()
                sample_at = now + sampler.wait_seconds
            time.sleep(LOG_SECONDS)
        keeper_percent = (self._cpu_ms() - before) / seconds / 10
        agent_percent = (time.thread_time() - own) * 100 / seconds
        note(f"shim, guards and tasks {keeper_percent:.2f} % of a core, agent {agent_percent:.2f} %")
        return keeper_percent + agent_percent

    def close(self) -> None:
        self.link.shutdown()
        self.link.close()
        self.link.join(30)
        for shim in self.link.started:
            shim.wait(30)


@contextlib.contextmanager
def _node() -> Iterator[Node]:
    # Not in /tmp: tasks have one of their own, and the way to their folders would be made on the disk for each.
    var = ROOT / "var" / "bench"
    var.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="keeper-", dir=var))
    state.chmod(0o711)
    (state / "tasks").mkdir()
    node: Any = None
    try:
        node = Node(state)
        note("; ".join(node.means.facts()["means"]) or "nothing is isolated here")
        yield node
    finally:
        if node is not None:
            node.close()
        shutil.rmtree(state, ignore_errors=True)
