"""The field `checkpoint` of a job, and `--signal` of sbatch, which fills it."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django.fixtures import Settings

from infra.errors import InvalidInput
from scheduler.models import Job
from scheduler.services.jobs.submit import submit_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None, settings: Settings) -> Portal:
    settings.MUSTER_STORAGE, settings.CHECKPOINT_PATH = "file:///somewhere", ""
    return a_portal()


def submit(portal: Portal, **fields: Any) -> Job:
    payload = {"command": "true", "project": portal.cast.project.slug, **fields}
    return Job.objects.get(pk=submit_job(payload=payload, by=portal.cast.owner).pk)


def wrong(portal: Portal, **fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as refused:
        submit(portal, **fields)
    return [(problem.field, problem.code) for problem in refused.value.problems]


def test_a_job_keeps_how_it_is_asked_with_defaults(portal: Portal) -> None:
    assert submit(portal).checkpoint == {}
    assert submit(portal, checkpoint={}).checkpoint == {
        "signal": "USR1", "to": "all", "grace": 60, "every": None, "keep": 2, "max_size_mib": None,
    }  # fmt: skip
    asked = {"signal": "sigusr2", "to": "shell", "grace": "2m", "every": "1h", "keep": 5, "max_size": "10Gi"}
    assert submit(portal, checkpoint=asked).checkpoint == {
        "signal": "USR2", "to": "shell", "grace": 120, "every": 3600, "keep": 5, "max_size_mib": 10240,
    }  # fmt: skip


def test_what_cannot_be_done_is_refused_by_name(portal: Portal, settings: Settings) -> None:
    bad = {"signal": "KILL", "to": "nobody", "grace": 4000, "every": 1, "keep": 0, "max_size": "much", "x": 1}
    assert sorted(field for field, _ in wrong(portal, checkpoint=bad)) == [
        f"checkpoint/{name}" for name in ("every", "grace", "keep", "max_size", "signal", "to", "x")
    ]
    assert wrong(portal, checkpoint="yes") == [("checkpoint", "not-an-object")]
    shared = {"array": "0-9", "elements_per_job": 5}
    assert wrong(portal, checkpoint={}, **shared) == [("checkpoint", "inconsistent")]
    settings.MUSTER_STORAGE = ""
    assert wrong(portal, checkpoint={}) == [("checkpoint", "no-storage")]
    settings.CHECKPOINT_PATH = "/scratch/checkpoints"
    assert submit(portal, checkpoint={}).checkpoint["signal"] == "USR1"


@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("B:USR1@90", {"signal": "USR1", "to": "shell", "grace": 90}),
        ("SIGUSR2@300", {"signal": "USR2", "to": "all", "grace": 300}),
        ("R:10", {"signal": "USR1", "to": "all"}),
        ("INT@65535", {"signal": "INT", "to": "all", "grace": 3600}),
    ],
)
def test_sbatch_asks_by_signal(portal: Portal, option: str, asked: dict[str, Any]) -> None:
    payload, unhonoured = parse_sbatch(f"#!/bin/sh\n#SBATCH --signal={option}\ntrue\n")
    assert payload["checkpoint"] == asked
    assert [one.reason for one in unhonoured] == (
        ["The signal comes at most 3600 s before the limit."] if "65535" in option else []
    )


def test_what_no_job_is_asked_by_has_no_effect_and_is_said(portal: Portal, settings: Settings) -> None:
    payload, (said,) = parse_sbatch("#!/bin/sh\n#SBATCH --signal=TERM@60\ntrue\n")
    assert "checkpoint" not in payload
    assert said.reason.startswith("Jobs get USR1")
    settings.MUSTER_STORAGE = ""
    payload, unhonoured = parse_sbatch("#!/bin/sh\n#SBATCH --signal=USR1@60\ntrue\n")
    assert (payload["limit_signal"], unhonoured) == ({"signal": "USR1", "to": "all", "before": 60}, [])
    assert "checkpoint" not in payload
