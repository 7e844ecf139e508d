"""Variables that scripts written for Slurm read: of the node, of the layout, of the array."""

from __future__ import annotations

import os
from typing import Any

import pytest

from scheduler.agent.tasks.environment import environment, repeated
from tests.support.agent_messages import an_assignment


def variables(**fields: Any) -> dict[str, str]:
    env = environment(an_assignment(**fields), "/task", node_name="n1")
    return {name.removeprefix("SLURM_"): value for name, value in env.items() if name.startswith("SLURM_")}


def test_f21_amounts_of_a_node_are_those_of_all_tasks_on_it() -> None:
    layout = {"node_ranks": [0, 1], "node_tasks": [2, 1], "node_devices": [2, 3, 5, 7], "tasks": 3}

    of_node = variables(cpu_millis=2000, memory_mib=400, devices=[3, 5], **layout)

    assert {name: of_node[name] for name in ("CPUS_ON_NODE", "GPUS_ON_NODE", "MEM_PER_NODE", "JOB_GPUS")} == {
        "CPUS_ON_NODE": "4", "GPUS_ON_NODE": "4", "MEM_PER_NODE": "800", "JOB_GPUS": "2,3,5,7",
    }  # fmt: skip
    assert (of_node["TASKS_PER_NODE"], of_node["JOB_CPUS_PER_NODE"], of_node["GTIDS"]) == (
        "2,1",
        "4,2",
        "0,1",
    )
    assert of_node["CPUS_PER_TASK"] == "2"


def test_f3_the_number_of_an_array_is_a_number() -> None:
    of_array = variables(array_id="38", array_index=4)

    assert (of_array["ARRAY_JOB_ID"], of_array["ARRAY_TASK_ID"], of_array["JOB_ID"]) == ("38", "4", "41")


def test_what_slurm_does_not_set_is_not_set() -> None:
    plain = variables(cpu_millis=1000, devices=[])
    per_cpu = variables(env={"SLURM_MEM_PER_CPU": "200"})

    assert (
        not {"CPUS_PER_TASK", "GPUS_ON_NODE", "JOB_GPUS", "ARRAY_JOB_ID", "JOB_END_TIME", "CLUSTER_NAME"}
        & plain.keys()
    )
    assert "MEM_PER_NODE" in plain
    assert (per_cpu["MEM_PER_CPU"], "MEM_PER_NODE" in per_cpu) == ("200", False)


def test_who_runs_it_where_and_until_when() -> None:
    found = variables(limit_seconds=60, cluster="main", submit_host="portal")

    assert (found["JOB_UID"], found["JOB_GID"]) == (str(os.geteuid()), str(os.getegid()))
    assert int(found["JOB_END_TIME"]) - int(found["JOB_START_TIME"]) == 60
    assert (found["CLUSTER_NAME"], found["SUBMIT_HOST"], found["JOB_QOS"]) == ("main", "portal", "normal")


@pytest.mark.parametrize(
    ("counts", "text"), [([2, 2], "2(x2)"), ([3, 1], "3,1"), ([1], "1"), ([2, 2, 1, 2], "2(x2),1,2")]
)
def test_counts_of_nodes_are_written_as_slurm_writes_them(counts: list[int], text: str) -> None:
    assert repeated(counts) == text
