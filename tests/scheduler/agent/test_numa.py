"""NUMA domains as the kernel has them or as the command line lays them out, and CPUs to bind tasks to."""

from __future__ import annotations

from pathlib import Path

from scheduler.agent import cpus, numa


def a_machine(root: Path, domains: dict[int, tuple[str, int]]) -> Path:
    """What the kernel says of so many domains: number -> CPUs, MiB."""
    for number, (cpu_list, memory_mib) in domains.items():
        folder = root / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpu_list + "\n")
        lines = {"MemTotal": memory_mib, "MemFree": 100, "Active(file)": 20, "Inactive(file)": 3}
        (folder / "meminfo").write_text(
            "".join(f"Node {number} {name}: {value * 1024} kB\n" for name, value in lines.items())
        )
    return root


def test_numa_domains_are_those_of_the_kernel_or_laid_out(tmp_path: Path) -> None:
    usable = [0, 1, 2, 3, 6, 9]
    root = a_machine(tmp_path, {8: ("4-7", 3000), 0: ("0-3", 1000), 1: ("", 500)})

    assert numa.domains(root=root, usable=usable) == [
        numa.Domain(0, (0, 1, 2, 3), 1000), numa.Domain(1, (), 500), numa.Domain(8, (6,), 3000),
    ]  # fmt: skip
    assert numa.domains(2, root, usable=usable) == [
        numa.Domain(0, (0, 1, 2), 2250, real=False), numa.Domain(1, (3, 6, 9), 2250, real=False),
    ]  # fmt: skip
    assert numa.free_mib(8, root) == 123
    (only,) = numa.domains(root=tmp_path / "nothing", usable=usable)
    assert (only.number, only.cpus) == (0, (0, 1, 2, 3, 6, 9))


def test_bound_tasks_go_where_the_fewest_are() -> None:
    def choose(
        limit_millis: int | None, among: tuple[int, ...], bound: list[tuple[int, ...]]
    ) -> tuple[int, ...]:
        return cpus.choose_cpus(limit_millis, among, bound, usable=[0, 1, 2, 3])

    assert choose(1500, (), []) == (0, 1)
    assert choose(2000, (), [(0, 1), (2,)]) == (0, 3)
    assert choose(1000, (), [(0, 1), (2,), (3,), (3,)]) == (0,)
    assert choose(4000, (), []) == ()  # all there are: nothing to bind
    assert choose(None, (2, 3), []) == (2, 3)
    assert choose(None, (7,), []) == ()  # CPUs it has not: bound to none of them
