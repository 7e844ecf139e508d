"""What operators do in the admin: each change has a reason, a service and a row in the audit trail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import Cluster, JoinToken, Node, Partition, Queue, Reservation, SchedulerProfile
from tests.scheduler.admin.test_pages import page, signed_in
from tests.support.factories import (
    AdminFactory,
    ClusterFactory,
    JobFactory,
    NodeFactory,
    OperatorFactory,
    PartitionFactory,
    QueueFactory,
    SchedulerProfileFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return signed_in(OperatorFactory(username="olga"))


def filled(client: Client, url: str, **changes: Any) -> dict[str, Any]:
    """What the browser would send: the form as it is shown, with changes."""
    form = client.get(url).context["adminform"].form
    data: dict[str, Any] = {}
    for name, field in form.fields.items():
        value = form.get_initial_for_field(field, name)
        if hasattr(value, "all") or (isinstance(value, list) and value and hasattr(value[0], "pk")):
            value = [row.pk for row in value]
        if value is True:
            value = "on"
        if value is None or value is False:
            continue
        data[name] = field.prepare_value(value) if not isinstance(value, list) else value
    for formset in client.get(url).context["inline_admin_formsets"]:
        data |= {f"{formset.formset.prefix}-TOTAL_FORMS": "0", f"{formset.formset.prefix}-INITIAL_FORMS": "0"}
    return data | changes


# ---------------------------------------------------------------- verbs


def test_chosen_nodes_are_drained_with_a_reason(operator: Client) -> None:
    nodes = [NodeFactory() for _ in range(2)]

    chosen = operator.post(
        page(Node, "changelist"), {"action": "drain", "_selected_action": [node.pk for node in nodes]}
    )
    asked = operator.get(chosen["Location"])
    done = operator.post(chosen["Location"], {"reason": "new disks"})

    assert asked.status_code == 200
    assert done["Location"] == page(Node, "changelist")
    for node in nodes:
        node.refresh_from_db()
        assert (node.draining, node.drain_reason, node.drained_by) == (True, "new disks", "olga")
    events = AuditEvent.objects.filter(action="node.drain")
    assert {(event.actor_name, event.reason) for event in events} == {("olga", "new disks")}
    assert events.count() == 2


def test_without_a_reason_nothing_is_drained(operator: Client) -> None:
    node = NodeFactory()

    answer = operator.post(page(Node, "verb", "drain") + f"?ids={node.pk}", {"reason": "  "})

    node.refresh_from_db()
    assert answer.status_code == 200
    assert "This field is required" in answer.content.decode()
    assert not node.draining
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_node_taken_out_comes_back(operator: Client, verb: str) -> None:
    node = NodeFactory()
    operator.post(page(Node, "verb", verb) + f"?ids={node.pk}", {"reason": "check"})

    operator.post(page(Node, "verb", "uncordon") + f"?ids={node.pk}", {"reason": ""})

    node.refresh_from_db()
    assert node.schedulable
    assert list(AuditEvent.objects.order_by("id").values_list("action", flat=True)) == [
        f"node.{verb}",
        "node.uncordon",
    ]


def test_a_queue_is_paused_and_resumed(operator: Client) -> None:
    queue = QueueFactory()

    operator.post(page(Queue, "verb", "pause") + f"?ids={queue.pk}", {"reason": "maintenance"})
    queue.refresh_from_db()
    paused = (queue.paused, queue.paused_reason, queue.paused_by)
    operator.post(page(Queue, "verb", "resume") + f"?ids={queue.pk}", {"reason": ""})
    queue.refresh_from_db()

    assert paused == (True, "maintenance", "olga")
    assert not queue.paused
    assert AuditEvent.objects.filter(action__in=["queue.pause", "queue.resume"]).count() == 2


def test_a_cluster_is_paused_and_resumed(operator: Client) -> None:
    cluster = ClusterFactory()

    operator.post(page(Cluster, "verb", "pause") + f"?ids={cluster.pk}", {"reason": "power"})
    cluster.refresh_from_db()
    assert (cluster.paused, cluster.paused_reason) == (True, "power")
    operator.post(page(Cluster, "verb", "resume") + f"?ids={cluster.pk}", {"reason": "back"})
    cluster.refresh_from_db()

    assert not cluster.paused
    assert [event.reason for event in AuditEvent.objects.order_by("id")] == ["power", "back"]


def test_jobs_are_cancelled_through_their_service_and_what_is_over_is_said(operator: Client) -> None:
    waiting = JobFactory()
    over = JobFactory(state=JobState.COMPLETED, completed_at=timezone.now())

    answer = operator.post(
        reverse("admin:scheduler_job_verb", args=["cancel"]) + f"?ids={waiting.pk},{over.pk}",
        {"reason": "wrong input"},
    )

    waiting.refresh_from_db()
    over.refresh_from_db()
    assert (waiting.state, over.state) == (JobState.CANCELLED, JobState.COMPLETED)
    said = " ".join(str(message) for message in get_messages(answer.wsgi_request))
    assert str(waiting) in said
    event = AuditEvent.objects.get(action="job.cancel", object_id=str(waiting.pk))
    assert (event.actor_name, event.reason) == ("olga", "wrong input")


def test_a_held_job_is_released(operator: Client) -> None:
    job = JobFactory()

    operator.post(reverse("admin:scheduler_job_verb", args=["hold"]) + f"?ids={job.pk}", {"reason": "look"})
    job.refresh_from_db()
    held = job.state
    operator.post(reverse("admin:scheduler_job_verb", args=["release"]) + f"?ids={job.pk}", {"reason": ""})
    job.refresh_from_db()

    assert (held, job.state) == (JobState.HELD, JobState.QUEUED)


def test_an_action_takes_only_so_many_rows_and_only_rows_there_are(operator: Client) -> None:
    for ids in ("", "x,y", "999999", ",".join(str(n) for n in range(300))):
        answer = operator.get(page(Node, "verb", "drain") + f"?ids={ids}")
        assert answer["Location"] == page(Node, "changelist"), ids
    assert operator.get(page(Node, "verb", "explode") + "?ids=1").status_code == 403


# ---------------------------------------------------------------- edits


def test_an_edit_of_a_queue_has_a_reason_and_shows_what_changed(operator: Client) -> None:
    queue = QueueFactory(priority=50)
    url = page(Queue, "change", queue.pk)

    answer = operator.post(url, filled(operator, url, priority="70", reason="deadline week"))

    queue.refresh_from_db()
    event = AuditEvent.objects.get()
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert (queue.priority, queue.generation) == (70, 2)
    assert (event.action, event.reason, event.before, event.after) == (
        "queue.edit",
        "deadline week",
        {"priority": 50},
        {"priority": 70},
    )


def test_an_edit_without_a_reason_is_not_saved(operator: Client) -> None:
    queue = QueueFactory(priority=50)
    url = page(Queue, "change", queue.pk)

    answer = operator.post(url, filled(operator, url, priority="70", reason=""))

    queue.refresh_from_db()
    assert answer.status_code == 200
    assert (queue.priority, AuditEvent.objects.count()) == (50, 0)


def test_t33_the_second_of_two_editors_is_told_what_the_row_is_now(operator: Client) -> None:
    queue = QueueFactory(priority=50)
    url = page(Queue, "change", queue.pk)
    first, second = (filled(operator, url, priority=value, reason="mine") for value in ("60", "70"))

    operator.post(url, first)
    answer = operator.post(url, second)

    queue.refresh_from_db()
    assert queue.priority == 60
    assert "priority is now 60" in answer.content.decode()


def test_an_edit_leaves_alone_what_moved_meanwhile(operator: Client) -> None:
    node = NodeFactory()
    url = page(Node, "change", node.pk)
    data = filled(operator, url, rack="r7", reason="moved")
    Node.objects.filter(pk=node.pk).update(used_cpu_millis=4000)

    data["seen"] = ""
    answer = operator.post(url, data)

    node.refresh_from_db()
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert (node.rack, node.used_cpu_millis) == ("r7", 4000)


def test_partitions_of_a_node_are_part_of_the_audited_change(operator: Client) -> None:
    node = NodeFactory()
    partition = PartitionFactory(cluster=node.cluster, name="fast")
    url = page(Node, "change", node.pk)

    operator.post(url, filled(operator, url, partitions=[partition.pk], reason="new cards"))

    event = AuditEvent.objects.get()
    assert list(node.partitions.all()) == [partition]
    assert (event.before, event.after) == ({"partitions": []}, {"partitions": ["fast"]})


def test_a_partition_is_added_by_hand(operator: Client) -> None:
    cluster = ClusterFactory()
    url = page(Partition, "add")

    answer = operator.post(url, filled(operator, url, cluster=cluster.pk, name="night", reason="new rules"))

    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert Partition.objects.get().name == "night"
    assert AuditEvent.objects.get().action == "partition.create"


def test_a_profile_no_planner_could_follow_is_refused_and_a_good_one_raises_its_version() -> None:
    client = signed_in(AdminFactory())
    profile = SchedulerProfileFactory()
    url = page(SchedulerProfile, "change", profile.pk)

    for bad in (
        {"tie_breakers": '["tallest"]'},
        {"score_weights": '{"x": "heavy"}'},
        {"plugins": '["none-such"]'},
    ):
        answer = client.post(url, filled(client, url, reason="try", **bad))
        assert answer.status_code == 200, bad
    good = client.post(
        url, filled(client, url, policy="priority", tie_breakers='["submitted"]', reason="fair")
    )

    profile.refresh_from_db()
    assert good.status_code == 302, good.context["adminform"].form.errors
    assert (profile.policy, profile.version) == ("priority", 2)
    assert AuditEvent.objects.get().action == "schedulerprofile.edit"


def test_a_queue_that_jobs_still_name_is_not_deleted() -> None:
    client = signed_in(AdminFactory())
    used, unused = JobFactory().queue, QueueFactory()

    client.post(page(Queue, "delete", used.pk), {"post": "yes"})
    client.post(page(Queue, "delete", unused.pk), {"post": "yes"})

    assert list(Queue.objects.all()) == [used]
    assert AuditEvent.objects.get().action == "queue.delete"


# ---------------------------------------------------------------- tokens, reservations


def test_a_join_token_is_shown_once(operator: Client) -> None:
    cluster = ClusterFactory()

    answer = operator.post(page(JoinToken, "add"), {"cluster": cluster.pk, "days": 7}, follow=True)
    again = operator.get(page(JoinToken, "changelist"))

    token = JoinToken.objects.get()
    assert f"{token.prefix}_" in answer.content.decode()
    assert f"{token.prefix}_" not in again.content.decode().replace(str(token), "")
    assert token.created_by == "olga"


def test_a_revoked_join_token_stays_in_the_list_as_such(operator: Client) -> None:
    operator.post(page(JoinToken, "add"), {"cluster": ClusterFactory().pk, "days": 7})
    token = JoinToken.objects.get()

    operator.post(page(JoinToken, "verb", "revoke") + f"?ids={token.pk}", {"reason": "leaked"})

    token.refresh_from_db()
    assert token.revoked_at is not None
    assert AuditEvent.objects.get(action="jointoken.revoke").reason == "leaked"


def test_nodes_are_booked_and_given_back(operator: Client) -> None:
    node = NodeFactory()
    starts, ends = (timezone.now() + timedelta(hours=hours) for hours in (1, 3))

    answer = operator.post(
        page(Reservation, "add"),
        {
            "cluster": node.cluster.pk,
            "name": "new cards",
            "nodes": [node.pk],
            "starts_at_0": f"{starts:%Y-%m-%d}",
            "starts_at_1": f"{starts:%H:%M:%S}",
            "ends_at_0": f"{ends:%Y-%m-%d}",
            "ends_at_1": f"{ends:%H:%M:%S}",
            "reason": "maintenance",
        },
    )
    booked = Reservation.objects.get()
    operator.post(page(Reservation, "verb", "cancel") + f"?ids={booked.pk}", {"reason": "done early"})

    booked.refresh_from_db()
    assert answer.status_code == 302
    assert (list(booked.nodes.all()), booked.created_by.username) == ([node], "olga")
    assert booked.cancelled_at is not None
    assert AuditEvent.objects.get(action="reservation.cancel").reason == "done early"
