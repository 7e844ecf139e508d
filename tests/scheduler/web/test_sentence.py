"""The sentence under the title of a job that has ended says how, once."""

from __future__ import annotations

import pytest

from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from scheduler.web.job import sentence


@pytest.mark.parametrize(
    ("end_text", "code", "signal", "said"),
    [
        ("", 0, None, "Ended with exit code 0."),
        ("Ended with exit code 3.", 3, None, "Ended with exit code 3."),
        ("Ended by signal 9 (SIGKILL).", None, 9, "Ended by signal 9 (SIGKILL)."),
        (
            "Stopped at the time limit of 10 min.",
            None,
            15,
            "Stopped at the time limit of 10 min. The job ended by signal 15.",
        ),
        ("Cancelled.", None, None, "Cancelled."),
    ],
)
def test_how_a_job_ended_is_said_once(end_text: str, code: int | None, signal: int | None, said: str) -> None:
    job = Job(state=JobState.FAILED, end_text=end_text, exit_code=code, exit_signal=signal)

    assert sentence(job) == said
