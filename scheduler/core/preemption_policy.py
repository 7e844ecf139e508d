"""Preemption policy: which job may stop which, and how much disruption is allowed, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

#: What becomes of a job that has to make way: it ends and starts again, or it is suspended and goes on.
MODES: Final = ("requeue", "suspend")


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """Who may be stopped for whom. Off until somebody turns it on.

    Two gates, and both must be open: the class of the one that waits must list the class of the one
    that runs, and its priority must be higher by `minimum_gap`, which is at least 1: an equal is never
    stopped, not even where a class lists itself.
    """

    enabled: bool = False
    #: (priority at which a class begins, where the classes begin that it may stop), lowest first.
    classes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    minimum_gap: int = 10
    #: A job that has run for less is left alone.
    protected_seconds: int = 60
    #: A job that was stopped so often is left alone.
    most_times: int = 3
    #: What a job is given between the notice and the end.
    grace_seconds: int = 60
    #: Jobs stopped in one cycle and in one hour at most.
    per_cycle: int = 16
    per_hour: int = 200
    #: GPU-hours of work a project may lose in a day; 0 = no bound.
    loss_budget_gpu_hours: int = 0
    #: What starting again costs a job, in seconds of its own time, beside the work that is lost.
    restart_seconds: int = 60
    #: 1: a job that the share of its own project covers has jobs stopped that run on what others borrowed of
    #: it, the last to start first, whatever the priorities; apart from `enabled`, and tried before it.
    reclaim: int = 0
    #: 1: of one priority those whose class is best effort make way first, and guaranteed ones last.
    qos: int = 0
    #: 1: victims that hold the kind of resource that the job asks for go first: for a job with GPUs those that hold
    #: GPUs it can use, for a job without GPUs those that hold none. Others only where these do not help.
    by_resource: int = 0
    #: Below this allocation, in percent, of the nodes that the job may use, no job is stopped for it: of their GPUs
    #: for a job that asks for GPUs, else of their CPUs. 0 = always. What was lent is reclaimed all the same.
    pressure_percent: int = 0
    #: (priority, percent), priorities rising: for jobs of that priority and above in place of `pressure_percent`. A
    #: higher priority never has to wait for more pressure than a lower one.
    pressure_levels: tuple[tuple[int, int], ...] = ()
    #: 1: what stopping a job costs rises with its earlier preemptions and with how near its end it is.
    risk: int = 0
    #: "suspend": a victim is suspended and goes on where it was once there is room again, where suspension
    #: frees enough: its CPUs, not its memory and not its GPUs. Where it does not, it is requeued.
    mode: str = "requeue"
    #: Why jobs cannot be suspended where these run; "" = they can.
    cannot_suspend: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"{self.mode!r} is not a mode of preemption; there are {', '.join(MODES)}")
        if self.minimum_gap < 1:
            raise ValueError("the priority gap must be at least 1: an equal is never stopped")
        for name in ("protected_seconds", "most_times", "grace_seconds", "per_cycle", "per_hour",
                     "loss_budget_gpu_hours", "restart_seconds", "reclaim", "qos"):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0")
        for name in ("by_resource", "risk"):
            if getattr(self, name) not in (0, 1):
                raise ValueError(f"{name} is 0 (off) or 1 (on)")
        if not 0 <= self.pressure_percent <= 100:
            raise ValueError("pressure_percent is 0 (always preempt) to 100")
        self._check_levels()
        begins = [begin for begin, _ in self.classes]
        if begins != sorted(set(begins)):
            raise ValueError("priority classes must rise, each named once")

    def _check_levels(self) -> None:
        levels = ((0, self.pressure_percent), *self.pressure_levels)
        if not all(0 <= percent <= 100 and 0 <= priority <= 100 for priority, percent in levels):
            raise ValueError("pressure_levels are percents from 0 to 100, by priorities from 0 to 100")
        if any(low >= high or most < least for (low, most), (high, least) in pairwise(levels[1:])):
            raise ValueError(
                "pressure_levels must not rise with the priority, and each priority is named once"
            )
        if self.pressure_levels and self.pressure_levels[0][1] > (self.pressure_percent or 100):
            raise ValueError(
                "pressure_levels must not be above pressure_percent, which is for all lower priorities"
            )

    @property
    def suspends(self) -> bool:
        return self.mode == "suspend" and not self.cannot_suspend

    @property
    def asks_pressure(self) -> bool:
        return bool(self.pressure_percent or self.pressure_levels)

    def pressure_of(self, priority: int) -> int:
        """The allocation, in percent, below which no job is stopped for one of this priority; 0 = always."""
        named = [percent for begin, percent in self.pressure_levels if begin <= priority]
        return named[-1] if named else self.pressure_percent

    def class_of(self, priority: int) -> int:
        """Where the class of this priority begins; below all of them it is the lowest."""
        begin = min((first for first, _ in self.classes), default=0)
        return max((first for first, _ in self.classes if first <= priority), default=begin)

    def may_stop(self, priority: int, victim_priority: int) -> bool:
        """Whether a job of this priority may have one of that priority stopped."""
        if priority - victim_priority < self.minimum_gap:
            return False
        listed = dict(self.classes).get(self.class_of(priority), ())
        return self.class_of(victim_priority) in listed
