"""What a job that is not submitted yet would count for on each limit of its way up, and which turns it away."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from accounts.models import User
from quotas.core.limits import UNBOUNDED, charge
from quotas.models import Quota
from quotas.selectors.quota_status import LineState, find_lines
from quotas.services.impact import shown
from scheduler.core.plan import Start
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.services.submission.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One limit before and after; `passed` is "soft" or "hard" when after is above it.

    `refuses` says that the job waits for this one, `over_by` how much less it would have to ask for.
    """

    line_id: int
    owner: str
    resource: str
    gpu_model: str
    job_type: str
    label: str
    used: int
    after: int
    nominal: int | None
    soft: int | None
    hard: int | None
    #: The most that may be in use on it: its hard bound, or its nominal and what it may borrow.
    bound: int | None
    enforce: bool
    passed: str = ""
    refuses: bool = False
    over_by: int = 0
    #: What is already above the bound, from before it was cut.
    over: bool = False
    text: str = ""


def quota_uses(spec: JobSpec, by: User, start: Start | None, snapshot: Snapshot) -> tuple[QuotaUse, ...]:
    """Every limit that this job counts on, now and with the job: its own first, the root's last.

    A limit of one GPU model counts the devices that the job would be given, or asks for where it would wait.
    """
    found = find_lines([spec.project], user_id=by.pk)
    standings = found.standings()
    states = standings.states()
    devices = _devices(spec, start, snapshot)
    size = (spec.per_task, spec.least_tasks)
    counted = [
        (line, amount)
        for line in (*found.of_project[spec.project.pk], *found.of_person)
        if line.job_type in ("", spec.job_type)
        and (amount := charge(line.resource, *size, gpu_model=line.gpu_model, devices=devices))
    ]
    missing = standings.short([(line.pk, amount) for line, amount in counted])
    return tuple(_use(line, states[line.pk], amount, missing.get(line.pk, 0)) for line, amount in counted)


def _use(line: Quota, state: LineState, amount: int, over_by: int) -> QuotaUse:
    """One limit with so much more in use, which is `over_by` more than it allows."""
    after = state.used + amount
    above_soft = line.soft is not None and after > line.soft
    above_hard = over_by > 0 or (line.hard is not None and after > line.hard)
    return QuotaUse(
        line_id=line.pk,
        owner=line.owner,
        resource=line.resource,
        gpu_model=line.gpu_model,
        job_type=line.job_type,
        label=str(line.get_resource_display()),
        used=state.used,
        after=after,
        nominal=line.nominal,
        soft=line.soft,
        hard=line.hard,
        bound=state.bound,
        enforce=line.enforce,
        passed="hard" if above_hard else "soft" if above_soft else "",
        refuses=over_by > 0,
        over_by=over_by,
        over=state.over,
        text=_text(line, over_by, state.bound is None or after <= state.bound),
    )


def _devices(spec: JobSpec, start: Start | None, snapshot: Snapshot) -> Counter[str]:
    """Thousandths of GPUs by model that it would hold."""
    held: Counter[str] = Counter()
    if start is None:
        if spec.gpu_model:
            held[spec.gpu_model] = spec.per_task.gpu_millis_charged * spec.least_tasks
        return held
    model = dict(zip(snapshot.devices.id.tolist(), snapshot.devices.model, strict=True))
    for placement in start.placements:
        for device in placement.device_ids:
            held[model[device]] += placement.gpu_millis
    return held


def _text(line: Quota, over_by: int, is_kept: bool) -> str:
    """`mia in project vision: 2 GPUs exceeds the limit.`"""
    if not over_by or over_by >= UNBOUNDED >> 1:
        return ""
    why = "exceeds what is left: some is reserved for others" if is_kept else "exceeds the limit"
    return f"{line.owner}: {shown(line.resource, over_by)} {why}."
