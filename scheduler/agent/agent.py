"""The agent: keeps one call to the server open, reports at once what changes, and sends what tasks print."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from scheduler.agent.checkpoints.service import CheckpointService
from scheduler.agent.console import say
from scheduler.agent.fetches.service import Fetches
from scheduler.agent.gpu.gpus import Gpus
from scheduler.agent.isolation.means import Means
from scheduler.agent.node.health_check import HealthCheck
from scheduler.agent.node.inventory import MeasuredInventory
from scheduler.agent.protocol import STREAM_PATH
from scheduler.agent.secret_values.store import SecretStore
from scheduler.agent.server.address import AddressFile, fixed
from scheduler.agent.server.backoff import Backoff
from scheduler.agent.server.client import Refused, ServerClient, ServerUnreachable
from scheduler.agent.server.identity import Identity
from scheduler.agent.server.log_upload import LogUploader, has_unsent_ends
from scheduler.agent.server.results_service import ResultsService
from scheduler.agent.server.stream import Stream, StreamClient
from scheduler.agent.server.websocket import WebSocket
from scheduler.agent.settings import Settings
from scheduler.agent.shim_link import ShimLink
from scheduler.agent.sync import ServerSync
from scheduler.agent.tasks.gpu_probes import GpuProbes
from scheduler.agent.tasks.task_table import TaskTable
from scheduler.agent.tasks.usage import UsageSampler

#: Tasks that end within this of each other share a report; a person does not notice, a batch of 500 does.
LINGER_SECONDS: Final = 0.01
MAX_REPORTS: Final = 500
LOG_SECONDS: Final = 0.25
#: How long the report of an end waits for the last output of its task to reach the server, and how often it looks.
LOGS_FIRST_SECONDS: Final = 2.0
LOGS_FIRST_STEP_SECONDS: Final = 0.01
#: How often the folder of kept results is looked at.
RESULTS_SECONDS: Final = 0.5
#: Checkpoints that are sent at a time: a large one does not keep a small one waiting.
UPLOADS: Final = 2
#: How long the start waits for the first reading of the GPUs; a driver that is not loaded yet takes seconds.
GPUS_SECONDS: Final = 20.0
#: On a stop of everything: for the tasks to end and for the last reports to reach the server.
SHUTDOWN_SECONDS: Final = 9.0
#: How long an agent without tasks waits for a portal that is gone.
ABANDONED_SECONDS: Final = 60.0


class Agent:
    """One node. Threads share the task table: `poll` asks for work, `report` sends changes, `logs` uploads output.

    `results` says what jobs have left behind and sends what somebody wants to see of it; `usage` samples what running
    tasks use. Two more are of checkpoints: `checkpoints` asks for them and finds them, `uploads` sends them.
    """

    def __init__(self, settings: Settings, means: Means | None = None) -> None:
        self.settings = settings
        self.stopping = threading.Event()
        self.secrets = SecretStore(settings.state, means.memory if means else "")
        self.table = TaskTable(self.secrets)
        self.gpus = self._make_gpus()
        self.link = ShimLink(
            settings.state, watch_pid=settings.parent_pid, on_records=self._on_records, means=means
        )
        self.identity = Identity(settings.state, settings.name)
        facts = (means or Means()).facts()
        self.health = HealthCheck(settings.health_check) if settings.health_check else None
        self.inventory = MeasuredInventory(
            settings.overrides,
            settings.state,
            self.gpus,
            isolation=facts,
            fault=lambda: self.link.fault,
            health=self.health,
        )
        self.checkpoints = CheckpointService(self.table, self._stop_task, self.stopping)
        self.fetches = Fetches(
            settings.state,
            self.table,
            start=self.link.start_tasks,
            connect=self._client,
            stopping=self.stopping,
        )
        self.sync = ServerSync(
            settings,
            table=self.table,
            link=self.link,
            inventory=self.inventory,
            gpus=self.gpus,
            checkpoints=self.checkpoints,
            fetches=self.fetches,
        )
        self._address_file = AddressFile(settings.server_file) if settings.server_file else None
        self._address = self._address_file or fixed(settings.server)
        self._stream = Stream(self._open_stream)
        self._server_answers = True
        #: Set where the last output of a task is wanted before the next turn of `logs`.
        self._logs_wanted = threading.Event()
        #: Our portal is gone, and we have no task: we end, and the next portal starts an agent of its own.
        self._abandoned = False

    def _make_gpus(self) -> Gpus | None:
        given = self.settings.overrides
        if given.no_gpus or given.fake_gpus:
            return None
        gpus = Gpus(self.settings.state, avoid_used=given.avoid_used_gpus)
        self.table.gpu_use_of, self.table.gpu_faults_of = gpus.use_of, gpus.faults_of
        return gpus

    # ------------------------------------------------------------ start and stop

    def run(self) -> None:
        """Work until `stopping` is set."""
        (self.settings.state / "tasks").mkdir(mode=0o700, exist_ok=True)
        self.link.start()
        if len(self.table):
            say(f"adopted {len(self.table)} tasks from before this start")
        self.fetches.clean_up()
        self.secrets.forget_all_but(self.table.keys())
        if self.gpus is not None:
            _start_thread("gpus", self._watch_gpus)
            self.gpus.wait(GPUS_SECONDS)
        if self.health is not None:
            self.health.run()  # before the first job comes
            _start_thread("health", self._watch_health)
        _start_thread("poll", self._poll)
        _start_thread("report", self._report)
        _start_thread("logs", self._upload)
        _start_thread("results", self._serve_results)
        _start_thread("checkpoints", lambda: self.checkpoints.work(self._client(), self._key))
        for _ in range(UPLOADS):
            _start_thread("uploads", lambda: self.checkpoints.send_all(self._client(), self._key))
        if self.settings.usage_seconds:
            _start_thread("usage", self._sample_usage)
        self.stopping.wait()
        if self.settings.ends_jobs and not self._abandoned:
            self._end_tasks()
        self.link.close()

    def _watch_gpus(self) -> None:
        assert self.gpus is not None
        self.gpus.watch(self.table.gpu_holders, self.table.keys)

    def _watch_health(self) -> None:
        """Run the site's check; a changed result is sent at once, beside the call that is held open."""
        assert self.health is not None
        client = self._client()

        def send() -> None:
            client.key = self.identity.key
            with contextlib.suppress(ServerUnreachable, Refused):  # the next call has it
                self.sync.poll(client, wait_seconds=0.0)

        self.health.watch(self.settings.health_check_seconds, self.stopping, send)

    def _end_tasks(self) -> None:
        """The whole portal stops: end our tasks, and report it, so that the server can run their jobs again."""
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        if live := self.table.live():
            say(f"stopping {live} tasks")
        self.link.shutdown()
        while self.table.live() and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            self._send_reports(self._client())
        except (ServerUnreachable, Refused):
            say("the server does not answer; the reports are sent at the next start")

    def _on_records(self, records: list[Any], complete: bool) -> None:
        self.table.update(records, complete=complete)

    def _stop_task(self, key: str, reason: str, grace_seconds: float) -> None:
        self.link.stop_task(key, reason=reason, grace_seconds=grace_seconds)

    def _key(self) -> str:
        return self.identity.key

    def _client(self) -> ServerClient:
        """A client for the thread that asks for it; all share one stream to the server."""
        client = StreamClient(self._stream, **self._where())
        client.key = self.identity.key
        return client

    def _where(self) -> dict[str, Any]:
        """Where the server is, and what it has to prove."""
        settings = self.settings
        return {"find": self._address, "insecure_ok": settings.insecure_ok, "ca_file": settings.ca_file}

    def _open_stream(self, key: str) -> WebSocket:
        return ServerClient(**self._where()).open_websocket(STREAM_PATH, key)

    # ------------------------------------------------------------ poll: ask for work

    def _poll(self) -> None:
        client = self._client()
        backoff = Backoff()
        hold_seconds = 0.0
        self.identity.load()
        while not self.stopping.is_set():
            try:
                if not self.identity.key:
                    self._register(client)
                client.key = self.identity.key
                answer = self.sync.poll(client, wait_seconds=hold_seconds)
            except ServerUnreachable as error:
                self._on_unreachable(error)
                hold_seconds = 0.0
                backoff.wait(self.stopping)
                continue
            except Refused as error:
                say(f"refused: {error}")
                if error.status == 401:
                    self.identity.forget()
                backoff.wait(self.stopping)
                continue
            if not self._server_answers:
                say("the server answers again")
                self._server_answers = True
            backoff.succeeded()
            hold_seconds = answer["hold_seconds"]

    def _register(self, client: ServerClient) -> None:
        inventory = self.inventory.current()
        self.identity.register(client, join_token=self.settings.join_token, inventory=inventory)

    def _on_unreachable(self, error: ServerUnreachable) -> None:
        if self._server_answers:
            say(f"no answer from the server ({error}); tasks go on, and reports wait")
            self._server_answers = False
        self._leave_if_abandoned()

    def _leave_if_abandoned(self) -> None:
        """End once our portal has been gone for long and no task runs: the next portal starts an agent of its own.

        Tasks that have ended without a report stay in the shim's journal, where that agent finds them.
        """
        file = self._address_file
        if file is not None and file.away_seconds() > ABANDONED_SECONDS and not self.table.live():
            say(
                "the portal of this node does not run any more, and no task does; the next portal starts us again"
            )
            self._abandoned = True
            self.stopping.set()

    # ------------------------------------------------------------ report: send what has changed

    def _report(self) -> None:
        client = self._client()
        gpu_probes = GpuProbes(self.table, self.link.stop_unhealthy)
        backoff = Backoff()
        while not self.stopping.is_set():
            self.table.wait_for_reports(1.0)
            self.table.look_for_checkpoints()
            self.table.look_for_results()
            self.table.report_gpu_use()
            gpu_probes.look()
            if not self.identity.key or not self.table.has_pending_reports():
                self.stopping.wait(0 if self.identity.key else 0.2)
                continue
            self._logs_wanted.set()
            time.sleep(LINGER_SECONDS)
            self._let_output_go_first()
            try:
                self._send_reports(client)
                backoff.succeeded()
            except ServerUnreachable:
                backoff.wait(self.stopping)
            except Refused as error:
                say(f"a report was refused: {error}")
                backoff.wait(self.stopping)

    def _let_output_go_first(self) -> None:
        """Wait, for a moment, until the server has the last output of the tasks whose end is about to be reported.

        So the log of a job that has just ended is whole. Of a task with more output than one chunk left the end does
        not wait: readers of its log see how much is awaited.
        """
        until = time.monotonic() + LOGS_FIRST_SECONDS
        while has_unsent_ends(self.table) and time.monotonic() < until and not self.stopping.is_set():
            self._logs_wanted.set()
            time.sleep(LOGS_FIRST_STEP_SECONDS)

    def _send_reports(self, client: ServerClient) -> None:
        reports, versions = self.table.pending_reports(MAX_REPORTS)
        if reports:
            client.key = self.identity.key
            self.sync.send(client, reports)
            self.table.acknowledge(versions)

    # ------------------------------------------------------------ logs

    def _upload(self) -> None:
        uploader = LogUploader(self.table, self._client())
        backoff = Backoff()
        while not self.stopping.is_set():
            if done := self.table.take_finished():
                self.link.forget(done)
            if not self.identity.key:
                self.stopping.wait(0.2)
                continue
            try:
                uploader.client.key = self.identity.key
                uploaded = uploader.upload_batch()
                backoff.succeeded()
            except ServerUnreachable:
                backoff.wait(self.stopping)
                continue
            except Refused as error:
                say(f"logs were refused: {error}")
                backoff.wait(self.stopping)
                continue
            if not uploaded.more:
                uploader.truncate_capped()
                self._logs_wanted.wait(LOG_SECONDS)
                self._logs_wanted.clear()

    # ------------------------------------------------------------ results

    def _serve_results(self) -> None:
        results = ResultsService(self.settings.state, self.sync.files_wanted, self.link.discard_results)
        client = self._client()
        backoff = Backoff()
        while not self.stopping.is_set():
            try:
                client.key = self.identity.key
                results.work(client, seconds=RESULTS_SECONDS)
                backoff.succeeded()
            except ServerUnreachable:
                backoff.wait(self.stopping)
            except Refused as error:
                if error.status != 404:  # a server of an earlier version knows nothing of results
                    say(f"results were refused: {error}")
                backoff.wait(self.stopping)

    # ------------------------------------------------------------ usage

    def _sample_usage(self) -> None:
        """Send what running tasks use; a sample that does not reach the server is not sent again."""
        sampler = UsageSampler(self.table, seconds=self.settings.usage_seconds)
        client = self._client()
        while not self.stopping.wait(sampler.wait_seconds):
            taken = sampler.take()
            if not taken["samples"] or not self.identity.key:
                continue
            client.key = self.identity.key
            try:
                client.post("/api/v1/agent/usage", taken)
            except ServerUnreachable:
                pass
            except Refused as error:
                if error.status != 404:  # a server of an earlier version knows nothing of samples
                    say(f"samples of usage were refused: {error}")


def _start_thread(name: str, work: Callable[[], None]) -> None:
    """A thread that ends by an exception ends the agent: whatever supervises it starts a new one."""

    def guarded() -> None:
        try:
            work()
        except Exception:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)

    threading.Thread(target=guarded, name=name, daemon=True).start()
