"""People, projects, budgets, limits and prices in the document; and changes that need an order."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import AuditEvent, Membership, Organization, Project, User
from quotas.models import Budget, PriceRow, Quota
from scheduler.models import Cluster, ProfileVersion, Queue, SchedulerProfile
from scheduler.services.cluster.defaults import ensure_defaults
from tests.scheduler.configuration.test_configuration import apply, export, trail
from tests.support.factories import Cast, the_cast
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

SITE = """\
people:
- {username: mia, first_name: Mia, email: mia@example.org, site_role: operator, priority_ceiling: 80}
- username: noa
  share_weight: 3
  limits:
  - {resource: running_jobs, hard: 9}
organizations:
- slug: lab              # its parent comes later
  name: Laboratory
  parent: faculty
- slug: faculty
  name: Faculty
  share_hard_percent: 60
  budgets:
  - {name: energy, resource: cpu_milli_seconds, amount: 7200000, period: week, starts_at: 2026-11-02T00:00:00Z}
  limits:
  - {resource: gpu_millis, gpu_model: H100, nominal: 8000, lending_limit: 2000}
projects:
- slug: robots
  name: Robots
  organization: lab
  description: Two arms
  share_weight: 5
  members:
  - {user: mia, role: lead}
  - {user: noa, expires_at: 2099-01-01T00:00:00Z, share_weight: 2}
  budgets:
  - name: GPU hours
    resource: gpu_milli_seconds
    amount: 3600000000
    period: month
    on_spent: demote
    starts_at: 2026-11-01T00:00:00Z
  limits:
  - {resource: gpu_millis, nominal: 4000, soft: 6000, hard: 8000}
  - {resource: cpu_millis, user: noa, hard: 16000}
prices:
- {resource: gpu_millis, gpu_model: H100, micros_per_hour: 2500000, valid_from: 2026-11-01T00:00:00Z}
- {resource: cpu_millis, micros_per_hour: 20000, valid_from: 2026-11-01T00:00:00Z}
"""


@pytest.fixture
def cast() -> Cast:
    ensure_defaults()
    return the_cast()


def test_people_projects_and_amounts_are_exported_as_another_site_makes_them(
    client: Client, cast: Cast
) -> None:
    made = apply(client, cast.admin, SITE)

    assert made.status_code == 200, made.json()
    mia, robots = User.objects.get(username="mia"), Project.objects.get(slug="robots")
    assert (mia.site_role, mia.priority_ceiling, mia.has_usable_password()) == ("operator", 80, False)
    assert (robots.organization.parent.slug, robots.share_weight) == ("faculty", 5)
    assert dict(robots.memberships.values_list("user__username", "role")) == {
        "mia": "lead",
        "noa": "member",
    }
    assert Budget.objects.get(project=robots).on_spent == "demote"
    assert Quota.objects.plain().get(project=robots, resource="gpu_millis").hard == 8000
    assert AuditEvent.objects.filter(action="budget.make", reason="set up the hall").count() == 2
    text = export(client, cast.auditor)
    entries = trail()
    assert apply(client, cast.admin, text).json() == {"applied": True, "changes": []}
    assert trail() == entries

    # An empty portal, but for those who set it up.
    with as_owner():
        for model in (Budget, Quota, PriceRow, Membership, Queue, Project):
            model.objects.all().delete()
        Organization.objects.update(parent=None)
        Organization.objects.all().delete()
        User.objects.filter(username__in=["mia", "noa"]).delete()
        Queue.objects.create(cluster=Cluster.objects.get(), name="default", slug="default", is_default=True)
    again = apply(client, cast.admin, text)
    assert again.status_code == 200, again.json()
    assert export(client, cast.auditor) == text


def test_members_and_limits_that_are_not_named_go_with_prune_and_the_rest_stays(
    client: Client, cast: Cast
) -> None:
    assert apply(client, cast.admin, SITE).status_code == 200
    kept = (
        "projects:\n- {slug: robots, members: [{user: mia}], limits: [{resource: gpu_millis, hard: 8000}]}\n"
    )

    gone = apply(client, cast.admin, kept, prune=True).json()["changes"]

    assert [(one["kind"], one["name"], one["action"]) for one in gone] == [
        ("members", "robots/noa", "delete"), ("limits", "robots/cpu_millis noa", "delete"),
    ]  # fmt: skip
    assert Project.objects.filter(slug="robots").exists()
    assert Budget.objects.filter(project__slug="robots").exists()
    robots = Project.objects.get(slug="robots")
    none = apply(client, cast.admin, "projects: [{slug: robots, limits: []}]\n", prune=True).json()["changes"]
    assert [(one["name"], one["action"]) for one in none] == [("robots/gpu_millis", "delete")]
    assert Quota.objects.plain().get(project=robots, resource="gpu_millis").hard is None


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("people:\n- username: mia\n  site_role: king\n", 3, "not a site role"),
        ("people:\n- username: mia\n  priority_ceiling: 101\n", 3, "0 to 100"),
        ("people:\n- username: mia\n  password: x\n", 3, "There is no field password"),
        (
            "projects:\n- slug: robots\n  name: Robots\n  organization: nowhere\n",
            4,
            "'nowhere', which does not exist",
        ),
        ("projects:\n- slug: robots\n  name: Robots\n", 2, "organization: a new entry of projects needs"),
        ("projects:\n- slug: vision\n  members:\n  - user: nobody\n", 4, "'nobody', which does not exist"),
        ("projects:\n- slug: vision\n  budgets:\n  - name: a\n    amount: x\n", 5, "whole number"),
        (
            "projects:\n- slug: vision\n  limits:\n  - {resource: gpus, hard: 1}\n",
            4,
            "Unknown resource 'gpus'",
        ),
        ("prices:\n- resource: cpu_millis\n  valid_from: soon\n", 3, "has to be a time such as"),
        (
            "organizations:\n- {slug: a, name: A, parent: b}\n- {slug: b, name: B, parent: a}\n",
            2,
            "'b', which",
        ),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_changed(
    client: Client, cast: Cast, text: str, line: int, says: str
) -> None:
    before, entries = export(client, cast.admin), trail()

    refused = apply(
        client, cast.admin, "people:\n- username: fine\n" + text if "people" not in text else text
    )

    shift = 0 if "people" in text else 2
    assert refused.status_code == 422, refused.json()
    found = [(one["field"], one["message"]) for one in refused.json()["errors"]]
    assert any(at == f"line {line + shift}" and says in message for at, message in found), found
    assert (export(client, cast.admin), trail()) == (before, entries)


def test_a_price_that_was_in_force_does_not_change(client: Client, cast: Cast) -> None:
    assert apply(client, cast.admin, SITE).status_code == 200

    refused = apply(client, cast.admin, SITE.replace("2500000", "9"))

    assert "does not change; add a price" in refused.json()["errors"][0]["message"]


def test_operators_set_amounts_and_only_admins_people_and_projects(client: Client, cast: Cast) -> None:
    budget = (
        "{name: b, resource: cpu_milli_seconds, amount: 1, period: week, starts_at: 2026-11-02T00:00:00Z}"
    )
    texts = {
        f"projects: [{{slug: vision, budgets: [{budget}]}}]\n": (cast.operator, cast.admin),
        "projects: [{slug: vision, limits: [{resource: gpu_millis, hard: 1}]}]\n": (cast.operator, cast.admin),
        "prices: [{resource: cpu_millis, micros_per_hour: 1, valid_from: 2026-11-01T00:00:00Z}]\n": (
            cast.operator, cast.admin,
        ),
        "people: [{username: new}]\n": (cast.admin,),
        "people: [{username: operator, site_role: admin}]\n": (cast.admin,),
        "organizations: [{slug: new, name: New}]\n": (cast.admin,),
    }  # fmt: skip
    for text, may in texts.items():
        for name, person in cast.people().items():
            status = apply(client, person, text, dry_run=True).status_code
            assert status == (200 if person in may else 403), (name, text)


def test_rows_that_are_valid_only_together_are_changed_in_either_direction(
    client: Client, cast: Cast
) -> None:
    """Until now profiles were written first, and refused what the queue of the same document allows."""
    before = (
        "profiles:\n- {name: own, policy: sjf, backfill: none}\n"
        "clusters:\n- slug: main\n  queues:\n  - {slug: default, profile: own}\n"
    )
    assert apply(client, cast.admin, before).status_code == 200

    free = before.replace("backfill: none", "backfill: aggressive").replace("profile: own", "profile: null")
    assert apply(client, cast.admin, free).status_code == 200
    assert (SchedulerProfile.objects.get(name="own").backfill, Queue.objects.get().profile) == (
        "aggressive",
        None,
    )
    assert apply(client, cast.admin, before).status_code == 200
    assert (SchedulerProfile.objects.get(name="own").backfill, Queue.objects.get().profile.name) == (
        "none",
        "own",
    )
    assert ProfileVersion.objects.filter(profile_name="own").count() == 3

    # A class takes the value of one that goes.
    swapped = apply(
        client, cast.admin,
        yaml.safe_dump({"priority_classes": [{"name": "ONLY", "value": 50}]}), prune=True,
    )  # fmt: skip
    assert swapped.status_code == 200, swapped.json()

    wrong = free.replace("profile: null", "profile: own")
    refused = apply(client, cast.admin, wrong)
    assert refused.status_code == 422
    assert "which only the profile of the cluster decides" in refused.json()["detail"]


def test_a_large_document_is_compared_in_a_fixed_number_of_queries(client: Client, cast: Cast) -> None:
    def document(count: int) -> str:
        return yaml.safe_dump(
            {
                "projects": [
                    {"slug": f"p{n}", "name": f"P{n}", "organization": cast.project.organization.slug}
                    for n in range(count // 4)
                ],
                "clusters": [
                    {"slug": "main", "nodes": [{"name": f"n{n}", "rack": "r1"} for n in range(count)]}
                ],
            }
        )

    counted: dict[int, Any] = {}
    for count in (8, 24):
        with CaptureQueriesContext(connection) as made:
            assert apply(client, cast.admin, document(count)).status_code == 200
        with CaptureQueriesContext(connection) as same:
            assert apply(client, cast.admin, document(count)).json()["changes"] == []
        counted[count] = len(made), len(same)

    assert counted[24][1] == counted[8][1], counted
    assert (counted[24][0] - counted[8][0]) / (24 + 6 - 8 - 2) < 30, counted


def test_a_document_that_changes_too_many_rows_is_refused_whole(
    client: Client, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.configuration.apply.MOST_CHANGES", 2)
    before = export(client, cast.admin)

    refused = apply(client, cast.admin, "people: [{username: a}, {username: b}, {username: c}]\n")

    assert (refused.status_code, "changes more than 2 rows" in refused.json()["detail"]) == (422, True)
    assert export(client, cast.admin) == before
