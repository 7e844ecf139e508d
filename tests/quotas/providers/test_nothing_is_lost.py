"""Edits here, edits there, and a provider that dies at any moment: in the end every limit is accounted for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.models import Project, User
from infra.models import Circuit
from quotas.core.units import k8s as k8s_units
from quotas.models import ProviderState, Quota
from quotas.providers.external import once_a_round, one_round
from quotas.services.exchange import due_projects, exchange
from quotas.services.project_quota import set_quota
from quotas.services.providers import exchange_due
from tests.support.factories import OperatorFactory, ProjectFactory, QuotaFactory
from tests.support.k8s_api import K8sApi
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

KEYS = {
    "cpu_millis": "requests.cpu",
    "gpu_millis": "requests.nvidia.com/gpu",
    "running_jobs": "count/jobs.batch",
}
AMOUNTS = st.sampled_from([1000, 2000, 3000])
STEPS = st.one_of(
    st.tuples(st.just("here"), st.sampled_from(sorted(KEYS)), st.none() | AMOUNTS),
    st.tuples(st.just("there"), st.sampled_from(sorted(KEYS.values())), st.none() | AMOUNTS),
    st.tuples(st.just("exchange"), st.sampled_from(["works", "dies before", "dies after", "500", "403"])),
)


def come_what_may(api: K8sApi, project: Project, operator: User, step: tuple[Any, ...]) -> None:
    name = f"project-{project.pk}"
    if step[0] == "here":
        set_quota(
            project=project, changes={step[1]: {"hard": step[2], "nominal": None}}, by=operator, reason="x"
        )
    elif step[0] == "there":
        if ("jobs", name) in api.quotas:
            api.edit(name, {step[1]: None if step[2] is None else str(step[2])})
    else:
        api.drops = int(step[1] == "dies before")
        api.drops_after_acting = int(step[1] == "dies after")
        api.answers = [(int(step[1]), "no", {})] if step[1].isdecimal() else []
        exchange(project.pk)
        api.drops = api.drops_after_acting = 0
        api.answers = []


@given(st.lists(STEPS, max_size=9))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_the_next_exchange_that_works_accounts_for_every_limit(
    api: K8sApi, steps: list[tuple[Any, ...]]
) -> None:
    with transaction.atomic():
        project, operator = ProjectFactory(), OperatorFactory()
        for resource in KEYS:
            QuotaFactory(project=project, resource=resource, hard=1000, nominal=None, provider="k8s")
        for step in steps:
            come_what_may(api, project, operator, step)
        with as_owner():
            Circuit.objects.all().delete()
        exchange(project.pk)

        state = ProviderState.objects.get(project=project)
        there = k8s_units.parse_all(api.hard(f"project-{project.pk}") or {})
        bounds = dict(
            Quota.objects.filter(project=project, hard__isnull=False).values_list("resource", "hard")
        )
        whole = {"gpu_millis": 1000}
        ours = {KEYS[name]: amount // whole.get(name, 1) for name, amount in bounds.items() if name in KEYS}
        differ = {key for key in ours.keys() | there.keys() if ours.get(key) != there.get(key)}

        assert state.written == ours, "what we have is known not yet sent"
        assert state.found == there, "what is there is known"
        assert (state.status == "drift") == bool(differ)
        # Only what somebody changed there differs, and it is named.
        foreign = {step[1] for step in steps if step[0] == "there"}
        assert differ <= foreign
        assert all(key in state.text for key in differ)
        assert due_projects() == []
        api.quotas.clear()
        transaction.set_rollback(True)


def test_the_round_by_the_clock_finds_an_edit_whose_message_was_lost(api: K8sApi) -> None:
    project = ProjectFactory()
    line = QuotaFactory(project=project, resource="cpu_millis", hard=1000, provider="k8s")
    exchange_due()

    Quota.objects.filter(pk=line.pk).update(hard=7000)  # no service, no message
    assert exchange_due() == 1

    assert api.hard(f"project-{project.pk}") == {"requests.cpu": "7"}


def test_a_project_that_fails_holds_up_no_other(api: K8sApi, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project
        for _ in range(2)
    )
    api.quotas["jobs", f"project-{first.pk}"] = {
        "metadata": {"name": f"project-{first.pk}", "resourceVersion": "1"},
        "spec": {"hard": {"requests.cpu": "many"}}, "status": {},
    }  # fmt: skip

    assert exchange_due() == 2

    assert ProviderState.objects.get(project=first).text == (
        f"ResourceQuota project-{first.pk} cannot be read: 'many' is not a quantity of Kubernetes."
    )
    assert ProviderState.objects.get(project=second).status == "ok"
    assert api.hard(f"project-{second.pk}") == {"requests.cpu": "1"}


def test_a_project_is_looked_at_again_after_a_while(api: K8sApi) -> None:
    project = QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project
    exchange_due()
    assert due_projects() == []

    ProviderState.objects.update(synced_at=timezone.now() - timedelta(seconds=301))

    assert due_projects() == [project.pk]


def test_what_is_the_same_for_all_projects_is_read_once_a_round() -> None:
    asked: list[int] = []

    def read() -> int:
        asked.append(1)
        return len(asked)

    with one_round():
        assert [once_a_round("jobs", read), once_a_round("jobs", read)] == [1, 1]
    with one_round():
        assert once_a_round("jobs", read) == 2, "a new round looks again"
    assert once_a_round("jobs", read) == 3
