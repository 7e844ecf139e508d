"""Machines change under their jobs, and people take them out of service."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from accounts.models import AuditEvent
from infra.errors import InvalidInput, NotAllowed, NotFound
from scheduler.core.lifecycle import NodeState
from scheduler.models import Node, Partition
from scheduler.services.cluster.heartbeats import agents_of_keys, fence_seconds
from scheduler.services.cluster.inventory import apply_inventory, read_inventory
from scheduler.services.cluster.nodes import (
    cordon_node,
    drain_node,
    register_node,
    uncordon_node,
)
from scheduler.services.cluster.settings import save_settings
from tests.support.agents import World
from tests.support.factories import AdminFactory, OperatorFactory

pytestmark = pytest.mark.django_db


def a_gpu(index: int, **facts: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "model": "A100", "memory_mib": 81920, "numa_domain": 0,
            "healthy": True, "fake": False} | facts  # fmt: skip


def a_machine(gpus: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "cpu_millis": 8000, "memory_mib": 16384, "storage_mib": 1000, "numa_domains": 1, "boot_id": "b",
        "agent_version": "0", "labels": {"rack": "r1"}, "partitions": [], "devices": [a_gpu(n) for n in range(gpus)],
    } | facts  # fmt: skip


@pytest.fixture
def world(db: None) -> World:
    return World.make()


def joined(world: World, **facts: Any) -> Node:
    return register_node(join_token=world.join_token(), name="n1", inventory=a_machine(**facts)).node


def change(node: Node, **facts: Any) -> bool:
    fresh = Node.objects.select_related("cluster").get(pk=node.pk)
    return apply_inventory(fresh, read_inventory(a_machine(**facts)))


def test_a_node_joins_with_its_devices_and_the_first_partition(world: World) -> None:
    node = joined(world)

    assert (node.state, node.cpu_millis_capacity, node.gpu_millis, node.labels) == (
        "up",
        8000,
        2000,
        {"rack": "r1"},
    )
    assert [(d.index, d.model, d.used_millis) for d in node.devices.all()] == [(0, "A100", 0), (1, "A100", 0)]
    assert [partition.name for partition in node.partitions.all()] == ["default"]


def test_a_node_joins_the_partitions_it_names_or_is_refused(world: World) -> None:
    Partition.objects.create(cluster=world.cluster, name="gpu")

    node = joined(world, partitions=["gpu"])
    assert [partition.name for partition in node.partitions.all()] == ["gpu"]

    with pytest.raises(InvalidInput, match="has no partition elsewhere"):
        register_node(join_token=world.join_token(), name="n2", inventory=a_machine(partitions=["elsewhere"]))


def test_a_fault_of_the_agent_is_the_nodes_trouble_until_it_is_over(world: World) -> None:
    node = joined(world)

    assert change(node, isolation={"fault": "jobs cannot be isolated: No space left on device"})
    trouble = Node.objects.get(pk=node.pk).trouble
    assert change(node)

    assert trouble == "takes no tasks: jobs cannot be isolated: No space left on device"
    assert Node.objects.get(pk=node.pk).trouble == ""


def test_what_keeps_limits_of_the_disk_is_a_label_that_only_the_agents_facts_set(world: World) -> None:
    node = joined(world, isolation={"disk": True}, labels={"disk-limit": "measured"})
    assert node.labels["disk-limit"] == "kernel"

    change(node, isolation={"files": True}, labels={"disk-limit": "kernel"})
    assert Node.objects.get(pk=node.pk).labels["disk-limit"] == "measured"


def test_overcommit_widens_what_may_be_given_away(world: World) -> None:
    type(world.cluster).objects.update(cpu_overcommit_percent=150)

    node = joined(world)

    assert (node.cpu_millis, node.cpu_millis_capacity, node.memory_mib_capacity) == (8000, 12000, 16384)


def test_the_nodes_own_ratio_goes_before_that_of_its_partitions_and_of_the_cluster(world: World) -> None:
    admin, node = AdminFactory(), joined(world)
    partition = node.partitions.get()
    other = Partition.objects.create(cluster=world.cluster, name="dense", cpu_overcommit_percent=300)
    node.partitions.add(other)

    def given(thing: Any, **ratios: int | None) -> tuple[int, int]:
        row = type(thing).objects.get(pk=thing.pk)
        for name, value in ratios.items():
            setattr(row, name, value)
        save_settings(thing=row, changed_fields=list(ratios), by=admin, reason="denser")
        node.refresh_from_db()
        return node.cpu_millis_capacity, node.memory_mib_capacity

    assert given(world.cluster, cpu_overcommit_percent=150, memory_overcommit_percent=200) == (24000, 32768)
    assert given(partition, cpu_overcommit_percent=200) == (16000, 32768)  # the lowest of its partitions
    assert given(node, cpu_overcommit_percent=90, memory_overcommit_percent=100) == (7200, 16384)
    Node.objects.filter(pk=node.pk).update(used_cpu_millis=7000)
    assert given(node, cpu_overcommit_percent=50) == (7000, 16384)  # never less than is in use
    Node.objects.filter(pk=node.pk).update(used_cpu_millis=0)
    assert change(node) is True
    node.refresh_from_db()
    assert node.cpu_millis_capacity == 4000


def test_a_ratio_that_is_no_ratio_is_refused_by_the_database(world: World) -> None:
    node = joined(world)

    with pytest.raises(IntegrityError, match="node_overcommit_sane"), transaction.atomic():
        Node.objects.filter(pk=node.pk).update(cpu_overcommit_percent=5)


def test_the_same_inventory_again_is_no_news(world: World) -> None:
    node = joined(world)
    generation = Node.objects.get(pk=node.pk).generation

    assert change(node) is False
    assert change(node, devices=[a_gpu(0, utilisation_percent=80), a_gpu(1)]) is False

    assert Node.objects.get(pk=node.pk).generation == generation
    assert node.devices.get(index=0).utilisation_percent == 80


def test_a_machine_that_shrinks_under_its_jobs_is_in_trouble_and_goes_on(world: World) -> None:
    node = joined(world)
    Node.objects.filter(pk=node.pk).update(used_cpu_millis=6000, used_memory_mib=100, used_gpu_millis=2000)

    assert change(node, cpu_millis=4000, gpus=1) is True

    node.refresh_from_db()
    assert (node.cpu_millis, node.cpu_millis_capacity, node.gpu_millis) == (4000, 6000, 2000)
    assert "CPU thousandths: has 4000, 6000 in use" in node.trouble
    assert "GPU thousandths: has 1000, 2000 in use" in node.trouble
    assert [(d.index, d.gone) for d in node.devices.all()] == [(0, False), (1, True)]

    Node.objects.filter(pk=node.pk).update(used_cpu_millis=0, used_gpu_millis=0)
    change(node, cpu_millis=4000, gpus=2)
    node.refresh_from_db()
    assert (node.cpu_millis_capacity, node.trouble) == (4000, "")
    assert node.devices.get(index=1).gone is False


def test_a_sick_gpu_is_named_and_not_counted(world: World) -> None:
    node = joined(world)

    change(node, devices=[a_gpu(0), a_gpu(1, healthy=False)])

    node.refresh_from_db()
    assert (node.gpu_millis, node.trouble) == (1000, "GPU 1 not healthy")


def test_what_is_wrong_with_gpus_is_told_in_words(world: World) -> None:
    node = joined(world)
    lost = {"healthy": False, "trouble": "the GPU has fallen off the bus"}
    used = "used by python3 (process 7), which Muster did not start"
    gpus = [a_gpu(0, **lost), a_gpu(1, trouble=used), a_gpu(2, **lost), a_gpu(3, power_watts=313)]

    assert change(node, devices=gpus, gpu_trouble="GPU 4: a reset is needed") is True
    assert change(node, devices=gpus, gpu_trouble="GPU 4: a reset is needed") is False

    node.refresh_from_db()
    assert node.gpu_millis == 2000
    assert node.trouble == (
        f"GPU 0, 2 not healthy: the GPU has fallen off the bus; GPU 1: {used}; GPUs: GPU 4: a reset is needed"
    )
    assert [(d.healthy, d.trouble, d.power_watts) for d in node.devices.order_by("index")[1:4:2]] == [
        (True, used, None), (True, "", 313),
    ]  # fmt: skip

    why = "the NVIDIA driver is not loaded"
    change(node, devices=[a_gpu(n, healthy=False, trouble=why) for n in range(2)], gpu_trouble=why)
    node.refresh_from_db()
    assert node.trouble == f"GPU 0, 1 not healthy: {why}"
    change(node)
    node.refresh_from_db()
    assert node.trouble == ""


def test_operators_take_nodes_out_and_put_them_back(world: World) -> None:
    node, operator = joined(world), OperatorFactory()

    cordon_node(node=node, by=operator, reason="new memory")
    assert (node.cordoned, node.draining, node.drain_reason) == (True, False, "new memory")
    drain_node(node=node, by=operator, reason="new  disk\n")
    assert (node.cordoned, node.draining, node.drain_reason) == (True, True, "new disk")
    assert node.drained_by == operator.username
    uncordon_node(node=node, by=operator)

    assert (node.cordoned, node.draining, node.drain_reason, node.drained_at) == (False, False, "", None)
    rows = AuditEvent.objects.filter(object_label="n1", actor=operator).order_by("id")
    assert [(row.action, row.reason) for row in rows] == [
        ("node.cordon", "new memory"), ("node.drain", "new disk"), ("node.uncordon", ""),
    ]  # fmt: skip
    assert rows[0].before == {"cordoned": False, "draining": False, "reason": "", "deadline": None}


def test_a_drained_node_takes_nothing_new(world: World) -> None:
    node = joined(world)
    drain_node(node=node, by=OperatorFactory(), reason="new disk")

    job = world.submit("true")
    world.plan()

    job.refresh_from_db()
    assert job.state == "queued"


def test_others_do_not_and_a_reason_is_needed(world: World) -> None:
    node = joined(world)

    with pytest.raises((NotAllowed, NotFound)):
        drain_node(node=node, by=world.user, reason="mine")
    with pytest.raises(InvalidInput, match="the reason why n1"):
        drain_node(node=node, by=OperatorFactory(), reason="  ")

    node.refresh_from_db()
    assert (node.cordoned, node.draining) == (False, False)


def test_keys_are_kept_as_digests(world: World) -> None:
    done = register_node(join_token=world.join_token(), name="n1", inventory=a_machine())
    secret = done.agent_key.split("_", 3)[3]

    wrong = [done.agent_key + "x", done.agent_key.replace("agent", "join")]
    found = agents_of_keys([done.agent_key, *wrong])
    assert {key: agent.node for key, agent in found.items()} == {done.agent_key: done.node}
    assert secret not in str(Node.objects.values().get())


def test_an_agent_gives_up_before_the_server_does(settings: Any) -> None:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_NODE_LOST_SECONDS = 30, 900
    assert fence_seconds() == 810
    settings.MUSTER_NODE_LOST_SECONDS = 120
    assert fence_seconds() == 80
    settings.MUSTER_NODE_LOST_SECONDS = 40
    assert fence_seconds() == 0


def test_the_join_token_command_prints_the_token_alone_on_its_last_line(world: World) -> None:
    said = io.StringIO()
    call_command("join_token", "--cluster", "main", stdout=said)
    token = said.getvalue().strip().splitlines()[-1]

    assert register_node(join_token=token, name="n9", inventory=a_machine()).node.state == NodeState.UP
    with pytest.raises(CommandError, match=r"There is no cluster 'elsewhere'. There is: main."):
        call_command("join_token", "--cluster", "elsewhere")


def test_the_drain_command_says_what_is_left(world: World) -> None:
    node = joined(world)
    AdminFactory(username="root")
    world.submit("true")
    world.plan()

    said = io.StringIO()
    call_command("drain_node", "n1", "--reason", "new disk", stdout=said)
    node.refresh_from_db()
    assert (said.getvalue(), node.draining) == ("n1 accepts no new jobs; 1 tasks still run there.\n", True)
    call_command("drain_node", "n1", "--undo", stdout=said)
    node.refresh_from_db()
    assert node.draining is False

    with pytest.raises(CommandError, match=r"There is no node 'n7'. There is: n1."):
        call_command("drain_node", "n7", "--reason", "x")
    with pytest.raises(CommandError, match="the reason why n1"):
        call_command("drain_node", "n1")
