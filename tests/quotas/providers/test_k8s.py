"""Quotas kept in Kubernetes: the official client, over HTTP, against an API that keeps state and fails."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from accounts.models import AuditEvent, User
from infra.errors import Conflict, NotAllowed, NotFound
from infra.models import Circuit
from quotas import tasks
from quotas.core.resources import Resources
from quotas.models import ProviderState
from quotas.providers import k8s
from quotas.providers.circuit import circuit_of
from quotas.providers.registry import provider
from quotas.services.exchange import due_projects, exchange
from quotas.services.project_quota import set_quota
from quotas.services.providers import exchange_due, repair_provider
from tests.support.at_once import at_once
from tests.support.factories import (
    MembershipFactory,
    OperatorFactory,
    ProjectFactory,
    QuotaFactory,
    UserFactory,
)
from tests.support.k8s_api import K8sApi

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> User:
    return OperatorFactory()


@pytest.fixture
def project(api: K8sApi):
    """100 cores, 500 GiB, 10 GPUs, kept in Kubernetes, and nothing brought over yet."""
    made = ProjectFactory(slug="vision")
    for resource, hard in (("cpu_millis", 100_000), ("memory_mib", 512_000), ("gpu_millis", 10_000)):
        QuotaFactory(project=made, resource=resource, hard=hard, provider="k8s")
    return made


def name_of(project) -> str:
    return f"project-{project.pk}"


def state_of(project) -> ProviderState:
    return ProviderState.objects.get(project=project)


def test_a_quota_becomes_a_resource_quota_with_the_right_units(api: K8sApi, project) -> None:
    exchange(project.pk)

    assert api.hard(name_of(project)) == {
        "requests.cpu": "100",
        "requests.memory": "500Gi",
        "requests.nvidia.com/gpu": "10",
    }
    quota = api.quotas["jobs", name_of(project)]
    assert quota["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "muster"}
    state = state_of(project)
    assert (state.status, state.text, state.left_out) == ("ok", "", [])
    assert state.synced_at is not None


def test_an_edit_replaces_what_is_there_and_usage_is_read_back(api: K8sApi, project, operator: User) -> None:
    exchange(project.pk)
    api.use(name_of(project), {"requests.cpu": "2500m", "requests.memory": "3Gi", "pods": "2"})

    set_quota(
        project=project,
        changes={"cpu_millis": {"hard": 2500}, "gpu_millis": {"hard": None}},
        by=operator,
        reason="x",
    )
    assert state_of(project).status == "pending"
    assert due_projects() == [project.pk]
    tasks.exchange_project(project.pk)

    assert api.hard(name_of(project)) == {"requests.cpu": "2500m", "requests.memory": "500Gi"}
    state = state_of(project)
    assert (state.status, state.used) == ("ok", {"requests.cpu": 2500, "requests.memory": 3072})
    assert due_projects() == []


def test_limits_of_others_in_the_object_are_left_alone(api: K8sApi, project, operator: User) -> None:
    exchange(project.pk)
    api.edit(name_of(project), {"count/configmaps": "5"})

    set_quota(project=project, changes={"cpu_millis": {"hard": 1000}}, by=operator, reason="x")
    exchange(project.pk)

    assert api.hard(name_of(project))["count/configmaps"] == "5"  # type: ignore[index]
    assert state_of(project).status == "ok"


def test_an_edit_behind_our_back_is_shown_with_both_values_and_put_right_on_request(
    api: K8sApi, project, operator: User
) -> None:
    exchange(project.pk)
    api.edit(name_of(project), {"requests.cpu": "400", "requests.nvidia.com/gpu": None})

    exchange(project.pk)

    state = state_of(project)
    assert state.status == "drift"
    assert state.text == (
        "requests.cpu is 400 at the provider and 100 in Muster; "
        "requests.nvidia.com/gpu is none at the provider and 10 in Muster."
    )
    assert api.hard(name_of(project))["requests.cpu"] == "400", "nothing is put right unasked"  # type: ignore[index]
    event = AuditEvent.objects.get(action="quota.drift")
    assert (event.before["requests.cpu"], event.after["requests.cpu"]) == ("400", "100")

    exchange(project.pk)  # seen again, told once
    assert AuditEvent.objects.filter(action="quota.drift").count() == 1

    outcome = repair_provider(project=project, by=operator, reason="nobody asked for it")
    assert [d.key for d in outcome.written] == ["requests.cpu", "requests.nvidia.com/gpu"]
    assert api.hard(name_of(project)) == {
        "requests.cpu": "100", "requests.memory": "500Gi", "requests.nvidia.com/gpu": "10",
    }  # fmt: skip
    assert state_of(project).status == "ok"
    event = AuditEvent.objects.get(action="quota.provider_repair")
    assert (event.reason, event.actor) == ("nobody asked for it", operator)


def test_somebody_who_writes_at_the_same_moment_loses_nothing(api: K8sApi, project) -> None:
    exchange(project.pk)
    QuotaFactory(project=project, resource="running_jobs", hard=7, provider="k8s")

    def once() -> None:
        api.before_write = None
        api.edit(name_of(project), {"pods": "9"})

    api.before_write = once
    exchange(project.pk)

    hard = api.hard(name_of(project))
    assert hard is not None
    assert (hard["pods"], hard["count/jobs.batch"]) == ("9", "7")
    assert state_of(project).status == "ok"


def test_an_object_that_never_stands_still_is_tried_again_later(api: K8sApi, project, operator: User) -> None:
    exchange(project.pk)
    set_quota(project=project, changes={"cpu_millis": {"hard": 1000}}, by=operator, reason="x")
    api.before_write = lambda: api.edit(name_of(project), {"pods": "9"})

    exchange(project.pk)

    state = state_of(project)
    assert (state.status, state.failures) == ("unreachable", 1)
    assert "is being changed concurrently" in state.text
    api.before_write = None
    exchange(project.pk)
    assert state_of(project).status == "ok"


@pytest.mark.parametrize(
    ("status", "message", "becomes", "words"),
    [
        (401, "Unauthorized", "refused", "does not accept Muster's credentials"),
        (403, "resourcequotas is forbidden", "refused", "resourcequotas is forbidden"),
        (422, "must match the pattern", "refused", "must match the pattern"),
        (500, "etcd is gone", "unreachable", "etcd is gone"),
        (503, "", "unreachable", "too busy"),
    ],
)
def test_what_it_answers_becomes_a_state_with_its_words(
    api: K8sApi, project, status: int, message: str, becomes: str, words: str
) -> None:
    api.answers = [(status, message, {})]

    exchange(project.pk)

    state = state_of(project)
    assert (state.status, state.failures) == (becomes, 1)
    assert words in state.text
    assert state.next_try_at is not None
    assert state.next_try_at > timezone.now()

    exchange(project.pk)  # whatever it was, the next one that works heals it
    assert (state_of(project).status, state_of(project).failures) == ("ok", 0)


def test_a_missing_namespace_is_said_to_be_missing(api: K8sApi, project, settings) -> None:
    settings.K8S_QUOTA_NAMESPACE = "elsewhere"

    exchange(project.pk)

    assert (
        state_of(project).text
        == "Kubernetes has no namespace elsewhere; make it, or set K8S_QUOTA_NAMESPACE."
    )


def test_each_project_may_have_a_namespace_of_its_own(api: K8sApi, project, settings) -> None:
    settings.K8S_QUOTA_NAMESPACE = "jobs-{slug}"
    api.namespaces.add("jobs-vision")

    exchange(project.pk)

    assert set(api.quotas) == {("jobs-vision", name_of(project))}
    assert state_of(project).status == "ok"


def test_a_slow_server_is_given_up(api: K8sApi, project, settings) -> None:
    settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 0.1
    api.seconds = 0.4

    exchange(project.pk)

    state = state_of(project)
    assert (state.status, state.text) == ("unreachable", "Kubernetes did not answer within 0.1 s.")


def test_it_is_left_alone_after_failures_and_one_caller_tries_first(api: K8sApi, project, settings) -> None:
    api.answers = [(500, "away", {})] * 3
    for _ in range(3):
        exchange(project.pk)
    asked = len(api.requests)

    exchange(project.pk)

    assert len(api.requests) == asked, "the circuit is open"
    state = state_of(project)
    assert (state.status, state.text) == ("unreachable", "Kubernetes answered 500: away")

    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))
    assert [circuit_of("k8s").look().open_until is None for _ in range(3)] == [True, False, False]

    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))
    exchange(project.pk)
    assert state_of(project).status == "ok"
    assert not Circuit.objects.exists()


def test_retry_after_is_obeyed(api: K8sApi, project) -> None:
    api.answers = [(429, "slow down", {"Retry-After": "120"})]

    exchange(project.pk)

    until = Circuit.objects.get().open_until
    assert until is not None
    assert until > timezone.now() + timedelta(seconds=100)


def test_nothing_is_asked_while_it_is_switched_off(api: K8sApi, project, settings) -> None:
    settings.K8S_CREATE_RESOURCE_QUOTAS = False

    exchange(project.pk)

    assert not api.requests
    assert state_of(project).status == "off"
    assert provider("k8s").check_quota(project.pk, Resources(cpu_millis=1000)).allowed
    assert due_projects() == []
    settings.K8S_CREATE_RESOURCE_QUOTAS = True
    assert due_projects() == [project.pk]


@pytest.mark.parametrize("moment", ["before", "after the write"])
def test_a_connection_that_breaks_loses_nothing(api: K8sApi, project, moment: str) -> None:
    """Killed before the write, or after it and before its answer: the next round makes it so, once."""
    if moment == "before":
        api.drops = 1
    else:
        api.drops_after_acting = 1

    exchange(project.pk)
    assert state_of(project).status == "unreachable"
    assert due_projects() == [], "not at once"
    ProviderState.objects.update(next_try_at=timezone.now())
    assert exchange_due() == 1

    assert state_of(project).status == "ok"
    assert api.hard(name_of(project))["requests.cpu"] == "100"  # type: ignore[index]


def test_a_process_that_dies_amid_an_exchange_blocks_nobody_for_long(api: K8sApi, project) -> None:
    exchange(project.pk)
    ProviderState.objects.update(
        claim="00000000-0000-0000-0000-000000000001", claimed_until=timezone.now() + timedelta(seconds=60)
    )
    assert exchange(project.pk) is None
    ProviderState.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))

    assert exchange(project.pk) is not None
    assert state_of(project).claim is None


def test_one_who_lost_the_claim_writes_nothing_down(api: K8sApi, project) -> None:
    from quotas.services import exchange as module

    exchange(project.pk)
    task = module.tasks_of([project.pk])[project.pk]
    slow = module._claim(task)
    assert slow is not None
    ProviderState.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    quick = module._claim(task)
    assert quick is not None

    late = module._record(slow, task, module.Outcome(module.ProviderStatus.REFUSED, "stale"), None, None)

    assert late is None
    assert state_of(project).status == "ok"


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_while_the_network_is_asked(api: K8sApi, project, monkeypatch) -> None:
    seen: list[bool] = []
    read = k8s.K8sQuotaProvider.read

    def spy(self, scope):  # type: ignore[no-untyped-def]
        seen.append(connection.in_atomic_block)
        return read(self, scope)

    monkeypatch.setattr(k8s.K8sQuotaProvider, "read", spy)

    exchange(project.pk)

    assert seen == [False, False]


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_exchanges(api: K8sApi, project) -> None:
    api.seconds = 0.15

    results = at_once(*[partial(exchange, project.pk)] * 4)

    assert sum(result is not None for result in results) == 1
    assert [method for method, _ in api.requests] == ["GET", "POST", "GET"]


# ---------------------------------------------------------------- who waits, who may


def test_jobs_wait_while_it_is_away_and_run_where_the_installation_says_so(
    api: K8sApi, project, settings
) -> None:
    small = Resources(cpu_millis=1000, memory_mib=1024)
    api.answers = [(500, "etcd is gone", {})]
    exchange(project.pk)

    check = provider("k8s").check_quota(project.pk, small)
    assert (check.allowed, check.possible) == (False, True)
    assert check.provider_text == (
        "Kubernetes, the provider of this quota, is unreachable: Kubernetes answered 500: etcd is gone"
    )

    settings.QUOTA_PROVIDER_GRACE_SECONDS = 60
    assert provider("k8s").check_quota(project.pk, small).allowed, "a moment is forgiven"

    settings.QUOTA_PROVIDER_GRACE_SECONDS = 0
    settings.QUOTA_PROVIDER_WHEN_AWAY = "run"
    assert provider("k8s").check_quota(project.pk, small).allowed

    settings.QUOTA_PROVIDER_WHEN_AWAY = "wait"
    exchange(project.pk)
    assert provider("k8s").check_quota(project.pk, small).allowed


def test_only_those_who_may_edit_the_quota_may_repair(api: K8sApi, project) -> None:
    with pytest.raises(NotAllowed):
        repair_provider(project=project, by=MembershipFactory(project=project, role="lead").user, reason="x")
    with pytest.raises(NotFound):
        repair_provider(project=project, by=UserFactory(), reason="x")


def test_a_repair_that_fails_says_why(api: K8sApi, project, operator: User) -> None:
    api.forbidden = True

    with pytest.raises(Conflict, match="is forbidden"):
        repair_provider(project=project, by=operator, reason="x")


def test_a_project_that_comes_home_is_forgotten_there(api: K8sApi, project, operator: User) -> None:
    exchange(project.pk)

    set_quota(project=project, changes={"cpu_millis": {"provider": "local"}}, by=operator, reason="x")

    assert {line.provider for line in project.quotas.all()} == {"local"}
    assert due_projects() == [project.pk]
    exchange(project.pk)
    assert not ProviderState.objects.exists()
    assert due_projects() == []


def test_kubernetes_is_found_through_a_kubeconfig(
    api: K8sApi, project, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.K8S_API_URL = ""
    (tmp_path / "config").write_text(
        "{apiVersion: v1, kind: Config, current-context: it,"
        f" clusters: [{{name: it, cluster: {{server: '{api.url}'}}}}],"
        " contexts: [{name: it, context: {cluster: it, user: me}}], users: [{name: me, user: {token: a-token}}]}"
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    exchange(project.pk)

    assert state_of(project).status == "ok"


def test_without_any_way_to_it_the_state_says_so(
    api: K8sApi, project, settings, tmp_path: Path, monkeypatch
) -> None:
    settings.K8S_API_URL = ""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    exchange(project.pk)

    assert state_of(project).status == "refused"
    assert "set K8S_API_URL or KUBECONFIG" in state_of(project).text
