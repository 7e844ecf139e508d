"""Slices of GPUs from the node's inventory to the program that runs on one."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from quotas.core.gpu_models import model_matches, read_slice, share_of, slice_of, suits
from quotas.services.impact import Whose
from scheduler import metrics
from scheduler.agent.node.fake_gpus import BadFakeGpus, parse_fake_gpus
from scheduler.api.machines import NodeSerializer
from scheduler.models import Allocation, Device, Node
from scheduler.services.accounting.quota_impact import SchedulerFacts
from scheduler.services.cluster.inventory import apply_inventory, read_inventory
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.submission.parse_request import parse_job
from scheduler.state.load.share_usage import HeldShares
from scheduler.state.load.snapshots import load_snapshot
from scheduler.web.reads import gpu_supply
from tests.scheduler.portal import Portal, a_portal, problems
from tests.support.roles import as_owner


@pytest.fixture
def portal(db: None) -> Portal:
    """n2 has one whole H100 and one that is cut into three."""
    portal = a_portal()
    with as_owner():
        portal.n2.devices.all().delete()
    bring(portal.n2, "1xH100-80GB,1xH100-80GB:2x1g.10gb+1x3g.40gb")
    return portal


def bring(node: Node, gpus: str) -> None:
    machine: dict[str, Any] = {
        "cpu_millis": 16_000, "memory_mib": 65_536, "storage_mib": 1000, "numa_domains": 1, "boot_id": "b",
        "agent_version": "0", "labels": {}, "partitions": [], "devices": parse_fake_gpus(gpus),
    }  # fmt: skip
    apply_inventory(Node.objects.select_related("cluster").get(pk=node.pk), read_inventory(machine))


def test_names_say_what_is_a_slice_and_of_what() -> None:
    assert slice_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == "1g.10gb"
    assert slice_of("H100") == slice_of("MIG") == slice_of("") == ""
    assert [share_of(f"A MIG {name}") for name in ("1g.10gb", "2g.20gb", "7g.80gb", "1g.6gb")] == [
        142,
        285,
        1000,
        250,
    ]
    assert suits("", "H100")
    assert not suits("", "H100 MIG 1g.10gb")
    assert suits("MIG 1g.10gb", "H100 MIG 1g.10gb")
    assert not suits("MIG 1g.10gb", "H100")
    assert suits("A100 MIG 1g.10gb|H100 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert not suits("A100 MIG 1g.10gb", "H100 MIG 1g.10gb")
    assert model_matches("H100", "H100 MIG 1g.10gb")  # a limit of that model counts it
    assert read_slice("1g.10gb") == ("", "1g.10gb")
    assert read_slice("h100_1g.10gb") == read_slice("h100 MIG 1g.10gb") == ("h100", "1g.10gb")
    assert read_slice("H100") is None


@pytest.mark.parametrize("text", ["1xH100-80GB:8x1g.10gb", "1xH100-80GB:3x3g.40gb", "1xH100-80GB:1g.10gb"])
def test_a_device_cannot_be_cut_into_more_than_it_has(text: str) -> None:
    with pytest.raises(BadFakeGpus):
        parse_fake_gpus(text)


@pytest.mark.django_db
def test_a_node_counts_its_slices_for_what_they_are(portal: Portal) -> None:
    node = Node.objects.get(pk=portal.n2.pk)

    assert node.gpu_millis == 1000 + 142 + 142 + 428
    assert list(node.devices.order_by("index").values_list("model", "memory_mib", "share_millis")) == [
        ("H100", 81_920, 1000), ("H100 MIG 1g.10gb", 10_240, 142), ("H100 MIG 1g.10gb", 10_240, 142),
        ("H100 MIG 3g.40gb", 40_960, 428),
    ]  # fmt: skip


@pytest.mark.django_db
def test_what_makes_no_sense_with_a_slice_is_refused(portal: Portal) -> None:
    assert problems(portal, gpu_slice="half") == {"gpu_slice": "unreadable"}
    assert problems(portal, gpu_slice="1g.10gb", gpu_count=2) == {"gpu_count": "inconsistent"}
    assert problems(portal, gpu_slice="1g.10gb", gpu_share=0.5) == {"gpu_share": "one-of"}
    assert problems(portal, gpu_slice="7g.80gb") == {"gpu_count": "can-never-fit"}
    spec = parse_job({"command": "true", "gpu_type": "H100 MIG 3g.40gb"}, by=portal.cast.owner)
    assert (spec.gpu_model, spec.gpu_slice, spec.per_task.gpu_millis) == ("H100", "3g.40gb", 428)


@pytest.mark.django_db
def test_a_job_runs_on_its_slice_by_the_name_that_the_driver_knows(portal: Portal) -> None:
    jobs = [portal.submit(gpu_slice="1g.10gb", name=f"s{number}") for number in range(3)]
    whole = portal.submit(gpu_count=1, name="whole")

    run_cycle(cluster_id=portal.cluster.pk, trigger="test")

    held = {a.attempt.job_id: a for a in Allocation.objects.held().select_related("attempt")}
    assert set(held) == {jobs[0].number, jobs[1].number, whole.number}
    assert [held[job.number].gpu_millis for job in (*jobs[:2], whole)] == [142, 142, 1000]
    assert held[jobs[0].number].device_ids != held[jobs[1].number].device_ids
    node = Node.objects.get(pk=portal.n2.pk)
    assert node.used_gpu_millis == 1284
    given = {one["name"]: one for one in orders_for(node, {}).assignments}
    uuids = dict(node.devices.values_list("index", "uuid"))
    assert given["s0"]["device_names"] == [uuids[given["s0"]["devices"][0]]]
    assert "device_names" not in given["whole"]

    snapshot = load_snapshot(cluster_id=portal.cluster.pk).snapshot
    assert sorted(snapshot.devices.used_millis.tolist()) == [0, 142, 142, 1000]
    with pytest.raises(IntegrityError, match="device_not_overcommitted"), transaction.atomic():
        Device.objects.filter(pk=held[jobs[0].number].device_ids[0]).update(used_millis=284)
    cancel_job(job=jobs[2], by=portal.cast.owner)


@pytest.mark.django_db
def test_a_slice_is_its_part_of_a_gpu_wherever_gpus_are_counted(portal: Portal) -> None:
    """n1 has whole ones; n2 one whole, two of a seventh each and one of three sevenths: 1.712 in all."""
    whole = Device.objects.filter(node=portal.n1).count()
    portal.submit(gpu_slice="1g.10gb")
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    h100 = {model for model in Device.objects.values_list("model", flat=True) if model_matches("H100", model)}
    assert h100 == {"H100", "H100 MIG 1g.10gb", "H100 MIG 3g.40gb"}
    on_n1 = Device.objects.filter(node=portal.n1, model__in=h100).count()

    facts = SchedulerFacts()
    assert facts.capacity("gpu_millis", "") == 1000 * whole + 1712
    assert facts.capacity("gpu_millis", "H100") == 1000 * on_n1 + 1712
    assert facts.capacity("gpu_millis", "H100 MIG 1g.10gb") == 284
    assert HeldShares().capacity()["gpu"] == pytest.approx(whole + 1.712)
    gauges = {
        (sample.labels["state"], sample.labels["model"]): sample.value
        for family in metrics.Collector().collect()
        for sample in family.samples
        if sample.name == "muster_gpus"
    }
    assert gauges["used", "H100 MIG 1g.10gb"] == gauges["free", "H100 MIG 1g.10gb"] == pytest.approx(0.142)
    assert gauges["free", "H100 MIG 3g.40gb"] == pytest.approx(0.428)
    Node.objects.filter(pk=portal.n2.pk).update(cordoned=True)
    supply = {one.model: one for one in gpu_supply()}["H100 MIG 1g.10gb"]
    assert (supply.total, supply.used, supply.off, supply.free) == (284, 142, 142, 0)
    portal.submit(gpu_slice="1g.10gb", tasks=2)
    asked = facts.demand(Whose(project_ids=None), "gpu_millis", "").asked
    assert asked == 284


@pytest.mark.django_db
def test_nodes_say_how_much_gpu_their_slices_are(portal: Portal) -> None:
    node = (
        Node.objects.select_related("cluster").prefetch_related("devices", "partitions").get(pk=portal.n2.pk)
    )

    assert NodeSerializer(node).data["gpu_count"] == {"total": 1.712, "used": 0, "free": 1.712}
