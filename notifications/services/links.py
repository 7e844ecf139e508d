"""What a notification is called and where it leads."""

from __future__ import annotations

from django.urls import reverse

from notifications.core.grouping import array_number_of, is_array, said_of
from notifications.core.kinds import Kind
from notifications.core.wording import headline
from notifications.models import Bundle


def jobs_of(row: Bundle) -> list[int]:
    """The numbers of its first jobs, each once: a job that is requeued three times is counted three times."""
    return list(dict.fromkeys(row.jobs))


def title_of(row: Bundle) -> str:
    """The headline of a notification or message."""
    return headline(
        Kind(row.kind), count=row.count, number=said_of(row.thing, row.jobs[0] if row.jobs else None), name=row.name,
        of=row.project.name if row.project else "this site", array=is_array(row.group_key),
        jobs=len(jobs_of(row)) if row.count == len(row.jobs) else None,
    )  # fmt: skip


def link_of(row: Bundle) -> str:
    """The path of the page that shows it: its job, else the list or the thing it is about; "" for none."""
    about, _, number = row.thing.partition(":")
    if about == "node":
        return reverse("node", args=[int(number)])
    if about == "endpoint":
        return reverse("webhook", args=[int(number)])
    if about == "system":
        return reverse("system")
    if about == "quota":
        return reverse("quota")
    if about == "reservations":
        return reverse("reservations")
    if about == "cluster":
        return reverse("cluster")
    if len(jobs_of(row)) == 1 and row.count == len(row.jobs):
        return reverse("job", args=[row.jobs[0]])
    if (array := array_number_of(row.group_key)) is not None:
        return reverse("array", args=[array])
    if row.jobs:
        return reverse("jobs")
    return ""
