"""Single lines: counted from the moment they are made, and changed in the order in which all lock them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from accounts.models import Organization, Project
from accounts.services.projects import edit_organization
from quotas.core.share_tree import build_tree
from quotas.models import Grant, GrantState, Quota
from quotas.services import grant_effects
from quotas.services.grants import approve_grant, ask_for_quota, begin_and_end
from quotas.services.quota_lines import Subject, set_line, sync_lines
from tests.quotas.services.test_project_quota import holds
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    JobFactory,
    OrganizationFactory,
    ProjectFactory,
    QuotaFactory,
    UserFactory,
    the_cast,
)
from tests.support.locks import Apart

pytestmark = pytest.mark.django_db


def test_a_new_limit_counts_what_runs_already_and_is_kept_after_its_time() -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner, state="running", epoch=1)
    AllocationFactory(attempt=AttemptFactory(job=job), cpu_millis=3000)

    line = set_line(
        subject=Subject(project=cast.project, user=cast.owner), resource="cpu_millis", by=cast.operator,
        changes={"hard": 1000, "converge_after_seconds": 60}, reason="a fair part",
    )  # fmt: skip

    line.refresh_from_db()
    assert line.used == 3000
    assert line.over_since is not None


def test_a_recount_that_finds_too_much_in_use_begins_the_time_until_it_is_kept() -> None:
    project = ProjectFactory()
    long_ago = timezone.now() - timedelta(days=30)
    line = QuotaFactory(
        project=project,
        resource="cpu_millis",
        hard=1000,
        used=0,
        converge_after_seconds=60,
        over_since=long_ago,
    )
    holds(project, cpu_millis=3000)

    assert sync_lines([line.pk]) == 1

    line.refresh_from_db()
    assert (line.used, timezone.now() - line.over_since < timedelta(minutes=1)) == (3000, True)
    Quota.objects.filter(pk=line.pk).update(hard=4000)
    QuotaFactory(project=project, resource="memory_mib", hard=10**6, used=5, converge_after_seconds=60)
    sync_lines(Quota.objects.values_list("pk", flat=True))
    assert not Quota.objects.filter(resource="memory_mib", over_since__isnull=False).exists()


@pytest.mark.django_db(transaction=True)
def test_a_grant_begins_while_somebody_edits_the_same_quota() -> None:
    cast = the_cast()
    line = QuotaFactory(project=cast.project, resource="gpu_millis", hard=8000)
    grant = ask_for_quota(
        project=cast.project, resource="gpu_millis", amount=1000, reason="a paper", by=cast.lead
    )
    other = UserFactory(site_role="operator")

    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=cast.project.pk)  # an edit has come so far
        begins = Apart(lambda: approve_grant(grant=grant, by=other, reason="yes"))
        begins.until_it_waits()
        Quota.objects.select_for_update(nowait=True, of=("self",)).get(pk=line.pk)
    begins.end()

    line.refresh_from_db()
    assert line.hard == 9000


def test_a_grant_that_cannot_begin_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cast, other = the_cast(), ProjectFactory()
    for project in (cast.project, other):
        QuotaFactory(project=project, resource="gpu_millis", hard=8000)
        Grant.objects.create(
            project=project, resource="gpu_millis", amount=1000, granted=1000, reason="x", decision="y",
            state=GrantState.APPROVED, asked_at=timezone.now() - timedelta(days=1),
        )  # fmt: skip
    raise_for = grant_effects.raise_for

    def fails_once(row: Grant, reason: str) -> grant_effects.Raised:
        if row.project_id == cast.project.pk:
            raise RuntimeError("a mistake of ours")
        return raise_for(row, reason)

    monkeypatch.setattr(grant_effects, "raise_for", fails_once)

    assert begin_and_end() == (1, 0)

    assert list(Grant.objects.order_by("pk").values_list("state", flat=True)) == ["approved", "active"]


@pytest.mark.django_db(transaction=True)
def test_two_who_hang_organizations_below_each_other_do_not_make_a_circle() -> None:
    first, second, admin = OrganizationFactory(), OrganizationFactory(), UserFactory(site_role="admin")

    def below(one: Organization, other: Organization) -> None:
        fresh = Organization.objects.get(pk=one.pk)
        edit_organization(organization=fresh, changes={"parent": other}, by=admin)

    with transaction.atomic():
        below(first, Organization.objects.get(pk=second.pk))
        late = Apart(lambda: below(second, Organization.objects.get(pk=first.pk)))
        late.until_it_waits()
    with pytest.raises(Exception, match="cannot be its own parent"):
        late.end()

    assert Organization.objects.get(pk=second.pk).parent_id is None


def test_organizations_in_a_circle_stop_no_planner() -> None:
    organizations = [(1, "a", 2, 1, None, None), (2, "b", 1, 1, None, None), (3, "c", 1, 1, None, None)]

    tree = build_tree(organizations, [(7, "p", 3, 1, None, None)], [(7, 9, "mia", 1)])

    assert list(zip(tree.name, tree.parent.tolist(), strict=True)) == [
        ("a", -1), ("c", 0), ("p", 1), ("mia", 2),
    ]  # fmt: skip
