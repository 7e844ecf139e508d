"""What a service refuses behind an admin form is said there, beside what was typed; it is no error of ours."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.admin.queues import ProfileForm
from scheduler.backends.registry import installed
from scheduler.models import Node, Reservation
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db

ADD = reverse("admin:scheduler_reservation_add")


@pytest.fixture
def portal() -> Portal:
    return a_portal()


@pytest.fixture
def client(portal: Portal) -> Client:
    client = Client()
    client.force_login(portal.cast.operator, backend="accounts.backends.PasswordBackend")
    return client


def booking(portal: Portal, name: str) -> dict[str, object]:
    begin = timezone.now().replace(microsecond=0) + timedelta(days=1)
    end = begin + timedelta(hours=2)
    return {
        "cluster": portal.cluster.pk, "name": name, "nodes": [portal.n1.pk], "reason": "a new fan",
        "starts_at_0": f"{begin:%Y-%m-%d}", "starts_at_1": f"{begin:%H:%M:%S}",
        "ends_at_0": f"{end:%Y-%m-%d}", "ends_at_1": f"{end:%H:%M:%S}",
    }  # fmt: skip


def test_a_booking_that_overlaps_another_is_refused_in_its_form(client: Client, portal: Portal) -> None:
    assert client.post(ADD, booking(portal, "first")).status_code == 302

    answer = client.post(ADD, booking(portal, "second"))
    page = answer.content.decode()

    assert answer.status_code == 200
    assert "first" in page
    assert 'value="second"' in page
    assert "a new fan" in page
    assert [row.name for row in Reservation.objects.all()] == ["first"]


def test_settings_that_a_service_refuses_leave_what_was_typed(
    client: Client, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra.errors import Conflict
    from scheduler.admin import base

    def refuse(**_: object) -> None:
        raise Conflict("Somebody else is at it.", way_out="Wait a moment.")

    monkeypatch.setattr(base, "save_settings", refuse)
    url = reverse("admin:scheduler_queue_change", args=[portal.queue.pk])
    form = {
        "cluster": portal.cluster.pk, "name": "Renamed", "slug": portal.queue.slug, "priority": "7", "is_default": "on",
        "reason": "more room", "partitions": [p.pk for p in portal.queue.partitions.all()],
    }  # fmt: skip

    page = client.post(url, form).content.decode()

    assert "Somebody else is at it." in page
    assert 'value="Renamed"' in page
    assert 'value="more room"' in page


def test_a_right_that_is_missing_is_refused_with_a_page_and_a_row(client: Client, portal: Portal) -> None:
    Client().force_login(portal.cast.operator)
    url = reverse("admin:scheduler_queue_delete", args=[portal.queue.pk])

    assert client.post(url, {"post": "yes"}).status_code == 403
    assert not AuditEvent.objects.filter(action="queue.remove").exists()


def test_finding_32_every_example_of_the_profile_form_is_accepted_by_the_form() -> None:
    help_texts = {name: str(field.help_text) for name, field in ProfileForm.base_fields.items()}
    examples = {
        name: json.JSONDecoder().raw_decode(text, found.end())[0]
        for name, text in help_texts.items()
        if (found := re.search(r"such as (?=[\[{])", text))
    }
    assert examples.keys() == {"score_weights", "options", "preemption", "rules"}

    for name, example in examples.items():
        values = {
            "name": "tried",
            "policy": "fifo",
            "placement": "best_fit",
            "backfill": "easy",
            "reason": "try",
            "rule_hold_seconds": "300",
            "rule_time_zone": "UTC",
        }
        form = ProfileForm({**values, "preemption_enabled": "on", name: json.dumps(example)})
        assert form.is_valid(), (name, form.errors)


def test_finding_30_the_form_of_a_node_saves_whatever_jobs_and_agents_change_in_between(
    client: Client, portal: Portal
) -> None:
    url = reverse("admin:scheduler_node_change", args=[portal.n1.pk])
    seen = re.search(r'name="seen" value="([0-9a-f]+)"', client.get(url).content.decode())
    assert seen is not None
    form = {"rack": "r9", "taints": "[]", "reason": "moved", "seen": seen[1]}
    empty = {"devices-TOTAL_FORMS": "0", "devices-INITIAL_FORMS": "0"}
    Node.objects.filter(pk=portal.n1.pk).update(used_cpu_millis=1, trouble="warm", boot_id="b", generation=99)

    assert client.post(url, form | empty).status_code == 302
    assert Node.objects.get(pk=portal.n1.pk).rack == "r9"

    page = client.post(
        url, form | {"rack": "r8"} | empty
    ).content.decode()  # a page from before the first save
    assert "Changed since you opened the page: " in page
    assert "rack is now r9" in page
    assert Node.objects.get(pk=portal.n1.pk).rack == "r9"


def test_finding_31_only_backends_that_are_installed_can_be_chosen(client: Client, portal: Portal) -> None:
    url = reverse("admin:scheduler_cluster_change", args=[portal.cluster.pk])
    page = client.get(url).content.decode()
    assert (
        re.findall(r'<option value="([a-z_]+)"', page.split('name="backend"')[1].split("</select>")[0])
        == installed()
    )

    form = {
        "name": "main", "slug": portal.cluster.slug, "backend": "slurm", "reason": "try",
        "cpu_overcommit_percent": "100", "memory_overcommit_percent": "100",
    }  # fmt: skip
    assert (
        f"The backend slurm is not installed; there are {', '.join(installed())}."
        in client.post(url, form).content.decode()
    )
