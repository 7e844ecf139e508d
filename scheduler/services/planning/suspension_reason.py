"""Suspension reason: for which job a job is suspended, since when, and what it needs to resume."""

from __future__ import annotations

from collections import Counter

from infra.times_in_text import written
from quotas.core.resources import show_cpus
from scheduler.core.lifecycle import JobState
from scheduler.models import Allocation, Job, Suspension


def suspension_reason(job: Job) -> str:
    """One or two sentences for a job that is suspended or is being suspended; "" for any other."""
    if job.state not in (JobState.SUSPENDED, JobState.PREEMPTING):
        return ""
    last = (
        Suspension.objects.filter(attempt__job=job, attempt__epoch=job.epoch, ends_at=None)
        .select_related("attempt")
        .order_by("-id")
        .first()
    )
    if last is None or last.attempt.stop_asked_at is not None:
        return ""
    if last.starts_at is None:
        return f"Being suspended for job {last.for_job}, and resumes later on the same nodes."
    lacking = _lacking(job)
    when = (
        f"the job resumes when {lacking}"
        if lacking
        else "the job resumes with the next cycle, unless a job of higher priority or a limit comes first"
    )
    return f"Suspended for job {last.for_job} since {written(last.starts_at)}; {when}. The memory stays allocated."


def _lacking(job: Job) -> str:
    """The first node that has too few CPUs free for it."""
    need: Counter[int] = Counter()
    nodes = {}
    for held in Allocation.objects.held().filter(attempt__job=job).select_related("node").order_by("rank"):
        need[held.node_id] += held.suspended_cpu_millis
        nodes[held.node_id] = held.node
    for node_id, millis in need.items():
        node = nodes[node_id]
        if node.state != "up":
            return f"{node.name} responds again"
        free = node.cpu_millis_capacity - node.used_cpu_millis
        if free < millis:
            return f"{node.name} has {show_cpus(millis)} CPUs free; {show_cpus(max(free, 0))} are free now"
    return ""
