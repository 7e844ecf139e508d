"""What a node offers: measured, divided over its NUMA domains, or pretended for a demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.agent import numa
from scheduler.agent.node.fake_gpus import BadFakeGpus, parse_fake_gpus
from scheduler.agent.node.inventory import Overrides, take_inventory


def test_what_is_offered_is_divided_as_the_machine_is(tmp_path: Path) -> None:
    assert numa.shares(10, [1, 1, 2]) == [2, 3, 5]
    assert numa.shares(5, [0, 0]) == [2, 3]

    machine = take_inventory(Overrides(cpus=9, memory_mib=1001, numa_domains=2, no_gpus=True), tmp_path)

    assert machine["domains"] == [
        {"number": 0, "cpu_millis": 4000, "memory_mib": 500},
        {"number": 1, "cpu_millis": 5000, "memory_mib": 501},
    ]
    one = take_inventory(Overrides(numa_domains=1), tmp_path)
    assert (one["numa_domains"], one["domains"]) == (1, [])


def test_fake_gpus_are_read_and_spread_over_numa_domains(tmp_path: Path) -> None:
    machine = take_inventory(Overrides(cpus=4, fake_gpus="3xA100-40GB, 1xT4-16GB", numa_domains=2), tmp_path)

    assert machine["cpu_millis"] == 4000
    assert [(d["index"], d["model"], d["memory_mib"], d["numa_domain"], d["fake"]) for d in machine["devices"]] == [
        (0, "A100", 40960, 0, True), (1, "A100", 40960, 0, True), (2, "A100", 40960, 1, True),
        (3, "T4", 16384, 1, True),
    ]  # fmt: skip
    assert machine["memory_mib"] > 0
    assert machine["storage_mib"] > 0


@pytest.mark.parametrize("text", ["4", "4xA100", "xA100-80GB", "0xA100-80GB", "4xA100-80GB,", "4xA100-80TB"])
def test_other_fake_gpus_are_refused(text: str) -> None:
    with pytest.raises(BadFakeGpus):
        parse_fake_gpus(text)
