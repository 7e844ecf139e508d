"""A world with one project, and a cursor that begins at what happens from now on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from notifications.services.follow import follow
from scheduler.models import Job
from tests.support.factories import Cast, JobEventFactory, JobFactory, QueueFactory, the_cast


@pytest.fixture
def cast(db: None) -> Cast:
    found = the_cast()
    follow()  # the first run begins with what happens after it
    return found


@pytest.fixture
def jobs_that(cast: Cast) -> Callable[..., list[Job]]:
    """Jobs of the owner, each with one event: `jobs_that("job.failed", count=3, array_id=...)`."""
    queue = QueueFactory()

    def happen(
        kind: str,
        *,
        count: int = 1,
        because: str = "exit code 1",
        event: dict[str, Any] | None = None,
        **of_job: Any,
    ) -> list[Job]:
        made = [
            JobFactory(**{"project": cast.project, "user": cast.owner, "queue": queue, "name": "train", **of_job,
                          **({"array_index": index} if of_job.get("array_id") else {})})
            for index in range(count)
        ]  # fmt: skip
        events(made, kind, because=because, **(event or {}))
        return made

    return happen


def events(jobs: Iterable[Job], kind: str, **event: Any) -> None:
    for job in jobs:
        JobEventFactory(job=job, kind=kind, **event)
