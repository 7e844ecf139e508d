"""The trail through the API: its shape, its filters, its pages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from accounts.models import AuditEvent
from accounts.services import audit, audit_check
from tests.support.factories import JobFactory, bearer, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def auditor(client: Client):
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner, number=12)
    for by, action, thing in [
        (cast.owner, "job.submit", job),
        (cast.lead, "job.cancel", job),
        (cast.lead, "member.add", audit.Thing("membership", "12", "somebody")),
    ]:
        audit.record(by=by, action=action, thing=thing, before={"a": 1}, after={"a": 2}, reason="because")
    audit.record_denied(by=cast.stranger, action="job.view", thing=job, reason="no")
    headers = bearer(cast.auditor, "audit:read")

    def get(query: str = ""):
        return client.get(f"/api/v1/audit{query}", headers=headers)

    return get


def found(response) -> list[str]:
    assert response.status_code == 200, response.content
    return [event["action"] for event in response.json()["results"] if event["action"] != "token.issue"]


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("", ["job.view", "member.add", "job.cancel", "job.submit"]),
        ("?actor=lead", ["member.add", "job.cancel"]),
        ("?action=job.cancel", ["job.cancel"]),
        ("?action=job.*", ["job.view", "job.cancel", "job.submit"]),
        ("?object=job:12", ["job.view", "job.cancel", "job.submit"]),
        ("?object=membership", ["member.add"]),
        ("?object=job:1", []),
        ("?outcome=denied", ["job.view"]),
        ("?project=vision&actor=owner", ["job.submit"]),
        ("?since=2100-01-01T00:00:00Z", []),
        ("?until=2000-01-01T00:00:00Z", []),
        ("?actor=lead&action=member.*", ["member.add"]),
    ],
)
def test_the_trail_is_searched(auditor, query: str, actions: list[str]) -> None:
    assert found(auditor(query)) == actions


def test_times_bound_from_and_to(auditor) -> None:
    at = AuditEvent.objects.get(action="job.cancel").at
    since, until = (
        moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for moment in (at, at + timedelta(microseconds=1))
    )

    assert found(auditor(f"?since={since}&until={until}")) == ["job.cancel"]


def test_a_row_in_full(auditor) -> None:
    event = AuditEvent.objects.get(action="job.cancel")

    body = auditor(f"/{event.pk}").json()

    assert body.pop("at").endswith("Z")
    assert body == {
        "id": event.pk,
        "actor": "lead",
        "on_behalf_of": "",
        "token_prefix": "",
        "address": "",
        "request_id": "",
        "action": "job.cancel",
        "outcome": "done",
        "object": {"type": "job", "id": "12", "label": event.object_label},
        "project": "vision",
        "before": {"a": 1},
        "after": {"a": 2},
        "reason": "because",
        "shard": event.shard,
        "number": event.number,
        "hash": event.hash,
        "previous_hash": event.previous_hash,
    }


@pytest.mark.parametrize(
    "query", ["?outcome=perhaps", "?since=yesterday", "?actor=%00", "?cursor=🦆", "?limit=0", "?limit=501"]
)
def test_a_wrong_question_is_4xx(auditor, query: str) -> None:
    assert 400 <= auditor(query).status_code < 500


@pytest.mark.parametrize("limit", [1, 3])
def test_a_page_takes_the_same_queries_for_one_and_for_three(
    auditor, limit: int, django_assert_num_queries
) -> None:
    auditor()

    with django_assert_num_queries(2):  # token; rows with their projects
        response = auditor(f"?limit={limit}")

    assert len(response.json()["results"]) == limit


def test_nobody_writes_here(client: Client, auditor) -> None:
    from accounts.models import User

    headers = bearer(User.objects.get(username="admin"), "admin")
    event = AuditEvent.objects.first()
    for method in ("post", "put", "patch", "delete"):
        assert getattr(client, method)("/api/v1/audit", headers=headers).status_code == 405
        assert getattr(client, method)(f"/api/v1/audit/{event.pk}", headers=headers).status_code == 405


def test_the_last_verification_is_shown(auditor) -> None:
    assert auditor("/check").status_code == 404
    audit_check.verify_and_keep()

    body = auditor("/check").json()

    assert (body["ok"], body["rows"], body["problem"]) == (True, AuditEvent.objects.count() - 1, "") or body[
        "ok"
    ]
