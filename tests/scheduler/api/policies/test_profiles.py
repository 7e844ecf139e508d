"""A profile is changed, its versions are compared, and an earlier one is put in force again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.db.utils import ProgrammingError
from django.test import Client

from accounts.models import AuditEvent, User
from scheduler.models import Cluster, Cycle, PriorityClass, ProfileVersion, Queue, SchedulerProfile
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.replay import replay
from tests.support.factories import Cast, bearer, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    ensure_defaults()
    return the_cast()


def call(client: Client, by: User, method: str, path: str, body: Any = None, **headers: str) -> Any:
    return client.generic(
        method,
        f"/api/v1/profiles{path}",
        data="" if body is None else json.dumps(body),
        content_type="application/json",
        headers=bearer(by, "admin", "nodes:read") | headers,
    )


def test_each_change_is_a_version_and_an_earlier_one_comes_back(client: Client, cast: Cast) -> None:
    changed = call(client, cast.admin, "PATCH", "/default", {"policy": "sjf", "reason": "short jobs first"})
    assert (changed.status_code, changed.json()["policy"], changed.json()["version"]) == (200, "sjf", 2)
    same = call(client, cast.admin, "PATCH", "/default", {"policy": "sjf", "reason": "again"})
    assert (same.status_code, same.json()["version"]) == (200, 2)

    listed = call(client, cast.auditor, "GET", "/default/versions").json()["results"]
    assert [(one["version"], one["origin"], one["made_by"], one["reason"]) for one in listed] == [
        (2, "edit", "admin", "short jobs first"), (1, "create", "", "Created at the first start."),
    ]  # fmt: skip
    diff = call(client, cast.operator, "GET", "/default/versions/diff?before=1").json()
    assert (diff["after"], diff["changes"]) == (2, [{"field": "policy", "before": "fifo", "after": "sjf"}])

    back = call(client, cast.admin, "POST", "/default/rollback", {"version": 1, "reason": "users waited"})
    assert (back.status_code, back.json()["policy"], back.json()["version"]) == (200, "fifo", 3)
    newest = ProfileVersion.objects.latest("id")
    assert (newest.origin, newest.origin_number, newest.reason) == ("rollback", 1, "users waited")
    [row] = AuditEvent.objects.filter(action="schedulerprofile.rollback")
    assert (row.before, row.after, row.reason) == ({"policy": "sjf"}, {"policy": "fifo"}, "users waited")
    again = call(client, cast.admin, "POST", "/default/rollback", {"version": 1, "reason": "users waited"})
    assert (again.status_code, "nothing would change" in again.json()["detail"]) == (409, True)


def test_a_version_that_names_what_is_gone_is_refused_with_the_sentence(client: Client, cast: Cast) -> None:
    rush = PriorityClass.objects.create(name="RUSH", value=90)
    named = {"options": {"backfill_max_class": "RUSH"}, "reason": "for the demo"}
    assert call(client, cast.admin, "PATCH", "/default", named).status_code == 200
    assert call(client, cast.admin, "PATCH", "/default", {"options": {}, "reason": "over"}).status_code == 200
    rush.delete()

    refused = call(
        client, cast.admin, "POST", "/default/rollback", {"version": 2, "reason": "the demo again"}
    )

    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("Version 2 of the profile default is not valid any more: ")
    assert "RUSH" in refused.json()["detail"]
    assert SchedulerProfile.objects.get(name="default").version == 3
    missing = call(client, cast.admin, "POST", "/default/rollback", {"version": 9, "reason": "x"})
    assert (missing.status_code, "has no version 9" in missing.json()["detail"]) == (404, True)


def test_what_has_changed_since_it_was_read_is_not_written_over(client: Client, cast: Cast) -> None:
    seen = call(client, cast.admin, "GET", "/default").headers["ETag"]
    assert call(client, cast.admin, "PATCH", "/default", {"policy": "sjf", "reason": "a"}).status_code == 200

    for method, path, body in (
        ("PATCH", "/default", {"policy": "edf", "reason": "b"}),
        ("POST", "/default/rollback", {"version": 1, "reason": "b"}),
        ("DELETE", "/default", None),
    ):
        refused = call(client, cast.admin, method, path, body, **{"If-Match": seen})
        assert (refused.status_code, "its version is 2 and not 1" in refused.json()["detail"]) == (412, True)


def test_profiles_are_the_admins_and_read_by_operators_and_auditors(client: Client, cast: Cast) -> None:
    for name, person in cast.people().items():
        reads = person in (cast.operator, cast.admin, cast.auditor)
        for path in ("", "/default", "/default/versions", "/default/versions/diff?before=1"):
            assert call(client, person, "GET", path).status_code == (200 if reads else 403), (name, path)
        for method, path, body in (
            ("POST", "", {"name": f"of {name}", "reason": "x"}),
            ("PATCH", "/default", {"policy": "sjf", "reason": "x"}),
            ("POST", "/default/rollback", {"version": 1, "reason": "x"}),
        ):
            status = call(client, person, method, path, body).status_code
            assert (status in (200, 201)) == (person == cast.admin), (name, path, status)
    assert call(client, cast.admin, "DELETE", "/of admin?reason=x").status_code == 204
    used = call(client, cast.admin, "DELETE", "/default?reason=x")
    assert (used.status_code, "is that of cluster main" in used.json()["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"policy": "nosuch", "reason": "x"}, "policy", "not one of the available choices"),
        ({"policy": 3, "reason": "x"}, "policy", "has to be a text"),
        ({"colour": "red", "reason": "x"}, "colour", "There is no field colour"),
        ({"policy": "sjf"}, "reason", "Give a reason"),
    ],
)
def test_what_a_profile_cannot_say_is_refused_by_field(
    client: Client, cast: Cast, body: Any, field: str, says: str
) -> None:
    refused = call(client, cast.admin, "PATCH", "/default", body)

    assert refused.status_code == 422
    [problem] = refused.json()["errors"]
    assert (problem["field"], says in problem["message"]) == (field, True), problem


def test_a_recorded_cycle_names_the_versions_that_it_followed_and_replays(client: Client, cast: Cast) -> None:
    call(
        client, cast.admin, "POST", "", {"name": "night", "policy": "sjf", "backfill": "none", "reason": "x"}
    )
    cluster, queue = Cluster.objects.get(), Queue.objects.get()
    queue.profile = SchedulerProfile.objects.get(name="night")
    queue.save()
    call(client, cast.admin, "PATCH", "/default", {"placement": "spread", "reason": "x"})

    run_cycle(cluster_id=cluster.pk, trigger="test")

    cycle = Cycle.objects.latest("id")
    assert cycle.profiles == [
        {"queue": 0, "profile": "default", "version": 2}, {"queue": queue.pk, "profile": "night", "version": 1},
    ]  # fmt: skip
    assert replay(cycle_id=cycle.pk).identical


def test_a_profile_written_by_an_earlier_release_keeps_its_state_too(client: Client, cast: Cast) -> None:
    SchedulerProfile.objects.filter(name="default").update(policy="edf", version=7)

    call(client, cast.admin, "PATCH", "/default", {"policy": "sjf", "reason": "x"})

    listed = ProfileVersion.objects.values_list("number", "origin", "content__policy")
    assert list(listed) == [(8, "edit", "sjf"), (7, "found", "edf"), (1, "create", "fifo")]


def test_the_application_can_neither_change_nor_delete_a_version(cast: Cast) -> None:
    with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="permission denied"):
        cursor.execute("UPDATE scheduler_profileversion SET reason = 'another'")
