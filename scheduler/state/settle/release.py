"""What attempts hold goes back to nodes, devices and quota lines, once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask
from quotas.core.limits import RUNNING_JOBS
from quotas.selectors.fair_share_source import Held
from quotas.services.shares import count_use
from scheduler import outbox
from scheduler.core.lifecycle import TaskFailure
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import Statement, int_array, run, run_together
from scheduler.state.load.quota_rows import Lines, amount_held
from scheduler.state.settle.locked_attempts import OF_ATTEMPTS, AttemptRow, lock_and_read
from scheduler.state.settle.release_capacity import giving_back


@transaction.atomic
def release_ended_tasks(attempt_ids: Iterable[int], *, at: datetime | None = None) -> int:
    """Release what ended tasks hold of attempts that go on without them; answers of how many attempts.

    Locks, and is safe to call again, as `settle_many`. The ledger counts it when the attempt ends.
    """
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return 0
    locked = lock_and_read(wanted)
    at = at or timezone.now()
    attempts = [attempt for attempt in locked.live if attempt.may_go_on_smaller]
    rows = ask(RELEASE.sql(which=_OF_ENDED_TASKS), parameters(attempts, at))
    released = released_by(attempts, RELEASE.read(rows))
    some = [attempt for attempt in attempts if released.of_attempts[attempt.id].anything]
    if some:
        run_together(
            *released.statements(), *quota_statements(some, released.of_attempts, locked.lines, jobs=0)
        )
        count_use(released.spans)
        outbox.announce_jobs(some, outbox.CLUSTER_TOPIC)
        for cluster_id in sorted({attempt.cluster_id for attempt in some}):
            outbox.wake_planner(cluster_id, trigger="ended")
    return len(some)


def attempts_with_ended_tasks() -> list[int]:
    """Live attempts that go on, with ended tasks that hold something: of processes killed before they released it,
    and of attempts that had nothing to release it for before."""
    return [
        row[0]
        for row in run(
            "SELECT DISTINCT a.id FROM scheduler_attempt a JOIN scheduler_jobrequest r ON r.number = a.job_id"
            " JOIN scheduler_task t ON t.attempt_id = a.id AND t.held_at IS NOT NULL AND t.released_at IS NULL"
            " WHERE a.is_live AND NOT t.is_live AND (r.elastic OR r.on_task_failure = %s)"
            " ORDER BY a.id",
            [TaskFailure.CONTINUE.value],
        )
    ]


# ------------------------------------------------------------------ allocations


class ReleasedRow(NamedTuple):
    """An allocation that is held no more, and from when to when it was (epoch seconds)."""

    attempt_id: int
    node_id: int
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    gpu_millis: int
    device_ids: list[int]
    start: float
    end: float
    suspended_cpu_millis: int


#: `ReleasedRow` of a row of tasks called `held`.
RELEASED: Final = {
    "attempt_id": "held.attempt_id",
    "node_id": "held.node_id",
    "cpu_millis": "held.cpu_millis",
    "memory_mib": "held.memory_mib",
    "storage_mib": "held.storage_mib",
    "gpu_millis": "held.gpu_millis",
    "device_ids": "held.device_ids",
    "start": "extract(epoch FROM held.held_at)::float8",
    "end": "extract(epoch FROM held.released_at)::float8",
    "suspended_cpu_millis": "held.suspended_cpu_millis",
}
#: Releases what tasks hold once: all of these attempts, or those of them that have ended.
RELEASE: Final = RowQuery(
    ReleasedRow,
    RELEASED,
    f"""UPDATE scheduler_task held SET released_at = greatest(%s, held.held_at)
WHERE held.attempt_id = {OF_ATTEMPTS} AND held.held_at IS NOT NULL AND held.released_at IS NULL {{which}}
RETURNING {{columns}}""",
)
_OF_ENDED_TASKS: Final = "AND NOT held.is_live"


def parameters(attempts: Iterable[AttemptRow], at: datetime) -> list[Any]:
    """The parameters of `RELEASE` for these attempts."""
    return [at, int_array(attempt.id for attempt in attempts)]


@dataclass(slots=True)
class Amounts:
    """What one attempt or one node is released of; of an attempt also by device."""

    cpu_millis: int = 0
    memory_mib: int = 0
    storage_mib: int = 0
    gpu_millis: int = 0
    devices: Counter[int] = field(default_factory=Counter)

    def add(self, row: ReleasedRow) -> None:
        self.cpu_millis += row.cpu_millis
        self.memory_mib += row.memory_mib
        self.storage_mib += row.storage_mib
        self.gpu_millis += row.gpu_millis
        for device_id in row.device_ids:
            self.devices[device_id] += row.gpu_millis // len(row.device_ids)

    @property
    def anything(self) -> bool:
        return bool(self.cpu_millis or self.memory_mib or self.storage_mib or self.gpu_millis or self.devices)


_NODES: Final[ParameterRows[tuple[int, Amounts]]] = ParameterRows(
    "less",
    {
        "id": ("bigint", lambda row: row[0]),
        "cpu": ("bigint", lambda row: row[1].cpu_millis),
        "memory": ("bigint", lambda row: row[1].memory_mib),
        "storage": ("bigint", lambda row: row[1].storage_mib),
        "gpu": ("bigint", lambda row: row[1].gpu_millis),
    },
)
_LOWER_NODES: Final = (
    f"UPDATE scheduler_node n SET {giving_back('cpu', 'less.cpu')}, {giving_back('memory', 'less.memory')},"
    " used_storage_mib = n.used_storage_mib - less.storage, used_gpu_millis = n.used_gpu_millis - less.gpu"
    f" FROM {_NODES.source} WHERE n.id = less.id"
)
_LOWER_DEVICES: Final = (
    "UPDATE scheduler_device d SET used_millis = d.used_millis - less.millis"
    " FROM unnest(%s::bigint[], %s::int[]) AS less(id, millis) WHERE d.id = less.id"
)


@dataclass(frozen=True, slots=True)
class Released:
    """What was released: by attempt, by node, and by task for how long it was held."""

    of_attempts: Mapping[int, Amounts]
    of_nodes: Mapping[int, Amounts]
    spans: Sequence[Held]

    def statements(self) -> list[Statement]:
        """What lowers the counters of nodes and devices."""
        devices: Counter[int] = Counter()
        for amounts in self.of_attempts.values():
            devices.update(amounts.devices)
        found: list[Statement] = []
        if self.of_nodes:
            found.append((_LOWER_NODES, _NODES.parameters(self.of_nodes.items())))
        if devices:
            found.append((_LOWER_DEVICES, [int_array(devices), int_array(devices.values())]))
        return found


def released_by(attempts: Sequence[AttemptRow], rows: Iterable[ReleasedRow]) -> Released:
    """Add up what `RELEASE` released of these attempts."""
    owner = {attempt.id: attempt for attempt in attempts}
    suspensions = _suspensions([attempt.id for attempt in attempts if attempt.was_suspended])
    of_attempts = {attempt.id: Amounts() for attempt in attempts}
    of_nodes: defaultdict[int, Amounts] = defaultdict(Amounts)
    spans: list[Held] = []
    for row in rows:
        of_attempts[row.attempt_id].add(row)
        of_nodes[row.node_id].add(row)
        spans += _spans(row, owner[row.attempt_id], suspensions.get(row.attempt_id, ()))
    return Released(of_attempts, of_nodes, spans)


def _spans(
    row: ReleasedRow, attempt: AttemptRow, suspensions: Iterable[tuple[float, float | None]]
) -> list[Held]:
    """What a task held for how long; its CPUs taken off again for the time in which they were suspended."""
    cores = (row.cpu_millis + row.suspended_cpu_millis) / 1000
    held = Held(
        attempt.project_id, attempt.user_id, row.start, row.end,
        gpus=row.gpu_millis / 1000, cores=cores, memory_gib=row.memory_mib / 1024,
    )  # fmt: skip
    spans = [held]
    for since, until in suspensions:
        end = min(until or row.end, row.end)
        if since < end:
            spans.append(
                Held(attempt.project_id, attempt.user_id, since, end, gpus=0, cores=-cores, memory_gib=0)
            )
    return spans


def _suspensions(attempt_ids: list[int]) -> dict[int, list[tuple[float, float | None]]]:
    """When attempts were suspended, in epoch seconds; the end of a suspension that lasts is None."""
    found: dict[int, list[tuple[float, float | None]]] = defaultdict(list)
    if not attempt_ids:
        return found
    for attempt_id, start, end in run(
        "SELECT attempt_id, extract(epoch FROM starts_at)::float8, extract(epoch FROM ends_at)::float8"
        " FROM scheduler_suspension WHERE attempt_id = ANY(%s) AND starts_at IS NOT NULL ORDER BY id",
        [attempt_ids],
    ):
        found[attempt_id].append((start, end))
    return found


def end_suspensions(attempt_ids: list[int], at: datetime) -> None:
    """End the suspensions of these attempts, before what they hold is released."""
    if not attempt_ids:
        return
    run(
        "UPDATE scheduler_suspension SET ends_at = greatest(%s, starts_at)"
        " WHERE attempt_id = ANY(%s) AND starts_at IS NOT NULL AND ends_at IS NULL",
        [at, attempt_ids],
    )


# ------------------------------------------------------------------ quota lines


def quota_statements(
    attempts: Iterable[AttemptRow], released: Mapping[int, Amounts], lines: Lines, *, jobs: int = 1
) -> list[Statement]:
    """What lowers the counters of quota lines; `jobs` is what each attempt counts for as a running job."""
    models = _models_of(released.values()) if lines.has_models else {}
    less: Counter[int] = Counter()
    for attempt in attempts:
        amounts = released[attempt.id]
        by_model: Counter[str] = Counter()
        for device, millis in amounts.devices.items():
            by_model[models.get(device, "")] += millis
        for row in lines.of_job(attempt.project_id, attempt.user_id, attempt.job_type):
            less[row.id] += jobs if row.resource == RUNNING_JOBS else amount_held(row, amounts, by_model)
    if not any(less.values()):
        return []
    return [
        (
            # A line made while the job ran did not count it: it never goes below nothing.
            "UPDATE quotas_quota q SET used = greatest(0, q.used - l.amount)"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS l(id, amount) WHERE q.id = l.id AND l.amount > 0",
            [int_array(less), int_array(less.values())],
        )
    ]


def _models_of(released: Iterable[Amounts]) -> dict[int, str]:
    """The model of each device that was released."""
    devices = sorted({device for amounts in released for device in amounts.devices})
    return dict(run("SELECT id, model FROM scheduler_device WHERE id = ANY(%s)", [devices]))
