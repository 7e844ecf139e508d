"""The example provider of the guide, over HTTP with the example service: the service decides what runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from quotas.models import ProviderAllocation
from quotas.providers import circuit
from quotas.services.project_quota import set_quota
from scheduler.models import Attempt
from scheduler.services.execution.dispatch import end_unstarted
from scheduler.services.execution.quota_starts import tell_providers
from scheduler.services.jobs.verbs import cancel_job
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import OperatorFactory

pytestmark = pytest.mark.django_db

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "muster-quota-provider-example"


@pytest.fixture
def service(settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The service, with 4 cores for each project, and this installation set up as the guide says."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    running = import_module("service").QuotaService(0, cores=4)
    Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("SITE_QUOTA_URL", f"http://127.0.0.1:{running.server_port}")
    settings.QUOTA_PROVIDERS = ["site=http_quota:HttpQuotaProvider"]
    circuit.forget_failures()
    yield running
    running.shutdown()
    running.server_close()
    circuit.forget_failures()
    from quotas.providers.registry import _loaded

    _loaded.cache_clear()
    for name in ("service", "http_quota"):
        sys.modules.pop(name, None)


def test_the_service_of_the_example_decides(service: Any) -> None:
    world = SmallWorld()
    world.node("n1", cpu_millis_capacity=64_000)
    set_quota(
        project=world.project, changes={"cpu_millis": {"provider": "site"}}, by=OperatorFactory(),
        reason="the site counts cores",
    )  # fmt: skip
    first, second = world.job(cpu_millis=3000), world.job(cpu_millis=2000)
    service.held["a job outside Muster"] = world.project.pk, 500

    world.plan()
    tell_providers()
    world.plan()

    first.refresh_from_db()
    second.refresh_from_db()
    states = {first.number: first.state, second.number: second.state}
    attempt = Attempt.objects.get(job=first, epoch=1)
    assert service.held[str(attempt.pk)] == (world.project.pk, 3000)
    assert states[first.number] == "scheduled"
    assert states[second.number] == "queued"

    cancel_job(job=first, by=world.person)
    end_unstarted([attempt.pk])
    tell_providers()
    assert str(attempt.pk) not in service.held
    assert ProviderAllocation.objects.get(attempt_id=attempt.pk).state == "released"


def test_a_job_waits_with_the_words_of_the_service_until_there_is_room(service: Any) -> None:
    world = SmallWorld()
    world.node("n1", cpu_millis_capacity=64_000)
    world.quota("cpu_millis", None, provider="site")
    job = world.job(cpu_millis=3000)
    service.held["a job outside Muster"] = world.project.pk, 2000

    assert world.plan().started == 0
    job.refresh_from_db()
    assert job.reason_text == "site refuses the start: The site has 2 of 4 cores left, 3 are needed."

    service.shutdown()
    service.server_close()
    other = world.job(cpu_millis=1000)
    assert world.plan().started == 0
    other.refresh_from_db()
    assert other.reason_code == "QuotaProviderAway"
