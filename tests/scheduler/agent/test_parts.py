"""The agent's parts by themselves, without server or database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import keeper, limits, numa, processes
from scheduler.agent.client import InsecureServer, Refused, ServerClient
from scheduler.agent.gpu_use import Use
from scheduler.agent.gpus import short_model
from scheduler.agent.inventory import BadFakeGpus, Overrides, parse_fake_gpus, take_inventory
from scheduler.agent.journal import Journal
from scheduler.agent.main import main
from scheduler.agent.orders import task_order
from scheduler.agent.protocol import Assignment, TaskRecord
from scheduler.agent.table import TaskTable
from tests.support.agents import stands_still, wait_for
from tests.support.keepers import Kept
from tests.support.patience import patience

ROOT = Path(__file__).resolve().parents[3]


def an_assignment(**fields: Any) -> Assignment:
    plain: dict[str, Any] = {
        "task": 5, "epoch": 2, "job": 41, "job_id": "u-u-i-d", "name": "train", "user": "alice", "project": "vision",
        "queue": "default", "rank": 1, "tasks": 4, "local_rank": 1, "node_rank": 0, "nodes": 2,
        "node_names": ["n1", "n2"], "master_address": "n1", "master_port": 20041, "command": "true", "script": "",
        "env": {}, "working_dir": "", "devices": [3, 5], "cpu_millis": 2500, "memory_mib": 100, "limit_seconds": None,
        "grace_seconds": 60,
    }  # fmt: skip
    return Assignment(**(plain | fields))  # type: ignore[typeddict-item]


def a_record(**fields: Any) -> TaskRecord:
    plain: dict[str, Any] = {
        "key": "5-2", "state": "running", "boot_id": processes.boot_id(), "folder": "/nowhere", "pid": 9,
        "meta": {"task": 5, "epoch": 2, "job": 41}, "start_ticks": 1, "started_boot_ms": processes.boot_ms() - 1000,
        "ended_boot_ms": 0, "exit_code": None, "exit_signal": None, "stop_reason": "", "lost": False, "text": "",
        "peak_memory_mib": None, "cpu_time_ms": None,
    }  # fmt: skip
    return TaskRecord(**(plain | fields))  # type: ignore[typeddict-item]


def test_the_agent_runs_where_there_is_no_django() -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('django', 'config', 'accounts', 'celery', 'httpx')));"
    )
    blocked += "import scheduler.agent.main, scheduler.agent.keeper; print('fine')"

    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "fine\n"


def test_the_keeper_needs_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import scheduler.agent.keeper; print('fine')"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "fine\n"


# ---------------------------------------------------------------- orders


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


# ---------------------------------------------------------------- inventory


def a_machine(root: Path, domains: dict[int, tuple[str, int]]) -> Path:
    """What the kernel says of so many domains: number -> CPUs, MiB."""
    for number, (cpus, memory_mib) in domains.items():
        folder = root / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus + "\n")
        lines = {"MemTotal": memory_mib, "MemFree": 100, "Active(file)": 20, "Inactive(file)": 3}
        (folder / "meminfo").write_text(
            "".join(f"Node {number} {name}: {value * 1024} kB\n" for name, value in lines.items())
        )
    return root


def test_numa_domains_are_those_of_the_kernel_or_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "usable", lambda: [0, 1, 2, 3, 6, 9])
    root = a_machine(tmp_path, {8: ("4-7", 3000), 0: ("0-3", 1000), 1: ("", 500)})

    assert numa.domains(root=root) == [
        numa.Domain(0, (0, 1, 2, 3), 1000), numa.Domain(1, (), 500), numa.Domain(8, (6,), 3000),
    ]  # fmt: skip
    assert numa.domains(2, root) == [
        numa.Domain(0, (0, 1, 2), 2250, real=False), numa.Domain(1, (3, 6, 9), 2250, real=False),
    ]  # fmt: skip
    assert numa.free_mib(8, root) == 123
    (only,) = numa.domains(root=tmp_path / "nothing")
    assert (only.number, only.cpus) == (0, (0, 1, 2, 3, 6, 9))


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


def test_an_order_names_the_cpus_of_its_domain_and_memory_only_where_the_kernel_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = task_order(an_assignment(numa_domain=1), Path("/state"), node_name="n1", numa_domains=2)
    usable = limits.usable()

    assert order["cpus"] == usable[len(usable) // 2 :]
    assert order["env"]["MUSTER_NUMA_DOMAIN"] == "1"
    assert "memory_domain" not in order
    monkeypatch.setattr(numa, "domains", lambda count=None: [numa.Domain(1, (7,), 100)])
    real = task_order(an_assignment(numa_domain=1), Path("/state"), node_name="n1")
    assert (real["cpus"], real["memory_domain"], real["memory_mib"]) == ([7], 1, 100)
    assert "cpus" not in task_order(an_assignment(), Path("/state"), node_name="n1")


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


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce GTX", "GeForce GTX"),
    ],
)
def test_models_get_the_word_people_ask_for(name: str, model: str) -> None:
    assert short_model(name) == model


# ---------------------------------------------------------------- journal and table


def test_a_torn_line_says_nothing_and_harms_nothing(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.write_bytes(b'{"a":1}\n{"b":2')

    journal = Journal(file)
    journal.append({"c": 3})

    assert list(journal.replay()) == [{"a": 1}, {"c": 3}]
    journal.compact(lambda: [{"d": 4}], now=True)
    journal.append({"e": 5})
    assert list(journal.replay()) == [{"d": 4}, {"e": 5}]
    journal.close()


def test_a_report_is_sent_until_its_latest_version_is_acknowledged() -> None:
    table = TaskTable()
    table.update([a_record()], complete=True)
    reports, versions = table.pending_reports(10)
    assert [(r["task"], r["epoch"], r["state"], r["pid"]) for r in reports] == [(5, 2, "running", 9)]

    table.update([a_record(state="ended", exit_code=3, ended_boot_ms=processes.boot_ms())], complete=False)
    table.acknowledge(versions)

    (report,), versions = table.pending_reports(10)
    assert (report["state"], report["exit_code"], report["stdout_bytes"]) == ("failed", 3, 0)
    assert 900 < report["started_ago_ms"] < patience(5000)
    table.acknowledge(versions)
    assert table.pending_reports(10) == ([], {})
    assert table.known() == []


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"exit_code": 0}, "succeeded"),
        ({"exit_code": 1}, "failed"),
        ({"exit_signal": 9}, "failed"),
        ({"exit_code": 0, "stop_reason": "cancelled"}, "stopped"),
        ({"exit_signal": 15, "stop_reason": "fenced"}, "lost"),
        ({"exit_signal": 15, "stop_reason": "shutdown"}, "lost"),
        ({"lost": True}, "lost"),
    ],
)
def test_ends_have_names(fields: dict[str, Any], state: str) -> None:
    table = TaskTable()
    table.update([a_record(state="ended", **fields)], complete=True)

    assert table.pending_reports(10)[0][0]["state"] == state


def test_a_task_the_table_does_not_know_is_lost_by_its_own_word() -> None:
    table = TaskTable()
    table.update([a_record()], complete=True)

    table.verify([[5, 2], [6, 1]])

    reports, versions = table.pending_reports(10)
    assert [(r["task"], r["state"]) for r in reports] == [(6, "lost"), (5, "running")]
    table.acknowledge(versions)
    assert table.pending_reports(10) == ([], {})


def test_an_order_that_never_reached_the_keeper_may_come_again() -> None:
    table = TaskTable()
    assert table.add(5, 2, job=41, folder="/f")
    assert not table.add(5, 2, job=41, folder="/f")

    table.update([], complete=True)

    assert table.known() == []
    assert table.add(5, 2, job=41, folder="/f")


# ---------------------------------------------------------------- client and command line


def test_a_task_is_reported_with_the_use_of_its_gpus() -> None:
    table = TaskTable()
    uses = {"5-2": Use(watched_ms=20_000.4, busy_ms=15_000.4, peak_memory_mib=812)}
    table.gpu_use_of = uses.get
    meta = {"task": 5, "epoch": 2, "job": 41, "devices": [3, 5]}
    table.update([a_record(meta=meta), a_record(key="6-1", pid=10)], complete=True)

    with_gpus, without = table.gpu_holders()
    assert (with_gpus.key, with_gpus.leader, with_gpus.devices) == ("5-2", 9, (3, 5))
    assert 1000 <= with_gpus.ran_ms < 600_000
    assert (without.key, without.devices) == ("6-1", ())

    table.gpu_faults_of = lambda numbers: f"{numbers} are broken."
    ended = {"state": "ended", "exit_code": 1}
    table.update(
        [a_record(meta=meta, **ended), a_record(key="6-1", **ended | {"exit_code": 0})], complete=True
    )

    first, second = table.pending_reports(10)[0]
    assert (first["text"], second.get("text")) == ("[3, 5] are broken.", None)
    assert (first["gpu_watched_ms"], first["gpu_busy_ms"], first["peak_gpu_memory_mib"]) == (
        20_000,
        15_000,
        812,
    )
    assert "gpu_watched_ms" not in second
    assert table.gpu_holders() == []


def test_the_use_of_gpus_is_told_again_and_again_while_a_task_runs() -> None:
    table = TaskTable()
    table.gpu_use_of = {"5-2": Use(watched_ms=1, busy_ms=1), "6-1": Use(watched_ms=1)}.get

    def told(minutes: float) -> list[int]:
        began = processes.boot_ms() - int(minutes * 60_000)
        for key, devices in (("5-2", [3]), ("6-1", [])):
            meta = {"task": int(key[0]), "epoch": int(key[2]), "job": 41, "devices": devices}
            table.update([a_record(key=key, started_boot_ms=began, meta=meta)], complete=False)
        table.look_at_gpu_use()
        reports, versions = table.pending_reports(10)
        table.acknowledge(versions)
        return [report["task"] for report in reports]

    assert told(0.5) == [5, 6]  # that they run
    assert [told(minutes) for minutes in (0.9, 1.1, 1.9, 2.3, 4.5, 4.7, 9.1, 9.5, 14.6)] == [
        [], [5], [], [5], [], [5], [], [5], [5],
    ]  # fmt: skip


def test_keys_do_not_travel_in_the_clear() -> None:
    with pytest.raises(InsecureServer, match="not encrypted"):
        ServerClient("http://muster.example.org")
    with pytest.raises(InsecureServer):
        ServerClient("muster.example.org")
    ServerClient("https://muster.example.org")
    ServerClient("http://127.0.0.1:8000")
    ServerClient("http://10.0.0.1", insecure_ok=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--server", "http://example.org"],
        ["--server", "http://localhost", "--cpus", "0"],
        ["--server", "http://localhost", "--name", "a/b"],
        ["--server", "http://localhost", "--labels", "novalue"],
        ["--server", "http://localhost", "--fake-gpus", "many"],
        ["--server", "http://localhost", "--join-token-file", "/no/such/file"],
    ],
)
def test_bad_arguments_are_explained(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--state", str(tmp_path / "state")])

    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_a_refusal_carries_its_words() -> None:
    refusal = Refused(401, "bad-agent-key", "The agent key is unknown.")

    assert (str(refusal), refusal.status, refusal.code) == ("The agent key is unknown.", 401, "bad-agent-key")


# ---------------------------------------------------------------- the keeper by itself


def test_the_same_order_twice_starts_once(kept: Kept) -> None:
    for _ in range(3):
        kept.start("1-1", "echo x >> ../count; sleep 0.2")
    kept.wait("1-1")

    assert (kept.state / "tasks/1-1/count").read_text() == "x\n"


def test_a_fence_stops_everything(kept: Kept) -> None:
    kept.start("1-1", "sleep 60")
    pid = kept.wait("1-1", "running")["pid"]

    kept.link.extend_lease(0.5)
    record = kept.wait("1-1")

    assert (record["stop_reason"], record["exit_signal"]) == ("fenced", 15)
    assert not processes.start_ticks(pid)


def test_a_lease_that_is_extended_stops_nothing(kept: Kept) -> None:
    fence = patience(0.8)
    kept.start("1-1", "sleep 1.2")
    for _ in range(6):
        kept.link.extend_lease(fence)
        time.sleep(0.2)

    assert kept.wait("1-1")["exit_code"] == 0


def test_a_stopped_process_is_woken_to_end(kept: Kept) -> None:
    kept.start("1-1", "kill -STOP $$")
    kept.wait("1-1", "running")
    time.sleep(0.2)

    kept.link.stop_task("1-1", reason="cancelled", grace_seconds=5)

    assert kept.wait("1-1")["exit_signal"] == signal.SIGTERM


def test_a_task_that_holds_more_memory_than_its_limit_is_ended_and_told_why(kept: Kept) -> None:
    hog = f"{sys.executable} -c 'import time; held = bytes([1]) * 90_000_000; time.sleep(60)'"
    kept.start("1-1", f"({hog}) & wait", memory_limit_mib=64)
    kept.start("2-1", "sleep 2.5", memory_limit_mib=64)

    record = kept.wait("1-1")

    assert (record["exit_signal"], record["stop_reason"]) == (signal.SIGKILL, "")
    assert record["text"].endswith("MiB of memory; its limit is 64 MiB.")
    assert kept.wait("2-1")["exit_code"] == 0


def test_a_task_runs_on_no_more_cpus_than_its_limit(kept: Kept) -> None:
    show = f"{sys.executable} -c 'import os; print(len(os.sched_getaffinity(0)))'"
    kept.start("1-1", show, cpu_limit_millis=500)
    kept.start("2-1", show)

    kept.wait("1-1"), kept.wait("2-1")

    assert (kept.state / "tasks/1-1/stdout").read_text() == "1\n"
    assert (kept.state / "tasks/2-1/stdout").read_text() == f"{len(limits.usable())}\n"


def test_a_task_is_bound_to_its_numa_domain_as_far_as_the_kernel_allows(kept: Kept) -> None:
    """`numa_maps` says what the kernel does; where it refuses, the task is told so."""
    cpu = limits.usable()[-1]
    show = "echo $MUSTER_NUMA_BOUND; head -1 /proc/self/numa_maps; grep Cpus_allowed_list /proc/self/status"
    kept.start("1-1", show, cpus=[cpu], memory_domain=0, memory_mib=1)
    kept.start("2-1", show, cpus=[cpu], memory_domain=0, memory_mib=2**40)  # more than is free there
    kept.start("3-1", show, cpus=[], cpu_limit_millis=None)
    with numa.on_memory(0) as allowed:
        pass

    said = {}
    for key in ("1-1", "2-1", "3-1"):
        kept.wait(key)
        said[key] = (kept.state / f"tasks/{key}/stdout").read_text().splitlines()

    free = numa.free_mib(0) > 1
    assert said["1-1"][0] == ("cpus,memory" if allowed and free else "cpus")
    assert [line.split()[-1] for line in (said["1-1"][-1], said["2-1"][-1])] == [str(cpu)] * 2
    if allowed and free:
        assert " bind:0 " in said["1-1"][1]
        assert " bind" not in said["2-1"][1]
    assert (said["2-1"][0], said["3-1"][0]) == ("cpus", "")
    with numa.on_memory(numa._MOST_DOMAINS + 1) as nowhere:
        assert not nowhere


def test_bound_tasks_go_where_the_fewest_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable", lambda: [0, 1, 2, 3])

    assert limits.choose_cpus(1500, (), []) == (0, 1)
    assert limits.choose_cpus(2000, (), [(0, 1), (2,)]) == (0, 3)
    assert limits.choose_cpus(1000, (), [(0, 1), (2,), (3,), (3,)]) == (0,)
    assert limits.choose_cpus(4000, (), []) == ()  # all there are: nothing to bind
    assert limits.choose_cpus(None, (2, 3), []) == (2, 3)
    assert limits.choose_cpus(None, (7,), []) == ()  # CPUs it has not: bound to none of them


def test_one_that_stands_still_does_so_for_the_next_keeper_too_and_its_limit_waits(kept: Kept) -> None:
    limit = ceil(patience(1))  # it must not be reached before the pause is
    kept.start("1-1", "while :; do sleep 0.05; done", limit_seconds=limit)
    pid = kept.wait("1-1", "running")["pid"]

    kept.link.pause_task("1-1", still=True)
    still = wait_for(lambda: (r := kept.records["1-1"]).get("suspended_boot_ms") and r)
    os.kill(kept.link.keeper_pid, signal.SIGKILL)
    kept.records.clear()
    assert kept.wait("1-1", "running")["suspended_boot_ms"] == still["suspended_boot_ms"]
    assert stands_still(pid)
    wait_for(lambda: processes.boot_ms() > still["started_boot_ms"] + limit * 1000 + 200)
    assert kept.records["1-1"]["stop_reason"] == ""

    kept.link.pause_task("1-1", still=False)
    assert kept.wait("1-1")["stop_reason"] == "time_limit"
    assert kept.records["1-1"]["suspended_ms"] > 0


def test_a_task_that_is_forgotten_leaves_nothing(kept: Kept) -> None:
    kept.start("1-1", "touch file; mkdir -m 0 closed")
    kept.wait("1-1")

    kept.link.forget(["1-1"])

    wait_for(lambda: not (kept.state / "tasks/1-1").exists())
    entries = [json.loads(line) for line in (kept.state / "journal.jsonl").read_text().splitlines()]
    assert entries[-1] == {"forget": "1-1"}


def test_without_agent_and_tasks_a_keeper_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = keeper.Keeper(tmp_path)
    alone.agent_seen_at = time.monotonic() - keeper.ORPHAN_SECONDS - 1

    assert alone._may_exit()
    alone.agent_seen_at = time.monotonic()
    assert not alone._may_exit()
    alone.journal.close()


def test_another_boot_ends_what_ran(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(
        json.dumps({**a_record(boot_id="another"), "limit_seconds": None, "grace_seconds": 1}) + "\n"
    )

    later = keeper.Keeper(tmp_path)
    later._recover()

    record = later.tasks["5-2"].record
    assert (record["state"], record["lost"]) == ("ended", True)
    assert record["text"] == "Its end was not seen: the machine was restarted."
    later.journal.close()
