"""The doors of drains and moves: API, pages, commands, notifications; each with who may use it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from accounts.models import User
from notifications.models import Notification
from notifications.services import findings
from scheduler.models import JobEvent, JobMove, Node
from scheduler.services.cluster.nodes import drain_node
from scheduler.services.moves.drive import drive
from tests.scheduler.services.moves.lab import Lab, hours
from tests.support.factories import bearer

pytestmark = pytest.mark.django_db

V1 = "/api/v1"
SCOPES = ("jobs:read", "jobs:write", "nodes:read", "nodes:write")


def call(user: User, method: str, path: str, body: Any = None) -> Any:
    more = {"data": body, "content_type": "application/json"} if body is not None else {}
    return getattr(Client(), method)(f"{V1}/{path}", headers=bearer(user, *SCOPES), **more)


def page(user: User, path: str, **data: Any) -> Any:
    client = Client()
    client.force_login(user)
    return client.post(path, data) if data else client.get(path)


# ---------------------------------------------------------------- API


def test_an_operator_plans_and_begins_a_drain_over_the_api(lab: Lab) -> None:
    moves, plain = lab.run(on="n1", checkpoint={}), lab.run(on="n1")
    lab.save(moves)
    by = lab.cast.operator

    plan = call(by, "get", "nodes/n1/drain?deadline=2h").json()
    dry = call(by, "post", "drains", {"nodes": ["n1"], "deadline": "2h", "dry_run": True}).json()
    assert plan["counts"] == dry["counts"] == {"moves": 1, "requeued": 1}
    assert [(one["job"], one["outcome"], one["nodes"]) for one in plan["jobs"]] == [
        (moves.number, "moves", ["n2"]), (plain.number, "requeued", []),
    ]  # fmt: skip
    assert lab.node("n1").schedulable

    node = call(by, "post", "nodes/n1/drain", {"reason": "new fans", "deadline": "2h"}).json()
    assert (node["draining"], node["drain_deadline_at"] is not None) == (True, True)
    assert call(by, "get", "nodes/n1/drain").json()["deadline"] == node["drain_deadline_at"]
    assert call(by, "post", "nodes/n1/uncordon", {}).json()["drain_deadline_at"] is None
    assert call(by, "post", "drains", {"rack": "r9", "reason": "x"}).status_code == 422
    assert call(by, "get", "rebalance?clustr=other").status_code == 400
    assert call(by, "post", "nodes/n1/drain", {"reason": "x", "deadline": "soon"}).status_code == 422


@pytest.mark.parametrize("who", ["owner", "colleague", "lead", "viewer", "stranger", "auditor"])
def test_nobody_but_operators_drains_or_rebalances(lab: Lab, who: str) -> None:
    lab.run(on="n1")
    user = getattr(lab.cast, who)
    for method, path, body in (
        ("get", "nodes/n1/drain", None),
        ("post", "nodes/n1/drain", {"reason": "x", "deadline": "2h"}),
        ("post", "drains", {"nodes": ["n1"], "reason": "x"}),
        ("post", "drains", {"nodes": ["n1"], "dry_run": True}),
        ("post", "drains", {"nodes": ["no-such-node"]}),
        ("get", "rebalance", None),
        ("post", "rebalance", {"moves": [{"job": 1, "node": "n2"}]}),
    ):
        assert call(user, method, path, body).status_code == 403, path
    assert page(user, f"/nodes/{lab.node('n1').pk}/drain-plan/").status_code == 403
    assert page(user, "/rebalance/").status_code == 403
    assert page(user, "/rebalance/", move="1:n2").status_code == 403
    assert page(user, f"/nodes/{lab.node('n1').pk}/drain/", reason="x", deadline="1h").status_code == 403
    assert lab.node("n1").schedulable


def test_a_job_is_moved_over_the_api_by_those_who_may(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    lab.save(job)
    at = f"jobs/{job.number}/migrate"
    assert call(lab.cast.colleague, "post", at, {}).status_code == 403
    assert call(lab.cast.stranger, "post", at, {}).status_code == 404
    assert call(lab.cast.owner, "post", at, {"nod": "n2"}).status_code == 422
    assert call(lab.cast.owner, "post", at, {"node": "n9"}).status_code == 404
    refused = call(lab.cast.owner, "post", at, {"node": "n1"})
    assert refused.status_code == 409

    moved = call(lab.cast.owner, "post", at, {"node": "n2", "reason": "quieter"})

    assert (moved.status_code, moved.json()["state_detail"]) == (200, "migrating")
    (row,) = call(lab.cast.colleague, "get", f"jobs/{job.number}/moves").json()["results"]
    assert (row["target"], row["leaves"], row["state"], row["asked_by"]) == (
        "n2", ["n1"], "stopping", lab.cast.owner.username,
    )  # fmt: skip
    assert call(lab.cast.stranger, "get", f"jobs/{job.number}/moves").status_code == 404


def test_moves_are_proposed_and_applied_over_the_api(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=4)
    small = lab.run(on="n1", cpu_cores=6, checkpoint={})
    lab.save(small)
    wide = lab.portal.submit(by=lab.cast.owner, cpu_cores=16)
    by = lab.cast.operator

    (found,) = call(by, "get", "rebalance").json()["results"]
    assert (found["job"], found["node"], found["starts"]) == (small.number, "n2", [wide.number])
    body = {"moves": [{"job": small.number, "node": "n2"}]}
    assert call(by, "post", "rebalance", body).json()["results"][0]["refused"] == ""
    assert lab.state(small) == "migrating"
    assert call(by, "get", "rebalance?cluster=none").status_code == 404


# ---------------------------------------------------------------- pages


def test_the_page_of_rebalancing_proposes_moves_and_starts_the_chosen_one(lab: Lab) -> None:
    client = Client()
    client.force_login(lab.cast.operator)

    def shown(**data: str) -> str:
        return client.post("/rebalance/", data, follow=True).content.decode()

    lab.run(on="n2", cpu_cores=4)
    small = lab.run(on="n1", cpu_cores=6, checkpoint={}, name="small<b>")
    lab.save(small)
    assert "No move is proposed" in client.get("/rebalance/").content.decode()
    wide = lab.portal.submit(by=lab.cast.owner, cpu_cores=16, name="wide")

    proposed = client.get("/rebalance/").content.decode()
    assert f'value="{small.number}:n2"' in proposed
    assert "small&lt;b&gt;" in proposed
    assert "small<b>" not in proposed
    assert f"{wide.number} wide</a>" in proposed
    assert "Select at least one move first." in shown(reason="x")
    assert lab.state(small) == "running"

    assert f"Job {small.number} is being moved to n2." in shown(
        move=f"{small.number}:n2", reason="large jobs first"
    )

    assert lab.state(small) == "migrating"
    assert "large jobs first" in JobEvent.objects.filter(job=small, kind="job.migrating").latest("id").because
    assert "Job 999999 is not moved" in shown(move="999999:n2")
    assert client.get("/rebalance/?cluster=none").status_code == 404


def test_the_pages_of_node_and_job_say_what_a_drain_means(lab: Lab) -> None:
    job, plain = lab.run(on="n1", checkpoint={}, name="train<b>"), lab.run(on="n1")
    node = lab.node("n1")
    plan = page(lab.cast.operator, f"/nodes/{node.pk}/drain-plan/?deadline=2h").content.decode()
    assert "2 jobs: 1 is moved by checkpoint; 1 is requeued at the deadline" in " ".join(plan.split())
    for_ever = page(lab.cast.operator, f"/nodes/{node.pk}/drain-plan/").content.decode()
    assert "2 jobs: 2 run to their end" in " ".join(for_ever.split())
    assert "train&lt;b&gt;" in plan
    assert "train<b>" not in plan
    assert (
        "is not a time"
        in page(lab.cast.operator, f"/nodes/{node.pk}/drain-plan/?deadline=x").content.decode()
    )

    page(lab.cast.operator, f"/nodes/{node.pk}/drain/", reason="new <fans>", deadline="1h")

    shown = page(lab.cast.operator, f"/nodes/{node.pk}/").content.decode()
    assert "2 jobs are left" in shown
    assert "is requeued at the deadline" in shown
    for one, words in (
        (job, "is moved when another node can start it"),
        (plain, "is requeued at the deadline"),
    ):
        own = page(lab.cast.owner, f"/jobs/{one.number}/").content.decode()
        assert "Node n1 drains" in own
        assert words in own
        assert "new &lt;fans&gt;" in own
    drive()
    assert "is writing a checkpoint" in page(lab.cast.owner, f"/jobs/{job.number}/").content.decode()


def test_the_owner_moves_a_job_on_its_page(lab: Lab) -> None:
    job, plain = lab.run(on="n1", checkpoint={}), lab.run(on="n1")
    lab.save(job)
    assert "migrate-dialog" in page(lab.cast.owner, f"/jobs/{job.number}/").content.decode()
    assert "migrate-dialog" not in page(lab.cast.colleague, f"/jobs/{job.number}/").content.decode()
    assert "migrate-dialog" not in page(lab.cast.owner, f"/jobs/{plain.number}/").content.decode()
    assert page(lab.cast.colleague, f"/jobs/{job.number}/migrate/", node="n2").status_code == 403

    page(lab.cast.owner, f"/jobs/{job.number}/migrate/", node="n2", reason="quieter")

    assert JobMove.objects.get(job=job).target == lab.node("n2")


# ---------------------------------------------------------------- commands


def output_of(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_the_command_plans_and_drains_nodes_by_rack(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    lab.save(job)
    Node.objects.filter(name="n1").update(rack="r1")
    by = ("--by", lab.cast.operator.username)
    text = output_of("drain_node", "--rack", "r1", "--deadline", "2h", "--dry-run", *by)
    assert f"Job {job.number} of {lab.cast.owner.username} is moved by checkpoint to n2." in text
    assert lab.node("n1").schedulable
    output_of("drain_node", "--rack", "r1", "--deadline", "2h", "--reason", "fans", *by)
    assert lab.node("n1").drain_deadline_at is not None
    assert "n1 accepts jobs again" in output_of("drain_node", "n1", "--undo", *by)
    for wrong in (("n7",), ("n1", "--label", "x"), ("n1", "--deadline", "2h"), ()):
        with pytest.raises(CommandError):
            output_of("drain_node", *wrong, *by)


def test_the_commands_move_a_job_and_rebalance(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=4)
    small = lab.run(on="n1", cpu_cores=6, checkpoint={})
    lab.save(small)
    wide = lab.portal.submit(by=lab.cast.owner, cpu_cores=16)
    by = ("--by", lab.cast.operator.username)
    assert f"Job {small.number}: n1 to n2" in output_of("rebalance", *by)
    with pytest.raises(CommandError, match="No move is proposed"):
        output_of("rebalance", "--apply", str(wide.number), *by)
    assert "is moved to n2" in output_of("rebalance", "--apply", str(small.number), *by)
    assert "writes a last checkpoint and ends" in output_of("migrate_job", str(small.number), *by)
    for wrong in ((str(wide.number),), (str(small.number), "--by", "nobody"), ("999999999",)):
        with pytest.raises(CommandError):
            output_of("migrate_job", *wrong)


# ---------------------------------------------------------------- notifications


def test_owners_are_notified_of_the_deadline_and_of_what_it_means_for_them(lab: Lab) -> None:
    for more in ({"checkpoint": {}}, {}, {"restart_policy": "never"}):
        lab.run(on="n1", **more)
    drain_node(node=lab.node("n1"), by=lab.cast.operator, reason="new fans", deadline=hours(2))
    found = [one for _, make in findings.node_drains(hours(0)) for one in make(1)]
    words = [one.text for one in found]
    assert "is moved to another node by a checkpoint, and requeued at" in words[0]
    assert "is requeued at" in words[1]
    assert "it runs at most once" in words[2]
    assert {one.user_id for one in found} == {lab.cast.owner.pk}
    findings.look()
    assert Notification.objects.filter(user=lab.cast.owner).exists()
