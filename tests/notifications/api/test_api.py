"""The API of notifications: one's own, by scope, and held to the project of a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from accounts.models import AuditEvent, ProjectRole
from notifications.models import Notification
from notifications.realtime import source
from notifications.services import endpoints
from notifications.services.follow import follow
from scheduler.models import Job
from scheduler.realtime.auth import Viewer
from scheduler.realtime.topics import open_source, parse_topic
from tests.support.factories import Cast, MembershipFactory, ProjectFactory, bearer

Happen = Callable[..., list[Job]]
URL = "/api/v1/notifications"
HOOK = {"name": "chat", "url": "https://example.org/hook", "kinds": ["job.failed"]}


def send(client: Client, method: str, path: str, body: Any = None, **headers: Any) -> Any:
    return getattr(client, method)(f"/api/v1/{path}", body, content_type="application/json", **headers)


def test_a_person_reads_and_puts_away_their_own(client: Client, cast: Cast, jobs_that: Happen) -> None:
    (job,) = jobs_that("job.failed", because="exit code 3")
    follow()
    own = {"headers": bearer(cast.owner, "notifications:write")}

    (row,) = client.get(URL, **own).json()["results"]
    assert (row["kind"], row["title"], row["jobs"], row["path"]) == (
        "job.failed", f"Job {job.number} train failed", [job.number], f"/jobs/{job.number}/",
    )  # fmt: skip
    assert client.get(URL, {"unread": "true", "kind": "job.failed", "project": "vision"}, **own).json()[
        "results"
    ]
    assert send(client, "post", f"notifications/{row['id']}/read", **own).json()["read_at"]
    assert client.get(URL, {"unread": "true"}, **own).json()["results"] == []
    assert send(client, "post", f"notifications/{row['id']}/unread", **own).json()["read_at"] is None
    assert send(client, "post", "notifications/read", {"kind": "job.failed"}, **own).json() == {"read": 1}
    assert client.get(URL, {"kind": "nonsense"}, **own).status_code == 400


@pytest.mark.parametrize("person", ["colleague", "lead", "stranger", "operator", "admin"])
def test_nobody_else_does(client: Client, cast: Cast, jobs_that: Happen, person: str) -> None:
    jobs_that("job.failed")
    follow()
    other = {"headers": bearer(getattr(cast, person), "notifications:write")}

    assert client.get(URL, **other).json()["results"] == []
    number = Notification.objects.get().pk
    assert send(client, "post", f"notifications/{number}/read", **other).status_code == 404


def test_a_token_needs_the_scope(client: Client, cast: Cast) -> None:
    reads, jobs = bearer(cast.owner, "notifications:read"), bearer(cast.owner, "jobs:write")

    assert client.get(URL, headers=reads).status_code == 200
    assert client.get(URL, headers=jobs).status_code == 403
    assert send(client, "post", "notifications/read", {}, headers=reads).status_code == 403


def test_a_token_held_to_a_project_sees_what_is_about_it_and_nothing_personal(
    client: Client, cast: Cast, jobs_that: Happen
) -> None:
    other = ProjectFactory(slug="other")
    MembershipFactory(project=other, user=cast.owner, role=ProjectRole.MEMBER)
    jobs_that("job.failed")
    jobs_that("job.failed", project=other)
    follow()
    held = {"headers": bearer(cast.owner, "notifications:write", project=other)}

    assert [row["project"] for row in client.get(URL, **held).json()["results"]] == ["other"]
    assert client.get(f"{URL}/preferences", **held).status_code == 403
    assert send(client, "post", "webhooks", HOOK, **held).status_code == 403


def test_preferences_are_changed_one_by_one_and_audited(client: Client, cast: Cast) -> None:
    own = {"headers": bearer(cast.owner, "notifications:write")}
    changes = {"changes": {"job.ended": {"portal": True}}}

    answer = send(client, "patch", "notifications/preferences", changes, **own)
    send(client, "patch", "notifications/preferences", changes, **own)
    wrong = send(
        client, "patch", "notifications/preferences",
        {"changes": {"node.down": {"portal": True}, "nonsense": {"mail": False}}}, **own,
    )  # fmt: skip

    rows = {row["kind"]: row for row in answer.json()["preferences"]}
    assert (rows["job.ended"]["portal"], rows["job.ended"]["mail"]) == (True, False)
    assert wrong.status_code == 422
    assert len(wrong.json()["errors"]) == 2
    (event,) = AuditEvent.objects.filter(action="notifications.preferences")
    assert (event.before, event.after) == ({"job.ended by portal": False}, {"job.ended by portal": True})


def test_a_webhook_is_made_changed_rotated_and_deleted(client: Client, cast: Cast) -> None:
    own = {"headers": bearer(cast.owner, "notifications:write")}

    made = send(client, "post", "webhooks", HOOK, **own)
    number, secret = made.json()["id"], made.json()["secret"]
    assert made.status_code == 201
    assert "secret" not in client.get(f"/api/v1/webhooks/{number}", **own).json()
    assert (
        send(client, "patch", f"webhooks/{number}", {"enabled": False, "name": "x"}, **own).json()["name"]
        == "x"
    )
    rotated = send(client, "post", f"webhooks/{number}/rotate", **own).json()
    assert rotated["secret"] not in ("", secret)
    assert rotated["old_secret_until"]
    assert send(client, "post", f"webhooks/{number}/test", **own).status_code == 409  # disabled
    assert client.get("/api/v1/webhooks", **own).json()["results"][0]["enabled"] is False
    assert (
        client.get(f"/api/v1/webhooks/{number}/messages", {"state": "failed"}, **own).json()["results"] == []
    )
    assert client.delete(f"/api/v1/webhooks/{number}", **own).status_code == 204


def test_a_lead_makes_a_webhook_of_a_project_and_a_member_does_not(client: Client, cast: Cast) -> None:
    wanted = HOOK | {"project": "vision"}
    answers = {
        name: send(
            client, "post", "webhooks", wanted, headers=bearer(person, "notifications:write")
        ).status_code
        for name, person in cast.people().items()
    }

    assert answers == dict.fromkeys(answers, 403) | {"lead": 201, "admin": 201, "stranger": 404}


def test_a_message_is_sent_again_by_who_manages_the_webhook(client: Client, cast: Cast) -> None:
    endpoint, _ = endpoints.create_endpoint(by=cast.owner, **HOOK)
    message = endpoints.send_test(endpoint=endpoint, by=cast.owner)
    url = f"webhooks/{endpoint.pk}/messages/{message.pk}/redeliver"

    own = send(client, "post", url, headers=bearer(cast.owner, "notifications:write"))
    other = send(client, "post", url, headers=bearer(cast.lead, "notifications:write"))

    assert (own.status_code, own.json()["message_id"], other.status_code) == (202, message.message_id, 404)


def test_the_live_topic_follows_ones_own_count_alone(cast: Cast, jobs_that: Happen) -> None:
    jobs_that("job.failed")
    follow()
    topic = parse_topic("notifications")

    def count(person: Any) -> Any:
        viewer = Viewer(user=person, project_ids=frozenset({cast.project.pk}), rights="1")
        assert source(viewer).hints == frozenset({f"notifications:{person.pk}"})
        return open_source(topic, viewer).build()["unread"]["count"]

    assert (count(cast.owner), count(cast.colleague), count(cast.admin)) == (1, 0, 0)
