"""One real Kubernetes for all tests of this folder; skipped with the reason where there can be none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.k8s.build import K8sUnavailable, build
from tests.backends.k8s.server import K8sServer
from tests.support.patience import patience


@pytest.fixture(scope="session")
def k8s_server() -> Iterator[K8sServer]:
    """MUSTER_REQUIRE_K8S builds what is missing, and makes a Kubernetes that does not start a failure."""
    required = os.environ.get("MUSTER_REQUIRE_K8S") == "1"
    folder = Path(tempfile.mkdtemp(prefix="muster-k8s-"))
    server = K8sServer(folder, patience_seconds=patience(60))
    try:
        if required:
            build()
        server.start()
    except K8sUnavailable as problem:
        shutil.rmtree(folder, ignore_errors=True)
        if required:
            pytest.fail(f"MUSTER_REQUIRE_K8S is set, and there is no Kubernetes: {problem}")
        pytest.skip(f"THE PROVIDER FOR KUBERNETES IS NOT TESTED AGAINST A REAL KUBERNETES: {problem}")
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def kubeconfig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a Kubernetes which KUBECONFIG names, else of our own."""
    if not os.environ.get("KUBECONFIG"):
        monkeypatch.setenv("KUBECONFIG", str(request.getfixturevalue("k8s_server").kubeconfig))
