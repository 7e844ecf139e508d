"""Who may do what to which thing: the whole table, person by person."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from accounts import permissions
from accounts.models import Membership
from infra import request_context
from infra.errors import NotAllowed, NotFound
from tests.support.factories import AdminFactory, JobFactory, NodeFactory, QueueFactory, UserFactory, the_cast

pytestmark = pytest.mark.django_db

EVERYBODY = {"owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin"}
MEMBERS = {"owner", "colleague", "lead"}

#: verb -> who may, on a job of `owner`.
JOB = {
    "view": MEMBERS | {"viewer", "operator", "auditor", "admin"},
    "cancel": {"owner", "lead", "operator", "admin"},
    "hold": {"owner", "lead", "operator", "admin"},
    "release": {"owner", "lead", "operator", "admin"},
    "requeue": {"owner", "lead", "operator", "admin"},
    "boost": {"operator", "admin"},
    "edit": {"owner", "lead", "operator", "admin"},
    "see_inside": {"owner", "lead", "admin"},
    "read_results": MEMBERS | {"admin"},
    "remove_results": {"owner", "lead", "operator", "admin"},
}
PROJECT = {
    "view": MEMBERS | {"viewer", "operator", "auditor", "admin"},
    "view_quota": MEMBERS | {"viewer", "operator", "auditor", "admin"},
    "submit": MEMBERS,
    "manage": {"lead", "admin"},
    "see_secrets": MEMBERS | {"admin"},
    "ask_quota": {"lead", "admin"},
    "split_quota": {"lead", "operator", "admin"},
    "edit_quota": {"operator", "admin"},
}
SITE = {
    "view": EVERYBODY,
    "operate": {"operator", "admin"},
    "audit": {"auditor", "admin"},
    "administer": {"admin"},
}


def test_every_verb_has_a_row_here() -> None:
    assert (set(JOB), set(PROJECT), set(SITE)) == (
        set(permissions.OWNED_RULES),
        set(permissions.PROJECT_RULES),
        set(permissions.SITE_RULES),
    )


@pytest.mark.parametrize(("verb", "who"), JOB.items())
def test_who_may_do_this_to_a_job(verb: str, who: set[str]) -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner)

    assert {name for name, person in cast.people().items() if permissions.may(person, verb, job)} == who


@pytest.mark.parametrize(("verb", "who"), PROJECT.items())
def test_who_may_do_this_to_a_project(verb: str, who: set[str]) -> None:
    cast = the_cast()

    assert {
        name for name, person in cast.people().items() if permissions.may(person, verb, cast.project)
    } == who


@pytest.mark.parametrize(("verb", "who"), SITE.items())
def test_who_may_do_this_to_the_site(verb: str, who: set[str]) -> None:
    cast = the_cast()
    node = NodeFactory()

    for thing in (None, node):
        assert {name for name, person in cast.people().items() if permissions.may(person, verb, thing)} == who


def test_a_queue_without_a_project_is_the_sites_and_one_with_a_project_is_the_projects() -> None:
    cast = the_cast()
    open_queue, own_queue = QueueFactory(), QueueFactory(project=cast.project)

    assert permissions.may(cast.stranger, "view", open_queue)
    assert not permissions.may(cast.stranger, "view", own_queue)
    assert permissions.may(cast.viewer, "view", own_queue)
    assert permissions.may(cast.operator, "operate", own_queue)
    assert not permissions.may(cast.lead, "operate", own_queue)


def test_a_closed_project_takes_no_job_from_anybody() -> None:
    cast = the_cast()
    cast.project.active = False

    assert not any(permissions.may(person, "submit", cast.project) for person in cast.people().values())
    assert permissions.may(cast.owner, "view", cast.project)


def test_owning_a_job_is_not_enough_once_the_membership_has_ended() -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner)
    Membership.objects.filter(user=cast.owner).update(expires_at=timezone.now() - timedelta(seconds=1))

    assert not permissions.may(cast.owner, "view", job)
    assert not permissions.may(cast.owner, "cancel", job)


def test_a_viewer_may_not_cancel_what_they_submitted_as_a_member() -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner)
    Membership.objects.filter(user=cast.owner).update(role="viewer")

    assert permissions.may(cast.owner, "view", job)
    assert not permissions.may(cast.owner, "cancel", job)


def test_a_disabled_account_may_nothing() -> None:
    admin = AdminFactory(is_active=False, is_superuser=True)

    assert not any(permissions.may(admin, verb) for verb in permissions.SITE_RULES)


def test_nobody_in_particular_may_nothing() -> None:
    from django.contrib.auth.models import AnonymousUser

    assert not permissions.may(AnonymousUser(), "view")
    assert not permissions.may(None, "view")


def test_accounts_and_tokens_are_for_their_person_and_for_admins() -> None:
    cast = the_cast()

    who = {name for name, person in cast.people().items() if permissions.may(person, "edit", cast.owner)}

    assert who == {"owner", "admin"}


def test_a_verb_that_no_table_knows_is_a_mistake_and_never_a_yes() -> None:
    cast = the_cast()

    with pytest.raises(ValueError, match="no rule says who may 'fly'"):
        permissions.may(cast.admin, "fly", cast.project)


def test_a_refusal_tells_a_member_what_to_do_and_a_stranger_nothing() -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner, name="secret")

    with pytest.raises(NotAllowed) as refused:
        permissions.require(cast.colleague, "cancel", job)
    assert refused.value.status == 403
    assert "lead" in refused.value.way_out
    assert refused.value.refused == ("cancel", job)

    with pytest.raises(NotFound) as hidden:
        permissions.require(cast.stranger, "cancel", job)
    assert hidden.value.status == 404
    assert "secret" not in str(hidden.value)


def test_a_token_held_to_a_project_opens_nothing_else() -> None:
    cast = the_cast()
    other = JobFactory(user=UserFactory())
    Membership.objects.create(project=other.project, user=cast.owner, role="lead")

    with request_context.acting(token_user_id=cast.owner.pk, token_project_id=cast.project.pk):
        assert permissions.may(cast.owner, "submit", cast.project)
        assert not permissions.may(cast.owner, "view", other)

    with request_context.acting(token_user_id=cast.admin.pk, token_project_id=cast.project.pk):
        assert permissions.may(cast.admin, "manage", cast.project)
        assert not any(permissions.may(cast.admin, verb) for verb in ("operate", "audit", "administer"))
        assert not permissions.may(cast.admin, "view", other)


def test_the_limits_of_one_persons_token_do_not_touch_others() -> None:
    cast = the_cast()

    with request_context.acting(token_user_id=cast.owner.pk, token_project_id=-1):
        assert not permissions.may(cast.owner, "view", cast.project)
        assert permissions.may(cast.lead, "view", cast.project)


def test_allowed_verbs_says_the_same_with_one_query(django_assert_num_queries) -> None:
    cast = the_cast()
    job = JobFactory(project=cast.project, user=cast.owner)

    with django_assert_num_queries(1):
        verbs = permissions.allowed_verbs(cast.colleague, job)

    assert verbs == {"view", "read_results"}
    assert permissions.allowed_verbs(cast.owner, job) == {verb for verb, who in JOB.items() if "owner" in who}
