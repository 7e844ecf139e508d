"""The agent: keeps one call to the server open, reports at once what changes, and sends what tasks print."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scheduler.agent import PROTOCOL, VERSION, processes
from scheduler.agent.address import AddressFile, fixed
from scheduler.agent.client import Refused, ServerClient, ServerUnreachable, clock_ms
from scheduler.agent.gpus import SAMPLES, Gpus
from scheduler.agent.inventory import Overrides, take_inventory, without_samples
from scheduler.agent.keeper_link import KeeperLink
from scheduler.agent.logs import LogUploader
from scheduler.agent.orders import PROCESS_LIMIT, task_order
from scheduler.agent.protocol import SyncAnswer, SyncRequest, TaskOrder
from scheduler.agent.table import TaskTable

SYNC: Final = "/api/v1/agent/sync"
#: Tasks that end within this of each other share a report; a person does not notice, a batch of 500 does.
LINGER_SECONDS: Final = 0.01
MAX_REPORTS: Final = 500
#: The longest wait between the first questions to a server that does not answer, and how many those are.
PATIENT_SECONDS: Final = 1.0
PATIENT_FAILURES: Final = 40
LOG_SECONDS: Final = 0.25
INVENTORY_SECONDS: Final = 30.0
#: For the driver to tell of its GPUs at the start; a cold one takes seconds.
GPUS_SECONDS: Final = 20.0
#: On a stop of everything: for the tasks to end and for the server to hear of it.
SHUTDOWN_SECONDS: Final = 9.0
#: How long an agent with nothing to do waits for a portal that went without a word.
ABANDONED_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    server: str
    name: str
    state: Path
    join_token: str
    overrides: Overrides
    insecure_ok: bool = False
    ca_file: str | None = None
    #: How many processes a task may have at a time.
    process_limit: int = PROCESS_LIMIT
    #: End our tasks with the process that started us; 0 lets them live.
    parent_pid: int = 0
    #: End our tasks when we are asked to stop.
    ends_jobs: bool = False
    #: Read the address from here instead; see AddressFile.
    server_file: Path | None = None
    #: Kill an agent that has our folder.
    take_over: bool = False


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z {text}", flush=True)


class Backoff:
    """Waits longer after each failure, with jitter so that a fleet does not come back in step.

    For half a minute it asks about once a second: that long a restart of a web server or of a database takes, and
    new jobs wait for us as long as we wait.
    """

    def __init__(self, first_seconds: float = 0.2, most_seconds: float = 5.0) -> None:
        self.first_seconds, self.most_seconds = first_seconds, most_seconds
        self.failures = 0

    def succeeded(self) -> None:
        self.failures = 0

    def wait(self, stopping: threading.Event) -> None:
        most = (
            self.most_seconds if self.failures > PATIENT_FAILURES else min(PATIENT_SECONDS, self.most_seconds)
        )
        seconds = min(most, self.first_seconds * 2 ** min(self.failures, 10))
        self.failures += 1
        stopping.wait(seconds * (0.5 + random.random() / 2))


class Agent:
    """One node. Three threads share the table: `poll` asks for work, `report` tells what changed, `logs` uploads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.session = uuid.uuid4().hex
        self.table = TaskTable()
        self.stopping = threading.Event()
        self.link = KeeperLink(settings.state, watch_pid=settings.parent_pid, on_records=self._on_records)
        self._identity = settings.state / "identity.json"
        self._key = ""
        self._registering = threading.Lock()
        self._lease_until = 0.0
        self._sent_inventory: dict[str, Any] | None = None
        self._inventory_at = 0.0
        self._inventory: dict[str, Any] = {}
        self._gpus_version = 0
        given = settings.overrides
        has_none = given.no_gpus or bool(given.fake_gpus)
        self.gpus = None if has_none else Gpus(settings.state, avoid_used=given.avoid_used_gpus)
        if self.gpus is not None:
            self.table.gpu_use_of, self.table.gpu_faults_of = self.gpus.use_of, self.gpus.faults_of
        self._reached = True
        self._address_file = AddressFile(settings.server_file) if settings.server_file else None
        self._address = self._address_file or fixed(settings.server)
        #: Our portal went without a word, and nothing is left to do for us until there is another.
        self._abandoned = False

    # ------------------------------------------------------------ start and stop

    def run(self) -> None:
        (self.settings.state / "tasks").mkdir(mode=0o700, exist_ok=True)
        self.link.start()
        if len(self.table):
            say(f"adopted {len(self.table)} tasks from before this start")
        threads = [
            threading.Thread(target=self._guard(self._poll), name="poll", daemon=True),
            threading.Thread(target=self._guard(self._report), name="report", daemon=True),
            threading.Thread(target=self._guard(self._upload), name="logs", daemon=True),
        ]
        if self.gpus is not None:
            watch = threading.Thread(target=self._guard(self._watch_gpus), name="gpus", daemon=True)
            watch.start()
            self.gpus.wait(GPUS_SECONDS)
        for thread in threads:
            thread.start()
        self.stopping.wait()
        if self.settings.ends_jobs and not self._abandoned:
            self._end_tasks()
        self.link.close()

    def _guard(self, work: Callable[[], None]) -> Callable[[], None]:
        """A thread that dies of a mistake takes the agent with it: whoever supervises us starts a sound one."""

        def guarded() -> None:
            try:
                work()
            except Exception:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
                os._exit(70)

        return guarded

    def _watch_gpus(self) -> None:
        assert self.gpus is not None
        self.gpus.watch(self.table.gpu_holders, self.table.keys)

    def _end_tasks(self) -> None:
        """The whole portal stops: so do our tasks, and the server is told so that it can run them again."""
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        if live := self.table.live():
            say(f"stopping {live} tasks")
        self.link.shutdown()
        while self.table.live() and time.monotonic() < deadline:
            time.sleep(0.05)
        client = self._client()
        try:
            self._send_reports(client)
        except (ServerUnreachable, Refused):
            say("the server is away; it will hear at the next start")

    def _on_records(self, records: list[Any], complete: bool) -> None:
        self.table.update(records, complete=complete)

    # ------------------------------------------------------------ who we are

    def _client(self) -> ServerClient:
        s = self.settings
        client = ServerClient(find=self._address, insecure_ok=s.insecure_ok, ca_file=s.ca_file)
        client.key = self._key
        return client

    def _load_key(self) -> bool:
        try:
            identity = json.loads(self._identity.read_text())
        except (OSError, ValueError):
            return False
        if identity.get("name") != self.settings.name:
            return False
        self._key = str(identity["key"])
        return True

    def _register(self, client: ServerClient) -> None:
        """Swap the join token for a key of our own; raises Refused when the server will not have us."""
        if not self.settings.join_token:
            raise Refused(
                401, "no-join-token",
                "This node has no valid key and no join token. Make one with `manage.py join_token` and give it "
                "with --join-token-file or MUSTER_JOIN_TOKEN.",
            )  # fmt: skip
        client.key = ""
        answer = client.post(
            "/api/v1/agent/register",
            {
                "protocol": PROTOCOL,
                "join_token": self.settings.join_token,
                "name": self.settings.name,
                "inventory": self._measure(),
            },
        )
        self._key = str(answer["agent_key"])
        identity = {"name": self.settings.name, "node_id": answer["node_id"], "key": self._key}
        fresh = self._identity.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(identity, file)
        fresh.replace(self._identity)
        say(f"registered as node {self.settings.name} ({answer['node_id']}) of cluster {answer['cluster']}")

    def _measure(self) -> dict[str, Any]:
        now = time.monotonic()
        version = self.gpus.version if self.gpus else 0
        due = now - self._inventory_at > INVENTORY_SECONDS
        if not self._inventory or due or version != self._gpus_version:
            self._inventory = take_inventory(self.settings.overrides, self.settings.state, self.gpus)
            self._inventory_at, self._gpus_version = now, version
        return self._inventory

    # ------------------------------------------------------------ poll: ask for work

    def _poll(self) -> None:
        client = self._client()
        backoff = Backoff()
        hold_seconds = 0.0
        if not self._load_key():
            self._key = ""
        while not self.stopping.is_set():
            try:
                if not self._key:
                    self._register(client)
                client.key = self._key
                answer = self._sync(client, wait_seconds=hold_seconds, inventory=True)
            except ServerUnreachable as error:
                self._lost_contact(str(error))
                hold_seconds = 0.0
                self._leave_if_abandoned()
                backoff.wait(self.stopping)
                continue
            except Refused as error:
                say(f"refused: {error}")
                if error.status == 401:
                    self._key = ""
                backoff.wait(self.stopping)
                continue
            if not self._reached:
                say("the server answers again")
                self._reached = True
            backoff.succeeded()
            hold_seconds = answer["hold_seconds"]

    def _lost_contact(self, why: str) -> None:
        if self._reached:
            say(f"no answer from the server ({why}); tasks go on, and reports wait")
            self._reached = False

    def _leave_if_abandoned(self) -> None:
        """End once our portal has been gone for long and no task runs: the next portal starts an agent of its own.

        What has ended and was not reported stays in the keeper's journal, where that agent finds it.
        """
        file = self._address_file
        if file is not None and file.away_seconds() > ABANDONED_SECONDS and not self.table.live():
            say(
                "the portal of this node does not run any more, and no task does; the next portal starts us again"
            )
            self._abandoned = True
            self.stopping.set()

    def _sync(
        self, client: ServerClient, *, wait_seconds: float, inventory: bool, reports: list[Any] | None = None
    ) -> SyncAnswer:
        request = SyncRequest(
            protocol=PROTOCOL,
            session=self.session,
            wait_seconds=wait_seconds,
            known=self.table.known() if inventory else [],
            reports=reports or [],
            boot_id=processes.boot_id(),
            agent_version=VERSION,
            clock_ms=clock_ms(),
        )
        measured = self._measure() if inventory else None
        if measured is not None and self._is_news(measured):
            request["inventory"] = measured
        sent_at = time.monotonic()
        answer: SyncAnswer = client.post(SYNC, request, timeout_seconds=wait_seconds + 20.0)
        if "inventory" in request:
            self._sent_inventory = request["inventory"]
        if answer["inventory_wanted"]:
            self._sent_inventory = None
        self._take(answer, sent_at=sent_at)
        return answer

    def _is_news(self, measured: dict[str, Any]) -> bool:
        if self._sent_inventory is None:
            return True
        has_samples = any(name in device for device in measured["devices"] for name in SAMPLES)
        if has_samples and measured is not self._sent_inventory:
            return True
        return without_samples(measured) != without_samples(self._sent_inventory)

    def _take(self, answer: SyncAnswer, *, sent_at: float) -> None:
        """Do what the server says; each part may come twice."""
        now = time.monotonic()
        self.table.cap_bytes = answer["log_cap_bytes"]
        # From when we asked: however long the answer took, the server counts from before it.
        lease_until = sent_at + answer["fence_seconds"]
        # By its end, not by when the last was told: after a standstill the answer to an old question comes first, and
        # what is started with the next must not end with the lease of that one.
        if answer["fence_seconds"] and abs(lease_until - self._lease_until) > 0.5:
            self.link.extend_lease(max(0.1, lease_until - now))
            self._lease_until = lease_until
        orders: list[TaskOrder] = []
        for assignment in answer["assignments"]:
            names = self.gpus.names(assignment["devices"]) if self.gpus and assignment["devices"] else None
            order = task_order(
                assignment,
                self.settings.state,
                node_name=self.settings.name,
                gpu_names=names,
                numa_domains=self.settings.overrides.numa_domains,
                process_limit=self.settings.process_limit,
            )
            if self.table.add(
                assignment["task"], assignment["epoch"], job=assignment["job"], folder=order["folder"]
            ):
                orders.append(order)
        if orders:
            self.link.start_tasks(orders)
        for stop in answer["stops"]:
            entry = self.table.get(stop["task"], stop["epoch"])
            if entry is None:
                continue
            entry.stale = entry.stale or stop["stale"]
            if not entry.ended:
                self.link.stop_task(entry.key, reason=stop["reason"], grace_seconds=stop["grace_seconds"])
        for task, epoch, still in answer.get("pauses", ()):
            entry = self.table.get(task, epoch)
            if entry is not None and not entry.ended:
                self.link.pause_task(entry.key, still=bool(still))
        if answer["verify"]:
            self.table.verify(answer["verify"])

    # ------------------------------------------------------------ report: tell what changed

    def _report(self) -> None:
        client = self._client()
        backoff = Backoff()
        while not self.stopping.is_set():
            with self.table.changed:
                self.table.changed.wait_for(self.table.has_pending_reports, timeout=1.0)
            self.table.look_for_checkpoints()
            self.table.look_at_gpu_use()
            if not self._key or not self.table.has_pending_reports():
                self.stopping.wait(0 if self._key else 0.2)
                continue
            time.sleep(LINGER_SECONDS)
            try:
                self._send_reports(client)
                backoff.succeeded()
            except ServerUnreachable:
                backoff.wait(self.stopping)
            except Refused as error:
                say(f"a report was refused: {error}")
                backoff.wait(self.stopping)

    def _send_reports(self, client: ServerClient) -> None:
        reports, versions = self.table.pending_reports(MAX_REPORTS)
        if reports:
            client.key = self._key
            self._sync(client, wait_seconds=0.0, inventory=False, reports=reports)
            self.table.acknowledge(versions)

    # ------------------------------------------------------------ logs

    def _upload(self) -> None:
        uploader = LogUploader(self.table, self._client())
        backoff = Backoff()
        while not self.stopping.is_set():
            if done := self.table.take_finished():
                self.link.forget(done)
            if not self._key:
                self.stopping.wait(0.2)
                continue
            try:
                uploader.client.key = self._key
                pumped = uploader.pump()
                backoff.succeeded()
            except ServerUnreachable:
                backoff.wait(self.stopping)
                continue
            except Refused as error:
                say(f"logs were refused: {error}")
                backoff.wait(self.stopping)
                continue
            if not pumped.more:
                uploader.cut_back()
                self.stopping.wait(LOG_SECONDS)
