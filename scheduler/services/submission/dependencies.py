"""What new jobs wait for: other jobs, those of the same request among them, and data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from infra.errors import FieldProblem
from infra.request_cost import until_caller_gone
from scheduler.core.lifecycle import JobState
from scheduler.models import Dataset, DependencyKind, Job, JobDependency
from scheduler.services.submission.fields_dependencies import DependsOn, find_circle
from scheduler.services.submission.job_spec import JobSpec
from scheduler.state.lifecycle.arrays import ArrayEnds, array_holds, ends_of_arrays, open_elements
from scheduler.state.lifecycle.dependencies import (
    Condition,
    Other,
    Wait,
    conditions,
    conditions_of,
    holds,
    lock_data,
    lock_states,
    wait_reason,
)


def wrong_among_themselves(specs: Sequence[JobSpec | None]) -> list[tuple[int, FieldProblem]]:
    """What is wrong with the waits of jobs of one request for each other, by position."""
    named, found = _named(specs)
    found |= _in_circles(specs, named)
    _lost_with_others(specs, named, found)
    return sorted(found.items())


def _named(specs: Sequence[JobSpec | None]) -> tuple[dict[str, int], dict[int, FieldProblem]]:
    """The position of each ref; a ref that is given twice is a problem of the second."""
    named: dict[str, int] = {}
    found: dict[int, FieldProblem] = {}
    for number, spec in enumerate(specs):
        if spec is not None and spec.ref and named.setdefault(spec.ref, number) != number:
            found[number] = FieldProblem(
                f"jobs/{number}/ref", f"{spec.ref!r} is the ref of another job of this request.", "twice"
            )
    return named, found


def _in_circles(specs: Sequence[JobSpec | None], named: Mapping[str, int]) -> dict[int, FieldProblem]:
    """A problem for each job of the first circle of jobs that wait for each other."""
    circle = find_circle({ref: _refs_of(specs[number]) for ref, number in named.items()})
    said = " waits for ".join(circle)
    return {
        named[ref]: FieldProblem(
            f"jobs/{named[ref]}/depends_on", f"Circular dependency, so no job could start: {said}.", "circle"
        )
        for ref in set(circle)
    }


def _lost_with_others(
    specs: Sequence[JobSpec | None], named: Mapping[str, int], found: dict[int, FieldProblem]
) -> None:
    """Add to `found` each job that waits for one that is not taken; each wait is looked at once."""
    waiting: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        for ref in set(_refs_of(spec)):
            waiting.setdefault(ref, []).append(number)
    refs = {number: ref for ref, number in named.items()}
    lost = [ref for ref in waiting if ref not in named or named[ref] in found]
    while lost:
        ref = lost.pop()
        for number in waiting.get(ref, ()):
            if number in found:
                continue
            found[number] = FieldProblem(
                f"jobs/{number}/depends_on",
                f"No valid job of this request has the ref {ref!r}.",
                "not-found",
            )
            if number in refs:
                lost.append(refs[number])


def _refs_of(spec: JobSpec | None) -> list[str]:
    """The refs that a request waits for."""
    return [d.ref for d in spec.depends_on if d.ref] if spec is not None else []


@dataclass(frozen=True, slots=True)
class Others:
    """What jobs are about to wait for, as it stays until that is written: jobs, ready data by project, arrays."""

    jobs: Mapping[int, Other]
    ready: Collection[tuple[int, str]]
    arrays: Mapping[int, ArrayEnds]

    def satisfied(self, spec: JobSpec, d: DependsOn) -> bool | None:
        if d.kind == DependencyKind.DATA:
            return True if (spec.project.pk, d.name) in self.ready else None
        if d.is_array:
            return array_holds(d.kind, self.arrays[d.number])
        return None if d.ref else holds(d.kind, *self.jobs[d.number])

    def conditions(self, spec: JobSpec) -> list[Condition]:
        return conditions(
            (
                d.group,
                d.need,
                Wait(
                    d.kind,
                    d.number or None,
                    d.name if not d.is_array and (not d.number or d.project_id == spec.project.pk) else "",
                    self.satisfied(spec, d),
                    self.jobs[d.number].state if d.number and not d.is_array else "",
                    d.is_array,
                    d.said,
                ),
            )
            for d in spec.depends_on
        )


def look_at_others(specs: Sequence[JobSpec]) -> Others:
    """Lock them as they are; the data first, in the order in which a declaration of data locks them."""
    data: dict[int, set[str]] = {}
    for spec in specs:
        for d in spec.depends_on:
            if d.kind == DependencyKind.DATA:
                data.setdefault(spec.project.pk, set()).add(d.name)
    ready = lock_data(data)
    waits = [d for spec in specs for d in spec.depends_on if d.number]
    arrays = {d.number for d in waits if d.is_array}
    # An element that is over stays over; the others cannot end until this transaction does.
    jobs = lock_states([*(d.number for d in waits if not d.is_array), *open_elements(arrays)])
    return Others(jobs, ready, ends_of_arrays(arrays))


def waits_now(spec: JobSpec) -> list[Condition]:
    """What a request would wait for at this moment, without keeping it so."""
    numbers = [d.number for d in spec.depends_on if d.number and not d.is_array]
    rows = Job.objects.filter(number__in=numbers).values_list("number", "state", "saved_at")
    names = [d.name for d in spec.depends_on if d.kind == DependencyKind.DATA]
    ready = Dataset.objects.filter(project=spec.project, name__in=names, ready_at__isnull=False)
    others = Others(
        {number: Other(state, saved_at is not None) for number, state, saved_at in rows} if numbers else {},
        {(spec.project.pk, name) for name in ready.values_list("name", flat=True)} if names else (),
        ends_of_arrays({d.number for d in spec.depends_on if d.is_array}),
    )
    return others.conditions(spec)


def wait_for_others(jobs: Sequence[Job], owners: Sequence[JobSpec], others: Others, *, at: datetime) -> None:
    named: dict[str, list[Job]] = {}
    for job, spec in zip(jobs, owners, strict=True):
        if spec.ref:
            named.setdefault(spec.ref, []).append(job)
    rows: list[JobDependency] = []
    for job, spec in until_caller_gone(zip(jobs, owners, strict=True)):
        rows += rows_of(job.number, spec, others, named)
    if not rows:
        return
    JobDependency.objects.bulk_create(rows)
    # Only now the jobs of the same request have numbers to be named by.
    for job, spec in until_caller_gone(zip(jobs, owners, strict=True), every=10):
        if job.state == JobState.BLOCKED and any(d.ref for d in spec.depends_on):
            reason = wait_reason(
                conditions_of(job), at=at, until=job.depends_until_at, then=job.depends_on_timeout
            )
            Job.objects.filter(pk=job.pk).update(**reason)
            job.__dict__.update(reason)


def rows_of(
    number: int, spec: JobSpec, others: Others, named: Mapping[str, Sequence[Job]] = MappingProxyType({})
) -> list[JobDependency]:
    """The rows of what a job waits for; `named` are the jobs of its request by their refs."""
    rows: list[JobDependency] = []
    for d in spec.depends_on:
        common = {"job_id": number, "kind": d.kind, "group": d.group, "need": d.need}
        if d.kind == DependencyKind.DATA:
            rows.append(JobDependency(data=d.name, satisfied=others.satisfied(spec, d), **common))
        elif d.ref:
            rows += [JobDependency(on_id=other.number, **common) for other in named[d.ref]]
        else:
            on = {"on_array" if d.is_array else "on_id": d.number}
            rows.append(JobDependency(satisfied=others.satisfied(spec, d), **on, **common))
    return rows
