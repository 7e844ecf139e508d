"""What several folders of these tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quotas.providers import k8s
from tests.support.k8s_api import K8sApi


@pytest.fixture
def api(settings) -> Iterator[K8sApi]:
    """A Kubernetes that this installation is set up for."""
    with K8sApi() as running:
        settings.K8S_API_URL, settings.K8S_API_TOKEN = running.url, running.token
        settings.K8S_QUOTA_NAMESPACE = "jobs"
        settings.K8S_CREATE_RESOURCE_QUOTAS = True
        settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 2
        settings.QUOTA_PROVIDER_GRACE_SECONDS = 0
        yield running
        k8s._apis.clear()
