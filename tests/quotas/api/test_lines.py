"""Single limits over HTTP: of every subject, how they stand, who may, and edits that cross."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import AuditEvent
from quotas.models import Quota
from tests.support.factories import (
    Cast,
    JobFactory,
    OrganizationFactory,
    ProjectFactory,
    QuotaFactory,
    bearer,
    the_cast,
)

pytestmark = pytest.mark.django_db

WHO = ("owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin")
URL = "/api/v1/quotas/lines"


class Site:
    """A lab in a university, the project of the cast in it and another one beside, and a line of each kind."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.root = OrganizationFactory(slug="university")
        self.lab = OrganizationFactory(slug="lab", parent=self.root)
        cast.project.organization = self.lab
        cast.project.save()
        self.beside = ProjectFactory(slug="speech", organization=self.lab)
        self.of_root = self.line(organization=self.root, nominal=16_000, hard=16_000, used=12_000)
        self.of_lab = self.line(organization=self.lab, nominal=12_000, used=12_000)
        self.own = self.line(project=cast.project, nominal=8000, used=2000)
        self.other = self.line(project=self.beside, nominal=4000, borrowing_limit=6000, used=10_000)
        self.of_owner = self.line(project=cast.project, user=cast.owner, hard=3000, used=2000)
        self.of_model = self.line(project=cast.project, gpu_model="H100", hard=2000)
        self.personal = self.line(user=cast.owner, resource="running_jobs", hard=5)
        self.foreign = self.line(organization=OrganizationFactory(slug="far"), nominal=1000)

    def line(self, *, resource: str = "gpu_millis", **words: Any) -> Quota:
        return QuotaFactory(**{"project": None, "resource": resource, "hard": None, "nominal": None} | words)


@pytest.fixture
def site() -> Site:
    return Site(the_cast())


def send(
    client: Client, method: str, person: Any, url: str = URL, body: object = None, **headers: str
) -> Any:
    return client.generic(
        method, url, data="" if body is None else json.dumps(body), content_type="application/json",
        headers=bearer(person, "quota:write") | headers,
    )  # fmt: skip


def one(line: Quota) -> str:
    return f"{URL}/{line.pk}"


def test_a_line_says_how_it_stands_on_its_way_up(client: Client, site: Site) -> None:
    response = send(client, "GET", site.cast.viewer, one(site.own))

    assert response.status_code == 200
    assert response["ETag"] == f'"line-{site.own.pk}-1"'
    assert response.json() == {
        "id": site.own.pk, "owner": "project vision", "organization": None, "project": "vision", "user": None,
        "resource": "gpu_millis", "gpu_model": "", "job_type": "", "nominal": 8000, "borrowing_limit": None,
        "lending_limit": None, "soft": None, "hard": None, "enforce": True, "converge_after_seconds": None,
        "provider": "local", "used": 2000, "bound": None, "free": 4000, "borrowed": 0, "lent": 6000,
        "over": False, "over_since": None, "stops_at": None, "above": site.of_lab.pk, "generation": 1,
    }  # fmt: skip


def test_what_is_borrowed_and_kept_back_shows_on_the_lines(client: Client, site: Site) -> None:
    Quota.objects.filter(pk=site.own.pk).update(lending_limit=1000)

    body = send(client, "GET", site.cast.operator, f"{URL}?project=speech").json()["results"][0]

    # The lab has 12 in use; 5 more are kept for vision, so nothing is left for those beside it.
    assert (body["borrowed"], body["bound"], body["free"], body["lent"]) == (6000, 10_000, 0, 0)
    assert send(client, "GET", site.cast.operator, one(site.own)).json()["free"] == 4000


def test_a_path_lists_all_that_binds_from_the_lowest_up(client: Client, site: Site) -> None:
    body = send(client, "GET", site.cast.colleague, f"{URL}?path=vision").json()

    assert [line["id"] for line in body["results"]] == [
        site.of_owner.pk, site.own.pk, site.of_model.pk, site.of_lab.pk, site.of_root.pk,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("colleague", "own of_owner of_model of_lab of_root"),
        ("owner", "own of_owner of_model of_lab of_root personal"),
        ("stranger", ""),
        ("auditor", "own of_owner of_model of_lab of_root personal other foreign"),
    ],
)
def test_everybody_sees_what_binds_them(client: Client, site: Site, who: str, seen: str) -> None:
    body = send(client, "GET", getattr(site.cast, who)).json()

    assert {line["id"] for line in body["results"]} == {getattr(site, name).pk for name in seen.split()}


def test_a_list_is_as_many_queries_for_many_lines(client: Client, site: Site) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            assert send(client, "GET", site.cast.operator).json()["results"]
        return len(found)

    queries()  # the person's first token
    few = queries()
    for number in range(3):
        lab = OrganizationFactory(parent=site.lab)
        site.line(organization=lab, nominal=1000)
        site.line(project=ProjectFactory(organization=lab), nominal=500, used=number)

    assert (queries(), few) == (11, 11)


def test_waiting_jobs_are_counted_as_the_list_is_read(client: Client, site: Site) -> None:
    line = site.line(organization=site.root, resource="pending_jobs", hard=10)
    for project in (site.cast.project, site.beside, ProjectFactory(slug="away")):
        JobFactory(project=project, user=site.cast.owner, state="queued")

    assert send(client, "GET", site.cast.operator, one(line)).json()["used"] == 2


NEW = {
    "project": "vision",
    "user": "colleague",
    "resource": "gpu_millis",
    "hard": 1000,
    "reason": "a fair split",
}


@pytest.mark.parametrize(
    ("method", "what", "body", "statuses"),
    [
        ("GET", "own", None, "200 200 200 200 404 200 200 200"),
        ("GET", "of_root", None, "200 200 200 200 404 200 200 200"),
        ("GET", "personal", None, "200 404 404 404 404 200 200 200"),
        ("POST", "", NEW, "403 403 201 403 404 201 403 201"),
        ("POST", "", {"organization": "lab", "resource": "cpu_millis", "hard": 1, "reason": "why"},
         "403 403 403 403 403 201 403 201"),
        ("PATCH", "own", {"hard": 9000, "reason": "why"}, "403 403 403 403 404 200 403 200"),
        ("PATCH", "of_owner", {"hard": 1000, "reason": "why"}, "403 403 200 403 404 200 403 200"),
        ("PATCH", "of_owner", {"nominal": 1000, "reason": "why"}, "403 403 403 403 404 200 403 200"),
        ("PATCH", "personal", {"hard": 4, "reason": "why"}, "403 404 404 404 404 200 403 200"),
        ("DELETE", "of_owner", None, "403 403 204 403 404 204 403 204"),
        ("DELETE", "of_lab", None, "403 403 403 403 404 204 403 204"),
    ],
)  # fmt: skip
def test_who_may(client: Client, site: Site, method: str, what: str, body: Any, statuses: str) -> None:
    url = (one(getattr(site, what)) if what else URL) + ("?reason=why" if method == "DELETE" else "")
    found = []

    for who in WHO:
        with transaction.atomic():
            found.append(send(client, method, getattr(site.cast, who), url, body).status_code)
            transaction.set_rollback(True)

    assert found == [int(status) for status in statuses.split()]


def test_every_subject_and_field_can_be_set(client: Client, site: Site) -> None:
    whole = {"nominal": 4000, "borrowing_limit": 2000, "lending_limit": 0, "soft": 3000, "hard": 6000}
    more = {"enforce": False, "converge_after_seconds": 600, "reason": "agreed"}
    for subject in (
        {"organization": "university", "gpu_model": "A100"},
        {"project": "vision", "job_type": "interactive"},
        {"project": "vision", "user": "lead"},
        {"user": "stranger"},
    ):
        made = send(
            client, "POST", site.cast.operator, URL, subject | whole | more | {"resource": "gpu_millis"}
        )

        assert made.status_code == 201, made.content
        assert {name: made.json()[name] for name in whole | subject} == whole | subject
        assert (made.json()["enforce"], made.json()["converge_after_seconds"]) == (False, 600)
    assert AuditEvent.objects.filter(action="quota.set", reason="agreed").count() == 4


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"hard": 1}, "reason"),
        ({"hard": -1, "reason": "why"}, "hard"),
        ({"lending_limit": 5, "reason": "why"}, "lending_limit"),
        ({"soft": 9, "hard": 8, "reason": "why"}, "soft"),
        ({"used": 0, "reason": "why"}, "used"),
    ],
)
def test_a_change_that_makes_no_sense_names_its_field(
    client: Client, site: Site, body: Any, field: str
) -> None:
    response = send(client, "PATCH", site.cast.operator, one(site.of_model), body)

    assert response.status_code == 422
    assert field in {problem["field"] for problem in response.json()["errors"]}


def test_who_was_overtaken_gets_both_values(client: Client, site: Site) -> None:
    seen = send(client, "GET", site.cast.operator, one(site.own))["ETag"]
    send(client, "PATCH", site.cast.admin, one(site.own), {"hard": 9000, "reason": "first"})

    for method, url, body in (
        ("PATCH", one(site.own), {"hard": 7000, "reason": "second"}),
        ("DELETE", f"{one(site.own)}?reason=second", None),
    ):
        late = send(client, method, site.cast.operator, url, body, **{"If-Match": seen})
        assert (late.status_code, late.json()["code"]) == (412, "stale")
        assert late.json()["current"]["hard"] == 9000
        assert late.json()["yours"] == ({"hard": 7000} if body else {})
    by_body = {"hard": 7000, "reason": "second", "generation": 1}
    assert send(client, "PATCH", site.cast.operator, one(site.own), by_body).status_code == 412
    assert Quota.objects.get(pk=site.own.pk).hard == 9000


def test_a_line_that_is_there_is_not_made_again(client: Client, site: Site) -> None:
    body = {"project": "vision", "resource": "gpu_millis", "hard": 1, "reason": "new"}

    response = send(client, "POST", site.cast.operator, URL, body)

    assert (response.status_code, response.json()["code"]) == (409, "there-already")
    assert response.json()["line"] == site.own.pk
    assert (response.json()["current"]["nominal"], response.json()["yours"]) == (8000, {"hard": 1})


def test_a_line_is_taken_away_with_a_reason(client: Client, site: Site) -> None:
    assert send(client, "DELETE", site.cast.operator, one(site.of_model)).status_code == 422

    assert send(client, "DELETE", site.cast.operator, f"{one(site.of_model)}?reason=moved").status_code == 204

    assert not Quota.objects.filter(pk=site.of_model.pk).exists()
    assert AuditEvent.objects.get(action="quota.remove").before["H100 gpu_millis"]["hard"] == 2000
    assert send(client, "DELETE", site.cast.operator, f"{one(site.of_model)}?reason=x").status_code == 404


def test_a_cut_line_is_over_and_says_when_jobs_stop(client: Client, site: Site) -> None:
    body = {"hard": 1000, "converge_after_seconds": 3600, "reason": "budget"}

    cut = send(client, "PATCH", site.cast.operator, one(site.own), body).json()

    assert (cut["over"], cut["free"], cut["bound"]) == (True, 0, 1000)
    assert cut["over_since"] < cut["stops_at"]
