"""Rows of jobs to columns: who waits, who runs, and the class of what each asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from django.conf import settings

from quotas.core.gpu_models import sliced
from quotas.core.resources import Resources
from scheduler.core.columns import Ints
from scheduler.core.snapshot.request_classes import (
    OWN_ARRAY,
    ClassTable,
    JobsLike,
    JobTerm,
    Preference,
    RequestClass,
    Requirement,
    TaskTerm,
    Toleration,
    request_class,
)
from scheduler.core.snapshot.snapshot import JobGate, PendingColumns, RunningColumns
from scheduler.state.db.sql import Rows, run
from scheduler.state.load import load_sql
from scheduler.state.load.node_rows import labels_of


def pending_columns(
    rows: Rows, table: ClassTable, *, now_ms: int, ageing: Sequence[tuple[int, int]] = ()
) -> tuple[PendingColumns, Ints]:
    """Columns of pending jobs from rows of `queries.PENDING`, and what each of them was last told."""
    if not rows:
        return PendingColumns(), np.zeros(0, dtype=np.int64)
    columns = list(zip(*rows, strict=True))
    plain = dict(zip(load_sql.PENDING_COLUMNS, columns[: len(load_sql.PENDING_COLUMNS)], strict=True))
    told, begin_ms, may_run, boost = columns[
        len(load_sql.PENDING_COLUMNS) : len(load_sql.PENDING_COLUMNS) + 4
    ]
    eligible, begin = np.array(plain["eligible_ms"], dtype=np.int64), np.array(begin_ms, dtype=np.int64)
    gate = np.zeros(len(rows), dtype=np.int64)
    gate[(eligible > begin) & (eligible > now_ms)] = JobGate.BACKOFF
    gate[~np.array(may_run, dtype=np.bool_)] = JobGate.ACCOUNT_EXPIRED
    plain["eligible_ms"] = np.maximum(eligible, begin)
    plain["priority"] = _effective(plain, np.array(boost, dtype=np.int64), ageing, now_ms)
    plain["class_index"] = _class_numbers(columns[-load_sql.CLASS_WIDTH :], table)
    plain["gate"] = gate
    return PendingColumns(**plain), np.array(told, dtype=np.int64)


def _effective(jobs: Mapping[str, Any], boost: Ints, ageing: Sequence[tuple[int, int]], now_ms: int) -> Ints:
    """Priorities with what boosts and the ageing of their class add, by which jobs take turns and stop others.

    Neither leads above PRIORITY_BOOST_CAP; who asked for more, within the ceiling granted, keeps that.
    """
    own = np.array(jobs["priority"], dtype=np.int64)
    added = boost
    if ageing:
        begins, millis = np.array(ageing, dtype=np.int64).T
        place = np.searchsorted(begins, own, side="right") - 1
        rate = np.where(place >= 0, millis[np.maximum(place, 0)], 0)
        since = np.maximum(np.array(jobs["submitted_ms"], dtype=np.int64), jobs["eligible_ms"])
        added = added + rate * np.maximum(now_ms - since, 0) // 3_600_000_000
    if not added.any():
        return own
    return np.maximum(own, np.minimum(own + added, min(settings.PRIORITY_BOOST_CAP, 100)))


def running_columns(rows: Rows, table: ClassTable) -> RunningColumns:
    if not rows:
        return RunningColumns()
    columns = list(zip(*rows, strict=True))
    plain = dict(zip(load_sql.RUNNING_COLUMNS, columns[: len(load_sql.RUNNING_COLUMNS)], strict=True))
    return RunningColumns(**plain, class_index=_class_numbers(columns[-load_sql.CLASS_WIDTH :], table))


def named(
    pending: PendingColumns, running: RunningColumns, table: ClassTable, project_ids: Sequence[int]
) -> tuple[PendingColumns, RunningColumns]:
    """The jobs with their names and labels, where some job of their project has terms about others."""
    choosy = np.array([bool(request.job_terms) for request in table.classes], dtype=np.bool_)
    if not choosy.any() and not project_ids:
        return pending, running
    projects = set(project_ids)
    for jobs in (pending, running):
        projects |= set(jobs.project_id[choosy[jobs.class_index]].tolist() if len(choosy) else ())
    numbers = [*pending.id.tolist(), *running.id.tolist()]
    rows = run(load_sql.NAMES, [numbers, sorted(projects)])
    names = {number: (name, labels_of(labels)) for number, name, labels in rows}
    nameless = ("", ())
    return tuple(  # type: ignore[return-value]
        replace(
            jobs,
            name=tuple(names.get(number, nameless)[0] for number in jobs.id.tolist()),
            labels=tuple(names.get(number, nameless)[1] for number in jobs.id.tolist()),
        )
        for jobs in (pending, running)
    )


def _class_numbers(columns: Rows, table: ClassTable) -> Ints:
    """The class of each row. Thousands of jobs ask the same, so each distinct request is read once."""
    numbers: dict[tuple[Any, ...], int] = {}
    found = []
    for key in zip(*columns, strict=True):
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = table.intern(class_of_row(*key))
        found.append(number)
    return np.array(found, dtype=np.int64)


def class_of_row(
    cpu_millis: int, memory_mib: int, storage_mib: int, gpus: int, gpu_millis: int, gpu_model: str, gpu_slice: str,
    cpu_limit_millis: int, memory_limit_mib: int, one_domain: bool,
    extras: str, node_selector: str, tolerations: str, affinity: str,
) -> RequestClass:  # fmt: skip
    """The request class of a job's columns; the last four are JSON."""
    return class_of_request(
        Resources(
            cpu_millis=cpu_millis,
            memory_mib=memory_mib,
            gpus=gpus,
            gpu_millis=gpu_millis,
            storage_mib=storage_mib,
            extras=tuple(sorted((name, int(amount)) for name, amount in json.loads(extras).items())),
        ),
        gpu_model=sliced(gpu_model, gpu_slice),
        node_selector=json.loads(node_selector),
        tolerations=json.loads(tolerations),
        affinity=json.loads(affinity),
        cpu_limit_millis=cpu_limit_millis,
        memory_limit_mib=memory_limit_mib,
        one_domain=one_domain,
    )


def class_of_request(
    per_task: Resources,
    *,
    gpu_model: str,
    node_selector: Mapping[str, str],
    tolerations: Iterable[Mapping[str, str]],
    affinity: Mapping[str, Any],
    cpu_limit_millis: int = 0,
    memory_limit_mib: int = 0,
    one_domain: bool = False,
) -> RequestClass:
    """The class of what a job's columns hold."""
    return request_class(
        per_task,
        gpu_model=gpu_model,
        node_selector=[(str(key), str(value)) for key, value in node_selector.items()],
        tolerations=[
            Toleration(
                key=t.get("key") or "",
                operator=t.get("operator") or "Equal",
                value=t.get("value") or "",
                effect=t.get("effect") or "",
                seconds=int(t.get("seconds", -1)),
            )
            for t in tolerations
        ],
        required_affinity=[
            [
                Requirement(r["key"], r.get("operator") or "In", tuple(str(v) for v in r.get("values") or ()))
                for r in term
            ]
            for term in affinity.get("required") or ()
        ],
        preferred_affinity=[
            Preference(
                int(wish["weight"]),
                tuple(
                    Requirement(
                        r["key"], r.get("operator") or "In", tuple(str(v) for v in r.get("values") or ())
                    )
                    for r in wish["requirements"]
                ),
            )
            for wish in affinity.get("preferred") or ()
        ],
        job_terms=[
            JobTerm(
                topology=term["topology_key"],
                jobs=JobsLike(
                    labels=tuple(sorted((str(k), str(v)) for k, v in (term.get("labels") or {}).items())),
                    name=term.get("name") or "",
                    array_id=_array_number(term.get("array") or ""),
                ),
                apart=bool(term.get("apart")),
                weight=int(term.get("weight") or 0),
            )
            for term in affinity.get("jobs") or ()
        ],
        task_term=_task_term(affinity.get("tasks")),
        cpu_limit_millis=cpu_limit_millis,
        memory_limit_mib=memory_limit_mib,
        one_domain=one_domain,
    )


def _array_number(text: str) -> int:
    """The number that stands for an array (`queries._ARRAY`): the lower half of its UUID."""
    return OWN_ARRAY if text == "own" else int(text.replace("-", "")[-15:], 16) if text else 0


def _task_term(words: Mapping[str, Any] | None) -> TaskTerm | None:
    if not words:
        return None
    return TaskTerm(
        topology=words["topology_key"],
        least=int(words.get("least") or 1),
        most=int(words.get("most") or 0),
        per_domain=int(words.get("per_domain") or 0),
        soft=bool(words.get("soft")),
    )
