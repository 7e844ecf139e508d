"""Submission: requests to rows of jobs with their first event, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accounts.models import User
from infra.errors import FieldProblem, InvalidInput, MusterError, NotAllowed
from infra.request_cost import until_caller_gone
from scheduler.models import Job
from scheduler.services.jobs.write_jobs import NewJobs, Submission, write_submissions
from scheduler.services.submission.dependencies import wrong_among_themselves
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import check_sizes, parse_job
from scheduler.services.submission.submitter import Catalogue


def submit_job(*, payload: Mapping[str, Any], by: User, via: str = "api") -> Job:
    """Accept one request; of an array its first job is answered, and `array_id` names the others.

    Raises InvalidInput, NotAllowed or TooMany, and then nothing was written.
    """
    check_sizes([payload], field="array")
    spec = parse_job(payload, by=by)
    return submit_specs(specs=[spec], by=by, via=via)[0]


def parse_many(*, payloads: Sequence[Any], by: User) -> tuple[list[JobSpec | None], dict[int, MusterError]]:
    """Read each request on its own; the refused ones have None for a spec and their error by position.

    Raises InvalidInput before it reads any when together they make too many rows.
    """
    check_sizes(payloads, field="jobs")
    catalogue = Catalogue(by)
    specs: list[JobSpec | None] = []
    errors: dict[int, MusterError] = {}
    for number, payload in enumerate(until_caller_gone(payloads, every=10)):
        under = f"jobs/{number}/"
        try:
            if not isinstance(payload, Mapping):
                wrong = "Must be an object that describes a job."
                problem = FieldProblem(f"jobs/{number}", wrong, "not-an-object")
                raise InvalidInput(message=wrong, problems=[problem])
            specs.append(parse_job(payload, by=by, catalogue=catalogue, under=under, in_batch=True))
        except MusterError as error:
            specs.append(None)
            errors[number] = error
    for number, problem in wrong_among_themselves(specs):
        specs[number] = None
        errors[number] = InvalidInput(message=problem.message, code=problem.code, problems=[problem])
    return specs, errors


def refused_whole(errors: Mapping[int, MusterError]) -> MusterError:
    """One refusal for a batch, with the problems of all its requests."""
    problems = [problem for error in errors.values() for problem in error.problems]
    denial = next((error for error in errors.values() if isinstance(error, NotAllowed)), None)
    kind = NotAllowed if denial is not None else InvalidInput
    return kind(
        message=f"{len(errors)} of the jobs are invalid, so none was submitted.",
        code=denial.code if denial is not None else "invalid",
        problems=problems[:500],
        way_out="Correct the fields named in errors, or send atomic=false to submit the others.",
        refused=denial.refused if denial is not None else None,
    )


def submit_specs(*, specs: Sequence[JobSpec], by: User, via: str) -> NewJobs:
    """Write checked requests: jobs, dependencies, events and one audit row, all or nothing.

    Raises Conflict or TooMany, and then nothing was written.
    """
    (outcome,) = write_submissions([Submission(specs=specs, by=by, via=via)])
    if isinstance(outcome, MusterError):
        raise outcome
    return outcome
