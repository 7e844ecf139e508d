"""A queue that requires isolation: its jobs run on nodes that have it, and everywhere people read why not elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent
from infra.errors import InvalidInput, NotAllowed
from scheduler.core.policy import ISOLATIONS, options_of
from scheduler.core.snapshot.node_isolation import BITS, LACKS, IsolationLevel
from scheduler.models import Node, SchedulerProfile
from scheduler.services.cluster.isolation import HOLDS, level_of, read_isolation
from scheduler.services.cluster.queues import edit_queue
from scheduler.services.planning import shared_snapshot
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.job_preview import preview_job
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db

ALL = dict.fromkeys(HOLDS, True)


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Portal:
    """Of two nodes, n2 has no control groups."""
    monkeypatch.setattr(shared_snapshot, "QUICK_SECONDS", 600.0)
    portal = a_portal()
    _say(portal.n1, ALL)
    _say(portal.n2, ALL | {"amounts": False})
    _forget()
    return portal


def _say(node: Node, facts: dict[str, Any]) -> None:
    node.isolation = read_isolation(facts)
    node.save()


def _forget() -> None:
    shared_snapshot.forget_snapshots()


def _require(portal: Portal, level: str) -> None:
    edit_queue(queue=portal.queue, changes={"isolation": level}, by=portal.cast.operator)
    _forget()


def _headline(portal: Portal) -> str:
    return preview_job(payload={"command": "true"}, by=portal.cast.owner).headline


def test_what_an_agent_says_is_what_the_planner_counts() -> None:
    assert list(BITS) == list(HOLDS) == list(LACKS)
    assert list(ISOLATIONS) == list(IsolationLevel)


def test_a_job_goes_to_a_node_that_has_it(portal: Portal) -> None:
    portal.n1.cordoned = True
    portal.n1.save()
    assert _headline(portal) == "Would start now on n2."
    _require(portal, "partial")
    assert _headline(portal) == "Would start now on n2."

    _require(portal, "strict")

    assert _headline(portal) != "Would start now on n2."
    verdicts = explain_job(job=portal.submit(), by=portal.cast.owner, nodes=True).node_table
    assert {node.name: node.sentence for node in verdicts}["n2"] == (
        "has no cgroups that bound memory, processes and CPU; the queue requires strict isolation"
    )


def test_the_profile_of_the_queue_asks_for_it_as_well(portal: Portal) -> None:
    _say(portal.n1, {})
    rules = SchedulerProfile.objects.create(name="guarded", options={"isolation": "strict"})
    portal.queue.profile = rules
    portal.queue.save()
    _forget()

    assert _headline(portal).startswith("No node offers strict isolation, which the queue requires: node n2")
    assert portal.queue.required_isolation == "strict"
    assert options_of({"isolation": "strict"}) == {}
    with pytest.raises(ValueError, match='"isolation" is "partial", "strict"'):
        options_of({"isolation": "much"})


def test_a_waiting_job_says_which_node_lacks_what(portal: Portal) -> None:
    _say(portal.n1, {})
    _require(portal, "strict")
    job = portal.submit()

    for reader in (portal.cast.owner, portal.cast.colleague):
        why = explain_job(job=job, by=reader)
        assert why.reason_code == "NodesUnavailable"
        assert "node n2 has no cgroups that bound memory, processes and CPU" in why.headline


def test_facts_that_an_agent_does_not_report_are_none(portal: Portal) -> None:
    portal.n1.labels = {"isolation": "strict"}  # the word of a person, not of the agent
    _say(portal.n1, {})
    _say(portal.n2, {})
    _require(portal, "partial")

    assert "node n1 does not confine jobs to their own files" in _headline(portal)


def test_only_operators_change_it_and_the_change_is_in_the_audit_trail(portal: Portal) -> None:
    for person in (portal.cast.owner, portal.cast.lead, portal.cast.auditor):
        with pytest.raises(NotAllowed):
            edit_queue(queue=portal.queue, changes={"isolation": "strict"}, by=person)
    with pytest.raises(InvalidInput, match="partial"):
        edit_queue(queue=portal.queue, changes={"isolation": "most"}, by=portal.cast.operator)

    _require(portal, "strict")

    event = AuditEvent.objects.get()
    assert (event.action, event.before, event.after) == (
        "queue.edit", {"isolation": ""}, {"isolation": "strict"},
    )  # fmt: skip


def test_the_pages_show_it(portal: Portal, client: Client) -> None:
    _require(portal, "strict")
    client.force_login(portal.cast.owner, backend="accounts.backends.PasswordBackend")

    assert "strict isolation" in client.get(reverse("queues")).content.decode()
    assert "(strict isolation)" in client.get(reverse("submit")).content.decode()


def test_a_node_whose_agent_reports_a_fault_takes_no_tasks_and_says_why(portal: Portal) -> None:
    portal.n1.isolation = read_isolation(ALL | {"fault": "jobs cannot be isolated: [Errno 28] No space left"})
    portal.n1.save()
    _forget()

    assert _headline(portal) == "Would start now on n2."
    assert level_of(portal.n1.isolation) == "none"
    assert level_of(read_isolation(ALL | {"fault": ""})) == "strict"
