"""From an assignment to an order for the shim: environment, program, NUMA domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import cpus, numa
from scheduler.agent.tasks.orders import task_order
from tests.support.agent_messages import an_assignment


def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", "secret")
    monkeypatch.setenv("ANYTHING", "else")

    order = task_order(an_assignment(env={"OMP_NUM_THREADS": "1"}), Path("/state"), node_name="n1")

    env = order["env"]
    assert "ANYTHING" not in env
    assert "MUSTER_JOIN_TOKEN" not in env
    assert (env["CUDA_VISIBLE_DEVICES"], env["SLURM_GPUS_ON_NODE"]) == ("3,5", "2")
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) == (
        "1",
        "4",
        "n1",
        "20041",
    )
    assert (env["MUSTER_CPUS"], env["OMP_NUM_THREADS"]) == ("2", "1")
    assert (order["key"], order["folder"]) == ("5-2", "/state/tasks/41-2-1-5-2")
    assert (order["argv"], order["cwd"]) == (["/bin/sh", "-c", "true"], "/state/tasks/41-2-1-5-2/work")


def test_a_job_without_gpus_sees_none() -> None:
    env = task_order(an_assignment(devices=[]), Path("/state"), node_name="n1")["env"]

    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "SLURM_JOB_GPUS" not in env


def test_gpus_are_named_as_cuda_counts_them() -> None:
    def env_of(**fields: Any) -> dict[str, str]:
        names = (["GPU-c", "GPU-e"], ["GPU-c", "GPU-e"])
        return task_order(an_assignment(**fields), Path("/state"), node_name="n1", gpu_names=names)["env"]

    lost = env_of()
    assert (lost["CUDA_VISIBLE_DEVICES"], lost["SLURM_JOB_GPUS"]) == ("GPU-c,GPU-e", "3,5")
    assert lost["MUSTER_GPU_UUIDS"] == "GPU-c,GPU-e"
    # Else CUDA puts the fastest first.
    assert lost["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    cut = env_of(device_names=["MIG-x"])
    assert [cut[name] for name in ("CUDA_VISIBLE_DEVICES", "MUSTER_GPU_UUIDS", "SLURM_JOB_GPUS")] == [
        "MIG-x"
    ] * 3


@pytest.mark.parametrize(
    ("script", "argv"),
    [("#!/bin/bash\ntrue", ["F/script"]), ("true", ["/bin/sh", "F/script"])],
)
def test_scripts_run_by_their_interpreter(script: str, argv: list[str]) -> None:
    order = task_order(an_assignment(command="", script=script), Path("/state"), node_name="n1")

    assert order["argv"] == [part.replace("F", order["folder"]) for part in argv]
    assert order["script"] == script


def test_an_order_names_the_cpus_of_its_domain_and_memory_only_where_the_kernel_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = task_order(an_assignment(numa_domain=1), Path("/state"), node_name="n1", numa_domains=2)
    usable = cpus.usable_cpus()

    assert order["cpus"] == usable[len(usable) // 2 :]
    assert order["env"]["MUSTER_NUMA_DOMAIN"] == "1"
    assert "memory_domain" not in order
    monkeypatch.setattr(numa, "domains", lambda count=None: [numa.Domain(1, (7,), 100)])
    real = task_order(an_assignment(numa_domain=1), Path("/state"), node_name="n1")
    assert (real["cpus"], real["memory_domain"], real["memory_mib"]) == ([7], 1, 100)
    assert "cpus" not in task_order(an_assignment(), Path("/state"), node_name="n1")
