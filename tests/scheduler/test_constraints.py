"""What no row may ever say, whoever writes it."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, models, transaction

from scheduler.models import Allocation, Node, Task
from tests.support.factories import AllocationFactory, TaskFactory

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("model", "said", "name"),
    [
        (Task, {"state": "finished"}, "task_state_known"),
        (Node, {"state": "asleep"}, "node_state_known"),
        (Allocation, {"cpu_millis": -1}, "allocation_not_negative"),
        (Allocation, {"gpu_millis": -1}, "allocation_not_negative"),
        (Allocation, {"suspended_cpu_millis": -1}, "allocation_not_negative"),
    ],
)
def test_the_database_takes_no_state_that_there_is_not_and_no_negative_amount(
    model: type[models.Model], said: dict[str, object], name: str
) -> None:
    AllocationFactory(attempt=TaskFactory().attempt)

    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        model._default_manager.update(**said)
