"""Webhooks against a real receiver: signed, tried again, redelivered, and never sent where they must not go."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEvent
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from infra.models import Circuit
from notifications.core.backoff import MAX_TRIES
from notifications.core.kinds import Kind
from notifications.models import Endpoint, Message, MessageState, Notification
from notifications.selectors import own_endpoints
from notifications.services import endpoints, guarded_http
from notifications.services.circuits import circuit_of
from notifications.services.deliver import FAILING, deliver_messages
from notifications.services.follow import follow
from notifications.services.outbox import anything_due, backlogs
from scheduler.models import Job
from tests.support.factories import Cast
from tests.support.listeners import Received, WebhookListener, webhook_listener

Happen = Callable[..., list[Job]]


@pytest.fixture
def listener(settings: Any) -> Iterator[WebhookListener]:
    with webhook_listener() as running:
        settings.MUSTER_WEBHOOK_NETWORKS = ["127.0.0.0/8"]
        settings.MUSTER_WEBHOOK_PORTS = [running.port, 443]
        settings.MUSTER_WEBHOOK_WAIT_SECONDS = 0
        yield running


@pytest.fixture
def hook(cast: Cast, listener: WebhookListener) -> tuple[Endpoint, str]:
    return endpoints.create_endpoint(by=cast.owner, name="chat", url=listener.url, kinds=["job.failed"])


def later(**apart: float) -> Any:
    return timezone.now() + timedelta(**apart)


def verify(received: Received, secret: str) -> dict[str, Any]:
    """As the specification says, written without our own code."""
    said = received.headers
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join([said["webhook-id"].encode(), said["webhook-timestamp"].encode(), received.body])
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert f"v1,{expected}" in said["webhook-signature"].split(" ")
    assert abs(int(said["webhook-timestamp"]) - time.time()) < 300
    body: dict[str, Any] = json.loads(received.body)
    return body


# ---------------------------------------------------------------- delivered


def test_a_failed_job_is_delivered_with_a_signature_that_its_receiver_can_check(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen, cast: Cast
) -> None:
    (job,) = jobs_that("job.failed", because="exit code 3")
    follow()

    assert anything_due()
    assert deliver_messages() == 1

    (received,) = listener.received
    body = verify(received, hook[1])
    assert (body["type"], body["data"]["jobs"], body["data"]["text"]) == (
        "job.failed", [job.number], "exit code 3",
    )  # fmt: skip
    assert (body["data"]["project"], body["data"]["user"], body["data"]["count"]) == ("vision", "owner", 1)
    assert received.headers["content-type"] == "application/json"
    assert Message.objects.get().state == MessageState.DELIVERED
    assert not anything_due()
    with pytest.raises(AssertionError):
        verify(Received(received.path, received.headers, received.body + b" "), hook[1])


def test_the_library_of_standard_webhooks_takes_the_signature(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen
) -> None:
    library = pytest.importorskip("standardwebhooks", reason="standardwebhooks is not installed")
    jobs_that("job.failed")
    follow()
    deliver_messages()
    (received,) = listener.received

    assert library.Webhook(hook[1]).verify(received.body, received.headers)["type"] == "job.failed"
    with pytest.raises(library.WebhookVerificationError):
        library.Webhook(hook[1]).verify(received.body + b" ", received.headers)


def test_an_array_is_one_message(hook: Any, listener: WebhookListener, jobs_that: Happen) -> None:
    jobs = jobs_that("job.failed", count=30, array_id=uuid.uuid4())
    follow()

    deliver_messages()

    (received,) = listener.received
    body = json.loads(received.body)
    assert (body["data"]["count"], len(body["data"]["jobs"]), body["data"]["array_id"]) == (
        30,
        20,
        jobs[0].number,
    )
    assert body["data"]["title"] == "30 elements of array train failed"
    assert body["data"]["path"] == f"/arrays/{jobs[0].number}/"


def test_a_message_that_was_tried_stays_as_it_is_and_more_go_into_another(
    hook: Any, listener: WebhookListener, jobs_that: Happen
) -> None:
    listener.answers = [500]
    jobs_that("job.failed")
    follow()
    deliver_messages()
    jobs_that("job.failed")
    follow()

    deliver_messages(now=later(minutes=1))

    assert [json.loads(one.body)["data"]["count"] for one in listener.received] == [1, 1, 1]
    assert listener.received[0].body in [one.body for one in listener.received[1:]]
    assert len({one.headers["webhook-id"] for one in listener.received}) == 2


def test_what_could_not_be_delivered_arrives_once_the_receiver_is_back(
    cast: Cast, settings: Any, jobs_that: Happen
) -> None:
    with webhook_listener() as away:
        port = away.port
    settings.MUSTER_WEBHOOK_NETWORKS, settings.MUSTER_WEBHOOK_PORTS = ["127.0.0.1"], [port]
    settings.MUSTER_WEBHOOK_WAIT_SECONDS = 0
    _, secret = endpoints.create_endpoint(
        by=cast.owner, name="chat", url=f"http://127.0.0.1:{port}/", kinds=["job.failed"]
    )
    jobs_that("job.failed")
    follow()
    deliver_messages()
    message = Message.objects.get()
    assert (message.state, message.tries) == (MessageState.PENDING, 1)
    assert "refused" in message.log[-1]["error"]
    assert deliver_messages() == 0  # not before its time

    with webhook_listener(port) as back:
        assert deliver_messages(now=later(seconds=30)) == 1
        verify(back.received[0], secret)

    message.refresh_from_db()
    assert (message.state, [one["status"] for one in message.log]) == (MessageState.DELIVERED, [0, 204])
    assert message.endpoint.failing_since is None


def test_a_receiver_that_is_away_is_left_alone_and_its_messages_keep_their_tries(
    cast: Cast, hook: Any, listener: WebhookListener, jobs_that: Happen
) -> None:
    endpoint, _ = hook
    for _ in range(3):
        circuit_of(endpoint).failed("No answer within 15 s.")
    for number in range(6):
        jobs_that("job.failed", because=f"exit code {number}", name=f"j{number}")
        follow()
        Message.objects.filter(tries=0).update(
            tries=1, due_at=timezone.now()
        )  # the next is a message of its own
    tries = list(Message.objects.order_by("pk").values_list("tries", flat=True))

    assert deliver_messages() == 0
    assert list(Message.objects.order_by("pk").values_list("tries", flat=True)) == tries
    assert not listener.received

    test = endpoints.send_test(endpoint=endpoint, by=cast.owner)
    assert deliver_messages() >= 1, "a person waits for what comes of a test"
    test.refresh_from_db()
    assert test.state == MessageState.DELIVERED
    deliver_messages()
    assert not Circuit.objects.exists()
    assert not Message.objects.filter(state=MessageState.PENDING).exists(), "it answers: all are sent"


def test_after_the_pause_one_message_is_tried_first(
    hook: Any, listener: WebhookListener, jobs_that: Happen
) -> None:
    endpoint, _ = hook
    for number in range(3):
        jobs_that("job.failed", name=f"j{number}")
        follow()
        Message.objects.filter(tries=0).update(tries=1, due_at=timezone.now())
    for _ in range(3):
        circuit_of(endpoint).failed("away")
    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))
    listener.status = 503

    assert deliver_messages() == 1
    assert Circuit.objects.get().state == "open"
    assert len(listener.received) == 1


def test_a_receiver_that_refuses_a_message_does_answer(
    hook: Any, listener: WebhookListener, jobs_that: Happen
) -> None:
    listener.status = 400
    for number in range(4):
        jobs_that("job.failed", name=f"j{number}")
        follow()
        deliver_messages()

    assert not Circuit.objects.exists()


def test_enabling_a_webhook_or_deleting_it_forgets_its_failures(cast: Cast, hook: Any) -> None:
    endpoint, _ = hook
    circuit_of(endpoint).failed("away")
    endpoints.set_enabled(endpoint=endpoint, by=cast.owner, enabled=False)
    endpoints.set_enabled(endpoint=endpoint, by=cast.owner, enabled=True)
    assert not Circuit.objects.exists()

    circuit_of(endpoint).failed("away")
    endpoints.delete_endpoint(endpoint=endpoint, by=cast.owner)
    assert not Circuit.objects.exists()


def test_a_message_is_redelivered_with_the_same_id_and_body(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen, cast: Cast
) -> None:
    jobs_that("job.failed")
    follow()
    deliver_messages()

    endpoints.redeliver(endpoint=hook[0], message=Message.objects.get(), by=cast.owner)
    deliver_messages(now=later(seconds=1))

    first, second = listener.received
    assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)


def test_a_worker_that_dies_between_call_and_row_leaves_a_message_that_is_sent_again(
    hook: Any, listener: WebhookListener, jobs_that: Happen, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs_that("job.failed")
    follow()

    def dies(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("notifications.services.deliver.settle_try", dies)
        with pytest.raises(SystemExit):
            deliver_messages()
    assert deliver_messages() == 0  # it is leased: perhaps somebody is at it
    assert deliver_messages(now=later(seconds=61)) == 1

    assert len({one.headers["webhook-id"] for one in listener.received}) == 1
    assert len(listener.received) == 2


def test_tries_end_and_a_redelivery_begins_them_anew(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen, cast: Cast
) -> None:
    jobs_that("job.failed")
    follow()
    Message.objects.update(tries=MAX_TRIES - 1, tries_of_round=MAX_TRIES - 1)
    listener.answers = [503]
    deliver_messages()
    assert Message.objects.get().state == MessageState.FAILED

    endpoints.redeliver(endpoint=hook[0], message=Message.objects.get(), by=cast.owner)
    deliver_messages(now=later(seconds=1))

    assert Message.objects.get().state == MessageState.DELIVERED


# ---------------------------------------------------------------- secrets


def test_while_a_secret_is_rotated_both_sign(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen, cast: Cast
) -> None:
    endpoint, new = endpoints.rotate_secret(endpoint=hook[0], by=cast.owner)
    jobs_that("job.failed")
    follow()
    deliver_messages()
    verify(listener.received[0], hook[1])
    verify(listener.received[0], new)
    assert new != hook[1]

    assert endpoints.secrets_of(endpoint, now=later(hours=25)) == [new]


def test_no_secret_is_stored_or_audited(hook: tuple[Endpoint, str], cast: Cast) -> None:
    rows = json.dumps([list(Endpoint.objects.values()), list(AuditEvent.objects.values())], default=str)

    assert hook[1].removeprefix("whsec_") not in rows
    assert {"webhook.create"} == set(AuditEvent.objects.values_list("action", flat=True))


def test_a_key_that_was_replaced_serves_until_the_secret_is_rotated(
    hook: tuple[Endpoint, str], cast: Cast, settings: Any
) -> None:
    settings.MUSTER_WEBHOOK_KEY, settings.MUSTER_WEBHOOK_OLD_KEYS = "a new key", [settings.SECRET_KEY]
    assert endpoints.secrets_of(hook[0], now=timezone.now()) == [hook[1]]

    endpoint, new = endpoints.rotate_secret(endpoint=hook[0], by=cast.owner)
    settings.MUSTER_WEBHOOK_OLD_KEYS = []
    assert endpoints.secrets_of(endpoint, now=timezone.now()) == [new]


def test_an_endpoint_whose_key_is_gone_is_disabled_and_says_so(
    hook: Any, listener: WebhookListener, jobs_that: Happen, settings: Any
) -> None:
    jobs_that("job.failed")
    follow()
    settings.MUSTER_WEBHOOK_KEY = "another key"

    assert deliver_messages() == 0

    assert "rotate the secret" in Endpoint.objects.get().disabled_reason
    assert listener.received == []


# ---------------------------------------------------------------- failing


def test_an_endpoint_that_takes_nothing_for_days_is_disabled_and_its_owner_notified(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen
) -> None:
    listener.status = 500
    jobs_that("job.failed")
    follow()
    deliver_messages()
    Endpoint.objects.update(failing_since=timezone.now() - FAILING)

    deliver_messages(now=later(minutes=1))

    endpoint = Endpoint.objects.get()
    assert not endpoint.enabled
    assert "5 days" in endpoint.disabled_reason
    row = Notification.objects.get(kind=Kind.WEBHOOK_DISABLED)
    assert (row.user.username, row.name) == ("owner", "chat")
    assert AuditEvent.objects.filter(action="webhook.disable").count() == 1
    assert deliver_messages(now=later(days=1)) == 0


def test_an_endpoint_that_is_gone_is_disabled_at_once(
    hook: Any, listener: WebhookListener, jobs_that: Happen
) -> None:
    listener.status = 410
    jobs_that("job.failed")
    follow()

    deliver_messages()

    assert "410" in Endpoint.objects.get().disabled_reason


def test_messages_of_a_disabled_endpoint_wait_until_it_is_enabled(
    hook: tuple[Endpoint, str], listener: WebhookListener, jobs_that: Happen, cast: Cast
) -> None:
    jobs_that("job.failed")
    follow()
    endpoints.set_enabled(endpoint=hook[0], by=cast.owner, enabled=False)
    assert (deliver_messages(), anything_due()) == (0, False)

    endpoints.set_enabled(endpoint=hook[0], by=cast.owner, enabled=True)
    assert deliver_messages() == 1


# ---------------------------------------------------------------- where it goes


def test_a_redirect_is_not_followed(hook: Any, listener: WebhookListener, jobs_that: Happen) -> None:
    listener.answers, listener.headers = [302], {"Location": listener.url + "/elsewhere"}
    jobs_that("job.failed")
    follow()

    deliver_messages()

    assert [one.path for one in listener.received] == ["/hook"]
    assert Message.objects.get().log[-1]["status"] == 302


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://169.254.169.254/latest/meta-data/", "https://[::1]/", "https://10.0.0.1/",
        "https://[::ffff:127.0.0.1]/", "https://224.0.0.1/", "http://1.1.1.1/", "https://1.1.1.1:6379/",
    ],
)  # fmt: skip
def test_an_address_that_is_not_allowed_is_refused_when_it_is_entered(cast: Cast, url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        endpoints.create_endpoint(by=cast.owner, name="x", url=url, kinds=["job.failed"])

    assert [problem.field for problem in refused.value.problems] == ["url"]


def test_a_name_that_leads_to_this_machine_is_refused_when_it_is_sent(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *given, **_: connected.append(given))

    for name in ("localhost", "localhost."):
        answer = guarded_http.post(f"https://{name}/", b"{}", {})
        assert answer.refused
        assert "this machine" in answer.error
    assert connected == []


def test_a_name_with_one_address_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _answers("1.1.1.1", "169.254.169.254"))

    assert guarded_http.post("https://example.org/", b"{}", {}).refused


def test_a_name_is_asked_for_once_and_the_checked_address_is_connected_to(
    listener: WebhookListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers something else the second time changes nothing (DNS rebinding)."""
    asked: list[str] = []
    first = _answers("127.0.0.1")

    def rebinding(host: str, *given: Any, **named: Any) -> Any:
        if host != "example.org":
            return first(host, *given, **named)
        asked.append(host)
        return (first if len(asked) == 1 else _answers("10.9.9.9"))(host, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)

    answer = guarded_http.post(f"http://example.org:{listener.port}/hook", b"{}", {})

    assert (answer.status, asked) == (204, ["example.org"])
    assert listener.received[0].headers["host"] == f"example.org:{listener.port}"


def _answers(*addresses: str) -> Callable[..., Any]:
    return lambda host, port, *_, **__: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses
    ]


def test_a_receiver_that_does_not_answer_costs_the_deadline_and_no_more(
    listener: WebhookListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "TOTAL_SECONDS", 0.3)
    listener.may_answer.clear()

    began = time.monotonic()
    answer = guarded_http.post(listener.url, b"{}", {})

    assert (answer.status, answer.refused) == (0, False)
    assert "No answer" in answer.error
    assert time.monotonic() - began < 10


# ---------------------------------------------------------------- who may


def test_a_project_endpoint_gets_the_jobs_of_all_its_people_and_a_personal_one_those_of_its_owner(
    cast: Cast, listener: WebhookListener, jobs_that: Happen
) -> None:
    endpoints.create_endpoint(
        by=cast.lead, name="all", url=listener.url + "/project", kinds=["job.failed"], project=cast.project
    )
    endpoints.create_endpoint(by=cast.owner, name="own", url=listener.url + "/own", kinds=["job.failed"])
    jobs_that("job.failed", user=cast.colleague)
    follow()

    deliver_messages()

    assert [one.path for one in listener.received] == ["/hook/project"]


def test_only_a_lead_manages_webhooks_of_a_project(cast: Cast, listener: WebhookListener) -> None:
    made, _ = endpoints.create_endpoint(
        by=cast.lead, name="all", url=listener.url, kinds=["job.failed"], project=cast.project
    )
    for person, refusal in ((cast.owner, NotAllowed), (cast.stranger, NotFound)):
        with pytest.raises(refusal):
            endpoints.create_endpoint(
                by=person, name="x", url=listener.url, kinds=["job.failed"], project=cast.project
            )
        with pytest.raises(refusal):
            endpoints.rotate_secret(endpoint=made, by=person)
    seen = {name: own_endpoints(person).count() for name, person in cast.people().items()}
    assert seen == dict.fromkeys(seen, 0) | {"lead": 1, "admin": 1}


def test_a_project_may_not_choose_what_concerns_operators(cast: Cast, listener: WebhookListener) -> None:
    with pytest.raises(InvalidInput):
        endpoints.create_endpoint(
            by=cast.lead, name="x", url=listener.url, kinds=["node.down"], project=cast.project
        )


def test_there_are_so_many_endpoints_and_no_more(cast: Cast, listener: WebhookListener) -> None:
    for number in range(endpoints.MOST_ENDPOINTS):
        endpoints.create_endpoint(by=cast.owner, name=str(number), url=listener.url, kinds=["job.failed"])
    with pytest.raises(Conflict):
        endpoints.create_endpoint(by=cast.owner, name="x", url=listener.url, kinds=["job.failed"])


def test_a_test_message_is_sent_once_whatever_is_answered(
    hook: tuple[Endpoint, str], listener: WebhookListener, cast: Cast
) -> None:
    listener.status = 500
    endpoints.send_test(endpoint=hook[0], by=cast.owner)

    deliver_messages()

    assert verify(listener.received[0], hook[1])["type"] == "webhook.test"
    assert Message.objects.get().state == MessageState.FAILED


def test_what_waits_too_long_is_counted(hook: Any, jobs_that: Happen) -> None:
    jobs_that("job.failed")
    follow()
    Message.objects.update(due_at=timezone.now() - timedelta(minutes=20))

    found = {one.channel: one for one in backlogs()}

    assert found["webhook"].overdue == 1
    assert 1190 < found["webhook"].seconds < 1300
    assert (found["mail"].overdue, found["events"].overdue) == (0, 0)
