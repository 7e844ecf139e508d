"""Tells the server which folders were kept, removes those that it lets go, and sends the files that people ask for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scheduler.agent.protocol import FileAnswer, FileCall, FileRequests, KeptAnswer, KeptFolders
from scheduler.agent.results import kept
from scheduler.agent.results.requests import answer
from scheduler.agent.server.client import ServerClient

#: A whole round of the kept folders, for those whose time is up and for what either side has missed.
ROUND_SECONDS: Final = 300.0
#: How long a call for requests stays open after the last one: a download asks again at once.
WAIT_SECONDS: Final = 2.0


class ResultsService:
    """`wanted` is set when requests wait at the server; `discard` removes folders by their names."""

    def __init__(self, state: Path, wanted: threading.Event, discard: Callable[[list[str]], None]) -> None:
        self._kept = kept.KeptFolders(state)
        self._wanted, self._discard = wanted, discard
        self._round_at = 0.0
        self._unsaid = False

    def work(self, client: ServerClient, *, seconds: float) -> None:
        """Wait up to `seconds` for requests, and do what is due; raises ServerUnreachable and Refused."""
        if self._wanted.wait(seconds):
            self._wanted.clear()
            self._serve(client)
        if not client.key:
            return
        if self._kept.have_changed() or time.monotonic() > self._round_at:
            self._unsaid = True  # also after a call that fails
        if self._unsaid:
            self._say_kept(client)

    def _say_kept(self, client: ServerClient) -> None:
        """One page; a round has as many as there are folders."""
        first, last, folders = self._kept.page()
        said = KeptFolders(first=first, last=last, kept=folders)
        asked: KeptAnswer = client.post("/api/v1/agent/results", said)
        if names := self._kept.names_of(asked["discard"]):
            self._discard(names)
        if self._kept.at_the_end:
            self._unsaid, self._round_at = False, time.monotonic() + ROUND_SECONDS

    def _serve(self, client: ServerClient) -> None:
        """Answer requests until none has come for a while."""
        waiting: deque[dict[str, Any]] = deque()
        answers: list[FileAnswer] = []
        while True:
            call = FileCall(answers=answers, wait_seconds=0.0 if waiting else WAIT_SECONDS)
            got: FileRequests = client.post("/api/v1/agent/files", call)
            waiting.extend(got["requests"])
            if not waiting:
                return
            answers = [answer(self._kept, waiting.popleft())]
