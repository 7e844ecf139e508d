"""The headline of a notification: plain English, one or many, from kind, count and names alone."""

from __future__ import annotations

from typing import Final

from notifications.core.kinds import KINDS, Kind

#: What has become of jobs: "Job 12 train failed", "40 jobs of Vision failed".
_VERBS: Final[dict[Kind, tuple[str, str]]] = {
    Kind.BEGAN: ("started", "started"),
    Kind.ENDED: ("completed", "completed"),
    Kind.FAILED: ("failed", "failed"),
    Kind.REQUEUED: ("was requeued", "were requeued"),
    Kind.PREEMPTED: ("is preempted", "are preempted"),
    Kind.CANCELLED: ("was cancelled", "were cancelled"),
    Kind.HELD: ("is held", "are held"),
    Kind.NEVER_STARTS: ("can never start", "can never start"),
    Kind.TIME_LIMIT: ("is near its time limit", "are near their time limits"),
    Kind.DEADLINE_LATE: ("is likely to miss its deadline", "are likely to miss their deadlines"),
    Kind.DEADLINE_MISSED: ("missed its deadline", "missed their deadlines"),
    Kind.IDLE_GPU: ("hardly uses its GPUs", "hardly use their GPUs"),
}


#: Of one thing that has a name, and of several.
_OF_THINGS: Final[dict[Kind, tuple[str, str]]] = {
    Kind.NODE_DRAINS: ("Node {name} drains while a job of yours runs there",) * 2,
    Kind.NODE_DOWN: ("Node {name} is down", "{count:,} nodes are down, first {name}"),
    Kind.POLICY_FAULT: ("Scheduler fault: {name}", "{count:,} scheduler faults, first {name}"),
    Kind.OUTSIDE_AWAY: ("{name} does not respond", "{count:,} outside systems do not respond, first {name}"),
    Kind.WEBHOOK_DISABLED: ("The webhook {name} was disabled",) * 2,
    Kind.RESERVATION: ("Reservation {name} changed", "{count:,} changes of reservations"),
}


def headline(
    kind: Kind,
    *,
    count: int,
    number: int | str | None,
    name: str,
    of: str,
    array: bool,
    jobs: int | None = None,
) -> str:
    """One sentence without a full stop.

    `number` (`123_3` of an element) and `name` are of the first job; or `name` is that of a node, a reservation or a
    webhook, or what a notice about quotas says. `of` is the name of the project, and `array` says that all jobs are
    elements of one array. `jobs` is the number of different jobs, where it is known: one that is requeued three times
    is counted three times.
    """
    if kind in _VERBS:
        one, many = _VERBS[kind]
        if count == 1:
            return f"Job {number} {name} {one}"
        if jobs is not None and jobs < count:
            times = f"{count:,} times"
            what = f"{jobs:,} {'elements of array ' + name if array else 'jobs of ' + of}"
            return f"Job {number} {name} {one} {times}" if jobs == 1 else f"{what} {many} {times}"
        what = f"{count:,} elements of array {name}" if array else f"{count:,} jobs of {of}"
        return f"{what} {many}"
    if kind == Kind.QUOTA:
        return name.rstrip(".") if count == 1 and name else f"{count:,} notices about quotas and budgets"
    if kind in _OF_THINGS:
        one, many = _OF_THINGS[kind]
        return (one if count == 1 else many).format(name=name, count=count)
    return KINDS[kind].label if kind in KINDS else "A test of this webhook"
