"""A campaign: for some minutes jobs come in and faults come and go; then the faults end, and the jobs must end too.

All that was done and seen is written into files, and `verdict` judges by the files alone.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import work
from tests.chaos.faults import Clock, Faults
from tests.chaos.fleet import Fleet
from tests.support.patience import patience
from tests.support.stack import Stack

#: A node that is silent for so long is unknown; for so long, its jobs are lost. Short, so that both happen often.
SILENT_SECONDS: Final = 5
LOST_SECONDS: Final = 20
HOLD_SECONDS: Final = 2
#: The most faults at a time.
AT_ONCE: Final = 3
BULK: Final = 60
ANSWER_SECONDS: Final = 300.0
#: After the last fault, without any step of a person.
RECOVERY_SECONDS: Final = 300.0
NOT_ENDED: Final = "/api/v1/jobs?user=me&state__in=queued,scheduled,running,preempted"
READ_BACK: Final = "from tests.chaos.read_back import write; write({path!r})"


@dataclass
class Campaign:
    """`jobs` jobs and `faults` faults in `minutes`; `folder` gets the files."""

    stack: Stack
    fleet: Fleet
    folder: Path
    seed: int
    minutes: float
    jobs: int
    faults: int
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    accepted: list[work.Piece] = field(default_factory=list)

    def run(self) -> None:
        """All of it; raises AssertionError where the portal does not come back by itself."""
        self.dice = random.Random(self.seed)
        assert self.stack.open_folder is not None
        self.traces, self.url = self.stack.open_folder, self.stack.base_url
        self.work = work.short_pieces(self.jobs, self.dice)
        self._journal = (self.folder / "journal.jsonl").open("a", buffering=1)
        self.token = self.stack.manage("token", "bob", "--scopes", "jobs:write,jobs:read").splitlines()[-1]
        self.clock = Clock(self.minutes * 60)
        self._failed: list[BaseException] = []
        loading = threading.Thread(target=self._guarded, args=[self._load], daemon=True)
        loading.start()
        self._inject()
        loading.join(patience(RECOVERY_SECONDS))
        if self._failed:
            raise self._failed[0]
        assert not loading.is_alive(), f"jobs are not taken any more; {self.stack.said()[-4000:]}"
        self._wait_for_all()
        (self.folder / "accepted.json").write_text(json.dumps([asdict(piece) for piece in self.accepted]))
        script = READ_BACK.format(path=str(self.folder / "rows.json"))
        self.stack.manage("shell", "-v", "0", "-c", script, seconds=600)

    # ------------------------------------------------------------ faults

    def _inject(self) -> None:
        faults = Faults(self.stack, self.fleet, self.dice)
        # Every kind as often as the others, in an order that the seed decides.
        plan: list[str] = []
        while len(plan) < self.faults:
            plan += self.dice.sample(faults.names, len(faults.names))
        plan = plan[: self.faults]
        pause = self.minutes * 60 / len(plan)
        try:
            for number, name in enumerate(plan):
                due = self.clock.began + number * pause
                while time.monotonic() < due or self.clock.open >= AT_ONCE:
                    self.clock.heal_due()
                    time.sleep(0.05)
                if self._failed:
                    raise self._failed[0]
                begun = faults.begin(name)
                self.note("fault", name=name, what=begun and begun.what, seconds=begun and begun.seconds)
                self.counts[name] += begun is not None
                if begun is not None:
                    self.clock.add(begun)
                if number % 10 == 0:
                    self.say(
                        f"{number + 1:4}/{len(plan)} faults, {self.taken:6,} jobs taken,"
                        f" {self.fleet.restarts} agents started again"
                    )
        finally:
            self.clock.heal_due(all_of_them=True)
        self.note("healed")

    def note(self, kind: str, **facts: Any) -> None:
        at = round(time.monotonic() - self.clock.began, 3)
        self._journal.write(json.dumps({"at": at, "kind": kind, **facts}) + "\n")

    # ------------------------------------------------------------ jobs

    @property
    def taken(self) -> int:
        return sum(len(piece.names) for piece in self.accepted)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed.append(error)

    def _load(self) -> None:
        """Submit by the clock; what could not be submitted while nothing answered comes after."""
        while len(self.accepted) < len(self.work):
            share = min(1.0, (time.monotonic() - self.clock.began) / (self.clock.until - self.clock.began))
            begin, end = len(self.accepted), round(len(self.work) * share)
            if end <= begin:
                time.sleep(0.2)
                continue
            pieces = self.work[begin : min(end, begin + BULK)]
            body = {"jobs": [piece.request(self.traces) for piece in pieces]}
            self._post("/api/v1/jobs:bulk", body, key=f"{self.seed}-{begin}-{len(pieces)}")
            self.accepted += pieces
            self.note("taken", jobs=len(pieces))

    def _post(self, path: str, body: dict[str, Any], *, key: str) -> None:
        """Submit until it is accepted; the key makes it one request however often it is sent."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json", "Authorization": f"Bearer {self.token}", "Idempotency-Key": key
            },
        )  # fmt: skip
        deadline = time.monotonic() + patience(ANSWER_SECONDS)
        said = ""
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    assert answer.status == 201, answer.read()
                    return
            except urllib.error.HTTPError as error:
                with error:
                    said = f"{error.code}: {error.read().decode()[:400]}"
                if error.code < 500 and error.code not in (409, 429):
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                said = repr(error)
            self.counts["requests that were sent again"] += 1
            time.sleep(0.2)
        raise AssertionError(f"jobs are not taken: {said}")

    def _wait_for_all(self) -> None:
        began = time.monotonic()
        while time.monotonic() < began + patience(RECOVERY_SECONDS):
            try:
                left = self.stack.ask(NOT_ENDED, token=self.token)["results"]
            except (OSError, ValueError, http.client.HTTPException):
                left = None
            if left == []:
                self.note("all ended", after=round(time.monotonic() - began, 1))
                return
            time.sleep(0.5)
        self.note("not all ended")
