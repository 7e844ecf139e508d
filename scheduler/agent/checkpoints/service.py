"""Watches the tasks that make checkpoints: asks them when it is time, finds what they wrote, and has it sent."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.agent import processes
from scheduler.agent.checkpoints import folder
from scheduler.agent.checkpoints.folder import Finished
from scheduler.agent.checkpoints.marks import note_checkpoints, with_checkpoints
from scheduler.agent.checkpoints.requests import Asked
from scheduler.agent.checkpoints.upload import PATH, Begun, Stopped, Uploads
from scheduler.agent.console import say
from scheduler.agent.protocol import Stop
from scheduler.agent.server.client import Refused, ServerClient, ServerUnreachable
from scheduler.agent.tasks.local_task import LocalTask
from scheduler.agent.tasks.task_table import TaskTable

#: How often tasks are looked at, while there are some that make checkpoints.
_LOOK_SECONDS: Final = 0.2
_IDLE_SECONDS: Final = 1.0
_GRAIN_NS: Final = 2_000_000_000
#: A server that takes longer to answer must not keep others from being asked.
_ANSWER_SECONDS: Final = 10.0

#: stop(key, reason, grace in seconds).
StopTask = Callable[[str, str, float], None]


@dataclass(slots=True)
class _Watched:
    """One task; `waiting` has what is not announced to the server yet, and why it was written."""

    asked: Asked
    seen_ns: int = 0
    known: set[Finished] = field(default_factory=set)
    waiting: dict[Finished, str] = field(default_factory=dict)
    sending: set[Finished] = field(default_factory=set)
    ended: bool = False


class CheckpointService:
    """`look` is called by one thread, `send_next` by another, `hold` and `ask` by any."""

    def __init__(self, table: TaskTable, stop: StopTask, stopping: threading.Event) -> None:
        self._table, self._stop, self._stopping = table, stop, stopping
        self._uploads = Uploads(stopping)
        self._lock = threading.Lock()
        self._began_ms = processes.boot_ms()
        self._watched: dict[str, _Watched] = {}
        self._to_send: queue.Queue[tuple[_Watched, Begun]] = queue.Queue()
        #: Messages for the server, oldest first: they wait while it does not answer.
        self._unsaid: list[dict[str, Any]] = []

    # ------------------------------------------------------------ orders of the server

    def hold(self, entry: LocalTask, order: Stop) -> bool:
        """Whether a stop waits for a checkpoint first."""
        if entry.checkpoint_terms is None:
            return False
        with self._lock:
            return self._of(entry).asked.hold(order)

    def ask(self, entry: LocalTask, number: int) -> None:
        """Somebody wants a checkpoint of the task now; the same request may come twice."""
        with self._lock:
            self._of(entry).asked.ask(number)

    def _of(self, entry: LocalTask) -> _Watched:
        if entry.key not in self._watched:
            stop = lambda reason, grace: self._stop(entry.key, reason, grace)  # noqa: E731
            self._watched[entry.key] = _Watched(Asked(entry, stop))
            if (record := entry.record) is not None and record["started_boot_ms"] < self._began_ms:
                # An agent before this one may have asked, and is not there any more to say what came of it.
                self._unsaid.append({"op": "missed", "task": entry.task, "epoch": entry.epoch, "text": ""})
        return self._watched[entry.key]

    # ------------------------------------------------------------ look

    def look(self, client: ServerClient) -> float:
        """Do what is due; answers in how many seconds to look again. Raises ServerUnreachable."""
        entries = with_checkpoints(self._table)
        keys = {entry.key for entry in entries}
        with self._lock:
            self._watched = {key: one for key, one in self._watched.items() if key in keys}
            watched = [(entry, self._of(entry)) for entry in entries]
        for entry, one in watched:
            ended = entry.ended  # before its folder is read: nothing is written after that
            with self._lock:
                self._find(one)
                self._ask(one.asked)
            one.ended = ended
        self._say(client)
        for entry, one in watched:
            self._announce(client, one)
            if one.ended:
                note_checkpoints(self._table, entry, stored=not one.sending)
        return _LOOK_SECONDS if entries else _IDLE_SECONDS

    def _find(self, one: _Watched) -> None:
        """Note what was finished since the last look."""
        entry = one.asked.entry
        if (changed := folder.changed_ns(entry.folder)) == one.seen_ns:
            return
        # The clock of a file system has a grain: what comes within it changes nothing that is seen.
        one.seen_ns = changed if time.time_ns() - changed > _GRAIN_NS else 0
        for found in folder.finished(entry.folder):
            if found not in one.known:
                one.known.add(found)
                one.waiting[found] = one.asked.saved()

    def _ask(self, asked: Asked) -> None:
        """Signal a task that is to be asked; note for the server that it is, or that it came to nothing."""
        asked.ask_when_due()
        if asked.request is None:
            return
        about = {"task": asked.entry.task, "epoch": asked.entry.epoch, "why": asked.request.why}
        if not asked.request.said:
            asked.request.said = True
            self._unsaid.append({"op": "asked", **about, "seconds": asked.request.seconds_left})
        asked.signal()
        if text := asked.missed():
            self._unsaid.append({"op": "missed", **about, "text": text})

    def _announce(self, client: ServerClient, one: _Watched) -> None:
        for found, why in list(one.waiting.items()):
            begun = self._uploads.begin(client, one.asked.entry, found, why)
            del one.waiting[found]
            if begun is not None:
                one.sending.add(found)
                self._to_send.put((one, begun))

    def _say(self, client: ServerClient) -> None:
        while self._unsaid:
            try:
                client.post(PATH, self._unsaid[0], timeout_seconds=_ANSWER_SECONDS)
            except Refused as error:
                if error.status != 404:  # a server of an earlier version
                    say(f"a message about a checkpoint was refused: {error}")
            self._unsaid.pop(0)

    # ------------------------------------------------------------ send

    def send_next(self, client: ServerClient) -> None:
        """Send the next checkpoint that waits, or return after a moment; raises Stopped."""
        try:
            one, begun = self._to_send.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            return
        self._uploads.send(client, begun)
        one.sending.discard(begun.finished)

    def work(self, client: ServerClient, key: Callable[[], str]) -> None:
        """Look until the agent ends."""
        while not self._stopping.is_set():
            client.key = key()
            seconds = _IDLE_SECONDS
            try:
                if client.key:
                    seconds = self.look(client)
            except ServerUnreachable:
                pass
            self._stopping.wait(seconds)

    def send_all(self, client: ServerClient, key: Callable[[], str]) -> None:
        """Send until the agent ends."""
        while not self._stopping.is_set():
            client.key = key()
            try:
                self.send_next(client)
            except Stopped:
                return
