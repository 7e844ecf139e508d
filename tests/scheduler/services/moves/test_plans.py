"""What a drain means beforehand, which moves rebalancing proposes, and who may ask for a migration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounts.models import AuditEvent
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from scheduler.models import Job, JobMove, Node
from scheduler.services.jobs.verbs import cancel_job, release_job
from scheduler.services.moves import places, rebalance, verbs
from scheduler.services.moves.drain_plan import JobPlan, plan_drain
from scheduler.services.moves.drains import drain, drain_of, read_drain
from scheduler.services.moves.rebalance import apply_moves, propose_moves
from scheduler.services.moves.verbs import migrate_job
from tests.scheduler.services.moves.lab import Lab, hours
from tests.support.factories import ClusterFactory, NodeFactory, QuotaFactory, SchedulerProfileFactory

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------- the plan of a drain


def plan_of(lab: Lab, by_hours: float | None = 2) -> dict[int, JobPlan]:
    plan = plan_drain([lab.node("n1")], hours(by_hours) if by_hours else None)
    return {one.job.number: one for one in plan.jobs}


def test_a_plan_says_what_moves_where_what_waits_and_what_is_lost(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=10)
    moves, waits = (lab.run(on="n1", cpu_cores=4, checkpoint={}) for _ in range(2))
    plain, once = lab.run(on="n1"), lab.run(on="n1", restart_policy="never")
    short = lab.run(on="n1", time_limit="1h")
    lab.save(moves, ago=60, seconds=3)

    plan = plan_of(lab)

    assert {number: one.fate.value for number, one in plan.items()} == {
        moves.number: "moves", waits.number: "waits", plain.number: "requeued", once.number: "fails",
        short.number: "ends",
    }  # fmt: skip
    assert plan[moves.number].nodes == ("n2",)
    assert plan[moves.number].cost.save_seconds == 3
    assert plan[moves.number].cost.lost_seconds == 0
    assert plan[waits.number].why == "Needs 4 CPUs; 2 of 32 free."
    assert plan[waits.number].cost.save_seconds is None
    assert plan[plain.number].cost.lost_seconds == pytest.approx(7200, abs=5)
    assert plan[once.number].cost.lost_seconds == pytest.approx(7200, abs=5)
    assert plan[short.number].cost.seconds == 0


def test_gpus_of_a_job_count_for_what_is_lost(lab: Lab) -> None:
    job = lab.run(gpu_count=2)
    plan = plan_drain([lab.node("n2")], hours(1))
    assert plan.jobs[0].job == job
    assert plan.lost_gpu_seconds == pytest.approx(2 * 3600, abs=10)


def test_without_a_deadline_all_run_to_their_end(lab: Lab) -> None:
    job = lab.run(on="n1", checkpoint={})
    assert plan_of(lab, by_hours=None)[job.number].fate == "continues"


def test_the_quota_that_the_job_holds_is_free_for_its_next_place(lab: Lab) -> None:
    QuotaFactory(project=lab.cast.project, resource="cpu_millis", hard=4000)
    job = lab.run(on="n1", cpu_cores=4, checkpoint={})
    assert plan_of(lab)[job.number].nodes == ("n2",)


def test_jobs_that_wait_in_line_come_first(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=10)
    earlier = lab.portal.submit(by=lab.cast.owner, cpu_cores=6, hold=True)
    job = lab.run(on="n1", cpu_cores=6, checkpoint={})
    assert plan_of(lab)[job.number].fate == "moves"
    release_job(job=earlier, by=lab.cast.owner)
    assert plan_of(lab)[job.number].fate == "waits"


# ---------------------------------------------------------------- which nodes, until when


def test_nodes_are_chosen_by_rack_and_labels(lab: Lab) -> None:
    Node.objects.filter(name="n1").update(rack="r1", labels={"generation": "old"})
    Node.objects.filter(name="n2").update(rack="r1")
    assert [node.name for node in read_drain({"rack": "r1"}).nodes] == ["n1", "n2"]
    assert [node.name for node in read_drain({"rack": "r1", "labels": {"generation": "old"}}).nodes] == ["n1"]
    assert [node.name for node in read_drain({"nodes": "n2"}).nodes] == ["n2"]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, "Required, or labels, rack or zone"),
        ({"rack": "none"}, "No node matches"),
        ({"nodes": ["n1", "x9"]}, "There is no node 'x9'. There is: n1, n2."),
        (
            {"nodes": ["n1"], "rack": "r7"},
            "Not all conditions hold for 'n1': leave out the node, or a condition.",
        ),
        ({"nodes": ["n\x001"]}, "at most 255 characters"),
        ({"labels": {"a": "\x00"}}, "at most 255 characters"),
        ({"nodes": ["n1"], "deadline": "soon"}, "is not a time"),
        ({"nodes": ["n1"], "deadline": "2020-01-01T00:00:00Z"}, "The deadline has passed"),
        ({"nodes": ["n1"], "until": "2h"}, "There is no field 'until'"),
    ],
)
def test_what_names_no_drain_is_refused_with_the_reason(lab: Lab, payload: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_drain(payload)
    assert says in " ".join(problem.message for problem in refused.value.problems)


def test_a_drain_of_several_clusters_needs_the_cluster(lab: Lab) -> None:
    other = NodeFactory(name="n9", rack="r1")
    Node.objects.filter(name="n1").update(rack="r1")
    with pytest.raises(InvalidInput):
        read_drain({"rack": "r1"})
    assert read_drain({"rack": "r1", "cluster": other.cluster.slug}).nodes == (other,)


def test_a_dry_run_changes_nothing_and_a_drain_takes_effect(lab: Lab) -> None:
    lab.run(on="n1")
    by = lab.cast.operator
    plan = drain(read_drain({"nodes": ["n1"], "deadline": "2h", "dry_run": True}), by=by)
    assert plan.counts == {"requeued": 1}
    assert lab.node("n1").schedulable

    with pytest.raises(InvalidInput, match="reason"):
        drain(read_drain({"nodes": ["n1"], "deadline": "2h"}), by=by)
    drain(read_drain({"nodes": ["n1"], "deadline": "2h", "reason": "new fans"}), by=by)

    node = lab.node("n1")
    assert node.drain_deadline_at is not None
    after = AuditEvent.objects.get(action="node.drain").after
    assert after["deadline"] is not None
    assert drain_of(node, by=by).counts == {"requeued": 1}
    for person in (lab.cast.owner, lab.cast.lead, lab.cast.auditor, lab.cast.stranger):
        with pytest.raises(NotAllowed):
            drain_of(node, by=person)


# ---------------------------------------------------------------- migration


def test_owners_leads_and_operators_move_a_job_and_nobody_else(lab: Lab) -> None:
    for allowed in ("owner", "lead", "operator", "admin"):
        job = lab.run(on="n1", checkpoint={})
        lab.save(job)
        for _ in range(2):
            migrate_job(job=job, by=getattr(lab.cast, allowed))
        assert lab.state(job) == "migrating"
    assert AuditEvent.objects.filter(action="job.migrate").count() == 4
    job = lab.run(on="n1", checkpoint={})
    for refused in ("colleague", "viewer", "auditor"):
        with pytest.raises(NotAllowed):
            migrate_job(job=job, by=getattr(lab.cast, refused))
    with pytest.raises(NotFound):
        migrate_job(job=job, by=lab.cast.stranger)
    assert not JobMove.objects.filter(job=job).exists()


def test_what_cannot_be_moved_is_refused_with_the_reason(lab: Lab) -> None:
    plain, once = lab.run(on="n1"), lab.run(on="n1", checkpoint={}, restart_policy="never")
    job = lab.run(on="n1", checkpoint={})
    waiting = lab.portal.submit(by=lab.cast.owner, checkpoint={}, hold=True)
    far = NodeFactory(name="far")
    by = lab.cast.owner
    for one, target, says in (
        (plain, None, "makes no checkpoints"),
        (once, None, "at most once"),
        (waiting, None, "cannot be moved"),
        (job, lab.node("n1"), "runs on n1 already"),
        (job, far, "not in the cluster"),
    ):
        with pytest.raises(Conflict, match=says):
            migrate_job(job=one, by=by, target=target)
    Node.objects.filter(name="n2").update(cordoned=True)
    for target in (None, lab.node("n2")):
        with pytest.raises(Conflict, match="start job") as refused:
            migrate_job(job=job, by=by, target=target)
        assert refused.value.code == "no-place"
    assert "The node is cordoned and takes no jobs." in refused.value.message
    assert lab.state(job) == "running"


def test_no_request_can_name_the_nodes_of_a_move(lab: Lab) -> None:
    with pytest.raises(InvalidInput):
        lab.portal.submit(by=lab.cast.owner, affinity={"move": {"only": ["n1"]}})


# ---------------------------------------------------------------- rebalancing


def crowded(lab: Lab) -> tuple[Job, Job]:
    """n1 has 10 of 16 cores free and n2 12: a job of 16 cores waits, and moving one lets it start."""
    lab.run(on="n2", cpu_cores=4)
    small = lab.run(on="n1", cpu_cores=6, checkpoint={})
    lab.save(small, seconds=4)
    wide = lab.portal.submit(by=lab.cast.owner, cpu_cores=16)
    lab.plan()
    assert lab.state(wide) == "queued"
    return small, wide


def test_a_move_that_lets_a_job_start_is_proposed_with_its_cost(lab: Lab) -> None:
    small, wide = crowded(lab)

    (proposal,) = propose_moves(cluster=lab.portal.cluster, by=lab.cast.operator)

    assert (proposal.job, proposal.leaves, proposal.target.name) == (small, "n1", "n2")
    assert proposal.starts == (wide,)
    assert proposal.cost.save_seconds == 4
    assert proposal.payback_seconds is None  # no GPU is used or wanted
    assert lab.state(small) == "running"


def test_nothing_is_proposed_where_no_single_move_helps(lab: Lab) -> None:
    lab.run(on="n2", cpu_cores=4)
    lab.run(on="n1", cpu_cores=6)  # it makes no checkpoints
    lab.portal.submit(by=lab.cast.owner, cpu_cores=16)
    assert propose_moves(cluster=lab.portal.cluster, by=lab.cast.operator) == []
    assert propose_moves(cluster=ClusterFactory.create(), by=lab.cast.operator) == []


def test_gpus_that_start_are_weighed_against_what_the_move_costs(lab: Lab) -> None:
    NodeFactory(cluster=lab.portal.cluster, name="n3", partition=lab.portal.n1.partitions.get(), gpus=4)
    lab.run(on="n2", gpu_count=1)
    small = lab.run(on="n3", gpu_count=1, checkpoint={})
    lab.save(small, seconds=8)
    wide = lab.portal.submit(by=lab.cast.owner, gpu_count=4)
    lab.plan()

    (proposal,) = propose_moves(cluster=lab.portal.cluster, by=lab.cast.operator)

    assert (proposal.job, proposal.target.name, proposal.starts) == (small, "n2", (wide,))
    assert proposal.started_gpus == 4
    assert proposal.payback_seconds == pytest.approx(proposal.cost.seconds / 4)
    assert proposal.fragmented_before is not None
    assert proposal.fragmented_after is not None
    assert proposal.fragmented_after < proposal.fragmented_before


def test_chosen_moves_are_begun_and_the_others_say_why_not(lab: Lab) -> None:
    small, _ = crowded(lab)
    moves = [
        {"job": small.number, "node": "n2"},
        {"job": 10**9, "node": "n2"},
        {"job": small.number, "node": "n7"},
    ]

    done = apply_moves(payload={"moves": moves}, by=lab.cast.operator)

    assert done[0].refused == ""
    assert "There is no job" in done[1].refused
    assert "There is no node" in done[2].refused
    move = JobMove.objects.get()
    assert (move.cause, move.target, move.state) == ("rebalance", lab.node("n2"), "stopping")
    with pytest.raises(NotAllowed):
        apply_moves(payload={"moves": moves}, by=lab.cast.owner)
    with pytest.raises(NotAllowed):
        propose_moves(cluster=lab.portal.cluster, by=lab.cast.lead)
    for wrong, field in (
        (1, "moves/0"), ({"job": str(small.uuid), "node": "n2"}, "moves/0/job"),
        ({"job": 10**30, "node": "n2"}, "moves/0/job"), ({"job": 0, "node": "n2"}, "moves/0/job"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            apply_moves(payload={"moves": [wrong]}, by=lab.cast.operator)
        assert [problem.field for problem in refused.value.problems] == [field]


# ---------------------------------------------------------------- what changes or fails before the move


def test_a_job_that_ended_while_its_place_was_looked_for_is_not_said_to_move(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lab.run(on="n1", checkpoint={})
    real = verbs.find_places

    def ends_meanwhile(*args: Any, **words: Any) -> Any:
        cancel_job(job=Job.objects.get(pk=job.pk), by=lab.cast.owner)
        return real(*args, **words)

    monkeypatch.setattr(verbs, "find_places", ends_meanwhile)

    with pytest.raises(Conflict, match="has changed while a place was looked for"):
        migrate_job(job=job, by=lab.cast.owner)

    assert not JobMove.objects.exists()
    assert not AuditEvent.objects.filter(action="job.migrate").exists()


class Prefers:
    """A plugin that scores; one that is broken fails."""

    name = "prefers"

    def __init__(self, *, broken: bool) -> None:
        self.broken = broken

    def score(self, request: Any, nodes: Any) -> Any:
        if self.broken:
            raise ZeroDivisionError("nothing to divide by")
        return np.ones(len(nodes))


@pytest.mark.parametrize("broken", [False, True])
def test_with_a_plugin_as_without_it_jobs_are_moved_and_moves_proposed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    NodeFactory(cluster=lab.portal.cluster, name="n3", partition=lab.portal.n1.partitions.get(), gpus=4)
    lab.run(on="n2", gpu_count=1)
    small = lab.run(on="n3", gpu_count=1, checkpoint={})
    lab.save(small)
    job = lab.run(on="n1", checkpoint={})
    wide = lab.portal.submit(by=lab.cast.owner, gpu_count=4)
    lab.plan()
    cluster = lab.portal.cluster
    cluster.profile = SchedulerProfileFactory(plugins=["prefers"], score_weights={"prefers": 100})
    cluster.save()
    for module in (places, rebalance):
        monkeypatch.setattr(module, "installed_plugins", lambda: {"prefers": Prefers(broken=broken)})

    assert plan_of(lab)[job.number].fate == "moves"
    (proposal,) = propose_moves(cluster=cluster, by=lab.cast.operator)
    assert (proposal.job, proposal.target.name, proposal.starts) == (small, "n2", (wide,))
    assert proposal.fragmented_before is not None
    migrate_job(job=job, by=lab.cast.owner)
    assert JobMove.objects.get().job == job
