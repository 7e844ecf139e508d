"""Requests about jobs, queues, reservations and quotas bound each text as the column that keeps it does."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.db import models
from rest_framework import serializers

from accounts.models import Project, User
from quotas.api import budgets, grants, ledger, lines
from quotas.models import Budget, Grant, LedgerEntry, Quota
from scheduler.api import datasets, jobs, queues, reservations
from scheduler.models import Dataset, Job, JobEvent, Queue, Reservation
from scheduler.services.planning import suggestions
from scheduler.services.submission.job_spec import FIELDS
from scheduler.web import submit

#: A text of a request, and the column that keeps it.
KEPT: Final[list[tuple[type[serializers.Serializer[Any]], str, type[models.Model], str]]] = [
    (jobs.CheckpointBodySerializer, "path", Job, "saved_path"),
    (datasets.DatasetRequestSerializer, "name", Dataset, "name"),
    (datasets.DatasetRequestSerializer, "path", Dataset, "path"),
    (reservations.ReservationRequestSerializer, "name", Reservation, "name"),
    (reservations.ReservationRequestSerializer, "reason", Reservation, "reason"),
    (queues.QueueChangeSerializer, "reason", Queue, "paused_reason"),
    (budgets.NewBudgetSerializer, "name", Budget, "name"),
    (budgets.BudgetChangesSerializer, "name", Budget, "name"),
    (grants.NewGrantSerializer, "gpu_model", Grant, "gpu_model"),
    (ledger.AdjustSerializer, "gpu_model", LedgerEntry, "gpu_model"),
    (ledger.AdjustSerializer, "reason", LedgerEntry, "reason"),
    (ledger.AdjustSerializer, "user", User, "username"),
    (lines.NewLineSerializer, "gpu_model", Quota, "gpu_model"),
    (lines.NewLineSerializer, "job_type", Quota, "job_type"),
    (lines.NewLineSerializer, "user", User, "username"),
    (lines.NewLineSerializer, "project", Project, "name"),
    (grants.NewGrantSerializer, "project", Project, "name"),
]


@pytest.mark.parametrize(
    ("serializer", "field", "model", "column"),
    [pytest.param(*row, id=f"{row[0].__name__}.{row[1]}") for row in KEPT],
)
def test_a_text_of_a_request_is_as_long_as_its_column(
    serializer: type[serializers.Serializer[Any]], field: str, model: type[models.Model], column: str
) -> None:
    asked: Any = serializer().fields[field]

    assert asked.max_length == model._meta.get_field(column).max_length


@pytest.mark.parametrize(
    "serializer", [jobs.ReasonBodySerializer, jobs.BoostBodySerializer, jobs.ResizeBodySerializer]
)
def test_a_reason_leaves_room_for_what_the_event_says_before_it(
    serializer: type[serializers.Serializer[Any]],
) -> None:
    reason: Any = serializer().fields["reason"]
    because = JobEvent._meta.get_field("because").max_length

    assert because is not None
    assert reason.max_length <= because - 100


def test_a_resize_asks_for_no_more_tasks_than_a_job_may_have() -> None:
    tasks: Any = jobs.ResizeBodySerializer().fields["tasks"]
    whole: Any = jobs.JobRequestSerializer().fields["tasks"]

    assert (tasks.min_value, tasks.max_value) == (whole.min_value, whole.max_value)


def test_what_a_suggestion_changes_is_a_field_of_the_request() -> None:
    assert set(suggestions.REQUEST_FIELDS.values()) <= FIELDS
    assert set(submit.CHANGED) <= FIELDS
