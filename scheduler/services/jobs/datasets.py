"""Data that jobs wait for, and checkpoints that running jobs report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, NotAllowed
from scheduler import outbox
from scheduler.core.lifecycle import ACTIVE
from scheduler.models import Dataset, Job
from scheduler.services.submission.fields import BadValue, Inputs
from scheduler.services.submission.fields_dependencies import DATA_NAME, DATA_NAME_RULE
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE
from scheduler.services.submission.submitter import Catalogue
from scheduler.state.lifecycle.dependencies import resolve_data, resolve_dependants
from scheduler.state.lifecycle.transitions import record_event


@transaction.atomic
def declare_dataset(*, payload: Mapping[str, Any], by: User) -> Dataset:
    """Declare that data of a project are ready, which ends the waits for them; doing it twice changes nothing.

    Muster does not check the path. Raises InvalidInput or NotAllowed.
    """
    inputs = Inputs(payload)
    inputs.refuse_unknown(("project", "name", "path"), called_elsewhere=CALLED_ELSEWHERE)
    project = Catalogue(by).project(inputs)
    name = inputs.read("name", _name, default="")
    path = inputs.text("path", most=1024)
    if not name and inputs.given("name") is None:
        inputs.wrong("name", "Required: the name that jobs use for these data.", code="required")
    inputs.finish("The data cannot be declared")
    assert project is not None  # otherwise there was a problem
    now = timezone.now()
    clusters = resolve_data(project.pk, name, at=now)
    dataset, _ = Dataset.objects.update_or_create(
        project=project, name=name, defaults={"path": path, "ready_at": now, "declared_by": by}
    )
    _wake(clusters)
    audit.record(
        by=by, action="dataset.declare", thing=dataset, after={"name": name, "path": path}, project=project
    )
    return dataset


@transaction.atomic
def withdraw_dataset(*, dataset: Dataset, by: User, reason: str = "") -> Dataset:
    """Declare that data are not ready any more: jobs submitted from now on wait for them, earlier ones do not."""
    if not (permissions.may(by, "submit", dataset.project) or permissions.may(by, "operate")):
        raise NotAllowed(
            message=f"You may not withdraw data of project {dataset.project.slug}.",
            way_out="Ask a member of the project.",
            refused=("submit", dataset.project),
        )
    if dataset.ready_at is not None:
        Dataset.objects.filter(pk=dataset.pk).update(ready_at=None)
        dataset.ready_at = None
        audit.record(
            by=by, action="dataset.withdraw", thing=dataset, before={"name": dataset.name},
            reason=reason, project=dataset.project,
        )  # fmt: skip
    return dataset


@transaction.atomic
def report_checkpoint(*, job: Job, by: User, path: str = "") -> Job:
    """Note that a running job has saved its work, which ends the waits of jobs that depend on that.

    Work before a checkpoint is not lost when the job is stopped. Raises Conflict for a job that does not run.
    """
    permissions.require(by, "edit", job)
    now = timezone.now()
    row = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job.pk)
    if row.state not in ACTIVE or row.started_at is None:
        raise Conflict(
            message=f"Job {job.said_number} is {row.public_state} and cannot report a checkpoint.",
            way_out="Only a running job can report a checkpoint.",
        )
    save_checkpoint(row, path=path, because=f"reported by {by.username}", at=now, by=by)
    audit.record(by=by, action="job.checkpoint", thing=row, after={"path": path}, project=row.project)
    job.saved_at, job.saved_path = row.saved_at, row.saved_path
    return job


def save_checkpoint(row: Job, *, path: str, because: str, at: Any, by: User | None = None) -> None:
    """Write a checkpoint of a job whose row is locked."""
    Job.objects.filter(pk=row.pk).update(saved_at=at, saved_path=path)
    row.saved_at, row.saved_path = at, path
    record_event(row, "job.saved", because=because, by=by, at=at, details={"path": path})
    _wake(resolve_dependants([row], at=at))


def _name(value: Any) -> str:
    text = str(value).strip()
    if not DATA_NAME.fullmatch(text):
        raise BadValue(DATA_NAME_RULE)
    return text


def _wake(clusters: set[int]) -> None:
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="dependency")
