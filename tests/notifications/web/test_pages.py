"""Pages of notifications and webhooks: one's own, the secret once, and a bell that counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from notifications.models import Endpoint, Notification, Preference
from notifications.services import endpoints
from notifications.services.follow import follow
from scheduler.models import Job
from tests.support.factories import Cast

AsUser = Callable[[Any], Client]
Happen = Callable[..., list[Job]]
HOOK = {"name": "zhook", "url": "https://example.org/hook", "kinds": ["job.failed"]}


@pytest.fixture
def failed(jobs_that: Happen) -> Job:
    (job,) = jobs_that("job.failed", because="exit code 3")
    follow()
    return job


def unread(client: Client) -> list[str]:
    return re.findall(
        r'aria-label="Notifications, (\S+) unread"', client.get(reverse("bell")).content.decode()
    )


def test_the_bell_counts_what_is_unread_and_the_list_leads_to_the_job(
    as_user: AsUser, cast: Cast, failed: Job
) -> None:
    client = as_user(cast.owner)

    page = client.get(reverse("notifications")).content.decode()

    assert unread(client) == ["1"]
    assert f'href="/jobs/{failed.number}/">Job {failed.number} train failed</a>' in page
    assert "exit code 3" in page


@pytest.mark.parametrize("person", ["colleague", "lead", "stranger", "operator", "admin"])
def test_nobody_sees_or_marks_the_notifications_of_another(
    as_user: AsUser, cast: Cast, failed: Job, person: str
) -> None:
    client = as_user(getattr(cast, person))
    row = Notification.objects.get()

    assert unread(client) == []
    assert "exit code 3" not in client.get(reverse("notifications")).content.decode()
    assert client.post(reverse("notification-read", args=[row.pk])).status_code == 404
    assert Notification.objects.get().read_at is None


def test_one_is_put_away_and_taken_up_again(as_user: AsUser, cast: Cast, failed: Job) -> None:
    client = as_user(cast.owner)
    url = reverse("notification-read", args=[Notification.objects.get().pk])

    client.post(url)
    assert unread(client) == []
    client.post(url, {"read": "0"})
    assert unread(client) == ["1"]
    client.post(reverse("notifications-read"))
    assert unread(client) == []


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, True),
        ({"kind": "job.failed"}, True),
        ({"kind": "job.held"}, False),
        ({"state": "unread"}, True),
        ({"project": "vision"}, True),
        ({"project": "other\x00"}, False),
        ({"before": "1"}, False),
        ({"kind": "nonsense", "before": "x", "partial": "1"}, True),
    ],
)
def test_the_list_is_filtered(
    as_user: AsUser, cast: Cast, failed: Job, query: dict[str, str], shown: bool
) -> None:
    answer = as_user(cast.owner).get(reverse("notifications"), query)

    assert answer.status_code == 200
    assert ("exit code 3" in answer.content.decode()) == shown


def test_preferences_are_saved_as_they_are_checked(as_user: AsUser, cast: Cast) -> None:
    client = as_user(cast.owner)

    client.post(reverse("notification-preferences"), {"job.failed:portal": "on", "job.ended:portal": "on"})

    chosen = {(row.kind, row.channel): row.on for row in Preference.objects.filter(user=cast.owner)}
    assert chosen[("job.ended", "portal")] is True
    assert chosen[("job.preempted", "portal")] is False
    assert ("job.failed", "portal") not in chosen  # as it was
    assert not [key for key in chosen if key[1] == "mail"]  # this site sends none, so nothing was asked


def test_kinds_for_operators_are_shown_to_operators_alone(as_user: AsUser, cast: Cast) -> None:
    url = reverse("notification-preferences")

    assert "Node down" not in as_user(cast.owner).get(url).content.decode()
    assert "Node down" in as_user(cast.operator).get(url).content.decode()


def test_a_secret_is_shown_once(as_user: AsUser, cast: Cast) -> None:
    client = as_user(cast.owner)

    made = client.post(reverse("webhooks"), HOOK)
    webhook = Endpoint.objects.get()
    again = [client.get(reverse("webhooks")), client.get(reverse("webhook", args=[webhook.pk]))]

    assert "whsec_" in made.content.decode()
    assert "no-store" in made["Cache-Control"]
    assert not any("whsec_" in answer.content.decode() for answer in again)


def test_what_is_wrong_is_said_beside_its_field(as_user: AsUser, cast: Cast) -> None:
    answer = as_user(cast.owner).post(
        reverse("webhooks"), {"name": "", "url": "https://10.0.0.1/", "kinds": ["node.down"]}
    )

    assert answer.status_code == 422
    text = answer.content.decode()
    assert text.count('aria-invalid="true"') == 2
    assert "not allowed: 10.0.0.1 is private" in text
    assert "There is no kind" in text
    assert not Endpoint.objects.exists()


def test_a_webhook_is_changed_rotated_disabled_and_deleted_by_its_buttons(
    as_user: AsUser, cast: Cast
) -> None:
    client = as_user(cast.owner)
    webhook, _ = endpoints.create_endpoint(by=cast.owner, **HOOK)
    page = reverse("webhook", args=[webhook.pk])

    client.post(page, HOOK | {"name": "other"})
    assert "whsec_" in client.post(reverse("webhook-verb", args=[webhook.pk, "rotate"])).content.decode()
    client.post(reverse("webhook-verb", args=[webhook.pk, "test"]))
    client.post(reverse("webhook-verb", args=[webhook.pk, "disable"]))
    webhook.refresh_from_db()
    assert (webhook.name, webhook.enabled, webhook.secret_version, webhook.messages.count()) == (
        "other", False, 2, 1,
    )  # fmt: skip
    client.post(reverse("webhook-verb", args=[webhook.pk, "enable"]))
    assert "A test of this webhook" in client.get(page).content.decode()
    client.post(reverse("webhook-redeliver", args=[webhook.pk, webhook.messages.get().pk]))
    assert client.post(reverse("webhook-verb", args=[webhook.pk, "explode"])).status_code == 404
    client.post(reverse("webhook-verb", args=[webhook.pk, "delete"]))
    assert not Endpoint.objects.exists()


@pytest.mark.parametrize("person", ["colleague", "lead", "stranger", "operator"])
def test_the_webhook_of_another_is_not_there(as_user: AsUser, cast: Cast, person: str) -> None:
    webhook, _ = endpoints.create_endpoint(by=cast.owner, **HOOK)
    client = as_user(getattr(cast, person))

    answers = [
        client.get(reverse("webhook", args=[webhook.pk])),
        client.post(reverse("webhook-verb", args=[webhook.pk, "rotate"])),
        client.post(reverse("webhook-verb", args=[webhook.pk, "delete"])),
    ]

    assert [answer.status_code for answer in answers] == [404] * 3
    assert "zhook" not in client.get(reverse("webhooks")).content.decode()


def test_the_command_prints_what_the_page_shows(
    cast: Cast, failed: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("notifications", "owner", "--unread", "--read")
    call_command("notifications", "owner", "--unread")

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("* ")
    assert said[0].endswith(f"Job {failed.number} train failed. exit code 3")
    assert said[1:] == ["1 marked as read.", "No notifications."]
