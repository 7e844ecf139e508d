"""Every index of the rows that each job writes has its line, with a query, in decision 38."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection

PAGE = Path(__file__).resolve().parents[3] / "docs/decisions/0038-each-index-has-a-query.md"
TABLES = (
    "scheduler_job", "scheduler_unfinishedjob", "scheduler_jobrequest", "scheduler_attempt", "scheduler_task",
    "scheduler_jobevent", "scheduler_jobname",
)  # fmt: skip
#: Columns of a job that no move changes; but for the failure or cancellation of it, for gangs, and for jobs with a
#: deadline.
FIXED = {"number", "user_id", "project_id", "queue_id", "unsuccessful", "assembly_until_at", "check_at"}

pytestmark = pytest.mark.django_db


def indexes() -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s)", [list(TABLES)])
        return {re.sub(r"_[0-9a-f]{8}$", "_*", name): text for name, text in cursor.fetchall()}


def test_each_index_has_a_line_with_its_query_and_each_line_an_index() -> None:
    listed = re.findall(r"^\| `(\w+\*?)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)

    assert sorted(name for name, _ in listed) == sorted(indexes())
    assert all(len(query) > 10 for _, query in listed)


def test_no_index_of_a_job_names_what_a_move_changes() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'scheduler_job'::regclass AND attnum > 0"
        )
        moving = {name for (name,) in cursor.fetchall()} - FIXED
    named = {
        name: set(re.findall(r"\w+", text.split(" USING ")[1])) & moving
        for name, text in indexes().items()
        if " ON public.scheduler_job USING" in text
    }

    assert len(named) == 7
    assert not any(named.values()), named


def test_no_index_of_an_attempt_or_task_names_the_state_that_every_move_changes() -> None:
    named = {name: set(re.findall(r"\w+", text.split(" USING ")[1])) for name, text in indexes().items()}

    assert {"node_id", "released_at"} <= named["task_held_on_node"]
    assert not [name for name, words in named.items() if words & {"state", "is_live", "started_at"}]
