"""A provider of the site: named in the settings, chosen for a project, seen by operators and by nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from quotas.core.resources import Resources
from quotas.models import ProviderState, Quota, RefusedStart
from quotas.providers.allocations import as_json, start_of
from quotas.providers.base import QuotaCheck, QuotaStart, Shortfall
from quotas.providers.calls import words_of
from quotas.services.exchange import due_projects, exchange
from tests.quotas.providers.test_doors import enter
from tests.support.factories import Cast, QuotaFactory, bearer, the_cast
from tests.support.quota_providers import goes_away, script

URL = "/api/v1/queues/quota/vision"


@pytest.fixture
def cast(settings, db: None) -> Iterator[Cast]:
    settings.QUOTA_PROVIDERS = ["lab=tests.support.quota_providers:ScriptedProvider"]
    settings.QUOTA_PROVIDER_CHECK_SECONDS = 1
    script.restart()
    cast = the_cast()
    QuotaFactory(project=cast.project, resource="cpu_millis", hard=8000)
    yield cast
    script.restart()


# ---------------------------------------------------------------- the setting


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.at_all:Provider", "nowhere.at_all:Provider cannot be loaded: ModuleNotFoundError"),
        ("tests.support.quota_providers:Nothing", "cannot be loaded: AttributeError"),
        ("tests.support.quota_providers:Broken", "has no release_quota"),
    ],
)
def test_a_provider_that_cannot_decide_stops_the_start(settings, path: str, words: str) -> None:
    settings.QUOTA_PROVIDERS = [f"lab={path}"]

    with pytest.raises(SystemCheckError, match=f"QUOTA_PROVIDERS: Quota provider lab: .*{words}"):
        call_command("check", "quotas")


def test_the_default_may_be_a_provider_of_the_site(settings, cast: Cast) -> None:
    settings.QUOTA_PROVIDER = "lab"
    call_command("check", "quotas")


# ---------------------------------------------------------------- doors


def test_a_project_is_given_the_provider_and_shows_how_that_stands(client: Client, cast: Cast) -> None:
    def patch(name: str):
        return client.patch(
            URL, {"provider": name, "reason": "agreed"}, "application/json",
            headers=bearer(cast.operator, "quota:write"),
        )  # fmt: skip

    wrong = patch("nosuch")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "provider-unavailable")
    assert "Available: local, k8s, slurm, lab." in wrong.json()["errors"][0]["message"]

    assert patch("lab").json()["provider"] == "lab"
    assert set(Quota.objects.plain().values_list("provider", flat=True)) == {"lab"}
    exchange(cast.project.pk)
    assert due_projects() == []
    assert not ProviderState.objects.exists(), "it keeps no copy of the limits"

    script.instead["check"] = goes_away
    client.post(URL + "/sync", headers=bearer(cast.operator, "quota:write"))
    state = client.get(URL, headers=bearer(cast.owner, "quota:read")).json()["provider_state"]
    assert (state["status"], state["jobs_wait"]) == ("unreachable", True)
    assert state["text"] == "the site's service is down"
    page = enter(cast.owner).get(reverse("quota")).content.decode()
    assert "Jobs of this project wait until the provider responds." in page
    exchange(cast.project.pk)
    assert due_projects() == []
    assert ProviderState.objects.exists()

    refused = client.post(
        URL + "/repair", {"reason": "x"}, "application/json", headers=bearer(cast.operator, "quota:write")
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "kept-here")

    script.instead.clear()
    look = reverse("admin:quotas_providerstate_do", args=[cast.project.pk, "look"])
    said = enter(cast.operator).post(look, {}, follow=True).content.decode()
    assert "lab is asked about each start, and answers." in said

    assert patch("local").status_code == 200
    assert due_projects() == [cast.project.pk]
    exchange(cast.project.pk)
    assert not ProviderState.objects.exists()


def test_operators_see_what_was_refused_and_nobody_else_does(cast: Cast) -> None:
    now = timezone.now()
    RefusedStart.objects.create(
        job_number=7, project=cast.project, provider="lab", generation=1, text="lab refuses the start: <full>",
        refused_at=now, until=now + timedelta(minutes=1),
    )  # fmt: skip
    lists = [reverse(f"admin:quotas_{name}_changelist") for name in ("refusedstart", "providerallocation")]

    pages = [enter(cast.operator).get(url, {"q": "lab"}) for url in lists]
    assert [page.status_code for page in pages] == [200, 200]
    assert "lab refuses the start: &lt;full&gt;" in pages[0].content.decode()
    shown = enter(cast.operator).get(reverse("admin:quotas_refusedstart_change", args=[7]))
    assert shown.status_code == 200
    for person in (cast.owner, cast.colleague, cast.stranger):
        assert all(enter(person).get(url).status_code in (302, 403) for url in lists)


# ---------------------------------------------------------------- words


def test_the_arguments_of_a_call_are_the_same_after_they_were_kept() -> None:
    start = QuotaStart(
        7, Resources(1500, 512, 2, 0, 9, (("licence", 3),)), "training", 4, 5, {"H100": 8000}, job_number=12
    )

    kept = json.loads(json.dumps(as_json(start)))
    assert start_of(81, kept) == QuotaStart(
        7, start.resources, "training", 4, 5, {"H100": 8000}, job_number=12, key="81"
    )


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (QuotaCheck(False, True, provider_text=" It is\n full.\0 "), "lab refuses the start: It is full."),
        (
            QuotaCheck(False, True, (Shortfall("cores", 4, 8, 6),)),
            "lab refuses the start: cores: 4 needed, 6 of 8 in use.",
        ),
        (QuotaCheck(False, True), "lab refuses the start: no reason was given."),
    ],
)
def test_a_refusal_has_the_providers_words_or_its_numbers(check: QuotaCheck, words: str) -> None:
    assert words_of("lab", check) == words
    assert len(words_of("lab", QuotaCheck(False, True, provider_text="x" * 999))) == 300
