"""The admin page of quotas: a reason always, the service always, and a conflict in the open."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, User
from quotas.core.amounts import exact_amount
from quotas.models import Quota
from quotas.providers.registry import quota_sheet
from quotas.services.project_quota import set_quota
from quotas.services.quota_lines import AMOUNTS
from tests.support.factories import Cast, JobFactory, NodeFactory, OrganizationFactory, QuotaFactory, the_cast

pytestmark = pytest.mark.django_db

LIST, ADD = reverse("admin:quotas_quota_changelist"), reverse("admin:quotas_quota_add")


@pytest.fixture
def cast() -> Cast:
    return the_cast()


@pytest.fixture
def line(cast: Cast) -> Quota:
    return QuotaFactory(project=cast.project, resource="memory_mib", hard=500 * 1024, nominal=None, used=1024)


def enter(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


def change(line: Quota) -> str:
    return reverse("admin:quotas_quota_change", args=[line.pk])


def form(line: Quota, **changes: object) -> dict[str, object]:
    values = {
        "nominal": line.nominal, "soft": line.soft, "hard": line.hard, "enforce": "on", "provider": "local",
        "reason": "the new grant", "seen": quota_sheet(line.project).generation,
    }  # fmt: skip
    return {
        name: exact_amount(line.resource, value) if name in AMOUNTS and isinstance(value, int) else value
        for name, value in (values | changes).items()
        if value not in (None, "")
    }


def save(client: Client, url: str, body: dict[str, object], **words: object):
    """Save, look at what it would mean, and save again, as a person does; a page with errors comes back at once."""
    response = client.post(url, body)
    if response.status_code != 200 or response.context.get("muster_preview") is None:
        return client.get(url) if words and response.status_code == 302 else response
    told = response.context["adminform"].form
    return client.post(url, body | {"previewed": told["previewed"].value()}, **words)


def test_amounts_are_shown_as_people_say_them(cast: Cast, line: Quota) -> None:
    page = enter(cast.operator).get(LIST).content.decode()

    assert "500 GiB" in page
    assert "1 GiB" in page


def test_finding_26_the_form_calls_a_soft_quota_advice(cast: Cast, line: Quota) -> None:
    page = enter(cast.operator).get(change(line)).content.decode()

    assert "Advice: above this amount the bar turns" in page
    assert "no job waits for it" in page


def test_an_operator_edits_with_a_reason_that_lands_in_the_trail(cast: Cast, line: Quota) -> None:
    response = save(enter(cast.operator), change(line), form(line, hard=1024, soft=512))

    assert response.status_code == 302, response.content
    line.refresh_from_db()
    assert (line.hard, line.soft, line.used, line.generation) == (1024, 512, 1024, 2)
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.reason) == ("quota.set", cast.operator, "the new grant")
    assert event.before == {"memory_mib": {"hard": 512_000, "soft": None}}
    assert event.after == {"memory_mib": {"hard": 1024, "soft": 512}}


@pytest.mark.parametrize(
    ("resource", "typed", "stored", "shown"),
    [
        ("gpu_millis", "3", 3000, "3"),
        ("gpu_millis", "0.5", 500, "0.5"),
        ("cpu_millis", "16", 16_000, "16"),
        ("memory_mib", "64 GiB", 65_536, "64 GiB"),
        ("memory_mib", "1500 MiB", 1500, "1500 MiB"),
        ("running_jobs", "12", 12, "12"),
    ],
)
def test_amounts_are_typed_as_people_say_them(
    cast: Cast, resource: str, typed: str, stored: int, shown: str
) -> None:
    line = QuotaFactory(project=cast.project, resource=resource, hard=1_000_000, nominal=None)
    client = enter(cast.operator)

    assert save(client, change(line), form(line, hard=typed)).status_code == 302

    line.refresh_from_db()
    assert line.hard == stored
    assert f'value="{shown}"' in client.get(change(line)).content.decode()


@pytest.mark.parametrize("typed", ["64", "much", "1 GPU", "-2 GiB"])
def test_an_amount_that_could_mean_something_else_is_refused(cast: Cast, line: Quota, typed: str) -> None:
    response = enter(cast.operator).post(change(line), form(line, hard=typed))

    assert response.context["muster_preview"] is None
    assert "write for example" in response.content.decode()
    line.refresh_from_db()
    assert line.hard == 512_000


def test_without_a_reason_nothing_is_saved(cast: Cast, line: Quota) -> None:
    response = enter(cast.operator).post(change(line), form(line, hard=1, reason=""))

    assert response.status_code == 200
    assert "This field is required" in response.content.decode()
    line.refresh_from_db()
    assert line.hard == 512_000
    assert not AuditEvent.objects.exists()


def test_the_second_of_two_admins_sees_both_values(cast: Cast, line: Quota) -> None:
    second = form(line, hard=300 * 1024)
    set_quota(
        project=cast.project, changes={"memory_mib": {"hard": 700 * 1024}}, by=cast.admin, reason="first"
    )

    client = enter(cast.operator)
    response = client.post(change(line), second)

    assert response.status_code == 409
    clash = response.context["muster_clash"]
    assert [(row.label, row.one, row.other) for row in clash.rows] == [("Hard", "300 GiB", "700 GiB")]
    assert clash.who.startswith(f"{cast.admin} at ")
    assert "“first”" in clash.who
    page = response.content.decode()
    assert "Current value" in page
    assert 'value="300 GiB"' in page
    line.refresh_from_db()
    assert line.hard == 700 * 1024

    # Who saves again sees what it would change of theirs, and then may.
    again = second | {"seen": response.context["adminform"].form["seen"].value()}
    looked = client.post(change(line), again)
    assert [(row.one, row.other) for row in looked.context["muster_preview"].rows] == [("700 GiB", "300 GiB")]
    assert save(client, change(line), again).status_code == 302
    line.refresh_from_db()
    assert line.hard == 300 * 1024


def test_before_anything_is_saved_the_form_says_what_it_would_mean(cast: Cast, line: Quota) -> None:
    Quota.objects.filter(pk=line.pk).update(used=400 * 1024)
    QuotaFactory(resource="memory_mib", hard=200 * 1024, nominal=None)
    NodeFactory(memory_mib_capacity=1000 * 1024)
    JobFactory(project=cast.project, state="running")
    JobFactory(project=cast.project, reason_code="WaitingForQuota")
    JobFactory()
    client = enter(cast.operator)

    response = client.post(change(line), form(line, hard=100 * 1024))

    assert response.status_code == 200
    preview = response.context["muster_preview"]
    assert [(row.label, row.one, row.other) for row in preview.rows] == [("Hard", "500 GiB", "100 GiB")]
    assert list(preview.sentences) == [
        f"1 running job and 1 pending job of project {cast.project.slug} are affected; 1 of them wait for a limit.",
        "300 GiB more would be in use than allowed: running jobs continue, and no new job starts until usage is"
        " below the limit.",
        "All projects' limits add up to 300 GiB of 1000 GiB in the cluster (now 700 GiB).",
    ]
    assert preview.warns
    line.refresh_from_db()
    assert line.hard == 500 * 1024
    assert not AuditEvent.objects.exists()


def test_what_is_saved_is_what_was_shown(cast: Cast, line: Quota) -> None:
    client = enter(cast.operator)
    told = client.post(change(line), form(line, hard=1024)).context["adminform"].form["previewed"].value()

    response = client.post(change(line), form(line, hard=2048, previewed=told))

    assert [row.other for row in response.context["muster_preview"].rows] == ["2 GiB"]
    line.refresh_from_db()
    assert line.hard == 500 * 1024


def test_a_raise_beyond_the_headroom_is_a_warning(cast: Cast, line: Quota) -> None:
    NodeFactory(memory_mib_capacity=1000 * 1024)

    response = enter(cast.operator).post(change(line), form(line, hard=950 * 1024))

    assert response.context["muster_preview"].warns
    assert "leaves 15 % headroom" in response.content.decode()


def test_a_bound_is_taken_away_by_emptying_it(cast: Cast, line: Quota) -> None:
    save(enter(cast.operator), change(line), form(line, hard=""))

    line.refresh_from_db()
    assert line.hard is None


@pytest.mark.parametrize(("changes", "words"), [({"soft": 600_000}, "cannot be above"), ({"hard": -1}, "")])
def test_wrong_bounds_are_refused(cast: Cast, line: Quota, changes: dict, words: str) -> None:
    response = enter(cast.operator).post(change(line), form(line, **changes), follow=True)

    assert words in response.content.decode()
    line.refresh_from_db()
    assert (line.hard, line.soft) == (512_000, None)
    assert not AuditEvent.objects.exists()


def test_a_provider_that_is_not_there_is_refused(
    cast: Cast, line: Quota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    response = save(enter(cast.operator), change(line), form(line, provider="slurm"), follow=True)

    assert "No connection to Slurm" in response.content.decode()
    line.refresh_from_db()
    assert line.provider == "local"


def test_a_new_line_goes_through_the_service_too(cast: Cast) -> None:
    body = {
        "project": cast.project.pk,
        "resource": "gpu_millis",
        "hard": "8",
        "enforce": "on",
        "provider": "local",
    }

    save(enter(cast.operator), ADD, body)
    assert not Quota.objects.exists()
    response = save(enter(cast.operator), ADD, body | {"reason": "first GPUs"})

    assert response.status_code == 302, response.content
    assert Quota.objects.get(resource="gpu_millis").hard == 8000
    assert AuditEvent.objects.get().reason == "first GPUs"


def test_nobody_deletes_a_line_and_only_operators_edit(cast: Cast, line: Quota) -> None:
    delete = reverse("admin:quotas_quota_delete", args=[line.pk])
    assert enter(cast.admin).post(delete, {"post": "yes"}).status_code == 403
    assert enter(cast.owner).get(LIST).status_code == 302

    cast.auditor.is_staff = True
    cast.auditor.save()
    assert enter(cast.auditor).get(change(line)).status_code == 200
    assert enter(cast.auditor).post(change(line), form(line, hard=1)).status_code == 403
    line.refresh_from_db()
    assert line.hard == 512_000


@pytest.mark.parametrize("count", [1, 3])
def test_the_list_takes_the_same_queries_for_one_and_for_three(
    cast: Cast, count: int, django_assert_num_queries
) -> None:
    for _ in range(count):
        QuotaFactory()
    client = enter(cast.operator)
    client.get(LIST)

    with django_assert_num_queries(9):
        client.get(LIST)


def test_a_line_of_an_organization_and_a_gpu_model_is_made_and_changed_here(cast: Cast) -> None:
    client, lab = enter(cast.operator), OrganizationFactory(slug="lab")
    wanted = {"organization": lab.pk, "resource": "gpu_millis", "gpu_model": "H100", "nominal": "8",
              "borrowing_limit": "2", "enforce": "on", "provider": "local", "reason": "agreed"}  # fmt: skip

    save(client, ADD, wanted)

    line = Quota.objects.get()
    assert (line.owner, line.gpu_model, line.nominal) == ("organization lab", "H100", 8000)
    cut = {"nominal": "4", "borrowing_limit": "2", "enforce": "on", "provider": "local", "reason": "cut",
           "seen": line.generation}  # fmt: skip
    save(client, change(line), cut)
    line.refresh_from_db()
    assert (line.nominal, line.generation) == (4000, 2)
    assert "Somebody else changed this" in client.post(change(line), cut | {"nominal": "1"}).content.decode()
    assert "Choose an organization" in client.post(ADD, wanted | {"organization": ""}).content.decode()
