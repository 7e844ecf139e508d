"""Notices about jobs: one call announces everything that shows them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from infra import notifications
from scheduler import outbox


class Row(NamedTuple):
    number: int
    user_id: int
    project_id: int


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    sent: list[list[str]] = []
    monkeypatch.setattr(notifications, "publish", sent.append)
    return sent


@pytest.mark.django_db
def test_one_notice_names_each_job_owner_project_and_further_topic_once(
    announced: list[list[str]], django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        outbox.announce_jobs([Row(7, 1, 3), Row(8, 1, 3)], outbox.CLUSTER_TOPIC, outbox.node_topic(5))

    (topics,) = announced
    assert topics == ["cluster", "job:7", "job:8", "node:5", "project:3", "queues", "user:1"]


@pytest.mark.django_db
def test_without_a_job_there_is_no_notice(
    announced: list[list[str]], django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        outbox.announce_jobs([], outbox.CLUSTER_TOPIC)

    assert announced == []
