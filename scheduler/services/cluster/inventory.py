"""Inventory: what an agent reports of its machine, validated, and written without changing what is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infra.errors import FieldProblem, InvalidInput
from infra.plain_text import line_problem
from quotas.core.gpu_models import share_of
from scheduler import outbox
from scheduler.models import Device, Node
from scheduler.services.cluster.isolation import DISK_LABEL, LABEL, labels_by, read_isolation
from scheduler.services.cluster.overcommit import may_give_away

MAX_DEVICES: Final = 256
#: 2**40 MiB or thousandths: more than any machine has, and far from the end of a bigint.
MAX_AMOUNT: Final = 2**40
MAX_LABELS: Final = 64


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    index: int
    uuid: str
    model: str
    memory_mib: int
    numa_domain: int
    healthy: bool
    fake: bool
    utilisation_percent: int | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_watts: int | None
    #: Why it is not healthy, or what else there is to know.
    trouble: str


@dataclass(frozen=True, slots=True)
class Inventory:
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    numa_domains: int
    domains: tuple[tuple[int, int, int], ...]
    boot_id: str
    agent_version: str
    labels: tuple[tuple[str, str], ...]
    partitions: tuple[str, ...]
    devices: tuple[DeviceFacts, ...]
    #: Why the agent may not see all GPUs.
    gpu_trouble: str
    #: See `isolation`; empty for an agent that says nothing of it.
    isolation: Mapping[str, Any] = field(default_factory=dict)
    #: What the site's health check found: "" = nothing, None = there is no such check.
    health_problem: str | None = None


class _Reader:
    """Reads fields and collects every problem, so that a refusal names them all."""

    def __init__(self) -> None:
        self.problems: list[FieldProblem] = []

    def whole(self, data: Mapping[str, Any], name: str, under: str = "", *, least: int = 0, most: int) -> int:
        value = data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.problems.append(FieldProblem(under + name, f"has to be a whole number from {least} to {most}"))
        return least

    def optional(
        self, data: Mapping[str, Any], name: str, under: str, *, least: int, most: int
    ) -> int | None:
        return None if data.get(name) is None else self.whole(data, name, under, least=least, most=most)

    def text(self, data: Mapping[str, Any], name: str, under: str = "", *, most: int) -> str:
        value = data.get(name, "")
        if isinstance(value, str) and not line_problem(value[:most]):
            return value[:most]
        self.problems.append(
            FieldProblem(under + name, "has to be text of one line, without control characters")
        )
        return ""


def read_inventory(data: Any) -> Inventory:
    """The inventory of a message; raises InvalidInput that names every wrong field."""
    if not isinstance(data, Mapping):
        raise InvalidInput(message="`inventory` has to be an object.")
    read = _Reader()
    devices = data.get("devices", [])
    labels = data.get("labels", {})
    partitions = data.get("partitions", [])
    if not isinstance(devices, list) or len(devices) > MAX_DEVICES:
        read.problems.append(FieldProblem("devices", f"has to be a list of at most {MAX_DEVICES}"))
        devices = []
    if not _is_texts(labels) or len(labels) > MAX_LABELS:
        read.problems.append(FieldProblem("labels", f"has to be an object of at most {MAX_LABELS} texts"))
        labels = {}
    if not isinstance(partitions, list) or not all(
        isinstance(name, str) and not line_problem(name) for name in partitions
    ):
        read.problems.append(FieldProblem("partitions", "has to be a list of names"))
        partitions = []
    result = Inventory(
        cpu_millis=read.whole(data, "cpu_millis", least=1, most=MAX_AMOUNT),
        memory_mib=read.whole(data, "memory_mib", least=1, most=MAX_AMOUNT),
        storage_mib=read.whole(data, "storage_mib", most=MAX_AMOUNT),
        numa_domains=read.whole(data, "numa_domains", least=1, most=1024),
        domains=_domains(read, data.get("domains", [])),
        boot_id=read.text(data, "boot_id", most=64),
        agent_version=read.text(data, "agent_version", most=32),
        labels=tuple(sorted((key[:120], value[:200]) for key, value in labels.items())),
        partitions=tuple(partitions),
        devices=tuple(_device(read, device, f"devices/{n}/") for n, device in enumerate(devices)),
        gpu_trouble=read.text(data, "gpu_trouble", most=200),
        isolation=read_isolation(data.get("isolation")),
        health_problem=_health_problem(read, data),
    )
    if len({device.index for device in result.devices}) < len(result.devices):
        read.problems.append(FieldProblem("devices", "has two with the same index"))
    if read.problems:
        raise InvalidInput(message="The inventory of the node cannot be read.", problems=read.problems[:50])
    return result


def _health_problem(read: _Reader, data: Mapping[str, Any]) -> str | None:
    return None if data.get("health_problem") is None else read.text(data, "health_problem", most=150)


def _device(read: _Reader, data: Any, under: str) -> DeviceFacts:
    if not isinstance(data, Mapping):
        read.problems.append(FieldProblem(under.rstrip("/"), "has to be an object"))
        data = {}
    return DeviceFacts(
        index=read.whole(data, "index", under, most=MAX_DEVICES),
        uuid=read.text(data, "uuid", under, most=80),
        model=read.text(data, "model", under, most=80),
        memory_mib=read.whole(data, "memory_mib", under, most=MAX_AMOUNT),
        numa_domain=read.whole(data, "numa_domain", under, most=1024),
        healthy=data.get("healthy") is not False,
        fake=data.get("fake") is True,
        utilisation_percent=read.optional(data, "utilisation_percent", under, least=0, most=100),
        memory_used_mib=read.optional(data, "memory_used_mib", under, least=0, most=MAX_AMOUNT),
        temperature_c=read.optional(data, "temperature_c", under, least=-100, most=1000),
        power_watts=read.optional(data, "power_watts", under, least=0, most=32_000),
        trouble=read.text(data, "trouble", under, most=200),
    )


def _domains(read: _Reader, data: Any) -> tuple[tuple[int, int, int], ...]:
    """(number, CPU thousandths, memory MiB) of each NUMA domain, by number; () where the agent does not report them."""
    if not isinstance(data, list) or len(data) > 1024:
        read.problems.append(FieldProblem("domains", "has to be a list of at most 1024"))
        return ()
    found: dict[int, tuple[int, int, int]] = {}
    for place, domain in enumerate(data):
        under = f"domains/{place}/"
        if not isinstance(domain, Mapping):
            read.problems.append(FieldProblem(under.rstrip("/"), "has to be an object"))
            continue
        number = read.whole(domain, "number", under, most=1024)
        if number in found:
            read.problems.append(FieldProblem(under + "number", "is there twice"))
        found[number] = (
            number,
            read.whole(domain, "cpu_millis", under, most=MAX_AMOUNT),
            read.whole(domain, "memory_mib", under, most=MAX_AMOUNT),
        )
    return tuple(found[number] for number in sorted(found))


def _is_texts(labels: Any) -> bool:
    return isinstance(labels, Mapping) and all(
        isinstance(text, str) and not line_problem(text) for item in labels.items() for text in item
    )


# ---------------------------------------------------------------- write


def apply_inventory(node: Node, machine: Inventory) -> bool:
    """Bring a locked node row and its devices up to date; True when the planner has to plan again.

    A machine that has less than is in use keeps its capacity and shows the trouble: running jobs continue,
    and no more start there until enough of them have ended.
    """
    shortfalls: list[str] = []

    def at_least_used(what: str, has: int, used: int) -> int:
        if has < used:
            shortfalls.append(f"{what}: has {has}, {used} in use")
        return max(has, used)

    given = may_give_away(node, cpu_millis=machine.cpu_millis, memory_mib=machine.memory_mib)
    changed_devices = _apply_devices(node, machine.devices)
    gpu_millis = sum(share_of(device.model) for device in machine.devices if device.healthy)
    fresh: dict[str, Any] = {
        "cpu_millis": machine.cpu_millis,
        "memory_mib": machine.memory_mib,
        "storage_mib": at_least_used("storage MiB", machine.storage_mib, node.used_storage_mib),
        "cpu_millis_capacity": at_least_used("CPU thousandths", given["cpu_millis"], node.used_cpu_millis),
        "memory_mib_capacity": at_least_used("memory MiB", given["memory_mib"], node.used_memory_mib),
        "gpu_millis": at_least_used("GPU thousandths", gpu_millis, node.used_gpu_millis),
        "numa_domains": machine.numa_domains,
        "domains": [list(domain) for domain in machine.domains],
        "labels": {**node.labels, **dict(machine.labels), **_isolation_label(node, machine)},
        "isolation": dict(machine.isolation),
        "boot_id": machine.boot_id,
        "agent_version": machine.agent_version,
    }
    trouble = [f"less than is in use ({'; '.join(shortfalls)})"] if shortfalls else []
    if fault := machine.isolation.get("fault"):
        trouble.insert(0, f"takes no tasks: {fault}")
    trouble += _gpu_troubles(machine)
    fresh["trouble"] = "; ".join(trouble)[:200]
    changed = {name: value for name, value in fresh.items() if getattr(node, name) != value}
    matters = changed_devices or bool(changed.keys() - {"boot_id", "agent_version"})
    if matters:
        changed["generation"] = node.generation + 1
        outbox.announce(outbox.CLUSTER_TOPIC)
        outbox.wake_planner(node.cluster_id, trigger="inventory")
    if changed:
        for name, value in changed.items():
            setattr(node, name, value)
        node.save(update_fields=list(changed))
    return matters


def _isolation_label(node: Node, machine: Inventory) -> dict[str, str]:
    """The labels by which jobs ask for isolation: never what somebody else says of the node."""
    if not machine.isolation and not {LABEL, DISK_LABEL} & {*node.labels, *dict(machine.labels)}:
        return {}
    return labels_by(machine.isolation)


def _gpu_troubles(machine: Inventory) -> list[str]:
    """What is wrong with its GPUs; GPUs with the same trouble share one text."""
    found: dict[tuple[bool, str], list[str]] = {}
    for device in machine.devices:
        if device.trouble or not device.healthy:
            found.setdefault((device.healthy, device.trouble), []).append(str(device.index))
    troubles = []
    for (healthy, why), numbers in sorted(found.items(), key=lambda item: item[0]):
        words = ("" if healthy else " not healthy") + (f": {why}" if why else "")
        troubles.append(f"GPU {', '.join(numbers)}{words}")
    named = {why for _, why in found}
    return troubles + ([f"GPUs: {machine.gpu_trouble}"] if machine.gpu_trouble not in {"", *named} else [])


_FACTS: Final = ("uuid", "model", "memory_mib", "numa_domain", "healthy", "fake", "trouble")
_SAMPLES: Final = ("utilisation_percent", "memory_used_mib", "temperature_c", "power_watts")


def _apply_devices(node: Node, devices: Sequence[DeviceFacts]) -> bool:
    """True when a device was added, removed or changed; new samples alone are no change."""
    known = {device.index: device for device in node.devices.filter(kind="gpu").order_by("index")}
    new: list[Device] = []
    touched: list[Device] = []
    matters = False
    for facts in devices:
        row = known.pop(facts.index, None)
        if row is None:
            columns = {name: getattr(facts, name) for name in (*_FACTS, *_SAMPLES)}
            share = share_of(facts.model)
            new.append(Device(node=node, index=facts.index, share_millis=share, **columns))
            continue
        before = (*(getattr(row, name) for name in _FACTS), row.gone)
        samples = tuple(getattr(row, name) for name in _SAMPLES)
        for name in (*_FACTS, *_SAMPLES):
            setattr(row, name, getattr(facts, name))
        row.gone = False
        row.share_millis = max(
            share_of(facts.model), row.used_millis
        )  # partitioned anew while a job holds it
        if before != (*(getattr(row, name) for name in _FACTS), False):
            matters = True
        elif samples == tuple(getattr(row, name) for name in _SAMPLES):
            continue
        touched.append(row)
    for row in known.values():
        if not row.gone:
            row.gone, matters = True, True
            touched.append(row)
    Device.objects.bulk_create(new)
    Device.objects.bulk_update(touched, [*_FACTS, *_SAMPLES, "gone", "share_millis"])
    return matters or bool(new)
