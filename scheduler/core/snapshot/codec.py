"""Codec: snapshots, policies and plans to canonical bytes and back, to record a cycle and replay it.

Layout: magic, then zlib over (header length, header, columns). The header is JSON with sorted keys; a column
of numbers is its values little-endian in the smallest width that holds them, or the steps from each to the next
where many numbers lie close to the one before, as those of jobs do; other columns are JSON.
Equal values give equal bytes on one build of zlib; `digest` does not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import MISSING, asdict, astuple, fields, replace
from typing import Any, Final, TypeVar

import numpy as np

from quotas.core.resources import NAMES, Resources
from scheduler.core.adaptive.reading import read_rule
from scheduler.core.adaptive.rules import Adaptive, Ordering
from scheduler.core.columns import Columns
from scheduler.core.plan import (
    Decision,
    ExpectedStart,
    FilterCount,
    GiveBack,
    Placement,
    Plan,
    Preempt,
    Reserve,
    Resize,
    Resume,
    Start,
    WaitingColumns,
)
from scheduler.core.policy import Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.constraints import (
    JobSelector,
    JobTerm,
    Preference,
    Requirement,
    Taint,
    TaskTerm,
    Toleration,
)
from scheduler.core.snapshot.delta import changed, difference, with_classes
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import GROUPS, LATER_GROUPS, Snapshot

#: Raised when a reader of the old version could no longer tell what was meant. A new column with a
#: default does not raise it: old recordings are read with the default.
VERSION: Final = 3

_MAGIC: Final = b"MUSTER\x00\x01"
_LEVEL: Final = 1  # 100,000 jobs in tens of milliseconds; higher levels save little on narrow columns
_TYPES: Final = ("<i1", "<i2", "<i4", "<i8")
#: Before the type of a column that is written as steps.
_STEPS: Final = "+"
#: Columns of at least this length may be written as steps.
_STEPS_FROM: Final = 4096
_LARGEST: Final = 1 << 30  # bytes a recording may unpack to

#: Words of a request class that are written only where a job says them.
_LATER_WORDS: Final = ("cpu_limit_millis", "memory_limit_mib", "one_domain", "features")

_C = TypeVar("_C", bound=Columns)


class CodecError(ValueError):
    """Bytes that are not a recording of this kind and version."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _pack(_snapshot_bytes(snapshot))


def decode_snapshot(data: bytes) -> Snapshot:
    header, blobs = _open(data, "snapshot")
    try:
        groups: dict[str, Any] = {}
        types = {field.name: field.default_factory for field in fields(Snapshot)}
        for name in GROUPS:
            factory = types[name]
            assert factory is not MISSING
            groups[name] = _read_columns(type(factory()), header["groups"].get(name, {}), blobs)
        snapshot = Snapshot(
            now_ms=header["now_ms"], classes=tuple(_class_from(row) for row in header["classes"]), **groups
        )
        snapshot.check_references()
    except (KeyError, TypeError, ValueError, IndexError) as broken:
        raise CodecError(f"not a whole snapshot: {broken}") from broken
    return snapshot


def encode_delta(base: Snapshot, snapshot: Snapshot) -> bytes:
    """What makes `base` this snapshot: classes and moment whole, of each group the rows that are gone or other."""
    base = with_classes(base, snapshot.classes)
    blobs: list[bytes] = []
    groups: dict[str, Any] = {}
    for name in GROUPS:
        before, after = getattr(base, name), getattr(snapshot, name)
        gone, rows = difference(before, after)
        if len(gone) or len(rows):
            groups[name] = {"gone": gone.tolist(), "rows": _write_columns(rows, blobs)}
    header = {
        "kind": "delta",
        "version": VERSION,
        "now_ms": snapshot.now_ms,
        "classes": [_class_row(request) for request in snapshot.classes],
        "groups": groups,
    }
    return _pack(_frame(header, blobs))


def decode_delta(base: Snapshot, data: bytes) -> Snapshot:
    """The snapshot that `encode_delta` was given with this base."""
    header, blobs = _open(data, "delta")
    try:
        whole = with_classes(base, tuple(_class_from(row) for row in header["classes"]))
        groups = {}
        for name, said in header["groups"].items():
            before = getattr(whole, name)
            rows = _read_columns(type(before), said["rows"], blobs)
            groups[name] = changed(before, np.array(said["gone"], dtype=np.int64), rows)
        snapshot = replace(whole, now_ms=header["now_ms"], **groups)
        snapshot.check_references()
    except (KeyError, TypeError, ValueError, IndexError) as broken:
        raise CodecError(f"not a delta of this snapshot: {broken}") from broken
    return snapshot


def encode_policy(policy: Policy) -> bytes:
    return _pack(_frame({"kind": "policy", "version": VERSION, "policy": _policy_words(policy)}, []))


def decode_policy(data: bytes) -> Policy:
    header, _ = _open(data, "policy")
    try:
        return _policy_from(header["policy"])
    except (KeyError, TypeError, ValueError) as broken:
        raise CodecError(f"not a whole policy: {broken}") from broken


def _policy_words(policy: Policy) -> dict[str, Any]:
    """Rules are left out where there are none, as in recordings from before there were any."""
    words = asdict(replace(policy, adaptive=None, queues=()))
    del words["adaptive"]
    words["queues"] = [[queue_id, _policy_words(own)] for queue_id, own in policy.queues]
    if policy.adaptive is not None:
        rules = [rule.as_dict() for rule in policy.adaptive.rules]
        words["adaptive"] = {**asdict(policy.adaptive), "rules": rules}
    return words


def _policy_from(written: dict[str, Any]) -> Policy:
    words = {name: _tuples(value) for name, value in written.items()}
    words["preemption"] = PreemptionPolicy(
        **{k: _tuples(value) for k, value in written["preemption"].items()}
    )
    words["queues"] = tuple((queue_id, _policy_from(own)) for queue_id, own in written.get("queues", ()))
    if adaptive := written.get("adaptive"):
        own = Ordering(**{name: _tuples(value) for name, value in adaptive["own"].items()})
        rules = tuple(read_rule(rule) for rule in adaptive["rules"])
        words["adaptive"] = Adaptive(**{**adaptive, "own": own, "rules": rules})
    return Policy(**words)


def encode_plan(plan: Plan) -> bytes:
    return _pack(_plan_bytes(plan))


def decode_plan(data: bytes) -> Plan:
    header, blobs = _open(data, "plan")
    try:
        return Plan(
            starts=tuple(_start_from(row) for row in header["starts"]),
            waiting=_read_columns(WaitingColumns, header["waiting"], blobs),
            decisions=tuple(_decision_from(row) for row in header["decisions"]),
            preempts=tuple(Preempt(*map(_tuples, row)) for row in header["preempts"]),
            expected=tuple(
                ExpectedStart(job, at_ms, tuple(nodes)) for job, at_ms, nodes in header["expected"]
            ),
            reserves=tuple(
                Reserve(job, generation, tuple(nodes), until_ms)
                for job, generation, nodes, until_ms in header.get("reserves", ())
            ),
            given_back=tuple(GiveBack(*row) for row in header.get("given_back", ())),
            resizes=tuple(Resize(*map(_tuples, row)) for row in header.get("resizes", ())),
            resumes=tuple(Resume(*row) for row in header.get("resumes", ())),
        )
    except (KeyError, TypeError, ValueError, IndexError) as broken:
        raise CodecError(f"not a whole plan: {broken}") from broken


def digest(value: Snapshot | Plan) -> str:
    """SHA-256 of the canonical form: equal for equal values on every machine."""
    raw = _snapshot_bytes(value) if isinstance(value, Snapshot) else _plan_bytes(value)
    return hashlib.sha256(raw).hexdigest()


def _snapshot_bytes(snapshot: Snapshot) -> bytes:
    blobs: list[bytes] = []
    header = {
        "kind": "snapshot",
        "version": VERSION,
        "now_ms": snapshot.now_ms,
        "classes": [_class_row(request) for request in snapshot.classes],
        "groups": {
            name: _write_columns(getattr(snapshot, name), blobs)
            for name in GROUPS
            if name not in LATER_GROUPS or len(getattr(snapshot, name))
        },
    }
    return _frame(header, blobs)


def _plan_bytes(plan: Plan) -> bytes:
    blobs: list[bytes] = []
    header = {
        "kind": "plan",
        "version": VERSION,
        "starts": [_start_row(start) for start in plan.starts],
        "decisions": [
            [d.reason.value, d.facts, d.nodes, [[g.gate, g.first, g.alone] for g in d.gates]]
            for d in plan.decisions
        ],
        "waiting": _write_columns(plan.waiting, blobs),
        "preempts": [_preempt_row(preempt) for preempt in plan.preempts],
        "expected": [[one.job_id, one.at_ms, list(one.node_ids)] for one in plan.expected],
    }
    # Left out where there are none, as in plans that were recorded before there were any.
    if plan.reserves:
        header["reserves"] = [[r.job_id, r.generation, list(r.node_ids), r.until_ms] for r in plan.reserves]
    if plan.given_back:
        header["given_back"] = [list(astuple(one)) for one in plan.given_back]
    if plan.resizes:
        header["resizes"] = [_plain(astuple(one)) for one in plan.resizes]
    if plan.resumes:
        header["resumes"] = [list(astuple(one)) for one in plan.resumes]
    return _frame(header, blobs)


# Frames.


def _frame(header: dict[str, Any], blobs: list[bytes]) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join([struct.pack("<I", len(text)), text, *blobs])


def _pack(raw: bytes) -> bytes:
    return _MAGIC + zlib.compress(raw, _LEVEL)


def _open(data: bytes, kind: str) -> tuple[dict[str, Any], memoryview]:
    if not data.startswith(_MAGIC):
        raise CodecError("not a recording")
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(data[len(_MAGIC) :], _LARGEST)
        if not unpacker.eof:
            raise CodecError("the recording is cut short, or larger than any cycle")
        (length,) = struct.unpack_from("<I", raw)
        header: dict[str, Any] = json.loads(raw[4 : 4 + length])
    except (zlib.error, struct.error, ValueError) as broken:
        raise CodecError(f"the recording is damaged: {broken}") from broken
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise CodecError(f"a recording, but not of a {kind}")
    if header.get("version") != VERSION:
        raise CodecError(f"version {header.get('version')} of the recording; this program reads {VERSION}")
    return header, memoryview(raw)[4 + length :]


def _write_columns(table: Columns, blobs: list[bytes]) -> dict[str, Any]:
    """Describe each column in the header; numbers go to the blobs, at the offset the header tells."""
    described: dict[str, Any] = {}
    offset = sum(map(len, blobs))
    for column in fields(table):
        value = getattr(table, column.name)
        if isinstance(value, np.ndarray):
            words, blob = _write_numbers(value)
            described[column.name] = [words[0], offset, len(value), *words[1:]]
            blobs.append(blob)
            offset += len(blob)
        else:
            alike = value and value.count(value[0]) == len(value)
            described[column.name] = (
                [_plain(value[0])] * len(value) if alike else [_plain(item) for item in value]
            )
    return described


def _read_columns(table: type[_C], described: dict[str, Any], blobs: memoryview) -> _C:
    words: dict[str, Any] = {}
    for column in fields(table):
        if column.name not in described:
            continue  # a column younger than the recording: its default
        value = described[column.name]
        if column.metadata["kind"] == "objects":
            item = _taints if column.name == "taints" else _tuples
            words[column.name] = tuple(item(one) for one in value)
        else:
            words[column.name] = _read_numbers(column.name, value, blobs)
    return table(**words)


def _write_numbers(column: np.ndarray[Any, Any]) -> tuple[list[Any], bytes]:
    """What the header says of a column beside its place, and its bytes."""
    kind = _narrowest(column)
    if len(column) >= _STEPS_FROM and kind != "|b1":
        steps = np.diff(column, prepend=column[:1])
        narrower = _narrowest(steps)
        if np.dtype(narrower).itemsize < np.dtype(kind).itemsize:
            return [_STEPS + narrower, column.item(0)], steps.astype(narrower).tobytes()
    return [kind], column.astype(kind).tobytes()


def _read_numbers(name: str, described: list[Any], blobs: memoryview) -> np.ndarray[Any, Any]:
    kind, offset, count = described[:3]
    is_steps = kind.startswith(_STEPS)
    kind = kind.removeprefix(_STEPS)
    if kind not in (*_TYPES, "|b1"):
        raise CodecError(f"{name} has the type {kind}")
    numbers: np.ndarray[Any, Any] = np.frombuffer(blobs, dtype=kind, count=count, offset=offset)
    return np.cumsum(numbers, dtype=np.int64) + int(described[3]) if is_steps else numbers


def _narrowest(column: np.ndarray[Any, Any]) -> str:
    if column.dtype == np.bool_:
        return "|b1"
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    return next(kind for kind in _TYPES if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)


# Values.


def _plain(value: Any) -> Any:
    if isinstance(value, Taint):
        return [value.key, value.value, value.effect, *([value.since_ms] if value.since_ms else [])]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _taints(value: list[list[Any]]) -> tuple[Taint, ...]:
    return tuple(Taint(*row) for row in value)


def _resources_row(resources: Resources) -> list[Any]:
    return [*(getattr(resources, name) for name in NAMES), [list(extra) for extra in resources.extras]]


def _resources_from(row: list[Any]) -> Resources:
    cpu, memory, gpus, gpu_millis, storage, extras = row
    return Resources(cpu, memory, gpus, gpu_millis, storage, _tuples(extras))


def _class_row(request: RequestClass) -> dict[str, Any]:
    return {
        "per_task": _resources_row(request.per_task),
        "gpu_model": request.gpu_model,
        "gpu_memory_mib": request.gpu_memory_mib,
        "node_selector": [list(pair) for pair in request.node_selector],
        "tolerations": [
            [t.key, t.operator, t.value, t.effect, *([t.seconds] if t.seconds >= 0 else [])]
            for t in request.tolerations
        ],
        "required_affinity": [
            [[r.key, r.operator, list(r.values)] for r in t] for t in request.required_affinity
        ],
        "partition_ids": list(request.partition_ids),
        "preferred_affinity": [
            [wish.weight, [[r.key, r.operator, list(r.values)] for r in wish.requirements]]
            for wish in request.preferred_affinity
        ],
        "job_terms": [
            [
                t.topology,
                [[list(pair) for pair in t.jobs.labels], t.jobs.name, t.jobs.array_id],
                t.apart,
                t.weight,
            ]
            for t in request.job_terms
        ],
        "task_term": list(astuple(request.task_term)) if request.task_term else None,
        # Left out where there are none, as in recordings from before there were any.
        **{name: getattr(request, name) for name in _LATER_WORDS if getattr(request, name)},
    }


def _class_from(row: dict[str, Any]) -> RequestClass:
    return RequestClass(
        per_task=_resources_from(row["per_task"]),
        gpu_model=row["gpu_model"],
        gpu_memory_mib=row["gpu_memory_mib"],
        node_selector=_tuples(row["node_selector"]),
        tolerations=tuple(Toleration(*words) for words in row["tolerations"]),
        required_affinity=tuple(
            tuple(Requirement(key, operator, tuple(values)) for key, operator, values in term)
            for term in row["required_affinity"]
        ),
        partition_ids=tuple(row["partition_ids"]),
        preferred_affinity=tuple(
            Preference(
                weight, tuple(Requirement(key, operator, tuple(values)) for key, operator, values in term)
            )
            for weight, term in row.get("preferred_affinity", ())
        ),
        job_terms=tuple(
            JobTerm(topology, JobSelector(_tuples(labels), name, array_id), apart, weight)
            for topology, (labels, name, array_id), apart, weight in row.get("job_terms", ())
        ),
        task_term=TaskTerm(*row["task_term"]) if row.get("task_term") else None,
        **{name: row[name] for name in _LATER_WORDS if name in row},
    )


def _start_row(start: Start) -> list[Any]:
    placements = [[p.rank, p.node_id, list(p.device_ids), p.gpu_millis, p.numa] for p in start.placements]
    return [start.job_id, start.generation, start.queue_id, start.project_id, _resources_row(start.per_task),
            placements, [list(score) for score in start.scores]]  # fmt: skip


def _start_from(row: list[Any]) -> Start:
    job_id, generation, queue_id, project_id, per_task, placements, scores = row
    return Start(
        job_id=job_id,
        generation=generation,
        queue_id=queue_id,
        project_id=project_id,
        per_task=_resources_from(per_task),
        placements=tuple(
            Placement(r, n, tuple(devices), millis, numa) for r, n, devices, millis, numa in placements
        ),
        scores=_tuples(scores),
    )


def _preempt_row(preempt: Preempt) -> list[Any]:
    """What most are not, an eviction, a reclaim, a convergence or a suspension, or have not, is left out."""
    *row, node_id, taint, kind, line, mode, instead, strategy = astuple(preempt)
    if strategy:
        return [*row, node_id, list(taint), kind, line, mode, instead, [list(one) for one in strategy]]
    if mode != "requeue" or instead:
        return [*row, node_id, list(taint), kind, line, mode, instead]
    if kind != "preempt":
        return [*row, node_id, list(taint), kind, line]
    return [*row, node_id, list(taint)] if node_id else row


def _decision_from(row: list[Any]) -> Decision:
    reason, facts, nodes, gates = row
    return Decision(ReasonCode(reason), _tuples(facts), nodes, tuple(FilterCount(*gate) for gate in gates))
