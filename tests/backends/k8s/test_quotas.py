"""The provider against a real Kubernetes: what the small API of tests cannot prove.

One of our own is started, or KUBECONFIG names another (a namespace `muster-test` is made there).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accounts.models import User
from quotas.models import ProviderState
from quotas.providers import k8s
from quotas.services.exchange import exchange
from quotas.services.project_quota import set_quota
from quotas.services.providers import repair_provider
from tests.backends.k8s.server import K8sServer
from tests.support.factories import OperatorFactory, ProjectFactory, QuotaFactory
from tests.support.patience import patience

pytestmark = pytest.mark.django_db

NAMESPACE = "muster-test"


@pytest.fixture
def core(settings: Any, kubeconfig: None) -> Iterator[Any]:
    """The client, with a namespace that is ours and emptied afterwards."""
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException

    settings.K8S_API_URL = ""
    settings.K8S_QUOTA_NAMESPACE = NAMESPACE
    settings.K8S_CREATE_RESOURCE_QUOTAS = True
    k8s._apis.clear()
    api = k8s._api_from_settings()
    try:
        api.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    except ApiException as error:
        if error.status != 409:
            raise
    yield api
    for pod in api.list_namespaced_pod(NAMESPACE).items:
        api.delete_namespaced_pod(pod.metadata.name, NAMESPACE, grace_period_seconds=0)
    for quota in api.list_namespaced_resource_quota(NAMESPACE).items:
        api.delete_namespaced_resource_quota(quota.metadata.name, NAMESPACE)
    k8s._apis.clear()


def a_pod(name: str, **requests: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(20)
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_quota_lives_in_a_real_kubernetes(core: Any) -> None:
    operator: User = OperatorFactory()
    project = ProjectFactory()
    for resource, hard in (("cpu_millis", 1500), ("memory_mib", 512_000), ("gpu_millis", 2000)):
        QuotaFactory(project=project, resource=resource, hard=hard, provider="k8s")
    name = f"project-{project.pk}"

    exchange(project.pk)
    hard = core.read_namespaced_resource_quota(name, NAMESPACE).spec.hard
    assert hard == {"requests.cpu": "1500m", "requests.memory": "500Gi", "requests.nvidia.com/gpu": "2"}

    set_quota(
        project=project, changes={"cpu_millis": {"hard": 3000, "nominal": None}}, by=operator, reason="more"
    )
    exchange(project.pk)
    assert core.read_namespaced_resource_quota(name, NAMESPACE).spec.hard["requests.cpu"] == "3"

    core.patch_namespaced_resource_quota(
        name, NAMESPACE, {"spec": {"hard": {"requests.cpu": "40", "pods": "9"}}}
    )
    exchange(project.pk)
    state = ProviderState.objects.get(project=project)
    assert (state.status, state.text) == ("drift", "requests.cpu is 40 there and 3 here.")

    repair_provider(project=project, by=operator, reason="as agreed")
    hard = core.read_namespaced_resource_quota(name, NAMESPACE).spec.hard
    assert (hard["requests.cpu"], hard["pods"]) == ("3", "9")


def test_kubernetes_itself_holds_the_limit_and_what_it_counts_is_read_back(core: Any) -> None:
    from kubernetes.client.exceptions import ApiException

    project = QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project

    def used() -> dict[str, int]:
        exchange(project.pk)
        return ProviderState.objects.get(project=project).used

    until(lambda: used() == {"requests.cpu": 0})  # its controller has seen the quota
    core.create_namespaced_pod(NAMESPACE, a_pod("fits", cpu="600m"))
    until(lambda: used() == {"requests.cpu": 600})
    with pytest.raises(ApiException, match="exceeded quota") as refused:
        core.create_namespaced_pod(NAMESPACE, a_pod("too-much", cpu="600m"))

    assert refused.value.status == 403


def test_a_token_without_rights_is_said_with_its_own_words(
    core: Any, k8s_server: K8sServer, settings: Any
) -> None:
    settings.K8S_API_URL = k8s_server.url
    settings.K8S_API_TOKEN = k8s_server.weak_token
    settings.K8S_CA_FILE = str(k8s_server.ca_file)
    project = QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project

    exchange(project.pk)

    state = ProviderState.objects.get(project=project)
    assert state.status == "refused"
    assert 'User "portal" cannot' in state.text


def test_a_frozen_kubernetes_is_given_up_in_time(core: Any, k8s_server: K8sServer, settings: Any) -> None:
    settings.K8S_API_URL = k8s_server.url
    settings.K8S_API_TOKEN = k8s_server.token
    settings.K8S_CA_FILE = str(k8s_server.ca_file)
    settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 1
    project = QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project

    with k8s_server.paused("kube-apiserver"):
        started = time.monotonic()
        exchange(project.pk)
        assert time.monotonic() - started < patience(5)
    assert ProviderState.objects.get(project=project).status == "unreachable"

    exchange(project.pk)
    assert ProviderState.objects.get(project=project).status == "ok"
