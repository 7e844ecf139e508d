"""Progress under a virtual clock: how much work each running job has left, and when that is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: Speed of a job of one task.
ONE_TASK: Final = 1000


def speed_of(tasks: int, serial_millis: int = 0) -> int:
    """How fast so many tasks get on together, one being 1000.

    As many times as fast as they are many, but for the part of the work, in thousandths of what it takes one task,
    that cannot be divided (Amdahl's law).
    """
    return ONE_TASK * 1000 * tasks // (serial_millis * tasks + 1000 - serial_millis)


@dataclass(slots=True)
class Progress:
    """The work of jobs, in thousandths of a task's milliseconds: it gets less as fast as the job is large.

    Work stays what it is, however often a job is suspended or changes its size.
    """

    _left: dict[int, int] = field(
        default_factory=dict
    )  # as of `_since`; a job whose length nobody knows is not here
    _begun: dict[int, int] = field(default_factory=dict)  # what it had left when it began
    _since: dict[int, int] = field(default_factory=dict)
    _speed: dict[int, int] = field(default_factory=dict)
    #: What is left of jobs that have ended, and go on from what they had saved once they start again.
    _kept: dict[int, int] = field(default_factory=dict)

    def begin(self, job_id: int, now_ms: int, length_ms: int | None, *, at_speed: int, speed: int) -> None:
        """From now on a job runs that takes so long at some speed (None = nobody knows), or what it has kept."""
        work = None if length_ms is None else length_ms * at_speed
        left = self._kept.pop(job_id, work)
        if left is None:
            self._left.pop(job_id, None)
        else:
            self._left[job_id] = self._begun[job_id] = left
        self._since[job_id], self._speed[job_id] = now_ms, speed

    def change(self, job_id: int, now_ms: int, speed: int) -> None:
        """From now on it is so fast; 0 = it is suspended."""
        if job_id in self._left:
            self._left[job_id] = self._left_at(job_id, now_ms)
        self._since[job_id], self._speed[job_id] = now_ms, speed

    def end(self, job_id: int, now_ms: int, *, lost: int | None = None) -> None:
        """It ends; where `lost` is given it starts again later, and of its work has but that to do once more."""
        if lost is not None and job_id in self._left:
            self._kept[job_id] = self._left_at(job_id, now_ms) + lost
        for table in (self._left, self._begun, self._since, self._speed):
            table.pop(job_id, None)

    def worked_ms(self, job_id: int, now_ms: int, speed: int) -> int:
        """How long it would have taken at some speed for what it has done since it began; 0 = nobody knows."""
        if job_id not in self._left:
            return 0
        return (self._begun[job_id] - self._left_at(job_id, now_ms)) // speed

    def done_ms(self, job_id: int) -> int | None:
        """When its work is done if it goes on like this; None = never, or nobody knows."""
        left, speed = self._left.get(job_id), self._speed.get(job_id, 0)
        return None if left is None or not speed else self._since[job_id] - (-left // speed)

    def _left_at(self, job_id: int, now_ms: int) -> int:
        return max(self._left[job_id] - (now_ms - self._since[job_id]) * self._speed[job_id], 0)
