"""Progress under a virtual clock: how much work each running job has left, and when that is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: Speed of a job of one task.
ONE_TASK: Final = 1000


def speed_of(tasks: int, serial_millis: int = 0) -> int:
    """How fast `tasks` tasks work together, where one task has speed 1000 (Amdahl's law).

    `serial_millis`: the part of the work that cannot be divided, in thousandths of the time of one task.
    """
    return ONE_TASK * 1000 * tasks // (serial_millis * tasks + 1000 - serial_millis)


@dataclass(slots=True)
class Progress:
    """The work that running jobs have left, in thousandths of the milliseconds of one task.

    A job does it faster the more tasks it has; suspensions and changes of size change the speed and not the work.
    """

    #: As of `_since`; a job of unknown length is not here.
    _left: dict[int, int] = field(default_factory=dict)
    _begun: dict[int, int] = field(default_factory=dict)  # work that was left when the job began
    _since: dict[int, int] = field(default_factory=dict)
    _speed: dict[int, int] = field(default_factory=dict)
    #: Work left to requeued jobs, which go on from their last checkpoint when they start again.
    _saved: dict[int, int] = field(default_factory=dict)

    def begin(self, job_id: int, now_ms: int, length_ms: int | None, *, at_speed: int, speed: int) -> None:
        """Begin a job that takes `length_ms` at speed `at_speed` (None = unknown), or goes on from its checkpoint."""
        work = None if length_ms is None else length_ms * at_speed
        left = self._saved.pop(job_id, work)
        if left is None:
            self._left.pop(job_id, None)
        else:
            self._left[job_id] = self._begun[job_id] = left
        self._since[job_id], self._speed[job_id] = now_ms, speed

    def change(self, job_id: int, now_ms: int, speed: int) -> None:
        """Change the speed of a job; 0 = it is suspended."""
        if job_id in self._left:
            self._left[job_id] = self._left_at(job_id, now_ms)
        self._since[job_id], self._speed[job_id] = now_ms, speed

    def end(self, job_id: int, now_ms: int, *, lost: int | None = None) -> None:
        """End a job. Where `lost` is given it starts again later, and has that part of its work to do once more."""
        if lost is not None and job_id in self._left:
            self._saved[job_id] = self._left_at(job_id, now_ms) + lost
        for table in (self._left, self._begun, self._since, self._speed):
            table.pop(job_id, None)

    def worked_ms(self, job_id: int, now_ms: int, speed: int) -> int:
        """How long the work that a job has done since it began takes at `speed`; 0 = unknown."""
        if job_id not in self._left:
            return 0
        return (self._begun[job_id] - self._left_at(job_id, now_ms)) // speed

    def done_ms(self, job_id: int) -> int | None:
        """When the work of a job is done at its present speed; None = never, or unknown."""
        left, speed = self._left.get(job_id), self._speed.get(job_id, 0)
        return None if left is None or not speed else self._since[job_id] - (-left // speed)

    def _left_at(self, job_id: int, now_ms: int) -> int:
        return max(self._left[job_id] - (now_ms - self._since[job_id]) * self._speed[job_id], 0)
