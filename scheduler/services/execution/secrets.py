"""The values of a job's secrets, put into the assignments of its tasks: the only place where they leave the portal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from accounts.services.secrets import JobOwner, Opened, open_for
from scheduler.agent.protocol import Assignment, Report, SecretsToGive
from scheduler.backends.registry import backend_of
from scheduler.core.lifecycle import FailureClass
from scheduler.models import Node
from scheduler.services.execution.reports import apply_reports

if TYPE_CHECKING:
    from scheduler.services.execution.assignments import _AttemptRow

#: An agent that knows no secrets would run the command without them.
_TOO_OLD: Final = (
    "echo 'The agent of this node is older than the server and gives no secrets; update it.' >&2; exit 125"
)
_NO_BACKEND: Final = "The backend of this cluster cannot keep secrets. Submit the job to another queue."


class SecretsOfJob(NamedTuple):
    """What a job names, as its row keeps it, and whose job it is."""

    owner: JobOwner
    asked: list[dict[str, str]]


def secrets_of_job(job: _AttemptRow) -> SecretsOfJob:
    """What this job names."""
    return SecretsOfJob(JobOwner(job.user_id, job.project_id), json.loads(job.secrets))


def give_secrets(
    nodes: Mapping[int, Node], given: dict[int, list[Assignment]], wanted: Mapping[int, SecretsOfJob]
) -> None:
    """Complete the assignments (by node) of these jobs (by number) with the present values.

    A task that cannot have them is taken out of its node's list and has failed, with the reason; outside of any
    transaction, as opening the values takes time.
    """
    opened = open_for(
        {
            number: (job.owner, [(one["of"], one["name"]) for one in job.asked])
            for number, job in wanted.items()
        }
    )
    for node_id, assignments in given.items():
        named = [one for one in assignments if one["job"] in wanted]
        if not named:
            continue
        can_keep = backend_of(nodes[node_id].cluster).capabilities.keeps_secrets
        failed: list[Report] = []
        for assignment in named:
            found = opened[assignment["job"]] if can_keep else Opened({}, _NO_BACKEND)
            if found.trouble:
                failed.append(_failure(assignment, found))
                assignments.remove(assignment)
            else:
                _add(assignment, wanted[assignment["job"]].asked, found)
        if failed:
            apply_reports(node=nodes[node_id], reports=failed)


def _failure(assignment: Assignment, found: Opened) -> Report:
    cause = FailureClass.INFRASTRUCTURE if found.is_fault else FailureClass.USER_ERROR
    return Report(
        task=assignment["task"],
        epoch=assignment["epoch"],
        state="failed",
        failure=cause.value,
        text=found.trouble[:300],
    )


def _add(assignment: Assignment, asked: Sequence[Mapping[str, str]], found: Opened) -> None:
    env, files = {}, {}
    for one in asked:
        value = found.values[one["of"], one["name"]]
        if "env" in one:
            env[one["env"]] = value
        else:
            files[one["file"]] = value
    runs: Any = assignment.get("elements") or assignment
    assignment["secrets"] = SecretsToGive(
        env=env, files=files, command=runs["command"], script=runs["script"]
    )
    runs["command"], runs["script"] = _TOO_OLD, ""
