"""What is known of a request: its name, where it came from, and that nothing of it stays behind."""

from __future__ import annotations

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from accounts.models import AuditEvent
from accounts.web.middleware import ContextMiddleware
from infra import client_address, request_context
from infra.errors import NotAllowed
from tests.support.factories import ProjectFactory, UserFactory


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "address"),
    [
        ("10.0.0.1", "", [], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", [], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", ["10.0.0.0/8"], "1.2.3.4"),
        ("10.0.0.1", "9.9.9.9, 1.2.3.4", ["10.0.0.0/8"], "1.2.3.4"),
        ("10.0.0.1", "9.9.9.9, 10.0.0.2", ["10.0.0.0/8"], "9.9.9.9"),
        ("10.0.0.1", "127.0.0.1, 1.2.3.4", ["10.0.0.0/8"], "1.2.3.4"),
        ("10.0.0.1", "rubbish", ["10.0.0.0/8"], "10.0.0.1"),
        ("::1", "2001:db8::1", ["::1/128"], "2001:db8::1"),
        ("", "1.2.3.4", ["10.0.0.0/8"], ""),
        ("127.0.0.1", "1.2.3.4", [], "127.0.0.1"),
        ("::ffff:10.0.0.1", "1.2.3.4", ["10.0.0.0/8"], "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4", ["10.0.0.1"], "1.2.3.4"),
    ],
)
def test_a_forwarded_address_is_believed_from_a_trusted_proxy_only(
    settings, peer: str, forwarded: str, trusted: list[str], address: str
) -> None:
    settings.MUSTER_TRUSTED_PROXIES = trusted
    request = RequestFactory().get(
        "/", REMOTE_ADDR=peer, headers={"X-Forwarded-For": forwarded} if forwarded else {}
    )

    caller = client_address.of_request(request)
    assert caller.address == address
    assert caller.proxied is bool(forwarded)


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False),
     ("10.0.0.1", False), ("0.0.0.0", False), ("", False), ("localhost", False), ("127.0.0.1:80", False)],
)  # fmt: skip
def test_loopback_is_this_machine_and_nothing_else(address: str, here: bool) -> None:
    assert client_address.is_loopback(address) is here


def test_a_request_leaves_nothing_behind() -> None:
    seen = []

    def view(request):
        request_context.update(token_prefix="abc", on_behalf_of="bob")
        seen.append(request_context.current())
        return HttpResponse()

    request = RequestFactory().get("/", REMOTE_ADDR="10.0.0.1")
    request.request_id = "r-1"  # type: ignore[attr-defined]
    ContextMiddleware(view)(request)

    assert seen == [
        request_context.RequestContext(
            request_id="r-1", address="10.0.0.1", token_prefix="abc", on_behalf_of="bob"
        )
    ]
    assert request_context.current() == request_context.RequestContext()


def test_a_view_that_fails_leaves_nothing_behind_either() -> None:
    def view(request):
        request_context.update(token_prefix="abc")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        ContextMiddleware(view)(RequestFactory().get("/"))

    assert request_context.current() == request_context.RequestContext()


@pytest.mark.django_db
def test_a_refusal_that_leaves_a_page_becomes_an_audit_row() -> None:
    alice, project = UserFactory(), ProjectFactory()
    request = RequestFactory().get("/")
    request.user = alice
    middleware = ContextMiddleware(lambda _: None)

    middleware.process_exception(request, NotAllowed("You may not.", refused=("manage", project)))
    middleware.process_exception(request, RuntimeError("something else"))

    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.actor, event.project) == (
        "project.manage",
        "denied",
        alice,
        project,
    )


def test_every_answer_carries_the_name_of_its_request() -> None:
    given = Client().get("/livez", headers={"X-Request-ID": "mine-12345"})
    made = Client().get("/api/v1/nothing", headers={"X-Request-ID": "bad\tname"})

    assert given.status_code == 200
    assert len(made["X-Request-ID"]) == 32
    assert made.json()["request_id"] == made["X-Request-ID"]
