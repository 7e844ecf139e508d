"""Stories of jobs that wait for each other, and of full queues, told step by step on real rows.

Each file has `steps`; `then` is what every job says after each of them.
`UPDATE_SCENARIOS=1 pytest tests/scenarios` writes what comes out into the files; review the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.utils import timezone

from infra.errors import InvalidInput, MusterError
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Queue
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.datasets import declare_dataset, report_checkpoint
from scheduler.state.lifecycle.dependencies import resolve_dependants
from scheduler.state.lifecycle.transitions import move_job
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.factories import AttemptFactory
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db

HERE = Path(__file__).parent
FILES = sorted([*HERE.glob("dependencies/*.yaml"), *HERE.glob("queues/*.yaml")])
_CLOCK = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_story_of_waiting_goes_as_told(path: Path, portal: Portal) -> None:
    text = path.read_text()
    story = yaml.safe_load(text)
    told = Story(portal)

    goes = [told.go(step) for step in story["steps"]]

    if os.environ.get("UPDATE_SCENARIOS"):
        kept = text.split("\nthen:")[0].rstrip()
        shown = yaml.safe_dump({"then": goes}, sort_keys=False, width=110, allow_unicode=True)
        path.write_text(f"{kept}\n\n{shown}")
    else:
        assert goes == story["then"]


class Story:
    """Jobs by name; every step is one thing that somebody or some node does."""

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self.numbers: dict[str, int] = {}
        self.refused = ""

    def go(self, step: Mapping[str, Any]) -> dict[str, str]:
        self.refused = ""
        for verb, words in step.items():
            getattr(self, verb)(words)
        return {"refused": self.refused} if self.refused else {name: self.says(name) for name in self.numbers}

    def job(self, name: str) -> Job:
        return Job.objects.get(number=self.numbers[name])

    def says(self, name: str) -> str:
        """Its state and why, with names for numbers and without the clock."""
        job = self.job(name)
        why = f"{job.reason_code}: {job.reason_text}" if job.state in ("queued", "blocked") else job.end_text
        for other, number in self.numbers.items():
            why = why.replace(f"{number} ({other})", other).replace(f"job {number}", f"job {other}")
        why = _CLOCK.sub("(time)", why)
        return f"{job.state}: {why}" if why.strip(": ") else job.state

    def submit(self, jobs: Mapping[str, Any]) -> None:
        for name, words in jobs.items():
            waits = [self._numbered(one) for one in words.get("depends_on", ())]
            try:
                job = self.portal.submit(name=name, **words | ({"depends_on": waits} if waits else {}))
            except MusterError as refusal:
                self.refused = refusal.message
            else:
                self.numbers[name] = job.number

    def queue(self, words: Mapping[str, Any]) -> None:
        Queue.objects.filter(pk=self.portal.queue.pk).update(**words)

    def submit_together(self, jobs: Mapping[str, Any]) -> None:
        payloads = [{"command": "true", "name": name, "ref": name, **words} for name, words in jobs.items()]
        try:
            made = submit_many(payloads=payloads, by=self.portal.cast.owner)
        except InvalidInput as refusal:
            self.refused = refusal.problems[0].message
            assert not Job.objects.exists()
        else:
            self.numbers |= {job.name: job.number for job in made}

    def ends(self, jobs: Mapping[str, str]) -> None:
        for name, state in jobs.items():
            job, at = self.job(name), timezone.now()
            if job.state == JobState.QUEUED:
                move_job(job, JobState.SCHEDULED, because="planned")
            move_job(job, JobState(state), because="ended", at=at)
            resolve_dependants([job], at=at)

    def runs(self, names: list[str]) -> None:
        for name in names:
            job = self.job(name)
            move_job(job, JobState.SCHEDULED, because="planned", epoch=1)
            move_job(job, JobState.RUNNING, because="started", started_at=timezone.now())
            AttemptFactory(job=job, epoch=1)

    def checkpoint(self, names: list[str]) -> None:
        for name in names:
            report_checkpoint(job=self.job(name), by=self.portal.cast.owner, path="/ckpt/1")

    def declare(self, names: list[str]) -> None:
        for name in names:
            declare_dataset(payload={"name": name}, by=self.portal.cast.colleague)

    def waits_are_over(self, names: list[str]) -> None:
        past = timezone.now() - timedelta(seconds=1)
        had_asked(*Job.objects.filter(name__in=names), depends_until_at=past)
        reconcile_all()

    def _numbered(self, one: Any) -> Any:
        if isinstance(one, str):
            return self.numbers[one]
        if "of" in one:
            return {**one, "of": [self._numbered(member) for member in one["of"]]}
        return {**one, "job": self.numbers[one["job"]]} if "job" in one else one
