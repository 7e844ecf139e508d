"""Probes by GPUs: a task whose GPUs have done nothing for too long is stopped."""

from __future__ import annotations

from scheduler.agent.gpu.usage import Use
from scheduler.agent.tasks.gpu_probes import NOT_MEASURED, GpuProbes
from scheduler.agent.tasks.task_table import TaskTable
from tests.scheduler.agent.tasks.test_usage import Clock, a_table, clock, step

__all__ = ["clock"]


class Watch:
    """A table with one task, its GPUs' use, and the tasks that were stopped."""

    def __init__(self, clock: Clock, *, measured: bool = True, **probe: int) -> None:
        asked = {
            "kind": "gpu",
            "number": 1,
            "every": 10,
            "failures": 1,
            "start_after": 0,
            "limit": 60,
        } | probe
        self.clock, self.use = clock, Use()
        self.table: TaskTable = a_table(clock, devices=[0], gpu_probes=[asked])
        self.table.gpu_use_of = lambda key: self.use if measured else None
        self.stopped: list[str] = []
        self.probes = GpuProbes(self.table, lambda key, text: self.stopped.append(f"{key}: {text}"))

    def look(self, seconds: int, *, busy_ms: float = 0.0) -> None:
        for _ in range(seconds // 10):
            step(self.clock, 10)
            self.use.busy_ms += busy_ms
            self.probes.look()

    @property
    def result(self) -> tuple[bool, int, str]:
        (one,) = self.table.get(7, 2).gpu_probe_results
        return one["ok"], one["failures"], one["text"]


def test_gpus_that_work_are_well(clock: Clock) -> None:
    watch = Watch(clock)
    watch.look(600, busy_ms=1.0)
    assert watch.stopped == []
    assert watch.result == (True, 0, "GPUs idle for 0 s")


def test_idle_gpus_end_the_task_after_the_limit(clock: Clock) -> None:
    watch = Watch(clock)
    watch.look(100, busy_ms=5.0)
    watch.look(60)
    assert watch.stopped == []
    watch.look(10)
    assert watch.stopped == ["7-2: Unhealthy: probe gpu failed: GPUs idle for 1 min."]


def test_nothing_is_checked_before_start_after(clock: Clock) -> None:
    watch = Watch(clock, start_after=300)
    watch.look(290)
    assert watch.stopped == []
    watch.look(20)
    assert len(watch.stopped) > 0


def test_where_no_gpu_is_measured_the_probe_says_so(clock: Clock) -> None:
    watch = Watch(clock, measured=False)
    watch.look(600)
    assert watch.stopped == []
    assert watch.result == (True, 0, NOT_MEASURED)


def test_a_suspended_task_is_not_idle(clock: Clock) -> None:
    watch = Watch(clock)
    watch.look(50)
    record = watch.table.get(7, 2).record
    record["suspended_boot_ms"] = clock.ms
    watch.look(600)
    record["suspended_boot_ms"] = 0
    watch.look(60)
    assert watch.stopped == []
    watch.look(10)
    assert len(watch.stopped) == 1


def test_several_failures_in_a_row_may_be_asked_for(clock: Clock) -> None:
    watch = Watch(clock, failures=2)
    watch.look(80)
    assert watch.stopped == []
    watch.look(10)
    assert len(watch.stopped) == 1
