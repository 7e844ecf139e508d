"""What the agent makes of GPUs: numbers that last, health, whose processes are on them, who had them work."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import processes
from scheduler.agent.gpu import nvml, usage
from scheduler.agent.gpu.gpus import HUNG_SECONDS, POLL_SECONDS, Gpus
from scheduler.agent.gpu.reader import RETRY_SECONDS
from scheduler.agent.gpu.usage import Holder, Use
from scheduler.agent.node.inventory import Overrides, take_inventory, without_samples
from scheduler.agent.tasks.task_table import TaskTable
from tests.support.nvml import LOST, RESET_REQUIRED, FakeGpu, FakeNvml, NVMLError, some_gpus, xid

Install = Callable[..., FakeNvml]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(*gpus: FakeGpu) -> FakeNvml:
        fake = FakeNvml(*gpus)
        monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
        return fake

    return put


@pytest.fixture
def whose(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The session of each process, as /proc would tell; no process says by its environment whose it is."""
    sessions: dict[int, int] = {}
    monkeypatch.setattr(processes, "session_of", lambda pid: sessions.get(pid, 0))
    monkeypatch.setattr(processes, "environment_value", lambda pid, name: "")
    monkeypatch.setattr(usage, "sees_all_processes", lambda: True)
    return sessions


def polled(state: Path | None = None, **words: Any) -> Gpus:
    gpus = Gpus(state, **words)
    gpus.poll(now=1000.0)
    return gpus


def a_holder(key: str = "5-1", *devices: int, leader: int = 50, ran_ms: int = 3_600_000) -> Holder:
    return Holder(key, leader, devices, ran_ms)


def use_of(gpus: Gpus, key: str) -> Use:
    use = gpus.use_of(key)
    assert use is not None
    return use


# ---------------------------------------------------------------- what it reports


def test_a_gpu_is_described_as_nvidia_smi_does(install: Install, tmp_path: Path) -> None:
    gpu = FakeGpu("GPU-a", used=3 * 2**30, utilisation=97, temperature=61, power_mw=312_600)
    install(gpu)

    [device] = take_inventory(Overrides(), tmp_path, polled())["devices"]

    assert device == {
        "index": 0, "uuid": "GPU-a", "model": "H200", "memory_mib": 143771, "numa_domain": 0, "healthy": True,
        "fake": False, "trouble": "", "memory_used_mib": 3072, "utilisation_percent": 97, "temperature_c": 61,
        "power_watts": 313,
    }  # fmt: skip


def test_what_a_gpu_does_not_tell_is_left_out(install: Install) -> None:
    install(FakeGpu("GPU-a", utilisation=None, temperature=None, power_mw=None, mig=None))

    [device] = polled().devices()

    assert device.keys() & {"utilisation_percent", "temperature_c", "power_watts"} == set()
    assert device["healthy"]


def test_utilisation_is_the_mean_since_the_look_before(install: Install) -> None:
    gpu = FakeGpu("GPU-a", utilisation=0, samples=[(1_000, 100)])
    install(gpu)
    gpus = polled()
    assert gpus.devices()[0]["utilisation_percent"] == 0

    gpu.samples += [(2_000, 100), (3_000, 50), (4_000, 0)]
    gpus.poll()

    assert gpus.devices()[0]["utilisation_percent"] == 50


def test_a_machine_without_a_driver_has_no_gpus_and_no_trouble(
    monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvml, "driver_is_there", lambda: False)
    install().refuses = 12

    machine = take_inventory(Overrides(), tmp_path, polled())

    assert (machine["devices"], machine["gpu_trouble"]) == ([], "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (9, "the NVIDIA driver is not loaded"),
        (12, "the driver's library libnvidia-ml is missing"),
        (18, "the NVIDIA driver and its library are of two versions: restart the machine"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_reported(
    monkeypatch: pytest.MonkeyPatch, install: Install, error: int, words: str
) -> None:
    monkeypatch.setattr(nvml, "driver_is_there", lambda: True)
    monkeypatch.setattr(nvml, "hardware_is_there", lambda: True)
    install().refuses = error

    assert polled().trouble() == words


def test_a_missing_library_is_reported_where_there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(nvml, "driver_is_there", lambda: True)
    assert polled().trouble() == "nvidia-ml-py is not installed, so its GPUs cannot be read"

    monkeypatch.setattr(nvml, "driver_is_there", lambda: False)
    assert polled().trouble() == ""


def test_a_gpu_that_is_handed_to_a_virtual_machine_is_not_missed(tmp_path: Path) -> None:
    slot = tmp_path / "0000:41:00.0"
    slot.mkdir()
    (slot / "vendor").write_text("0x10de\n")
    (slot / "class").write_text("0x030200\n")
    assert nvml.hardware_is_there(tmp_path)

    (tmp_path / "vfio-pci").mkdir()
    (slot / "driver").symlink_to(tmp_path / "vfio-pci")
    assert not nvml.hardware_is_there(tmp_path)


# ---------------------------------------------------------------- health


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"uncorrected": 2}, "2 memory errors that ECC could not correct"),
        ({"rows": (0, 1, 1, 0)}, "row remapping is pending: reset the GPU"),
        ({"rows": (0, 8, 0, 1)}, "row remapping of the memory failed"),
        ({"recovery": 1}, "the driver requests a GPU reset"),
        ({"recovery": 2}, "the driver requests a reboot"),
        ({"compute_mode": 2}, "the compute mode is prohibited"),
        ({"fabric": (2, 0)}, "the fabric is not set up: is the fabric manager running?"),
        ({"mig": (1, 1)}, "it is set to be cut into slices (MIG) and none is made"),
        ({"lost": LOST}, "the GPU has fallen off the bus"),
        ({"lost": RESET_REQUIRED}, "a reset is needed"),
    ],
)
def test_a_broken_gpu_is_taken_out_and_says_why(install: Install, fields: dict[str, Any], words: str) -> None:
    first, second = some_gpus(2)
    install(first, second)
    gpus = polled()
    version = gpus.version
    for name, value in fields.items():
        setattr(second, name, value)

    gpus.poll(now=1005.0)

    good, bad = gpus.devices()
    assert (good["healthy"], good["trouble"]) == (True, "")
    assert (bad["index"], bad["uuid"], bad["healthy"], bad["trouble"]) == (1, "GPU-1", False, words)
    assert gpus.version > version  # worth a message at once


@pytest.mark.parametrize("fields", [{"rows": (4, 2, 0, 0)}, {"fabric": (3, 0)}, {"clock_reasons": 4}])
def test_what_was_dealt_with_leaves_a_gpu_sound(install: Install, fields: dict[str, Any]) -> None:
    install(FakeGpu("GPU-a", **fields))

    [device] = polled().devices()

    assert (device["healthy"], device["trouble"]) == (True, "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clock_reasons": 0x40}, "slowed: temperature too high"),
        ({"fabric": (3, 23)}, "NVLink setup failed (error 23)"),
        ({"fabric": (2, 0)}, "the fabric is not set up: is the fabric manager running?"),  # it has no other
        ({"mig": (0, 1)}, "cutting it is to be turned on by its next reset"),
    ],
)
def test_what_a_gpu_can_work_with_is_reported_and_takes_nothing_out(
    install: Install, fields: dict[str, Any], words: str
) -> None:
    install(FakeGpu("GPU-a", **fields))

    [device] = polled().devices()

    assert (device["healthy"], device["trouble"]) == (True, words)


@pytest.mark.parametrize(
    ("number", "healthy", "trouble"),
    [
        (31, True, ""),  # a program read where it has no memory
        (79, False, "the GPU has fallen off the bus (Xid 79)"),
        (94, True, "the driver reported Xid 94"),
    ],
)
def test_errors_that_the_driver_reports_are_remembered(
    install: Install, number: int, healthy: bool, trouble: str
) -> None:
    first, second = some_gpus(2)
    fake = install(first, second)
    gpus = polled()
    fake.events = [xid(second, number), xid(second, number)]

    for now in (1005.0, 1010.0):
        gpus.poll(now=now)

    good, noted = gpus.devices()
    assert (good["healthy"], good["trouble"]) == (True, "")
    assert (noted["healthy"], noted["trouble"]) == (healthy, trouble)


def test_a_gpu_that_is_lost_in_the_middle_of_a_look_is_lost(install: Install) -> None:
    fake = install(FakeGpu("GPU-a"))
    gpus = polled()

    def lost(gpu: FakeGpu) -> int:
        raise NVMLError(LOST)

    fake.nvmlDeviceGetPowerUsage = lost  # type: ignore[method-assign]
    gpus.poll(now=1005.0)

    [device] = gpus.devices()
    assert (device["healthy"], device["trouble"]) == (False, "the GPU has fallen off the bus")


def test_gpus_are_not_forgotten_when_the_driver_fails(install: Install) -> None:
    fake = install(*some_gpus(2))
    gpus = polled()
    fake.refuses = 18

    gpus.poll(now=1005.0)

    why = "the NVIDIA driver and its library are of two versions: restart the machine"
    assert [(d["healthy"], d["trouble"]) for d in gpus.devices()] == [(False, why)] * 2
    assert "utilisation_percent" not in gpus.devices()[0]

    fake.refuses = 0
    gpus.poll(now=1010.0)  # not asked again so soon
    assert not gpus.devices()[0]["healthy"]
    gpus.poll(now=1006.0 + RETRY_SECONDS)
    assert [(d["healthy"], d["trouble"]) for d in gpus.devices()] == [(True, "")] * 2
    assert fake.sessions == 1


def test_a_driver_that_hangs_takes_its_gpus_out_and_nothing_else(install: Install) -> None:
    fake = install(*some_gpus(1))
    gpus = polled()
    hung, go_on = threading.Event(), threading.Event()

    def wait_for_ever(gpu: FakeGpu, *_: Any) -> int:
        hung.set()
        go_on.wait(30)
        return 0

    fake.nvmlDeviceGetComputeMode = wait_for_ever  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: gpus.poll(now=1005.0), daemon=True)
    thread.start()
    assert hung.wait(30)

    assert gpus.devices(now=1010.0)[0]["healthy"]
    [device] = gpus.devices(now=1006.0 + HUNG_SECONDS)
    assert (device["healthy"], device["trouble"]) == (False, "the driver does not answer")
    assert gpus.trouble(now=1006.0 + HUNG_SECONDS) == "the NVIDIA driver does not answer"
    go_on.set()
    thread.join(30)
    assert gpus.devices(now=1012.0)[0]["healthy"]


def test_looking_and_reporting_do_not_wait_for_each_other(install: Install) -> None:
    """The table asks for the use of a task under its own lock, and tells the watch whom to remember."""
    install(*some_gpus(1))
    gpus, table = Gpus(None), TaskTable()
    table.gpu_use_of = gpus.use_of

    def keys() -> list[str]:
        asked = threading.Thread(target=lambda: gpus.use_of("5-1"), daemon=True)
        asked.start()
        asked.join(30)
        assert not asked.is_alive()
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        gpus.watch(table.gpu_holders, keys)


# ---------------------------------------------------------------- numbers


def test_a_number_never_comes_to_mean_another_gpu(install: Install, tmp_path: Path) -> None:
    first, lost, third = some_gpus(3)
    install(first, lost, third)
    polled(tmp_path).close()

    install(first, third)  # NVML counts anew
    gpus = polled(tmp_path)

    assert [(d["index"], d["uuid"]) for d in gpus.devices()] == [(0, "GPU-0"), (2, "GPU-2")]
    assert gpus.names([2]) == (["GPU-2"], ["GPU-2"])  # CUDA would call it 1
    assert gpus.names([0]) == (["0"], ["GPU-0"])

    late = FakeGpu("GPU-late", bus="00000000:06:00.0")
    install(first, late, third)
    assert [(d["index"], d["uuid"]) for d in polled(tmp_path).devices()] == [
        (0, "GPU-0"), (2, "GPU-2"), (3, "GPU-late"),
    ]  # fmt: skip


def test_after_a_restart_of_the_machine_they_are_numbered_afresh(
    monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path
) -> None:
    first, second = some_gpus(2)
    install(first, second)
    polled(tmp_path).close()

    install(second)
    monkeypatch.setattr(processes, "boot_id", lambda: "the next one")

    assert [(d["index"], d["uuid"]) for d in polled(tmp_path).devices()] == [(0, "GPU-1")]


def test_a_file_that_cannot_be_read_is_as_none(install: Install, tmp_path: Path) -> None:
    install(*some_gpus(1))
    for text in ("", "[]", '{"boot_id": 1}', "\0"):
        (tmp_path / "gpus.json").write_text(text)
        assert len(polled(tmp_path).devices()) == 1


def test_beside_a_lost_gpu_jobs_are_given_uuids(install: Install) -> None:
    first, second = some_gpus(2)
    install(first, second)
    gpus = polled()
    assert gpus.names([0, 1]) == (["0", "1"], ["GPU-0", "GPU-1"])

    first.lost = LOST
    gpus.poll(now=1005.0)

    assert gpus.names([1]) == (["GPU-1"], ["GPU-1"])
    assert gpus.names([9]) == (["9"], [])


def test_a_failed_task_is_reported_with_its_broken_gpu(install: Install) -> None:
    first, second = some_gpus(2)
    install(first, second)
    gpus = polled()
    assert gpus.faults_of([0, 1]) == ""

    second.lost = LOST
    gpus.poll(now=1005.0)

    assert gpus.faults_of([0]) == ""
    assert (
        gpus.faults_of([0, 1])
        == "GPU 1, allocated to the task, is not healthy: the GPU has fallen off the bus."
    )


def test_slices_come_and_go_with_their_names(install: Install, tmp_path: Path) -> None:
    whole, cut = some_gpus(2)
    cut.mig, cut.slices = (1, 1), {
        0: FakeGpu("MIG-x", name="NVIDIA H200 MIG 1g.18gb", total=16 * 2**30, used=2**30),
        2: FakeGpu("MIG-y", name="NVIDIA H200 MIG 2g.35gb", total=32 * 2**30),
    }  # fmt: skip
    install(whole, cut)
    gpus = polled(tmp_path)

    assert [(d["index"], d["uuid"], d["model"], d["memory_mib"], d["healthy"]) for d in gpus.devices()] == [
        (0, "GPU-0", "H200", 143771, True),
        (116, "MIG-x", "H200 MIG 1g.18gb", 16384, True),
        (118, "MIG-y", "H200 MIG 2g.35gb", 32768, True),
    ]
    assert gpus.names([0]) == (["GPU-0"], ["GPU-0"])  # numbers count otherwise where one is cut

    del cut.slices[0]
    gpus.poll(now=1005.0)
    assert [d["index"] for d in gpus.devices()] == [0, 118]

    cut.lost = LOST
    gpus.poll(now=1010.0)
    [_, one] = gpus.devices()
    assert (one["uuid"], one["healthy"], one["trouble"]) == ("MIG-y", False, "the GPU has fallen off the bus")


# ---------------------------------------------------------------- use


def test_a_task_is_charged_what_its_gpus_worked(install: Install, whose: dict[int, int]) -> None:
    first, second = some_gpus(2)
    install(first, second)
    gpus = polled()
    holder = a_holder("5-1", 0, 1, leader=50)
    whose[51] = 50
    first.processes, first.utilisation = {51: 4 * 2**30}, 80

    gpus.poll([holder], now=1000.0 + POLL_SECONDS)

    use = use_of(gpus, "5-1")
    # Two GPUs for five seconds, one of which worked four.
    assert (round(use.watched_ms), round(use.busy_ms), use.peak_memory_mib) == (10_000, 4_000, 4096)
    assert gpus.use_of("6-1") is None


def test_tasks_on_one_gpu_are_charged_by_their_work(install: Install, whose: dict[int, int]) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    gpus = polled()
    whose |= {51: 50, 61: 60}
    gpu.processes, gpu.utilisation = {51: 2**30, 61: 2**30}, 100
    gpu.work = [(51, 1_000, 60), (61, 1_000, 20)]

    gpus.poll([a_holder("5-1", 0, leader=50), a_holder("6-1", 0, leader=60)], now=1004.0)

    busy = [use_of(gpus, key).busy_ms for key in ("5-1", "6-1")]
    assert [round(ms) for ms in busy] == [3000, 1000]


def test_a_task_that_only_holds_is_not_charged_with_another_ones_work(
    install: Install, whose: dict[int, int]
) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    gpus = polled()
    gpu.processes, gpu.utilisation = {99: 2**30}, 100  # no task's

    gpus.poll([a_holder("5-1", 0)], now=1004.0)

    use = use_of(gpus, "5-1")
    assert (round(use.watched_ms), use.busy_ms) == (4000, 0)


def test_no_more_is_watched_than_it_ran(install: Install, whose: dict[int, int]) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    gpus = polled()
    whose[51] = 50
    gpu.processes, gpu.utilisation = {51: 0}, 100

    gpus.poll([a_holder("5-1", 0, ran_ms=500)], now=1005.0)
    use = use_of(gpus, "5-1")
    assert (use.watched_ms, use.busy_ms) == (500, 500)

    gpus.poll([a_holder("5-1", 0)], now=9005.0)  # the machine slept, or the driver hung
    assert use.watched_ms == 500 + 4000 * POLL_SECONDS


def test_use_outlives_the_agent_until_its_task_is_forgotten(
    install: Install, whose: dict[int, int], tmp_path: Path
) -> None:
    install(FakeGpu("GPU-a"))
    gpus = polled(tmp_path)
    gpus.poll([a_holder("5-1", 0)], now=1005.0)
    gpus.close()

    later = polled(tmp_path)
    later.poll([a_holder("5-1", 0)], now=1005.0)

    use = use_of(later, "5-1")
    assert use.watched_ms == 10_000
    assert (tmp_path / "gpus.json").stat().st_mode & 0o077 == 0


def test_a_foreign_process_on_a_gpu_is_reported_when_it_stays(
    install: Install, whose: dict[int, int]
) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    gpus = polled()
    whose[51] = 50
    gpu.processes = {51: 2**30, os.getpid(): 2**30}
    name = Path("/proc/self/comm").read_text().strip()

    gpus.poll([a_holder("5-1", 0)], now=1005.0)
    assert gpus.devices()[0]["trouble"] == ""  # it may be gone in a moment
    gpus.poll([a_holder("5-1", 0)], now=1010.0)

    [device] = gpus.devices()
    words = f"used by {name} (process {os.getpid()}), which Muster did not start"
    assert (device["healthy"], device["trouble"]) == (True, words)

    del gpu.processes[os.getpid()]
    gpus.poll([a_holder("5-1", 0)], now=1015.0)
    assert gpus.devices()[0]["trouble"] == ""


def test_a_task_that_uses_a_gpu_it_was_not_given_is_reported(install: Install, whose: dict[int, int]) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    whose[51] = 50
    gpu.processes = {51: 2**30}
    gpus = polled()

    for now in (1005.0, 1010.0):
        gpus.poll([a_holder("5-1", leader=50)], now=now)

    assert gpus.devices()[0]["trouble"] == "used by a job that was not given it (process 51)"


@pytest.mark.parametrize(("holders", "healthy"), [((), False), ((a_holder("5-1", 0),), True)])
def test_a_gpu_that_a_stranger_uses_can_be_kept_from_jobs(
    install: Install, whose: dict[int, int], holders: tuple[Holder, ...], healthy: bool
) -> None:
    """Not while a job has it: what it holds stays its own."""
    install(FakeGpu("GPU-a", processes={os.getpid(): 2**30}))
    gpus = polled(avoid_used=True)

    for now in (1005.0, 1010.0):
        gpus.poll(holders, now=now)

    assert gpus.devices()[0]["healthy"] is healthy


def test_in_a_container_the_holder_is_charged_and_no_process_is_foreign(
    monkeypatch: pytest.MonkeyPatch, install: Install, whose: dict[int, int]
) -> None:
    """NVML speaks of process numbers that mean something else there."""
    monkeypatch.setattr(usage, "sees_all_processes", lambda: False)
    gpu = FakeGpu("GPU-a", processes={os.getpid(): 2**30}, utilisation=50)
    install(gpu)
    gpus = polled()

    for now in (1004.0, 1008.0):
        gpus.poll([a_holder("5-1", 0)], now=now)

    use = use_of(gpus, "5-1")
    assert (use.watched_ms, use.busy_ms) == (8000, 4000)
    assert gpus.devices()[0]["trouble"] == ""

    for now in (1012.0, 1016.0):
        gpus.poll(now=now)
    words = f"used by a program (process {os.getpid()}), which Muster did not start"
    assert gpus.devices()[0]["trouble"] == words


def test_samples_alone_are_no_news(install: Install, tmp_path: Path) -> None:
    gpu = FakeGpu("GPU-a")
    install(gpu)
    gpus = polled()
    before, version = take_inventory(Overrides(), tmp_path, gpus), gpus.version

    gpu.utilisation, gpu.temperature, gpu.power_mw, gpu.used = 99, 70, 500_000, 2**33
    gpus.poll(now=1005.0)

    after = take_inventory(Overrides(), tmp_path, gpus)
    assert gpus.version == version
    assert before["devices"] != after["devices"]
    assert without_samples(before)["devices"] == without_samples(after)["devices"]
