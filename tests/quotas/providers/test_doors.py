"""Where people meet a quota kept outside: the API, the quota page and the admin; owner, colleague and stranger."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, User
from quotas.models import ProviderState
from quotas.services.exchange import exchange
from tests.support.factories import Cast, QuotaFactory, bearer, the_cast
from tests.support.k8s_api import K8sApi

pytestmark = pytest.mark.django_db

URL = "/api/v1/queues/quota/vision"


@pytest.fixture
def cast(api: K8sApi) -> Cast:
    """Kept in Kubernetes, brought over, and then changed there by somebody."""
    cast = the_cast()
    for resource, hard in (("cpu_millis", 100_000), ("memory_mib", 512_000), ("gpu_millis", 10_000)):
        QuotaFactory(project=cast.project, resource=resource, hard=hard, provider="k8s")
    exchange(cast.project.pk)
    api.use(f"project-{cast.project.pk}", {"requests.cpu": "75"})
    api.edit(f"project-{cast.project.pk}", {"requests.cpu": "400"})
    exchange(cast.project.pk)
    return cast


def post(client: Client, person: User, path: str, body: object = None):
    return client.post(
        URL + path,
        json.dumps(body if body is not None else {}),
        content_type="application/json",
        headers=bearer(person, "quota:write"),
    )


def enter(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


# ---------------------------------------------------------------- the API


def test_the_api_says_how_things_stand(client: Client, cast: Cast) -> None:
    body = client.get(URL, headers=bearer(cast.viewer, "quota:read")).json()

    state = ProviderState.objects.get()
    assert (body["provider"], body["cpu_quota"]) == ("k8s", 100)
    outside = body["provider_state"]
    assert outside["status"] == "drift"
    assert outside["differences"] == [{"key": "requests.cpu", "here": "100", "there": "400"}]
    assert outside["used"] == {"requests.cpu": "75"}
    assert outside["jobs_wait"] is False
    assert body["synced_at"] == outside["synced_at"]
    assert state.synced_at is not None


def test_a_sync_looks_again_and_a_repair_puts_right(client: Client, cast: Cast, api: K8sApi) -> None:
    api.edit(f"project-{cast.project.pk}", {"requests.memory": "1Gi"})

    body = post(client, cast.operator, "/sync").json()
    assert [d["key"] for d in body["provider_state"]["differences"]] == ["requests.cpu", "requests.memory"]

    assert post(client, cast.operator, "/repair").status_code in (400, 422)
    response = post(client, cast.operator, "/repair", {"reason": "as agreed"})
    assert response.status_code == 200, response.content
    assert response.json()["provider_state"]["status"] == "ok"
    assert api.hard(f"project-{cast.project.pk}") == {
        "requests.cpu": "100", "requests.memory": "500Gi", "requests.nvidia.com/gpu": "10",
    }  # fmt: skip
    assert AuditEvent.objects.get(action="quota.provider_repair").reason == "as agreed"


def test_a_provider_that_is_away_makes_a_repair_a_503(client: Client, cast: Cast, api: K8sApi) -> None:
    api.answers = [(500, "etcd is gone", {})]

    response = post(client, cast.operator, "/repair", {"reason": "x"})

    assert response.status_code == 503
    assert "etcd is gone" in response.json()["detail"]
    body = client.get(URL, headers=bearer(cast.owner, "quota:read")).json()
    assert body["provider_state"]["jobs_wait"] is True


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 403), ("colleague", 403), ("lead", 403), ("viewer", 403), ("stranger", 404), ("auditor", 403)],
)
def test_who_may_not_repair(client: Client, cast: Cast, api: K8sApi, who: str, status: int) -> None:
    response = post(client, getattr(cast, who), "/repair", {"reason": "x"})

    assert response.status_code == status
    assert api.hard(f"project-{cast.project.pk}")["requests.cpu"] == "400"  # type: ignore[index]


def test_a_quota_that_muster_keeps_has_nothing_outside(client: Client, cast: Cast) -> None:
    response = client.get("/api/v1/queues/quota/elsewhere", headers=bearer(cast.stranger, "quota:read"))
    assert response.json()["provider_state"] is None

    response = client.post(
        "/api/v1/queues/quota/elsewhere/repair", {"reason": "x"}, "application/json",
        headers=bearer(cast.operator, "quota:write"),
    )  # fmt: skip
    assert (response.status_code, response.json()["code"]) == (409, "kept-here")


# ---------------------------------------------------------------- pages


def test_the_quota_page_shows_both_values_and_the_way_to_repair(cast: Cast) -> None:
    page = enter(cast.owner).get(reverse("quota")).content.decode()
    assert "Kubernetes: changed at the provider" in page
    assert "<code>requests.cpu</code> is 400 at the provider and 100 in Muster" in page
    assert "put right" not in page

    page = enter(cast.operator).get(reverse("quota")).content.decode()
    assert f"/admin/quotas/providerstate/{cast.project.pk}/change/" in page
    assert "requests.cpu" not in enter(cast.stranger).get(reverse("quota")).content.decode()


def test_the_quota_page_says_that_jobs_wait(cast: Cast, api: K8sApi) -> None:
    api.forbidden = True
    exchange(cast.project.pk)

    page = enter(cast.owner).get(reverse("quota")).content.decode()

    assert "Kubernetes refuses: Kubernetes does not allow it" in page
    assert "Jobs of this project wait until the provider responds." in page


def test_the_admin_lists_shows_and_puts_right_with_a_reason(cast: Cast, api: K8sApi) -> None:
    client, pk = enter(cast.operator), cast.project.pk
    assert (
        "changed at the provider"
        in client.get(reverse("admin:quotas_providerstate_changelist")).content.decode()
    )
    change = reverse("admin:quotas_providerstate_change", args=[pk])
    page = client.get(change).content.decode()
    assert "requests.cpu" in page
    assert "Repair" in page

    do = reverse("admin:quotas_providerstate_do", args=[pk, "repair"])
    assert "Overwrites the provider" in client.get(do).content.decode()
    client.post(do, {"reason": ""})
    assert ProviderState.objects.get().status == "drift"
    page = client.post(do, {"reason": "nobody asked"}, follow=True).content.decode()
    assert "Kubernetes has the same limits." in page
    assert ProviderState.objects.get().status == "ok"

    look = reverse("admin:quotas_providerstate_do", args=[pk, "look"])
    api.forbidden = True
    assert "Kubernetes does not allow it" in client.post(look, {}, follow=True).content.decode()


def test_the_admin_is_for_operators(cast: Cast) -> None:
    do = reverse("admin:quotas_providerstate_do", args=[cast.project.pk, "repair"])

    assert enter(cast.lead).post(do, {"reason": "x"}).status_code in (302, 403)
    assert ProviderState.objects.get().status == "drift"
