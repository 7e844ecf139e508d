"""Heartbeats: whose they are, when they are written, and that they wait for nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler.models import Node, NodeHeartbeat
from scheduler.services.cluster.heartbeats import Heartbeat, agents_of_keys, record_heartbeats
from scheduler.services.cluster.nodes import register_node
from tests.support.agents import World

MACHINE: dict[str, Any] = {
    "cpu_millis": 8000, "memory_mib": 16384, "storage_mib": 1000, "numa_domains": 1, "boot_id": "b",
    "agent_version": "0", "labels": {}, "partitions": [], "devices": [],
}  # fmt: skip


def keys_of(world: World, *names: str) -> list[str]:
    """The keys of agents that have just registered these nodes."""
    token = world.join_token()
    return [register_node(join_token=token, name=name, inventory=MACHINE).agent_key for name in names]


def beat_of(key: str, **fields: Any) -> Heartbeat:
    beat = Heartbeat(agents_of_keys([key])[key], boot_id="b", agent_version="0", clock_ms=0)
    return replace(beat, **fields)


def age(seconds: float) -> None:
    NodeHeartbeat.objects.update(last_seen_at=timezone.now() - timedelta(seconds=seconds))


@pytest.mark.django_db
def test_many_keys_are_looked_up_at_once_and_each_proves_itself(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    first, second = keys_of(World.make(), "n1", "n2")
    forged = first[:-4] + "AAAA"

    with django_assert_num_queries(1):
        found = agents_of_keys([first, second, forged, "nonsense", "", "muster_agent_"])

    assert {key: agent.node.name for key, agent in found.items()} == {first: "n1", second: "n2"}


@pytest.mark.django_db
def test_heartbeats_of_several_nodes_are_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    keys = keys_of(World.make(), "n1", "n2", "n3")
    age(10)
    beats = [beat_of(key) for key in keys]

    with django_assert_num_queries(1):
        record_heartbeats(beats)

    assert all(
        timezone.now() - beat.last_seen_at < timedelta(seconds=5) for beat in NodeHeartbeat.objects.all()
    )
    assert set(NodeHeartbeat.objects.values_list("clock_skew_ms", flat=True)) == {-(2**31)}


@pytest.mark.django_db
def test_a_heartbeat_just_after_another_is_not_written(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    (key,) = keys_of(World.make(), "n1")
    beat = beat_of(key)

    with django_assert_num_queries(0):
        record_heartbeats([beat])


@pytest.mark.django_db
@pytest.mark.parametrize("changed", [{"boot_id": "b2"}, {"agent_version": "9"}])
def test_what_an_agent_says_anew_of_its_machine_is_written_at_once(changed: dict[str, str]) -> None:
    (key,) = keys_of(World.make(), "n1")

    record_heartbeats([beat_of(key, **changed)])

    (name, value) = next(iter(changed.items()))
    assert getattr(Node.objects.get(), name) == value


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_does_not_wait_for_who_has_locked_the_node() -> None:
    """Apply and settle lock nodes for the length of their transactions."""
    (key,) = keys_of(World.make(), "n1")
    age(10)
    beat = beat_of(key)

    def in_the_meantime() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
            try:
                record_heartbeats([beat])
            finally:
                connection.close()

    with transaction.atomic(), ThreadPoolExecutor(1) as other:
        Node.objects.select_for_update().get()
        other.submit(in_the_meantime).result(30)

    assert timezone.now() - NodeHeartbeat.objects.get().last_seen_at < timedelta(seconds=5)
