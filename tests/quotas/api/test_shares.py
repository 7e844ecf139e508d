"""Shares over HTTP: who sees whom, sentences, a preview that changes nothing, and edits that cross."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import AuditEvent, Membership
from quotas.models import ShareUsage
from tests.quotas.sharing import a_shared_site, use
from tests.support.factories import ProjectFactory, bearer
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

URL = "/api/v1/shares"


@pytest.fixture
def site():
    return a_shared_site()


def lines(client: Client, person, query: str = "") -> list[dict]:
    response = client.get(URL + query, headers=bearer(person, "quota:read"))
    assert response.status_code == 200, response.content
    return response.json()["lines"]


def patch(client: Client, person, path: str, body: dict, **headers: str):
    return client.patch(
        f"{URL}/{path}",
        data=json.dumps(body),
        content_type="application/json",
        headers=bearer(person, "quota:write") | headers,
    )


def test_a_member_sees_the_shares_of_siblings_and_no_names(client: Client, site) -> None:
    found = lines(client, site.cast.owner)

    text = json.dumps(found)
    assert "Secret" not in text
    assert site.hidden.username not in text
    assert "Far away" not in text
    projects = {line["name"]: line for line in found if line["kind"] == "project"}
    assert set(projects) == {"Vision", "another project"}
    assert projects["another project"]["id"] is None
    assert projects["another project"]["weight"] == 2
    assert projects["Vision"]["share"] == pytest.approx(1 / 3)
    assert projects["Vision"]["ratio"] == pytest.approx(0.75, rel=1e-3)
    people = {line["name"] for line in found if line["kind"] == "person"}
    assert people == {"owner", "colleague", "lead"}


@pytest.mark.parametrize(("person", "sees"), [
    ("owner", False), ("lead", False), ("viewer", False), ("stranger", False), ("operator", True),
    ("auditor", True), ("admin", True),
])  # fmt: skip
def test_who_sees_every_name(client: Client, site, person: str, sees: bool) -> None:
    text = json.dumps(lines(client, getattr(site.cast, person)))

    assert ("Secret" in text and site.hidden.username in text) is sees
    assert ("Vision" in text) is (person != "stranger")


def test_it_says_in_a_sentence_what_it_means(client: Client, site) -> None:
    found = lines(client, site.cast.owner)

    mine = next(line for line in found if line["kind"] == "person" and line["mine"])
    assert mine["sentence"] == (
        "Used 2.2 times the share over the last 7 days, factor 0.17: about 6th of 6."
    ), found


def test_people_of_one_project_are_not_ranked_where_shares_are_flat(client: Client, site) -> None:
    with as_owner():
        site.other.delete()
        for membership in Membership.objects.filter(project__slug="elsewhere"):
            membership.project.delete()

    response = client.get(URL, headers=bearer(site.cast.operator, "quota:read")).json()

    assert response["is_tree"] is False
    vision = next(line for line in response["lines"] if line["name"] == "Vision")
    secret = next(line for line in response["lines"] if line["name"] == "Secret")
    assert (secret["place"], vision["place"], vision["of"]) == (1, 2, 2)
    # 1 / (12 + 1) against 2 / (4 + 1), in parts of the larger.
    assert vision["factor"] == pytest.approx((1 / 13) / (2 / 5), rel=0.02)
    assert all(line["factor"] is None for line in response["lines"] if line["kind"] == "person")


def test_another_half_life_is_a_look_and_no_change(client: Client, site) -> None:
    kept = list(ShareUsage.objects.values_list("gpu_decayed", flat=True))

    response = client.get(
        f"{URL}?half_life_hours=168&window_days=14", headers=bearer(site.cast.operator, "quota:read")
    )

    body = response.json()
    assert (body["preview"], body["half_life_seconds"], body["window_seconds"]) == (
        True,
        168 * 3600,
        14 * 86_400,
    )
    assert list(ShareUsage.objects.values_list("gpu_decayed", flat=True)) == kept
    assert client.get(URL, headers=bearer(site.cast.operator, "quota:read")).json()["preview"] is False


@pytest.mark.parametrize("query", ["?mode=linear", "?half_life_hours=0", "?window_days=x"])
def test_a_preview_without_sense_is_refused(client: Client, site, query: str) -> None:
    response = client.get(URL + query, headers=bearer(site.cast.owner, "quota:read"))

    assert response.status_code in (400, 422)


@pytest.mark.parametrize(("person", "status"), [
    ("owner", 403), ("lead", 403), ("viewer", 403), ("stranger", 404), ("operator", 200), ("auditor", 403),
    ("admin", 200),
])  # fmt: skip
def test_who_may_change_the_weight_of_a_project(client: Client, site, person: str, status: int) -> None:
    response = patch(
        client,
        getattr(site.cast, person),
        f"project/{site.cast.project.pk}",
        {"share_weight": 5, "reason": "more"},
    )

    site.cast.project.refresh_from_db()
    assert (response.status_code, site.cast.project.share_weight) == (status, 5 if status == 200 else 1)


@pytest.mark.parametrize(
    ("person", "status"), [("owner", 403), ("lead", 200), ("stranger", 404), ("operator", 200)]
)
def test_who_may_change_the_weight_of_a_member(client: Client, site, person: str, status: int) -> None:
    member = Membership.objects.get(project=site.cast.project, user=site.cast.colleague)

    response = patch(
        client, getattr(site.cast, person), f"member/{member.pk}", {"share_weight": 2, "reason": "x"}
    )

    assert response.status_code == status


def test_a_change_is_audited_with_its_reason_and_crossing_edits_are_told(client: Client, site) -> None:
    path = f"project/{site.cast.project.pk}"
    seen = client.get(f"{URL}/{path}", headers=bearer(site.cast.operator, "quota:read"))["ETag"]
    first = patch(client, site.cast.operator, path, {"share_weight": 4, "share_hard_percent": 30, "reason": "grant"},
                  **{"If-Match": seen})  # fmt: skip
    second = patch(
        client, site.cast.operator, path, {"share_weight": 9, "reason": "too late"}, **{"If-Match": seen}
    )

    assert first.status_code == 200
    assert second.status_code == 412
    assert second.json()["current"]["share_weight"] == 4
    event = AuditEvent.objects.get(action="share.set")
    assert (event.reason, event.before, event.after) == (
        "grant", {"share_weight": 1, "share_hard_percent": None}, {"share_weight": 4, "share_hard_percent": 30}
    )  # fmt: skip


@pytest.mark.parametrize("body", [
    {"share_weight": 0, "reason": "x"}, {"share_weight": 2, "reason": " "}, {"reason": "x"},
    {"share_soft_percent": 101, "reason": "x"}, {"share_soft_percent": 50, "share_hard_percent": 20, "reason": "x"},
    {"weight": 3, "reason": "x"},
])  # fmt: skip
def test_a_change_without_sense_is_refused(client: Client, site, body: dict) -> None:
    response = patch(client, site.cast.operator, f"project/{site.secret.pk}", body)

    site.secret.refresh_from_db()
    assert response.status_code in (400, 422)
    assert (site.secret.share_weight, site.secret.share_soft_percent) == (2, None)


def test_more_projects_cost_no_more_queries(client: Client, site) -> None:
    with CaptureQueriesContext(connection) as few:
        lines(client, site.cast.owner)
    for number in range(5):
        project = ProjectFactory(organization=site.home, member=site.cast.owner)
        use(project, site.cast.owner, gpu_hours=number, ended=timezone.now() - timedelta(hours=number))

    with CaptureQueriesContext(connection) as many:
        assert len(lines(client, site.cast.owner)) > 10

    assert len(many) <= len(few) <= 18
