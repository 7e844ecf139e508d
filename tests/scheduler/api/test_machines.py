"""Nodes, GPUs, topology, queues, reservations and the planner's door."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import Device, Job, Node, Queue, Reservation
from tests.infra.api.conformance import document
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    JobFactory,
    NodeFactory,
    ProjectFactory,
    QueueFactory,
)

V1 = "/api/v1"


# ---------------------------------------------------------------- nodes


def test_nodes_show_what_they_have_and_what_is_in_use(api: Api, portal: Portal) -> None:
    Node.objects.filter(pk=portal.n2.pk).update(
        used_cpu_millis=1500,
        cpu_millis=8000,
        cpu_millis_capacity=16_000,
        memory_mib=32_768,
        memory_mib_capacity=65_536,
    )
    Device.objects.filter(node=portal.n2, index=0).update(used_millis=500)

    nodes = api(portal.cast.owner).get(f"{V1}/nodes").json()["results"]

    assert [node["name"] for node in nodes] == ["n1", "n2"]
    assert nodes[1]["cpu_cores"] == {"total": 16.0, "used": 1.5, "free": 14.5, "size": 8.0}  # overcommitted
    assert nodes[1]["memory_bytes"] == {"total": 64 << 30, "used": 0, "free": 64 << 30, "size": 32 << 30}
    assert "size" not in nodes[1]["gpu_count"]
    assert nodes[1]["gpu_count"] == {"total": 4, "used": 0.5, "free": 3.5}
    assert [gpu["state"] for gpu in nodes[1]["gpus"]] == ["shared", "free", "free", "free"]
    assert nodes[1]["schedulable"] is True


def test_a_node_shows_its_facts_of_disk_and_secrets_beside_its_level(api: Api, portal: Portal) -> None:
    Node.objects.filter(pk=portal.n2.pk).update(isolation={"disk": True, "secrets_in_memory": False})

    plain, said = (node["isolation"] for node in api(portal.cast.owner).get(f"{V1}/nodes").json()["results"])

    assert (plain["disk"], plain["secrets_in_memory"]) == (False, None)
    assert (said["level"], said["disk"], said["secrets_in_memory"]) == ("none", True, False)


def test_node_lists_take_as_many_queries_for_three_as_for_one(
    api: Api, portal: Portal, django_assert_num_queries: Any
) -> None:
    client = api(portal.cast.owner)
    client.get(f"{V1}/nodes")

    for path, queries in (("nodes", 4), ("gpus", 6), ("topology", 4), ("queues", 5), ("queue", 8)):
        for _ in range(2):
            with django_assert_num_queries(queries):
                assert client.get(f"{V1}/{path}").status_code == 200
            NodeFactory(cluster=portal.cluster, gpus=2)
            QueueFactory(cluster=portal.cluster)


def test_a_node_is_found_by_name_and_by_id(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    assert client.get(f"{V1}/nodes/n2").json() == client.get(f"{V1}/nodes/{portal.n2.pk}").json()
    assert client.get(f"{V1}/nodes/n3").status_code == 404


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("gpu_type=a100", ["n2"]), ("schedulable=false", ["n1"]), ("schedulable=true", ["n2"]), ("state=down", []),
        ("partition=default", ["n1", "n2"]), ("name=N1", ["n1"]), ("draining=true", []), ("cluster=main", ["n1", "n2"]),
    ],
)  # fmt: skip
def test_nodes_are_filtered(api: Api, portal: Portal, query: str, expected: list[str]) -> None:
    Node.objects.filter(pk=portal.n1.pk).update(cordoned=True)

    answer = api(portal.cast.owner).get(f"{V1}/nodes?{query}")

    assert [node["name"] for node in answer.json()["results"]] == expected


def _flags_of_reads() -> list[tuple[str, str]]:
    """Each read that has a query parameter which is a flag, and the parameter."""
    paths = document()["paths"]
    return [
        (path, one["name"])
        for path, operations in paths.items()
        if "{" not in path.replace("{ref}", "")
        for one in operations.get("get", {}).get("parameters", [])
        if one["in"] == "query"
        and (one["schema"].get("type") == "boolean" or one["schema"].get("enum") == ["true", "false"])
    ]


def test_a_flag_of_a_query_that_is_neither_true_nor_false_is_refused(api: Api, portal: Portal) -> None:
    operator = api(portal.cast.operator)
    job, flags = JobFactory.create(), _flags_of_reads()
    assert {(f"{V1}/nodes", "cordoned"), (f"{V1}/reservations", "current")} < set(flags)

    for path, name in flags:
        where = path.format(ref=job.number)
        answers = [operator.get(f"{where}?{name}={value}") for value in ("maybe", "2", "true")]
        assert [answer.status_code for answer in answers] == [400, 400, 200], (where, name)
        assert [one["field"] for one in answers[0].json()["errors"]] == [name]


@pytest.mark.parametrize(
    ("word", "expected"), [("1", ["n1"]), ("True", ["n1"]), ("no", ["n2"]), ("", ["n1", "n2"])]
)
def test_words_of_flags_narrow_the_list(api: Api, portal: Portal, word: str, expected: list[str]) -> None:
    Node.objects.filter(pk=portal.n1.pk).update(cordoned=True)

    answer = api(portal.cast.owner).get(f"{V1}/nodes?cordoned={word}")

    assert [node["name"] for node in answer.json()["results"]] == expected


def test_an_operator_drains_a_node_and_gives_it_back(api: Api, portal: Portal) -> None:
    client = api(portal.cast.operator)

    drained = client.post(f"{V1}/nodes/n1/drain", {"reason": "new disk"})
    back = client.post(f"{V1}/nodes/n1/uncordon", {"reason": "done"})
    silent = client.post(f"{V1}/nodes/n1/cordon")

    assert (drained.json()["draining"], drained.json()["drain_reason"]) == (True, "new disk")
    assert back.json()["schedulable"] is True
    assert (silent.status_code, silent.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize("verb", ["cordon", "drain", "uncordon"])
def test_only_operators_touch_nodes(api: Api, portal: Portal, verb: str) -> None:
    for who in ("owner", "lead", "auditor"):
        answer = api(getattr(portal.cast, who)).post(f"{V1}/nodes/n1/{verb}", {"reason": "x"})
        assert answer.status_code == 403, who
    assert Node.objects.get(name="n1").schedulable
    assert AuditEvent.objects.filter(outcome="denied").count() == 3


def test_gpus_name_their_jobs_to_those_who_may_know(api: Api, portal: Portal) -> None:
    job = JobFactory(
        project=portal.cast.project,
        user=portal.cast.owner,
        queue=portal.queue,
        state=JobState.RUNNING,
        epoch=1,
    )
    device = portal.n2.devices.order_by("index").first()
    AllocationFactory(
        attempt=AttemptFactory(job=job), node=portal.n2, device_ids=[device.pk], gpu_millis=1000
    )
    Device.objects.filter(pk=device.pk).update(used_millis=1000)

    own = api(portal.cast.owner).get(f"{V1}/gpus").json()
    strange = api(portal.cast.stranger).get(f"{V1}/gpus").json()

    assert (own["total"], own["free"], own["by_type"]) == (4, 3, {"A100": {"total": 4, "free": 3}})
    assert own["gpus"][0]["jobs"] == [job.number]
    assert (strange["gpus"][0]["jobs"], strange["gpus"][0]["state"]) == ([], "allocated")


def test_the_topology_is_a_tree(api: Api, portal: Portal) -> None:
    Node.objects.update(zone="z1", rack="r1", numa_domains=2)
    Device.objects.filter(index__gte=2).update(numa_domain=1)

    tree = api(portal.cast.owner).get(f"{V1}/topology").json()

    rack = tree["clusters"][0]["zones"][0]["racks"][0]
    assert (tree["clusters"][0]["cluster"], rack["rack"]) == ("main", "r1")
    assert [len(domain["gpus"]) for domain in rack["nodes"][1]["numa"]] == [2, 2]


# ---------------------------------------------------------------- queues


def test_queues_count_what_is_in_them(api: Api, portal: Portal) -> None:
    portal.submit(gpu_count=2)
    portal.submit(hold=True)
    JobFactory(queue=portal.queue, state=JobState.RUNNING)
    JobFactory(queue=portal.queue, state=JobState.COMPLETED, completed_at=timezone.now())

    queue = api(portal.cast.owner).get(f"{V1}/queues").json()["results"][0]
    summary = api(portal.cast.owner).get(f"{V1}/queue").json()

    assert (queue["slug"], queue["running_jobs"], queue["pending_jobs"], queue["total_jobs"]) == (
        "default",
        1,
        2,
        4,
    )
    assert summary["queues"][0]["pending_gpus"] == 2
    assert summary["queues"][0]["reasons"] == {"NotEvaluatedYet": 1, "HeldByUser": 1}
    assert (summary["pending_jobs"], summary["states"]["queued"]) == (2, 2)


def test_queues_of_other_projects_are_not_there(api: Api, portal: Portal) -> None:
    mine = QueueFactory(cluster=portal.cluster, slug="mine", project=portal.cast.project)
    QueueFactory(cluster=portal.cluster, slug="theirs", project=ProjectFactory())
    client = api(portal.cast.owner)

    assert {queue["slug"] for queue in client.get(f"{V1}/queues").json()["results"]} == {"default", "mine"}
    assert client.get(f"{V1}/queues/theirs").status_code == 404
    assert client.get(f"{V1}/queues/{mine.pk}").json()["project"] == "vision"
    assert (
        client.get(f"{V1}/queues", {"project_id": portal.cast.project.pk}).json()["results"][1]["slug"]
        == "mine"
    )
    assert client.get(f"{V1}/queues", {"project_id": 10**12}).status_code == 404


def test_an_operator_pauses_and_resumes_a_queue(api: Api, portal: Portal) -> None:
    client = api(portal.cast.operator)

    paused = client.patch(f"{V1}/queues/default", {"paused": True, "reason": "maintenance"})
    silent = client.patch(f"{V1}/queues/default", {"paused": False})
    nameless = client.patch(f"{V1}/queues/default", {"paused": True, "priority": 77})

    assert (paused.json()["paused"], paused.json()["paused_reason"], paused.json()["paused_by"]) == (
        True, "maintenance", "operator",
    )  # fmt: skip
    assert (silent.json()["paused"], silent.json()["paused_reason"]) == (False, "")
    assert (nameless.status_code, nameless.json()["errors"][0]["field"]) == (422, "reason")
    assert [e.action for e in AuditEvent.objects.order_by("id") if e.action.startswith("queue")] == [
        "queue.pause", "queue.resume",
    ]  # fmt: skip


def test_an_operator_changes_limits_of_the_queue_as_it_was_read(api: Api, portal: Portal) -> None:
    client, generation = api(portal.cast.operator), portal.queue.generation

    first = client.patch(
        f"{V1}/queues/default", {"max_pending_jobs": 5, "priority": 60, "generation": generation}
    )
    stale = client.patch(f"{V1}/queues/default", {"max_pending_jobs": 9, "generation": generation})
    wrong = client.patch(
        f"{V1}/queues/default", {"max_wall_seconds": 60, "default_wall_seconds": 90, "color": 1}
    )

    assert (first.json()["max_pending_jobs"], first.json()["priority"]) == (5, 60)
    assert (stale.status_code, wrong.status_code) == (412, 422)
    assert {item["field"] for item in wrong.json()["errors"]} == {"color", "default_wall_seconds"}
    assert Queue.objects.get().max_pending_jobs == 5


def test_only_operators_change_queues(api: Api, portal: Portal) -> None:
    for who in ("owner", "lead", "auditor"):
        answer = api(getattr(portal.cast, who)).patch(f"{V1}/queues/default", {"paused": True, "reason": "x"})
        assert answer.status_code == 403
    assert Queue.objects.get().paused is False


# ---------------------------------------------------------------- planner


def test_the_planner_says_what_it_is(api: Api, portal: Portal) -> None:
    portal.submit()

    info = api(portal.cast.owner).get(f"{V1}/jobs/scheduler/info").json()

    assert info == {
        "policy": "fifo", "quota_provider": "local", "active_queues": 1, "pending_jobs": 1,
        "policies": {"default": "fifo"}, "rules": {}, "accuracy": [],
    }  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_push_plans_at_once_and_counts(transactional_db: None) -> None:
    from rest_framework.test import APIClient

    from tests.scheduler.portal import a_portal
    from tests.support.factories import bearer

    portal = a_portal()
    for _ in range(3):
        portal.submit()
    portal.submit(cpu_cores=16, nodes=2)
    client = APIClient()

    answer = client.post(f"{V1}/jobs/scheduler/trigger", headers=bearer(portal.cast.operator, "admin"))
    lead = client.post(
        f"{V1}/jobs/scheduler/trigger",
        {"project_id": portal.cast.project.pk},
        headers=bearer(portal.cast.lead, "jobs:write"),
    )
    owner = client.post(f"{V1}/jobs/scheduler/trigger", headers=bearer(portal.cast.owner, "admin"))

    assert answer.json() == {"scheduled_count": 3, "remaining_pending": 1, "planned": True}
    assert lead.json() == {"scheduled_count": 0, "remaining_pending": 1, "planned": True}
    assert owner.status_code == 403
    assert Job.objects.filter(state=JobState.SCHEDULED).count() == 3


# ---------------------------------------------------------------- reservations


def window(hours: int = 1, length: int = 2) -> dict[str, str]:
    starts_at = timezone.now() + timedelta(hours=hours)
    return {"starts_at": starts_at.isoformat(), "ends_at": (starts_at + timedelta(hours=length)).isoformat()}


def test_an_operator_books_nodes_for_a_window(api: Api, portal: Portal) -> None:
    client = api(portal.cast.operator)

    made = client.post(
        f"{V1}/reservations", {"name": "course", "nodes": ["n1"], "project": "vision", **window()}
    )

    assert made.status_code == 201, made.content
    body = made.json()
    assert (body["state"], body["nodes"], body["project"], body["job_id"]) == (
        "planned",
        ["n1"],
        "vision",
        None,
    )
    assert client.get(f"{V1}/reservations/{body['id']}").json() == body
    over = client.delete(f"{V1}/reservations/{body['id']}")
    assert (over.status_code, over.json()["state"]) == (200, "cancelled")
    assert [e.action for e in AuditEvent.objects.filter(action__startswith="reservation").order_by("id")] == [
        "reservation.create", "reservation.cancel",
    ]  # fmt: skip


def test_two_windows_on_one_node_do_not_overlap(api: Api, portal: Portal) -> None:
    client = api(portal.cast.operator)
    first = window(1, 2)
    client.post(f"{V1}/reservations", {"nodes": ["n1"], **first})

    crossing = client.post(f"{V1}/reservations", {"nodes": ["n1", "n2"], **window(2, 2)})
    elsewhere = client.post(f"{V1}/reservations", {"nodes": ["n2"], **window(2, 2)})
    touching = client.post(
        f"{V1}/reservations", {"nodes": ["n1"], "starts_at": first["ends_at"], "seconds": 600}
    )

    assert (crossing.status_code, crossing.json()["code"]) == (409, "already-reserved")
    assert (elsewhere.status_code, touching.status_code) == (201, 201)


def test_nodes_are_held_now_for_a_job_and_given_back_by_its_id(api: Api, portal: Portal) -> None:
    client, job = api(portal.cast.operator), portal.submit(gpu_count=2)

    held = client.post(f"{V1}/reservations", {"job_id": str(job.uuid)})
    seen = api(portal.cast.owner).get(f"{V1}/reservations").json()["results"]
    back = client.delete(f"{V1}/reservations/{job.uuid}")

    assert held.status_code == 201, held.content
    assert (held.json()["state"], held.json()["job_number"]) == ("active", job.number)
    assert [(part["node"], len(part["gpus"])) for part in held.json()["parts"]] == [("n2", 2)]
    assert held.json()["nodes"] == []  # the other two GPUs are nobody's
    assert [row["id"] for row in seen] == [held.json()["id"]]
    assert (back.status_code, back.json()["state"]) == (200, "cancelled")


def test_a_hold_that_has_no_room_is_refused_whole(api: Api, portal: Portal) -> None:
    Device.objects.filter(node=portal.n2, index__lt=3).update(used_millis=1000)
    job = portal.submit(tasks=2, gpu_count=1)

    answer = api(portal.cast.operator).post(f"{V1}/reservations", {"job_id": job.number})

    assert (answer.status_code, answer.json()["code"]) == (409, "not-enough-free")
    assert "requests 2 tasks; 1 fit now" in answer.json()["detail"]
    assert Reservation.objects.count() == 0


def test_a_hold_keeps_others_off_its_nodes_and_lets_its_job_in(portal: Portal) -> None:
    from scheduler.core.cycle import plan_cycle
    from scheduler.services.reservations.reserve import reserve
    from scheduler.state.load.snapshots import load_snapshot

    other, job = portal.submit(gpu_count=3), portal.submit(gpu_count=2, time_limit=600)
    reserve(payload={"job_id": job.number}, by=portal.cast.operator)

    loaded = load_snapshot(cluster_id=portal.cluster.pk)
    plan = plan_cycle(loaded.snapshot, loaded.policy)

    assert [start.job_id for start in plan.starts] == [job.number]
    assert other.number in plan.reasons


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"nodes": ["n9"]}, "nodes/0"), ({"nodes": []}, "nodes"), ({}, "nodes"),
        ({"nodes": ["n1"], "color": 1}, "color"),
        ({"nodes": ["n1"], "project": "nowhere"}, "project"), ({"nodes": ["n1"], "starts_at": "x"}, "starts_at"),
        ({"nodes": ["n1"], "ends_at": "2001-01-01"}, "ends_at"), ({"job_id": "x"}, ""), ({"job_id": 10**15}, ""),
        ({"job_id": [1]}, "job_id"),
    ],
)  # fmt: skip
def test_a_reservation_that_makes_no_sense_is_refused(
    api: Api, portal: Portal, body: dict[str, Any], field: str
) -> None:
    times = {} if "job_id" in body else window()

    answer = api(portal.cast.operator).post(f"{V1}/reservations", {**times, **body})

    assert answer.status_code in (404, 422)
    assert not field or field in {item["field"] for item in answer.json()["errors"]}
    assert Reservation.objects.count() == 0


def test_only_operators_reserve(api: Api, portal: Portal) -> None:
    job = portal.submit()
    for who in ("owner", "lead", "auditor"):
        client = api(getattr(portal.cast, who))
        assert client.post(f"{V1}/reservations", {"job_id": job.number}).status_code == 403
        assert client.post(f"{V1}/reservations", {"nodes": ["n1"], **window()}).status_code == 403


def test_a_stranger_sees_maintenance_and_no_bookings_of_others(api: Api, portal: Portal) -> None:
    operator = api(portal.cast.operator)
    operator.post(f"{V1}/reservations", {"name": "maintenance", "nodes": ["n1"], **window()})
    booked = operator.post(f"{V1}/reservations", {"nodes": ["n2"], "project": "vision", **window()}).json()
    client = api(portal.cast.stranger)

    assert [row["name"] for row in client.get(f"{V1}/reservations?current=true").json()["results"]] == [
        "maintenance"
    ]
    assert client.get(f"{V1}/reservations/{booked['id']}").status_code == 404
