"""One NUMA domain from the door to the agent: asked for, planned, written, checked again, dispatched."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from infra.errors import InvalidInput, MusterError
from scheduler.api.serializers import row_of
from scheduler.models import Allocation, Job, Node
from scheduler.services.cluster.inventory import apply_inventory, read_inventory
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.job_preview import preview_job
from scheduler.services.reservations.reserve import cancel_reservation, reserve
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.state.load.snapshots import load_snapshot
from scheduler.web import forms
from tests.scheduler.portal import Portal, a_portal
from tests.support.roles import as_owner, had_asked

DOMAINS = [
    {"number": 0, "cpu_millis": 4000, "memory_mib": 8192},
    {"number": 8, "cpu_millis": 4000, "memory_mib": 8192},
]


@pytest.fixture
def portal(db: None) -> Portal:
    """n1 is one domain of 8 CPUs; n2 is two of 4, each with two GPUs."""
    portal = a_portal()
    bring(portal.n1, gpus=0)
    bring(portal.n2, gpus=4, domains=DOMAINS)
    return portal


def machine_of(gpus: int, domains: Any = ()) -> dict[str, Any]:
    devices = [
        {"index": n, "uuid": f"G{n}", "model": "H100", "memory_mib": 81_920, "numa_domain": 8 * (n // 2)}
        for n in range(gpus)
    ]
    return {
        "cpu_millis": 8000, "memory_mib": 16_384, "storage_mib": 1000, "numa_domains": len(domains) or 1,
        "domains": domains if domains == () or not isinstance(domains, tuple) else list(domains), "boot_id": "b",
        "agent_version": "0", "labels": {}, "partitions": [], "devices": devices,
    }  # fmt: skip


def bring(node: Node, *, gpus: int, domains: Any = None) -> None:
    with as_owner():
        node.devices.all().delete()
    machine = machine_of(gpus, domains or [])
    apply_inventory(Node.objects.select_related("cluster").get(pk=node.pk), read_inventory(machine))


def test_an_agent_says_what_each_domain_has_and_nonsense_is_refused(portal: Portal) -> None:
    node = Node.objects.get(pk=portal.n2.pk)

    assert node.domains == [[0, 4000, 8192], [8, 4000, 8192]]
    snapshot = load_snapshot(cluster_id=portal.cluster.pk).snapshot
    assert snapshot.nodes.domains == ((), ((0, 4000, 8192), (8, 4000, 8192)))
    twice = [DOMAINS[0], {**DOMAINS[0], "cpu_millis": "many"}, 7]
    with pytest.raises(InvalidInput) as refused:
        read_inventory(machine_of(0, twice))
    assert sorted(problem.field for problem in refused.value.problems) == [
        "domains/1/cpu_millis", "domains/1/number", "domains/2",
    ]  # fmt: skip
    old = machine_of(0, [])
    del old["domains"]
    assert read_inventory(old | {"numa_domains": 2}).domains == ()  # an agent from before
    Node.objects.filter(pk=node.pk).update(domains=[])  # nobody knows how its CPUs are divided
    assert load_snapshot(cluster_id=portal.cluster.pk).snapshot.nodes.domains[1] == ((-1, 0, 0),)


def test_it_is_asked_for_at_every_door(portal: Portal) -> None:
    def read(**payload: Any) -> str:
        return parse_job({"command": "true", **payload}, by=portal.cast.owner).numa

    assert (read(), read(numa="prefer"), read(numa="one")) == ("prefer", "prefer", "one")
    job = portal.submit(numa="one", cpu_cores=3)
    assert row_of(job, ())["numa"] == "one"
    form = forms.form_of(job)
    assert form["numa"] == "one"
    assert read(**forms.payload_of(form, time_zone="UTC")) == "one"
    assert "numa" not in forms.form_of(portal.submit())
    for wrong, (field, code) in {
        "both": ("numa", "unknown-choice"),
        "mem_bind": ("mem_bind", "unknown-field"),
    }.items():
        with pytest.raises(MusterError) as refused:
            parse_job(
                {"command": "true", **({"numa": wrong} if field == "numa" else {wrong: "local"})},
                by=portal.cast.owner,
            )
        (problem,) = refused.value.problems
        assert (problem.field, problem.code) == (field, code)
    assert problem.message == "There is no field 'mem_bind'; did you mean 'numa'?"
    with pytest.raises(IntegrityError, match="job_numa_known"), transaction.atomic():
        had_asked(job, numa="two")


@pytest.mark.parametrize(
    ("line", "numa"),
    [("--gres-flags=enforce-binding", "one"), ("--mem-bind=quiet,local", "one"), ("--mem-bind=none", None)],
)
def test_scripts_written_for_slurm_ask_for_it_too(line: str, numa: str | None) -> None:
    fields, _ = parse_sbatch(f"#!/bin/sh\n#SBATCH {line}\ntrue\n")

    assert fields.get("numa") == numa


def test_a_bound_task_is_planned_written_and_sent_with_its_domain(portal: Portal) -> None:
    jobs = [portal.submit(numa="one", gpu_count=2, cpu_cores=3, name=f"j{n}") for n in range(3)]
    plain = portal.submit(cpu_cores=1, gpu_count=0, name="plain")

    run_cycle(cluster_id=portal.cluster.pk, trigger="test")

    held = {a.attempt.job_id: a for a in Allocation.objects.held().select_related("attempt")}
    assert [held[job.number].numa_domain for job in jobs[:2]] == [0, 8]
    jobs[2].refresh_from_db()
    assert jobs[2].state == "queued"
    node = Node.objects.get(pk=portal.n2.pk)
    sent = {one["name"]: one for one in orders_for(node, {}).assignments}
    assert [sent[name]["numa_domain"] for name in ("j0", "j1")] == [0, 8]
    assert held[plain.number].numa_domain is None

    snapshot = load_snapshot(cluster_id=portal.cluster.pk).snapshot
    memory = jobs[0].memory_mib
    assert snapshot.nodes.bound == ((), ((0, 3000, memory), (8, 3000, memory)))
    assert sorted(snapshot.allocations.numa.tolist()) == [-1, 0, 8]


def test_a_preview_says_which_demand_keeps_it_waiting_and_what_would_start_it(portal: Portal) -> None:
    for _ in range(2):
        portal.submit(numa="one", gpu_count=1, cpu_cores=3)
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")

    found = preview_job(
        payload={"command": "true", "gpu_count": 2, "cpu_cores": 2, "numa": "one"}, by=portal.cast.owner
    )

    assert found.headline == "Needs one NUMA domain; fits n2 only across 2 NUMA domains."
    assert found.change is not None
    assert found.change.field == "numa"
    assert found.suggestion == "Without the demand for one NUMA domain the job would start now, on n2."


def test_nodes_are_held_for_it_only_where_one_domain_has_room(portal: Portal) -> None:
    for _ in range(2):
        portal.submit(numa="one", gpu_count=1, cpu_cores=3)  # one in each domain, and a GPU is left beside it
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    strict = portal.submit(numa="one", gpu_count=2)
    single = portal.submit(numa="one", gpu_count=1)
    plain = portal.submit(gpu_count=2)

    def held_for(job: Job) -> list[str]:
        held = reserve(payload={"job_id": job.number, "seconds": 60}, by=portal.cast.operator)
        cancel_reservation(reservation=held, by=portal.cast.operator)
        return [node.name for node in held.nodes.all()] + [part.node.name for part in held.parts.all()]

    assert held_for(single) == held_for(plain) == ["n2"]
    with pytest.raises(MusterError, match="0 fit now"):
        held_for(strict)
