"""Comparison: recorded cycles planned again by the draft of a shadow run, and what differs.

A task of its own reads recordings, so the planner neither waits for a draft nor knows of one. Each task has a bound of
time, each run bounds of rows; a backlog of recordings is skipped and counted. A draft that cannot be planned ends its
run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import structlog
from django.db import Error, transaction
from django.db.models import F
from django.utils import timezone

from infra.db.advisory_lock import try_lock
from scheduler.core.columns import rows_of
from scheduler.core.cycle import plan_cycle
from scheduler.core.ordering.choice import choose
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy, without_plugins
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import (
    Attempt,
    Cycle,
    PolicyFault,
    SchedulerProfile,
    ShadowCycle,
    ShadowJob,
    ShadowRun,
    ShadowState,
)
from scheduler.services.planning.cycles import installed_plugins, policy_for_backend
from scheduler.services.planning.profiles import policy_of_row
from scheduler.services.shadows.runs import end_run
from scheduler.state.load.fair_share import with_shares_for
from scheduler.state.records import recordings
from scheduler.state.records.recordings import NotRecorded

log = structlog.get_logger(__name__)

#: One comparison at a time, of all processes.
LOCK: Final = 0x73686477
#: How long one task goes on with a run, and how long the draft may take for one cycle.
SECONDS_AT_ONCE: Final = 5.0
MOST_PLAN_SECONDS: Final = 30.0
#: Rows that one run may have.
MOST_CYCLES: Final = 5_000
MOST_JOBS: Final = 5_000
#: Recordings that wait to be compared: of more, the oldest are skipped.
MOST_WAITING: Final = 200


def compare_all() -> int:
    """Go on with every shadow run; answers how many cycles were compared. Does nothing beside another such task."""
    with try_lock(LOCK) as ours:
        if not ours:
            return 0
        runs = ShadowRun.objects.filter(state=ShadowState.RUNNING).select_related(
            "cluster", "queue", "profile"
        )
        return sum(_advance(run) for run in runs)


def _advance(run: ShadowRun) -> int:
    """Compare what was recorded since the last time; a failure ends the run, an unreachable database does not."""
    compared = 0
    try:
        until = time.monotonic() + SECONDS_AT_ONCE
        for cycle in _due(run):
            if time.monotonic() >= until:
                break
            compared += _compare(run, cycle)
        _note_starts(run)
        _end_in_time(run)
    except Error:
        raise
    except Exception as error:
        log.exception("shadow_run_failed", run=run.pk)
        end_run(run, ShadowState.FAILED, f"{type(error).__name__}: {error}")
    return compared


def _due(run: ShadowRun) -> list[Cycle]:
    """The recorded cycles to plan next, oldest first."""
    recorded = Cycle.objects.filter(
        cluster_id=run.cluster_id, id__gt=run.last_cycle, started_at__lte=run.until, snapshot__isnull=False
    )
    ids = list(recorded.order_by("-id").values_list("id", flat=True)[: MOST_WAITING * run.every + 1])
    ids.reverse()
    if len(ids) > MOST_WAITING * run.every:
        ids = ids[1:]
        between = recorded.filter(id__lt=ids[0]).count()
        ShadowRun.objects.filter(pk=run.pk).update(skipped=F("skipped") + between, last_cycle=ids[0] - 1)
    chosen = ids[run.every - 1 :: run.every]
    return list(
        Cycle.objects.filter(id__in=chosen).only("id", "cluster_id", "started_at", "plan_us").order_by("id")
    )


def _compare(run: ShadowRun, cycle: Cycle) -> int:
    """One recorded cycle; 0 where its recording was pruned."""
    try:
        recording = recordings.load(cycle.pk)
    except NotRecorded:
        ShadowRun.objects.filter(pk=run.pk).update(skipped=F("skipped") + 1, last_cycle=cycle.pk)
        return 0
    snapshot = codec.decode_snapshot(recording.snapshot)
    recorded, real = codec.decode_policy(recording.policy), codec.decode_plan(recording.plan)
    policy = shadow_policy(run, recorded)
    snapshot = with_shares_for(snapshot, policy)
    began = time.perf_counter()
    shadow = plan_cycle(snapshot, choose(snapshot, policy), plugins=installed_plugins())
    seconds = time.perf_counter() - began
    _write(run, cycle, snapshot, real, shadow, int(seconds * 1e6))
    if seconds > MOST_PLAN_SECONDS:
        raise TimeoutError(
            f"the draft took {seconds:.0f} s to plan cycle {cycle.pk}; at most {MOST_PLAN_SECONDS:g} s"
        )
    return 1


def shadow_policy(run: ShadowRun, recorded: Policy) -> Policy:
    """The recorded policy with the draft in place of the profile that it is of; without plugins that are out of use."""
    draft = policy_of_row(SchedulerProfile(name=run.profile.name, **run.content))
    if run.queue_id is not None:
        own = replace(draft, preemption=Policy().preemption)
        others = [(queue_id, policy) for queue_id, policy in recorded.queues if queue_id != run.queue_id]
        return replace(recorded, queues=tuple(sorted([*others, (run.queue_id, own)], key=lambda one: one[0])))
    subjects = PolicyFault.objects.filter(cluster_id=run.cluster_id).values_list("subject", flat=True)
    failing = {
        name.removeprefix(PolicyFault.PLUGIN) for name in subjects if name.startswith(PolicyFault.PLUGIN)
    }
    whole = replace(draft, queues=recorded.queues)
    return policy_for_backend(without_plugins(whole, failing), run.cluster.backend)


def _write(
    run: ShadowRun, cycle: Cycle, snapshot: Snapshot, real: Plan, shadow: Plan, shadow_us: int
) -> None:
    """The comparison of one cycle, in one transaction."""
    ours = {start.job_id: start.node_ids for start in real.starts}
    theirs = {start.job_id: start.node_ids for start in shadow.starts}
    at = datetime.fromtimestamp(snapshot.now_ms / 1000, tz=UTC)
    with transaction.atomic():
        ShadowCycle.objects.create(
            run=run, cycle=cycle.pk, at=at, starts=len(ours), shadow_starts=len(theirs),
            only_real=len(ours.keys() - theirs.keys()), only_shadow=len(theirs.keys() - ours.keys()),
            elsewhere=sum(ours[job] != theirs[job] for job in ours.keys() & theirs.keys()),
            waiting=len(real.waiting), shadow_waiting=len(shadow.waiting),
            waited_seconds=_waited(snapshot, real), shadow_waited_seconds=_waited(snapshot, shadow),
            stops=len(real.preempts), shadow_stops=len(shadow.preempts),
            plan_us=cycle.plan_us, shadow_us=shadow_us,
        )  # fmt: skip
        left_out = _keep_jobs(run, sorted(ours.keys() ^ theirs.keys()), theirs.keys(), at)
        ShadowRun.objects.filter(pk=run.pk).update(
            last_cycle=cycle.pk, compared=F("compared") + 1, starts=F("starts") + len(ours),
            shadow_starts=F("shadow_starts") + len(theirs), plan_us=F("plan_us") + cycle.plan_us,
            shadow_us=F("shadow_us") + shadow_us, jobs_left_out=F("jobs_left_out") + left_out,
        )  # fmt: skip


def _waited(snapshot: Snapshot, plan: Plan) -> int:
    """How long the jobs that this plan leaves waiting have waited, all together, in seconds."""
    if not len(plan.waiting):
        return 0
    rows = rows_of(snapshot.pending.id, plan.waiting.job_id, what="pending job")
    return int(np.maximum(snapshot.now_ms - snapshot.pending.submitted_ms[rows], 0).sum() // 1000)


def _keep_jobs(run: ShadowRun, jobs: Iterable[int], in_shadow: Iterable[int], at: datetime) -> int:
    """List the jobs that only one of both plans starts, each once; answers how many had no room."""
    draft, wanted = set(in_shadow), list(jobs)
    known = set(ShadowJob.objects.filter(run=run, job__in=wanted).values_list("job", flat=True))
    new = [job for job in wanted if job not in known]
    room = max(MOST_JOBS - ShadowJob.objects.filter(run=run).count(), 0)
    ShadowJob.objects.bulk_create(
        [
            ShadowJob(run=run, job=job, **{"shadow_at" if job in draft else "started_at": at})
            for job in new[:room]
        ]
    )
    return len(new) - len(new[:room])


def _note_starts(run: ShadowRun) -> None:
    """Since when the listed jobs run that only the draft would have started, as far as cycles are recorded."""
    waiting = list(ShadowJob.objects.filter(run=run, started_at=None).values_list("job", flat=True))
    if not waiting:
        return
    first: dict[int, int] = {}
    attempts = Attempt.objects.filter(job_id__in=waiting, cycle_id__isnull=False).order_by("-epoch")
    for job, cycle in attempts.values_list("job_id", "cycle_id"):
        first[job] = cycle or 0
    times = dict(Cycle.objects.filter(pk__in=set(first.values())).values_list("pk", "started_at"))
    listed = ShadowJob.objects.filter(run=run, started_at=None, job__in=list(first))
    changed = []
    for row in listed:
        at = times.get(first[row.job])
        if at is not None and row.shadow_at is not None and at >= row.shadow_at:
            row.started_at = at
            changed.append(row)
    ShadowJob.objects.bulk_update(changed, ["started_at"], batch_size=500)


def _end_in_time(run: ShadowRun) -> None:
    row = ShadowRun.objects.get(pk=run.pk)
    if timezone.now() >= row.until:
        end_run(row, ShadowState.ENDED, "Its time is over.")
    elif row.compared >= MOST_CYCLES:
        end_run(row, ShadowState.ENDED, f"{MOST_CYCLES:,} cycles are compared, the most of one run.")
