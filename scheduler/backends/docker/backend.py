"""Tasks as containers of Docker hosts.

What is known of a task is in its container: its name and labels say which task it is, so a backend that is made anew
goes on where the one before it stopped. A container stays until Muster has its end and its output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import structlog

from scheduler.agent.protocol import Assignment, Report, Stop
from scheduler.backends.base import Capabilities, Machine, Observation, Output
from scheduler.backends.docker.container import (
    GRACE_LABEL,
    TIME_LIMIT,
    container_name,
    container_options,
    folder_archive,
    moment,
    past_limit,
    report_of,
    task_of,
)
from scheduler.backends.docker.host_link import HostAway, HostLink, Refused
from scheduler.backends.docker.hosts import DockerHost, DockerSettings
from scheduler.backends.docker.images import Images
from scheduler.backends.docker.output import OutputFollower

log = structlog.get_logger(__name__)

#: The end of a task waits for its output to be stored, but no longer than this.
OUTPUT_SECONDS: Final = 5.0
#: Output that could not be stored for so long after the end is given up.
GIVE_UP_SECONDS: Final = 600.0
CAPABILITIES: Final = Capabilities(
    is_driven=True,
    streams_logs=True,
    suspends=True,
    runs_images=True,
    needs_image=True,
    keeps_files=False,
    writes_output_files=False,
    makes_checkpoints=False,
    runs_probes=False,
    binds_numa=False,
    runs_elements=False,
    resizes=False,
    sends_limit_signals=False,
)
_STATES_OF_A_TASK_THAT_RUNS: Final = ("running", "paused", "restarting")

_Key = tuple[int, int]


@dataclass(slots=True)
class _Stopping:
    """A task that was asked to end: why, and when it is killed (monotonic); None once it was."""

    reason: str
    kill_at: float | None


@dataclass(slots=True)
class _Host:
    """One host, with what is under way there."""

    link: HostLink
    images: Images
    #: Tasks that wait for their image, or that could not be started: what is reported of these.
    waiting: dict[_Key, Assignment] = field(default_factory=dict)
    failed: dict[_Key, str] = field(default_factory=dict)
    stopping: dict[_Key, _Stopping] = field(default_factory=dict)
    followers: dict[_Key, OutputFollower] = field(default_factory=dict)
    #: When the end of a task was seen first (monotonic).
    ended_at: dict[_Key, float] = field(default_factory=dict)
    #: What a container was inspected to be in the state that lists show.
    inspected: dict[_Key, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    lost: list[_Key] = field(default_factory=list)


class DockerBackend:
    """The hosts of one cluster; `cluster_key` is `Cluster.backend_key`."""

    name = "docker"
    capabilities = CAPABILITIES

    def __init__(self, settings: DockerSettings, cluster_key: str, *, log_cap_bytes: int) -> None:
        self._settings, self._cluster_key = settings, cluster_key
        self._log_cap_bytes = log_cap_bytes
        self._hosts = {host.name: self._host(host) for host in settings.hosts}

    def _host(self, host: DockerHost) -> _Host:
        link = HostLink(host, self._cluster_key)
        return _Host(link, Images(link))

    def _at(self, node: str) -> _Host:
        try:
            return self._hosts[node]
        except KeyError:
            raise HostAway(f"The settings of the cluster name no Docker host {node}.") from None

    # ------------------------------------------------------------ machines

    def machines(self) -> Sequence[Machine]:
        return [self._machine(host) for host in self._hosts.values()]

    def _machine(self, host: _Host) -> Machine:
        of = host.link.host
        try:
            info = host.link.info()
        except (HostAway, Refused) as error:
            return Machine(of.name, trouble=str(error))
        return Machine(of.name, _inventory(of, info))

    # ------------------------------------------------------------ start

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        host = self._at(node)
        for assignment in assignments:
            host.waiting[assignment["task"], assignment["epoch"]] = assignment
        self._start_waiting(node, host)

    def _start_waiting(self, node: str, host: _Host) -> None:
        """Start the tasks whose image is there; a task that Docker refuses is reported as failed, with its words."""
        for key, assignment in list(host.waiting.items()):
            image = assignment["image"]
            try:
                pull = host.images.pull_of(image)
                if pull is not None and not pull.is_done:
                    continue
                if pull is not None:
                    host.images.forget(image)
                    host.failed[key] = f"Image {image} cannot be fetched: {pull.error}"[:300]
                else:
                    self._start(node, host, assignment)
            except Refused as refused:
                host.failed[key] = f"Docker refused to start the task: {refused}"[:300]
                self._remove(host, key)
            del host.waiting[key]

    def _start(self, node: str, host: _Host, assignment: Assignment) -> None:
        """Safe to repeat: the container has one name, and one that was created and not started is started."""
        task, epoch = assignment["task"], assignment["epoch"]
        name = container_name(self._cluster_key, task, epoch)
        options = container_options(assignment, self._cluster_key, self._settings, node_name=node)
        container = host.link.create(name, options)
        found = host.link.inspect(container)
        if found is not None and found["State"]["Status"] == "created":
            host.link.put(container, folder_archive(assignment))
            host.link.start(container)
        self._follow(host, container, (task, epoch))

    def _follow(self, host: _Host, container: str, key: _Key) -> None:
        if key not in host.followers:
            host.followers[key] = OutputFollower(host.link, container, *key, cap_bytes=self._log_cap_bytes)

    # ------------------------------------------------------------ stop, suspend, forget

    def stop(self, node: str, stops: Sequence[Stop]) -> None:
        host = self._at(node)
        for stop in stops:
            key = stop["task"], stop["epoch"]
            if stop["stale"]:
                self._forget_once_stored(host, key)
            elif host.waiting.pop(key, None) is not None:
                host.failed[key] = ""
                host.stopping[key] = _Stopping(stop["reason"], None)
            elif key not in host.stopping:
                self._end(host, key, stop["reason"], stop["grace_seconds"])

    def _end(self, host: _Host, key: _Key, reason: str, grace_seconds: float) -> None:
        host.stopping[key] = _Stopping(reason, time.monotonic() + grace_seconds)
        name = container_name(self._cluster_key, *key)
        if host.inspected.get(key, ("", {}))[0] == "paused":
            host.link.pause(name, False)  # a suspended process does not see the signal
        host.link.kill(name, "SIGTERM")

    def _kill_overdue(self, host: _Host) -> None:
        for key, stopping in host.stopping.items():
            if stopping.kill_at is not None and time.monotonic() >= stopping.kill_at:
                host.link.kill(container_name(self._cluster_key, *key), "SIGKILL")
                stopping.kill_at = None

    def _forget_once_stored(self, host: _Host, key: _Key) -> None:
        """Remove a container that Muster needs no more; one that has ended stays until its output is stored."""
        follower, ended_at = host.followers.get(key), host.ended_at.get(key)
        if follower is None or ended_at is None or follower.is_stored:
            self._forget(host, key)
        elif time.monotonic() > ended_at + GIVE_UP_SECONDS:
            log.warning("output_given_up", host=host.link.host.name, task=key[0])
            self._forget(host, key)

    def _forget(self, host: _Host, key: _Key) -> None:
        self._remove(host, key)
        host.waiting.pop(key, None)
        host.failed.pop(key, None)
        host.stopping.pop(key, None)
        host.ended_at.pop(key, None)
        host.inspected.pop(key, None)
        follower = host.followers.pop(key, None)
        if follower is not None:
            follower.close()

    def _remove(self, host: _Host, key: _Key) -> None:
        host.link.remove(container_name(self._cluster_key, *key))

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        host = self._at(node)
        for task, epoch, suspended in pauses:
            host.link.pause(container_name(self._cluster_key, task, epoch), bool(suspended))

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        host = self._at(node)
        there = {task_of(one["Labels"]) for one in host.link.containers()}
        for task, epoch in asked:
            key = task, epoch
            if key not in there and key not in host.waiting and key not in host.failed:
                host.lost.append(key)

    # ------------------------------------------------------------ observe

    def observe(self, node: str) -> Observation:
        host = self._at(node)
        self._start_waiting(node, host)
        self._kill_overdue(host)
        clock = host.link.clock()
        known: dict[int, int] = {}
        reports: list[Report] = []
        for listed in host.link.containers():
            key = task_of(listed["Labels"])
            if key is None:
                continue
            found = self._inspect(host, key, listed)
            if found is None or (found["State"]["Status"] == "created" and key not in host.failed):
                continue  # not begun: it is asked for again, and `submit` goes on with it
            known[key[0]] = key[1]
            self._follow(host, listed["Id"], key)
            report = self._report(host, key, found, clock)
            if report is not None:
                reports.append(report)
        for key in host.waiting:
            known.setdefault(*key)
        for key, text in host.failed.items():
            known.setdefault(*key)
            reports.append(_failed(key, text, host.stopping.get(key)))
        reports += [
            Report(task=task, epoch=epoch, state="lost", text="The container is not there any more.")
            for task, epoch in host.lost
        ]
        host.lost.clear()
        return Observation(known, reports)

    def _inspect(self, host: _Host, key: _Key, listed: Mapping[str, Any]) -> dict[str, Any] | None:
        """All of a container, asked for once in each state that it has."""
        state = str(listed["State"])
        before = host.inspected.get(key)
        if before is not None and before[0] == state:
            return before[1]
        found = host.link.inspect(listed["Id"])
        if found is not None and found["State"]["Status"] == state:
            host.inspected[key] = state, found
        return found

    def _report(self, host: _Host, key: _Key, found: Mapping[str, Any], clock: datetime) -> Report | None:
        """None where nothing is to be said yet: an end waits for the output to be stored."""
        stopping = host.stopping.get(key)
        report = report_of(found, host_time=clock, stop_reason=stopping.reason if stopping else "", text="")
        if report is None:
            return None
        if found["State"]["Status"] in _STATES_OF_A_TASK_THAT_RUNS:
            self._watch_limit(host, key, found, clock)
            return report
        follower = host.followers[key]
        follower.ended()
        ended_at = host.ended_at.setdefault(key, time.monotonic())
        if not follower.is_stored and time.monotonic() < ended_at + OUTPUT_SECONDS:
            return None
        report["stdout_bytes"], report["stderr_bytes"] = follower.sizes["stdout"], follower.sizes["stderr"]
        return report

    def _watch_limit(self, host: _Host, key: _Key, found: Mapping[str, Any], clock: datetime) -> None:
        began = moment(found["State"]["StartedAt"])
        labels = found["Config"]["Labels"]
        if key in host.stopping or began is None or found["State"]["Paused"]:
            return
        if past_limit(labels, (clock - began).total_seconds()):
            self._end(host, key, TIME_LIMIT, int(labels.get(GRACE_LABEL) or 0))

    # ------------------------------------------------------------ output

    def output(self, node: str) -> Sequence[Output]:
        return [one for follower in self._at(node).followers.values() for one in follower.output()]

    def keep_output(self, node: str, ends: Mapping[tuple[int, str], int]) -> None:
        for (task, _), follower in self._at(node).followers.items():
            follower.stored({stream: end for (one, stream), end in ends.items() if one == task})

    def close(self) -> None:
        for host in self._hosts.values():
            for follower in host.followers.values():
                follower.close()
            host.link.close()


def _failed(key: _Key, text: str, stopping: _Stopping | None) -> Report:
    """A task that has never run: it could not be started, or was asked to end before it was."""
    report = Report(task=key[0], epoch=key[1], state="failed", ended_ago_ms=0, stdout_bytes=0, stderr_bytes=0)
    if stopping is not None:
        report["state"], report["stop_reason"] = "stopped", stopping.reason
    if text:
        report["text"] = text
    return report


def _inventory(host: DockerHost, info: Mapping[str, Any]) -> dict[str, Any]:
    """A host as agents report a machine; what Docker does not say of it is in the settings."""
    return {
        "cpu_millis": (host.cpus or int(info["NCPU"])) * 1000,
        "memory_mib": host.memory_mib or int(info["MemTotal"]) // 2**20,
        "storage_mib": 0,
        "numa_domains": 1,
        "boot_id": str(info.get("ID", ""))[:64],
        "agent_version": f"Docker {info.get('ServerVersion', '')}"[:32],
        "labels": {
            "backend": "docker",
            "os": str(info.get("OSType", "")),
            "arch": str(info.get("Architecture", "")),
            **dict(host.labels),
        },
        "devices": [
            {
                "index": number,
                "uuid": f"{host.name}-gpu{number}",
                "model": model,
                "memory_mib": 0,
                "numa_domain": 0,
            }
            for number, model in enumerate(host.gpus)
        ],
    }
