"""What people can be notified of: the closed list, who it concerns, and what is on where nobody has chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler.core.mail_types import MailType


class Kind(StrEnum):
    """One kind of notification; the values are the `type` of webhooks and never change."""

    BEGAN = "job.began"
    ENDED = "job.ended"
    FAILED = "job.failed"
    REQUEUED = "job.requeued"
    PREEMPTED = "job.preempted"
    CANCELLED = "job.cancelled"
    HELD = "job.held"
    NEVER_STARTS = "job.never_starts"
    TIME_LIMIT = "job.time_limit_near"
    DEADLINE_LATE = "job.deadline_late"
    DEADLINE_MISSED = "job.deadline_missed"
    IDLE_GPU = "job.gpu_idle"
    NODE_DRAINS = "node.draining"
    NODE_DOWN = "node.down"
    RESERVATION = "reservation.changed"
    POLICY_FAULT = "scheduler.fault"
    OUTSIDE_AWAY = "system.unreachable"
    QUOTA = "quota.alert"
    WEBHOOK_DISABLED = "webhook.disabled"
    #: Sent by the button of a webhook's page, to that webhook alone.
    TEST = "webhook.test"


class Channel(StrEnum):
    """Where a person gets a notification."""

    PORTAL = "portal"
    MAIL = "mail"


@dataclass(frozen=True, slots=True)
class About:
    """What a kind is about, whom it concerns, and whether it is on until the person says otherwise.

    `operators` are kinds that only operators of the site get; `sent` are those that webhooks may choose.
    """

    label: str
    help: str
    portal: bool = True
    mail: bool = False
    operators: bool = False
    sent: bool = True


KINDS: Final[dict[Kind, About]] = {
    Kind.FAILED: About("Job failed", "A job of yours has failed and is not started again.", mail=True),
    Kind.NEVER_STARTS: About(
        "Job can never start", "Larger than any node, limit or budget: change the request.", mail=True
    ),
    Kind.ENDED: About("Job completed", "A job of yours has completed.", portal=False),
    Kind.BEGAN: About("Job started", "A job of yours runs.", portal=False),
    Kind.REQUEUED: About(
        "Job requeued", "An attempt failed, a node was lost, or the job was moved or requeued: it is pending again."
    ),
    Kind.PREEMPTED: About("Job preempted", "A job of yours is stopped for another job."),
    Kind.CANCELLED: About("Job cancelled by somebody else", "Somebody else has cancelled a job of yours."),
    Kind.HELD: About("Job held by somebody else", "Somebody else has held a job of yours."),
    Kind.TIME_LIMIT: About("Time limit near", "A running job has used 80 % of the time limit.", portal=False),
    Kind.DEADLINE_LATE: About(
        "Deadline at risk", "A job of yours is likely to end after its deadline, by its time limit and the forecast."
    ),
    Kind.DEADLINE_MISSED: About("Deadline missed", "A job of yours was not over at its deadline.", mail=True),
    Kind.IDLE_GPU: About("GPU idle", "A job of yours has hardly used its GPUs since the start."),
    Kind.NODE_DRAINS: About("Node drains under a job", "A node that runs a job of yours drains."),
    Kind.QUOTA: About(
        "Quota or budget", "A limit or a budget is nearly or fully used, or a quota request was decided.", mail=True
    ),
    Kind.WEBHOOK_DISABLED: About(
        "Webhook disabled", "A webhook was disabled after its deliveries failed.", mail=True, sent=False
    ),
    Kind.NODE_DOWN: About(
        "Node down", "A node has stopped responding, or Muster took it out of service.", mail=True, operators=True
    ),
    Kind.POLICY_FAULT: About(
        "Scheduler fault", "A plugin failed and is out of use, or a profile cannot be followed.", mail=True,
        operators=True,
    ),
    Kind.OUTSIDE_AWAY: About(
        "Outside system unreachable", "The storage, the mail server or a quota provider does not respond.", mail=True,
        operators=True,
    ),
    Kind.RESERVATION: About(
        "Reservation",
        "A reservation that you asked for was approved or declined; for operators: one was requested or changed.",
    ),
}  # fmt: skip

#: Kinds that a webhook may choose.
SENT: Final = tuple(kind for kind, about in KINDS.items() if about.sent)
#: Kinds that a webhook of a project may choose: those of its jobs.
SENT_OF_PROJECTS: Final = tuple(kind for kind in SENT if kind.startswith("job."))


def is_on(kind: Kind, channel: Channel) -> bool:
    """Whether a kind is on in a channel for somebody who has not chosen."""
    about = KINDS[kind]
    return about.portal if channel == Channel.PORTAL else about.mail


# ---------------------------------------------------------------- mail as sbatch asks for it


#: What mail of a job each kind is: a kind is mailed when the job asks for one of these.
MAIL_TYPES: Final[dict[Kind, frozenset[str]]] = {
    Kind.BEGAN: frozenset({MailType.BEGIN}),
    Kind.ENDED: frozenset({MailType.END}),
    # A failure is an end too, as in Slurm.
    Kind.FAILED: frozenset({MailType.FAIL, MailType.END}),
    Kind.CANCELLED: frozenset({MailType.END}),
    Kind.REQUEUED: frozenset({MailType.REQUEUE}),
    Kind.PREEMPTED: frozenset({MailType.REQUEUE}),
    Kind.NEVER_STARTS: frozenset({MailType.INVALID_DEPEND}),
}
#: Part of the time limit, in percent, that each of these announces.
TIME_SHARES: Final = {
    MailType.TIME_LIMIT_50: 50,
    MailType.TIME_LIMIT_80: 80,
    MailType.TIME_LIMIT_90: 90,
    MailType.TIME_LIMIT: 100,
}
#: What people who have chosen the kind without a job's own word are notified at.
USUAL_TIME_SHARE: Final = 80


def mail_of_job(kind: Kind, words: Iterable[str], share: int = 0) -> bool | None:
    """Whether the job's own words ask for a mail of this kind: True, False where they forbid all, None otherwise.

    `share` is the part of the time limit, in percent, that a notification of that kind is about.
    """
    wanted = frozenset(words)
    if MailType.NONE in wanted:
        return False
    if kind == Kind.TIME_LIMIT:
        return True if any(TIME_SHARES.get(MailType(word)) == share for word in wanted) else None
    return True if wanted & MAIL_TYPES.get(kind, frozenset()) else None
