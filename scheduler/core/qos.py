"""Quality of service: the class that a job's requests and limits put it in."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Qos(IntEnum):
    """Lower is the first to make way where a profile says so."""

    BEST_EFFORT = 0  # requests nothing: it runs in what others leave
    BURSTABLE = 1  # may use more than it requests while it is there
    GUARANTEED = 2  # its limits are its requests: it never uses more, and has it always


#: As the API says them.
QOS_WORDS: Final[dict[Qos, str]] = {
    Qos.BEST_EFFORT: "best-effort",
    Qos.BURSTABLE: "burstable",
    Qos.GUARANTEED: "guaranteed",
}


def qos_of(*, cpu_millis: int, memory_mib: int, cpu_limit_millis: int, memory_limit_mib: int) -> Qos:
    """The class of a task with these requests and limits; a limit of 0 is none."""
    if not (cpu_millis or memory_mib or cpu_limit_millis or memory_limit_mib):
        return Qos.BEST_EFFORT
    if 0 < cpu_limit_millis <= cpu_millis and 0 < memory_limit_mib <= memory_mib:
        return Qos.GUARANTEED
    return Qos.BURSTABLE
