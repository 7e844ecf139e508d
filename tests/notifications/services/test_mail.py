"""Mail to a real mail server: by preference, as a job asks for it, one for a burst, and again while nobody answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import User
from infra.models import Circuit
from notifications.models import Mail, MailState, Notification
from notifications.services.findings import look
from notifications.services.follow import follow
from notifications.services.mail import mail_circuit, message_of, send_mails
from notifications.services.preferences import change_preferences
from quotas.models import AlertKind
from quotas.services.alerts import look_for_alerts, tell
from scheduler.core.lifecycle import JobState
from scheduler.core.mail_types import parse_mail_types
from scheduler.models import Job
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.jobs.verbs import cancel_job
from tests.notifications.conftest import events
from tests.support.factories import AttemptFactory, Cast, QuotaFactory, bearer
from tests.support.listeners import MailListener, mail_listener

Happen = Callable[..., list[Job]]


@pytest.fixture
def mails(settings: Any) -> Iterator[MailListener]:
    with mail_listener() as running:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", running.port, 5
        settings.MUSTER_ALERT_MAIL_FROM = "Muster <muster@example.org>"
        settings.MUSTER_PUBLIC_URL = "https://muster.example.org/"
        settings.MUSTER_MAIL_WAIT_SECONDS = 0
        yield running


def later(**apart: float) -> Any:
    return timezone.now() + timedelta(**apart)


def subjects(mails: MailListener) -> list[str]:
    return [str(mail["Subject"]) for mail in mails.mails]


def test_a_failed_job_is_mailed_to_its_owner_with_text_html_and_a_link(
    mails: MailListener, cast: Cast, jobs_that: Happen
) -> None:
    (job,) = jobs_that("job.failed", because="exit code 3 <b>")
    follow()

    assert send_mails() == 1
    assert send_mails(now=later(days=1)) == 0

    (mail,) = mails.mails
    assert (mail["To"], mail["From"]) == ("owner@example.org", "Muster <muster@example.org>")
    assert mail["Subject"] == f"Muster: Job {job.number} train failed"
    assert mail["Auto-Submitted"] == "auto-generated"
    text, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text is not None
    assert html is not None
    assert "Exit code 3 <b>" in text.get_content()
    assert f"https://muster.example.org/jobs/{job.number}/" in text.get_content()
    assert "Exit code 3 &lt;b&gt;" in html.get_content()


def test_an_array_that_fails_is_one_mail(mails: MailListener, jobs_that: Happen) -> None:
    jobs_that("job.failed", count=30, array_id=uuid.uuid4())
    follow()

    send_mails()

    assert subjects(mails) == ["Muster: 30 elements of array train failed"]


def test_what_fails_later_is_mailed_with_the_new_count_after_an_hour(
    mails: MailListener, jobs_that: Happen
) -> None:
    jobs = jobs_that("job.failed", count=2, array_id=uuid.uuid4())
    follow()
    send_mails()
    events(jobs, "job.failed")
    follow()

    assert send_mails(now=later(minutes=5)) == 0
    assert send_mails(now=later(minutes=61)) == 1

    first, second = subjects(mails)
    assert "2 elements" in first
    assert "2 elements" in second
    assert second.endswith("4 times")


def test_nothing_is_mailed_where_no_sender_is_named(
    mails: MailListener, jobs_that: Happen, settings: Any
) -> None:
    settings.MUSTER_ALERT_MAIL_FROM = ""
    jobs_that("job.failed")
    follow()

    assert (send_mails(), Mail.objects.count(), Notification.objects.count()) == (0, 0, 1)


def test_who_has_turned_it_off_or_has_no_address_gets_no_mail(
    mails: MailListener, cast: Cast, jobs_that: Happen
) -> None:
    change_preferences(user=cast.owner, by=cast.owner, changes={"job.failed": {"mail": False}})
    User.objects.filter(pk=cast.colleague.pk).update(email="")
    jobs_that("job.failed")
    jobs_that("job.failed", user=cast.colleague)
    follow()

    assert send_mails() == 0
    assert Notification.objects.count() == 2


def test_a_server_that_does_not_answer_is_asked_again(
    mails: MailListener, jobs_that: Happen, settings: Any
) -> None:
    settings.EMAIL_PORT = 1
    jobs_that("job.failed")
    follow()
    assert send_mails() == 0
    assert Mail.objects.get().last_error

    settings.EMAIL_PORT = mails.port
    assert send_mails() == 0
    assert send_mails(now=later(minutes=1)) == 1


def test_a_server_that_is_away_is_left_alone_and_no_mail_uses_up_its_tries_meanwhile(
    mails: MailListener, cast: Cast, jobs_that: Happen, settings: Any
) -> None:
    settings.EMAIL_PORT = 1
    for number in range(3):
        jobs_that("job.failed", because=f"exit code {number}", project=cast.project)
        follow()
        send_mails(now=later(minutes=number))
    jobs_that("job.failed", user=cast.colleague)
    follow()
    settings.EMAIL_PORT = mails.port
    tries = {mail.pk: mail.tries for mail in Mail.objects.all()}

    assert send_mails(now=later(hours=1)) == 0
    assert {mail.pk: mail.tries for mail in Mail.objects.all()} == tries
    assert Circuit.objects.get().state == "open"

    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))
    assert send_mails(now=later(hours=1)) == len(tries)
    assert not Circuit.objects.exists()


def test_after_the_pause_one_mail_is_tried_and_the_others_wait(
    mails: MailListener, cast: Cast, jobs_that: Happen, settings: Any
) -> None:
    for _ in range(3):
        mail_circuit().failed("away")
    settings.EMAIL_PORT = 1
    jobs_that("job.failed")
    jobs_that("job.failed", user=cast.colleague)
    follow()
    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))

    send_mails()

    assert sorted(mail.tries for mail in Mail.objects.all()) == [0, 1]


def test_a_recipient_that_is_refused_holds_up_nobody_and_is_given_up(
    mails: MailListener, cast: Cast, jobs_that: Happen
) -> None:
    mails.refused.add("owner@example.org")
    jobs_that("job.failed")
    jobs_that("job.failed", user=cast.colleague)
    follow()

    assert send_mails() == 1
    for day in range(1, 12):
        send_mails(now=later(days=day))

    assert [mail["To"] for mail in mails.mails] == ["colleague@example.org"]
    assert Mail.objects.get(notification__user=cast.owner).state == MailState.FAILED


# ---------------------------------------------------------------- --mail-type


def test_a_job_is_mailed_at_what_it_asks_for_and_nothing_else(
    mails: MailListener, cast: Cast, jobs_that: Happen
) -> None:
    asks, silent, none = (
        jobs_that("job.queued", mail_types=words)[0] for words in ("BEGIN,END", None, "NONE")
    )
    events([asks, silent, none], "job.running", details={"node": "alpha"})
    events([asks, silent], "job.completed")
    events([none], "job.failed")
    follow()

    send_mails()

    assert subjects(mails) == [
        f"Muster: Job {asks.number} train started", f"Muster: Job {asks.number} train completed",
    ]  # fmt: skip
    shown = Notification.objects.filter(in_portal=True)
    assert [row.kind for row in shown] == ["job.failed"]  # of the job that wants no mail


def test_array_tasks_are_mailed_one_by_one(mails: MailListener, jobs_that: Happen) -> None:
    jobs_that("job.completed", count=3, array_id=uuid.uuid4(), mail_types="END,ARRAY_TASKS")
    follow()

    assert send_mails() == 3


def test_a_job_that_its_owner_cancels_is_an_end_as_in_slurm(
    mails: MailListener, cast: Cast, jobs_that: Happen
) -> None:
    (job,) = jobs_that("job.queued", mail_types="END")
    cancel_job(job=job, by=cast.owner)
    follow()

    send_mails()

    assert subjects(mails) == [f"Muster: Job {job.number} train was cancelled"]
    assert not Notification.objects.filter(in_portal=True).exists()


@pytest.mark.parametrize(("words", "passed", "count"), [("TIME_LIMIT_80", 85, 1), ("TIME_LIMIT_90", 85, 0),
                                                        ("TIME_LIMIT_50,TIME_LIMIT_80", 85, 1)])  # fmt: skip
def test_a_part_of_the_time_limit_is_mailed_to_who_asked_for_it(
    mails: MailListener, cast: Cast, jobs_that: Happen, words: str, passed: int, count: int
) -> None:
    (job,) = jobs_that(
        "job.queued", state=JobState.RUNNING, epoch=1, time_limit_seconds=1000, mail_types=words
    )
    AttemptFactory(job=job, started_at=timezone.now() - timedelta(seconds=10 * passed))

    look()

    assert send_mails() == count


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("end, fail", "END,FAIL"),
        ("ALL", "BEGIN,END,FAIL,REQUEUE,INVALID_DEPEND"),
        ("ALL,TIME_LIMIT_80", "BEGIN,END,FAIL,REQUEUE,INVALID_DEPEND,TIME_LIMIT_80"),
        ("NONE", "NONE"),
        ("END,END,BEGIN", "BEGIN,END"),
        ("", ""),
    ],
)
def test_words_are_kept_once_and_in_one_order(given: str, kept: str) -> None:
    assert parse_mail_types(given) == kept


@pytest.mark.parametrize("given", ["SOMETIMES", "NONE,END", "END,FAIL,x" * 3])
def test_what_is_no_type_of_mail_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"type of mail|alone"):
        parse_mail_types(given)


def sbatch(client: Client, cast: Cast, *directives: str) -> Any:
    ensure_defaults()
    lines = "".join(f"#SBATCH {line}\n" for line in directives)
    return client.post(
        "/api/v1/slurm/sbatch", {"script": f"#!/bin/sh\n{lines}true\n", "project": "vision"},
        content_type="application/json", headers=bearer(cast.owner, "jobs:write"),
    )  # fmt: skip


def test_sbatch_takes_mail_type_and_ones_own_address(client: Client, cast: Cast, mails: MailListener) -> None:
    answer = sbatch(client, cast, "--mail-type=BEGIN,TIME_LIMIT_80", "--mail-user=Owner@example.org")

    assert answer.status_code == 201, answer.content
    assert answer.json()["ignored"] == []
    assert Job.objects.get().mail_types == "BEGIN,TIME_LIMIT_80"


def test_sbatch_refuses_the_address_of_somebody_else_with_the_reason(
    client: Client, cast: Cast, mails: MailListener
) -> None:
    answer = sbatch(client, cast, "--mail-type=END", "--mail-user=boss@example.org")

    assert answer.status_code == 422
    assert "Line 3: --mail-user: mail goes to your address, owner@example.org" in answer.content.decode()
    assert not Job.objects.exists()


def test_sbatch_says_where_a_site_sends_no_mail(client: Client, cast: Cast) -> None:
    answer = sbatch(client, cast, "--mail-type=END")

    assert "sends no mail" in answer.json()["ignored"][0]["reason"]
    assert Job.objects.get().mail_types == "END"


def test_the_api_takes_and_shows_mail_type(client: Client, cast: Cast) -> None:
    ensure_defaults()
    headers = bearer(cast.owner, "jobs:write")
    job = {"command": "true", "project": "vision", "mail_type": "all"}
    made = client.post("/api/v1/jobs", job, content_type="application/json", headers=headers)
    wrong = client.post(
        "/api/v1/jobs", job | {"mail_type": "often"}, content_type="application/json", headers=headers
    )

    assert made.json()["mail_type"] == "BEGIN,END,FAIL,REQUEUE,INVALID_DEPEND"
    assert [error["field"] for error in wrong.json()["errors"]] == ["mail_type"]


# ---------------------------------------------------------------- quotas


def test_alerts_about_limits_are_one_mail_and_what_comes_up_later_waits(
    mails: MailListener, cast: Cast
) -> None:
    for resource in ("gpu_millis", "storage_mib"):
        QuotaFactory(project=cast.project, resource=resource, hard=1000, used=1000)
    look_for_alerts()
    follow()
    assert send_mails() == 1
    QuotaFactory(project=cast.project, resource="cpu_millis", hard=1000, used=1000)
    look_for_alerts()
    follow()

    assert send_mails(now=later(hours=2)) == 0
    assert send_mails(now=later(hours=7)) == 1

    assert [mail["To"] for mail in mails.mails] == ["lead@example.org"] * 2
    first, second = (mail.get_body(("plain",)) for mail in mails.mails)
    assert first is not None
    assert second is not None
    assert "limit of GPUs" in first.get_content()
    assert "CPU cores" not in first.get_content()
    assert "CPU cores" in second.get_content()


def test_a_reason_of_several_lines_is_no_reason_not_to_mail(mails: MailListener, cast: Cast) -> None:
    text = "Vision: the request for 4 GPUs more was declined: not now\nask again in June"
    tell(kind=AlertKind.GRANT, subject="grant 1 declined", text=text, people=[cast.lead.pk], project_id=None)
    follow()

    assert send_mails() == 1

    assert subjects(mails)[0].endswith("declined: not now ask again in June")


def test_times_in_a_mail_are_in_the_zone_of_the_person_and_nothing_is_said_twice(
    mails: MailListener, cast: Cast
) -> None:
    User.objects.filter(pk=cast.owner.pk).update(time_zone="Asia/Tokyo")
    now = timezone.now()
    words = {
        "user": cast.owner,
        "first_at": now,
        "last_at": now,
        "source": "t",
        "first_event": 1,
        "last_event": 1,
    }
    cast.owner.refresh_from_db()
    drain = Notification.objects.create(
        kind="node.draining", name="n1", thing="node:1", group_key="a",
        text="Job 7 is requeued at 2027-01-31T18:00:00Z if still running there. Drained by olu", **words,
    )  # fmt: skip
    budget = Notification.objects.create(
        kind="quota.alert", thing="quota", group_key="b", name="Vision: used up by 2027-01-31T18:00:00Z.",
        text="Vision: used up by 2027-01-31T18:00:00Z.", **words,
    )  # fmt: skip

    for row, said in (
        (drain, "is requeued at 01 Feb 2027 03:00 JST if"),
        (budget, "used up by 01 Feb 2027 03:00 JST"),
    ):
        message = message_of(row)
        html = str(message.alternatives[0][0])
        for body in (str(message.body), html):
            assert said in body
            assert "2027-01-31T" not in body
        assert "T18:00" not in message.subject
        assert str(message.body).count(said) == 1


def test_a_mail_of_several_jobs_names_their_numbers_and_ends_its_sentences(
    mails: MailListener, cast: Cast
) -> None:
    now = timezone.now()
    row = Notification.objects.create(
        user=cast.owner, kind="job.requeued", project=cast.project, group_key="a", count=3, jobs=[6, 8, 8],
        name="train", text="the node was lost", first_at=now, last_at=now, source="t", first_event=1, last_event=3,
    )  # fmt: skip

    message = message_of(row)

    for body in (str(message.body), str(message.alternatives[0][0])):
        assert "Jobs: 6, 8" in body
        assert "The node was lost." in body
    row.jobs = [6, 6, 6]
    assert "Jobs:" not in str(message_of(row).body), "the headline names the one job"
