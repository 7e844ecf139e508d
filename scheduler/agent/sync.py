"""The sync call: sends reports and the inventory to the server, and does what the answer says."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from scheduler.agent import PROTOCOL, VERSION, processes
from scheduler.agent.checkpoints.service import CheckpointService
from scheduler.agent.console import say
from scheduler.agent.fetches.service import Fetches, ToFetch
from scheduler.agent.gpu.gpus import Gpus
from scheduler.agent.node.inventory import MeasuredInventory
from scheduler.agent.protocol import Assignment, Report, Stop, SyncAnswer, SyncRequest, TaskOrder
from scheduler.agent.server.client import ServerClient, clock_ms
from scheduler.agent.settings import Settings
from scheduler.agent.shim_link import ShimLink
from scheduler.agent.tasks.orders import task_order
from scheduler.agent.tasks.task_table import TaskTable
from scheduler.agent.tasks.world_file import write_world

PATH: Final = "/api/v1/agent/sync"
#: Beyond the time for which the server may hold a call.
_ANSWER_SECONDS: Final = 20.0
#: Leases that end this near to each other are the same one.
_SAME_LEASE_SECONDS: Final = 0.5
#: The shortest lease that the shim gets: 0 would mean no fence.
_LEAST_FENCE_SECONDS: Final = 0.1


class ServerSync:
    """Carries tasks between the server and the shim; any thread may call `poll` and `send`."""

    def __init__(
        self,
        settings: Settings,
        *,
        table: TaskTable,
        link: ShimLink,
        inventory: MeasuredInventory,
        gpus: Gpus | None,
        checkpoints: CheckpointService,
        fetches: Fetches,
    ) -> None:
        self._settings = settings
        self._session = uuid.uuid4().hex
        self._table, self._link, self._inventory, self._gpus = table, link, inventory, gpus
        self._checkpoints, self._fetches = checkpoints, fetches
        self._lease_until = 0.0
        #: Tasks whose file says that their job has become smaller, with their epochs and the size.
        self._worlds: dict[int, tuple[int, int]] = {}
        #: Tasks whose time limit was changed while they ran, with their epochs and that limit.
        self._limits: dict[int, tuple[int, int]] = {}
        #: The tasks that the server did not know, at its last answer to `poll`.
        self._to_describe: list[list[int]] = []
        #: Set when somebody wants files of a job on this node.
        self.files_wanted = threading.Event()

    def poll(self, client: ServerClient, *, wait_seconds: float) -> SyncAnswer:
        """Say which tasks and devices are here, and wait up to `wait_seconds` for news from the server."""
        request = self._request(wait_seconds=wait_seconds, known=self._table.known())
        if (inventory := self._inventory.to_send()) is not None:
            request["inventory"] = inventory
        asked = [self._table.get(task, epoch) for task, epoch in self._to_describe]
        known = {task for task, _ in request["known"]}
        self._worlds = {task: said for task, said in self._worlds.items() if task in known}
        request["worlds"] = [[task, *said] for task, said in self._worlds.items()]
        self._limits = {task: said for task, said in list(self._limits.items()) if task in known}
        self._pass_on_limits()
        request["limits"] = [[task, *said] for task, said in list(self._limits.items())]
        if described := [entry.described() for entry in asked if entry is not None]:
            request["described"] = described
        answer = self._call(client, request)
        self._to_describe = answer.get("describe", [])
        return answer

    def send(self, client: ServerClient, reports: list[Report]) -> SyncAnswer:
        """Send these reports; the server answers at once."""
        return self._call(client, self._request(reports=reports))

    def _request(
        self,
        *,
        wait_seconds: float = 0.0,
        known: list[list[int]] | None = None,
        reports: list[Report] | None = None,
    ) -> SyncRequest:
        return SyncRequest(
            protocol=PROTOCOL,
            session=self._session,
            wait_seconds=wait_seconds,
            known=known or [],
            reports=reports or [],
            boot_id=processes.boot_id(),
            agent_version=VERSION,
            clock_ms=clock_ms(),
        )

    def _call(self, client: ServerClient, request: SyncRequest) -> SyncAnswer:
        sent_at = time.monotonic()
        timeout_seconds = request["wait_seconds"] + _ANSWER_SECONDS
        answer: SyncAnswer = client.post(PATH, request, timeout_seconds=timeout_seconds)
        if "inventory" in request:
            self._inventory.was_sent(request["inventory"])
        if answer["inventory_wanted"]:
            self._inventory.send_again()
        self.apply(answer, sent_at=sent_at)
        return answer

    # ------------------------------------------------------------ the answer

    def apply(self, answer: SyncAnswer, *, sent_at: float) -> None:
        """Do what the server says; each part may come twice. `sent_at` is when it was asked (monotonic)."""
        self._table.cap_bytes = answer["log_cap_bytes"]
        self._extend_lease(answer["fence_seconds"], sent_at=sent_at)
        self._start(answer["assignments"])
        self._stop(answer["stops"])
        self._suspend_and_resume(answer.get("pauses", ()))
        for task, epoch, number in answer.get("checkpoints", ()):
            if (entry := self._table.get(task, epoch)) is not None:
                self._checkpoints.ask(entry, number)
        for task, epoch, size, ranks in answer.get("worlds", ()):
            entry = self._table.get(task, epoch)
            if entry is not None and not entry.ended and write_world(entry, size, ranks):
                self._worlds[task] = (epoch, size)
        for task, epoch, limit in answer.get("limits", ()):
            if self._table.get(task, epoch) is not None:
                self._limits[task] = (epoch, limit)
        self._pass_on_limits()
        if answer["verify"]:
            self._table.verify(answer["verify"])
        if answer.get("files_wanted"):
            self.files_wanted.set()

    def _extend_lease(self, fence_seconds: float, *, sent_at: float) -> None:
        """Pass the lease on before tasks start under it.

        It counts from when we asked: however long the answer took, the server counts from before the answer. Leases
        are compared by when they end, not by when they came: after the agent was suspended, the answer to an old
        question comes first, and a task that is started with the next answer must not end with the old lease.
        """
        until = sent_at + fence_seconds
        if fence_seconds and abs(until - self._lease_until) > _SAME_LEASE_SECONDS:
            self._link.extend_lease(max(_LEAST_FENCE_SECONDS, until - time.monotonic()))
            self._lease_until = until

    def _start(self, assignments: Iterable[Assignment]) -> None:
        orders: list[TaskOrder] = []
        for assignment in assignments:
            if self._table.get(assignment["task"], assignment["epoch"]) is not None:
                continue  # it comes twice
            task, epoch, devices = assignment["task"], assignment["epoch"], assignment["devices"]
            order = task_order(
                assignment,
                self._settings.state,
                node_name=self._settings.name,
                gpu_names=self._gpus.names(devices) if self._gpus and devices else None,
                numa_domains=self._settings.overrides.numa_domains,
                process_limit=self._settings.process_limit,
                requests_are_limits=self._settings.requests_are_limits,
            )
            to_fetch = ToFetch(assignment.get("upload", ""), assignment.get("restore", False))
            fetching = any(to_fetch)
            try:
                if "secrets" in order:
                    self._table.secrets.keep(order["key"], order["secrets"]["masked"])
            except OSError as error:  # what cannot be masked later must not start; the server gives it again
                say(f"the secrets of task {order['key']} cannot be kept: {error}")
                continue
            added = self._table.add(
                task, epoch, job=assignment["job"], folder=order["folder"], fetching=fetching
            )
            if added and fetching:
                self._fetches.begin(order, to_fetch)
            elif added:
                orders.append(order)
        if orders:
            self._link.start_tasks(orders)

    def _stop(self, stops: Iterable[Stop]) -> None:
        for stop in stops:
            entry = self._table.get(stop["task"], stop["epoch"])
            if entry is None:
                continue
            entry.stale = entry.stale or stop["stale"]
            if entry.fetching:
                self._fetches.stop(entry.key, stop["reason"])
            elif not entry.ended and not self._checkpoints.hold(entry, stop):
                self._link.stop_task(entry.key, reason=stop["reason"], grace_seconds=stop["grace_seconds"])

    def _pass_on_limits(self) -> None:
        """Tell the shim each time limit that its record of the task does not have yet: a command may be lost."""
        for task, (epoch, limit) in list(self._limits.items()):
            entry = self._table.get(task, epoch)
            if entry is None or entry.ended or entry.fetching:
                continue
            if entry.record is None or entry.record.get("changed_limit") != limit:
                self._link.change_limit(entry.key, limit)

    def _suspend_and_resume(self, pauses: Iterable[Sequence[int]]) -> None:
        for task, epoch, suspended in pauses:
            entry = self._table.get(task, epoch)
            if entry is None or entry.ended:
                continue
            if suspended:
                self._link.suspend_task(entry.key)
            else:
                self._link.resume_task(entry.key)
