"""What each job asks for, from its columns to a request class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from quotas.core.gpu_models import sliced
from quotas.core.resources import Resources
from scheduler.core.columns import Ints
from scheduler.core.snapshot.agent_features import FEATURES
from scheduler.core.snapshot.constraints import (
    NODE_NAME,
    OWN_ARRAY,
    JobSelector,
    JobTerm,
    Preference,
    Requirement,
    TaskTerm,
    Toleration,
)
from scheduler.core.snapshot.relaxation import names_of, with_relaxations
from scheduler.core.snapshot.request_classes import ClassTable, RequestClass, request_class
from scheduler.state.db.query import Table


class RequestRow(NamedTuple):
    """The columns of a job that make its request class; the last four are JSON."""

    cpu_millis: int
    memory_mib: int
    storage_mib: int
    gpus: int
    gpu_millis: int
    gpu_model: str
    gpu_slice: str
    cpu_limit_millis: int
    memory_limit_mib: int
    one_domain: bool
    features: int
    extras: str
    node_selector: str
    tolerations: str
    affinity: str


#: What says that a job needs a feature of the agent.
_SAYS: Final = {
    "secrets": "request.secrets <> '[]'",
    "checkpoints": "request.checkpoint <> jsonb_build_object()",
    "probes": "request.probes <> '[]'",
    "uploads": "request.upload IS NOT NULL",
    "artifacts": "request.artifacts <> '[]'",
    "output files": "request.output_path <> '' OR request.error_path <> ''",
    "signals": "request.limit_signal <> jsonb_build_object()",
}
#: The same of a row `request` and its row `job`, part of every query that reads jobs.
REQUEST_COLUMNS: Final = {
    "cpu_millis": "request.cpu_millis",
    "memory_mib": "request.memory_mib",
    "storage_mib": "request.storage_mib",
    "gpus": "request.gpus",
    "gpu_millis": "request.gpu_millis",
    "gpu_model": "request.gpu_model",
    "gpu_slice": "request.gpu_slice",
    "cpu_limit_millis": "coalesce(request.cpu_limit_millis, 0)",
    "memory_limit_mib": "coalesce(request.memory_limit_mib, 0)",
    "one_domain": "request.numa = 'one'",
    "features": " + ".join(f"({said})::int * {FEATURES[name]}" for name, said in _SAYS.items()),
    "extras": "request.extras::text",
    "node_selector": "request.node_selector::text",
    "tolerations": "request.tolerations::text",
    "affinity": """CASE WHEN job.move_terms IS NULL AND request.relax = '[]' THEN request.affinity::text
        ELSE (request.affinity || jsonb_build_object('move', job.move_terms, 'relax', request.relax,
            'relaxed', job.relaxed))::text END""",
}


def class_numbers(jobs: Table, classes: ClassTable) -> Ints:
    """The class of each row. Thousands of jobs ask the same, so each distinct request is read once."""
    numbers: dict[tuple[Any, ...], int] = {}
    found = []
    for request in zip(*(jobs[name] for name in RequestRow._fields), strict=True):
        number = numbers.get(request)
        if number is None:
            number = numbers[request] = classes.intern(class_of_row(RequestRow._make(request)))
        found.append(number)
    return np.array(found, dtype=np.int64)


def class_of_row(row: RequestRow) -> RequestClass:
    return class_of_request(
        Resources(
            cpu_millis=row.cpu_millis,
            memory_mib=row.memory_mib,
            gpus=row.gpus,
            gpu_millis=row.gpu_millis,
            storage_mib=row.storage_mib,
            extras=tuple(sorted((name, int(amount)) for name, amount in json.loads(row.extras).items())),
        ),
        gpu_model=sliced(row.gpu_model, row.gpu_slice),
        node_selector=json.loads(row.node_selector),
        tolerations=json.loads(row.tolerations),
        affinity=json.loads(row.affinity),
        cpu_limit_millis=row.cpu_limit_millis,
        memory_limit_mib=row.memory_limit_mib,
        one_domain=row.one_domain,
        features=row.features,
    )


def class_of_request(
    per_task: Resources,
    *,
    gpu_model: str,
    node_selector: Mapping[str, str],
    tolerations: Iterable[Mapping[str, Any]],
    affinity: Mapping[str, Any],
    cpu_limit_millis: int = 0,
    memory_limit_mib: int = 0,
    one_domain: bool = False,
    features: int = 0,
) -> RequestClass:
    """The class of a request in the form in which jobs store it.

    Of its affinity, `move` are the terms of a move, `relax` what it lets be relaxed, and `relaxed` what is by now.
    """
    request = request_class(
        per_task,
        gpu_model=gpu_model,
        node_selector=[(str(key), str(value)) for key, value in node_selector.items()],
        tolerations=[_toleration(words) for words in tolerations],
        required_affinity=[_requirements(term) for term in affinity.get("required") or ()],
        preferred_affinity=[
            Preference(int(wish["weight"]), tuple(_requirements(wish["requirements"])))
            for wish in affinity.get("preferred") or ()
        ],
        job_terms=[_job_term(words) for words in affinity.get("jobs") or ()],
        task_term=_task_term(affinity.get("tasks")),
        cpu_limit_millis=cpu_limit_millis,
        memory_limit_mib=memory_limit_mib,
        one_domain=one_domain,
        features=features,
    )
    return _moved(_relaxed(request, affinity), _Move.of(affinity.get("move") or {}))


def _relaxed(request: RequestClass, affinity: Mapping[str, Any]) -> RequestClass:
    """The request with what it lets be relaxed required, or relaxed."""
    relax = affinity.get("relax")
    if not relax:
        return request
    relaxed = affinity.get("relaxed") or ()
    kept = [name for name in names_of(relax) if name not in relaxed]
    return with_relaxations(request, kept=kept, relaxed=relaxed)


def _moved(request: RequestClass, move: _Move) -> RequestClass:
    """The request on the nodes of a move, whatever of it is relaxed."""
    own = move.terms()
    if not own:
        return request
    terms = [(*term, *own) for term in request.required_affinity or ((),)]
    return replace(request, required_affinity=tuple(tuple(sorted(set(term))) for term in terms))


class _Move(NamedTuple):
    """Where a job that is being moved may start: not on the nodes `leave`, and where `only` names some, only there."""

    leave: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> _Move:
        return cls(**{name: tuple(sorted(words.get(name) or ())) for name in cls._fields})

    def terms(self) -> list[Requirement]:
        """What every node has to meet."""
        own = [Requirement(NODE_NAME, "NotIn", self.leave)] if self.leave else []
        return own + ([Requirement(NODE_NAME, "In", self.only)] if self.only else [])


# ------------------------------------------------------------------ JSON of a job to terms of the core


def _toleration(words: Mapping[str, Any]) -> Toleration:
    return Toleration(
        key=words.get("key") or "",
        operator=words.get("operator") or "Equal",
        value=words.get("value") or "",
        effect=words.get("effect") or "",
        seconds=int(words.get("seconds", -1)),
    )


def _requirements(term: Iterable[Mapping[str, Any]]) -> list[Requirement]:
    return [
        Requirement(
            words["key"],
            words.get("operator") or "In",
            tuple(str(value) for value in words.get("values") or ()),
        )
        for words in term
    ]


def _job_term(words: Mapping[str, Any]) -> JobTerm:
    labels = words.get("labels") or {}
    return JobTerm(
        topology=words["topology_key"],
        jobs=JobSelector(
            labels=tuple(sorted((str(key), str(value)) for key, value in labels.items())),
            name=words.get("name") or "",
            array_id=_array_number(words.get("array") or ""),
        ),
        apart=bool(words.get("apart")),
        weight=int(words.get("weight") or 0),
    )


def _array_number(text: str) -> int:
    """The number of an array in snapshots (`job_rows.ARRAY_NUMBER`): the lower half of its UUID."""
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
