"""The provider against a real Kubernetes, where KUBECONFIG names one: what the small API of tests cannot prove."""

from __future__ import annotations

import os
import time

import pytest

from accounts.models import User
from quotas.models import ProviderState
from quotas.providers import k8s
from quotas.providers.exchange import exchange
from quotas.services.limits import set_quota
from quotas.services.providers import repair_provider
from tests.support.factories import OperatorFactory, ProjectFactory, QuotaFactory

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(
        not os.environ.get("KUBECONFIG"), reason="KUBECONFIG names no Kubernetes to test against"
    ),
]

NAMESPACE = "muster-test"


@pytest.fixture
def core(settings):
    """The client, with a namespace that is ours and gone afterwards."""
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
    for quota in api.list_namespaced_resource_quota(NAMESPACE).items:
        api.delete_namespaced_resource_quota(quota.metadata.name, NAMESPACE)
    k8s._apis.clear()


def test_a_quota_lives_in_a_real_kubernetes(core) -> None:
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


def test_usage_comes_from_its_quota_controller(core) -> None:
    project = QuotaFactory(project=ProjectFactory(), resource="cpu_millis", hard=1000, provider="k8s").project
    until = time.monotonic() + 15
    while True:
        exchange(project.pk)
        state = ProviderState.objects.get(project=project)
        if state.used:
            break
        if time.monotonic() > until:
            pytest.skip("this Kubernetes runs no controller that counts what is used")
        time.sleep(0.5)

    assert state.used == {"requests.cpu": 0}
