"""One series: jobs come in, processes are killed, and after each kill a fresh job must be completed."""

from __future__ import annotations

import http.client
import json
import random
import statistics
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.chaos import victims, work
from tests.support.patience import patience
from tests.support.stack import Stack

PROBE_SECONDS = 180.0
ASK_SECONDS = 0.05
#: What was promised of the median of a series, on a machine that does nothing else.
PROMISED_SECONDS = {"planner": 3.0, "postgres": 5.0}

#: Jobs of the one who asks that are neither completed nor failed nor cancelled.
NOT_ENDED = "/api/v1/jobs?user=me&state__in=queued,scheduled,running,preempted"

READ_BACK = """
import json
from scheduler.models import Job
from tests.scheduler.state.small import broken_invariants
rows = [
    [j.name + ("" if j.array_index is None else f"-{j.array_index}"), j.state, j.exit_code, j.epoch, j.end_text]
    for j in Job.objects.filter(name__startswith="w")
]
print(json.dumps({"rows": rows, "invariants": broken_invariants()}))
"""


@dataclass
class Outcome:
    """What a series found."""

    recovery: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken: dict[str, list[str]] = field(default_factory=dict)
    jobs: int = 0
    running_at_supervisor_kills: int = 0

    @property
    def holds(self) -> bool:
        return not any(self.broken.values())


class Series:
    """Kills `kills` processes of a portal that runs, while `jobs` jobs are submitted to it."""

    def __init__(
        self, stack: Stack, *, seed: int, kills: int, jobs: int, kinds: list[str], say: Callable[[str], None]
    ) -> None:
        self.stack, self.say, self.url = stack, say, stack.base_url
        self.dice = random.Random(seed)
        self.work = work.pieces(jobs, self.dice)
        assert stack.open_folder is not None
        self.folder = stack.open_folder
        # Every kind as often as the others, in an order that the seed decides.
        self.plan = [kinds[n % len(kinds)] for n in range(kills)]
        self.dice.shuffle(self.plan)
        self.outcome = Outcome(jobs=jobs)
        self.accepted: list[work.Piece] = []
        self.ended_by_supervisor: list[str] = []
        #: Of the last probe: seconds from the kill to each of its steps.
        self.where_it_went = ""
        self.loader = self._token("bob")
        self.prober = self._token("alice")

    def run(self) -> Outcome:
        """All of it; takes as long as the kills need, and then as long as the jobs need."""
        self._probe(time.monotonic())  # once without a kill: everything is warm
        for number, kind in enumerate(self.plan):
            share = len(self.work) * (number + 1) // len(self.plan)
            self._submit(self.work[len(self.accepted) : share])
            time.sleep(self.dice.uniform(0.2, 2.0))
            took = self._kill(kind)
            if took is None:
                self.say(f"{number + 1:3}/{len(self.plan)} {kind}: none is there")
                continue
            self.outcome.recovery[kind].append(took)
            self.say(f"{number + 1:3}/{len(self.plan)} {kind}: {took:.1f} s ({self.where_it_went})")
        self._submit(self.work[len(self.accepted) :])
        self._wait_for_all()
        self._judge()
        return self.outcome

    # ------------------------------------------------------------ kills

    def _kill(self, kind: str) -> float | None:
        pid = victims.find(self.stack, kind, self.dice.choice)
        if pid is None:
            return None
        running = self._running() if kind == "supervisor" else {}
        began = time.monotonic()
        victims.kill(pid)
        if kind == "supervisor":
            self.stack.wait_ended()
            self.stack.spawn()
            self.stack.base_url = self.url  # the same port, where requests wait until they are answered
        took = self._probe(began)
        if kind == "supervisor":
            self.outcome.running_at_supervisor_kills += len(running)
            self.ended_by_supervisor += [name for name, pid in running.items() if self._was_cut(name, pid)]
        return took

    def _running(self) -> dict[str, int]:
        """Jobs that are at work, and the process of each as it names itself."""
        found = {}
        for piece in self.accepted:
            for name in piece.names:
                did = work.trace(self.folder, name)
                if len(did.begun) > len(did.done) and work.is_alive(self.folder, name):
                    found[name] = did.begun[-1][1]
        return found

    def _was_cut(self, name: str, pid: int) -> bool:
        did = work.trace(self.folder, name)
        return did.begun[-1][1] != pid or (not work.is_alive(self.folder, name) and not did.done)

    # ------------------------------------------------------------ jobs

    def _probe(self, began: float) -> float:
        """Seconds from `began` until a job that is submitted now has been completed."""
        name, began_at = f"probe-{time.monotonic_ns()}", datetime.now(UTC) - self._ago(began)
        # Ahead of all others: what is measured is how soon the portal works again, not how much it has to do.
        body = {"name": name, "command": "true", "cpu_cores": 0.1, "queue": "urgent"}
        number = self._post(body, self.prober, key=name)["number"]
        while True:
            said = self._try(lambda: self.stack.ask(f"/api/v1/jobs/{number}", token=self.prober))
            if said and said["state"] == "completed":
                steps = ("created", "scheduled", "started", "completed")
                self.where_it_went = ", ".join(
                    f"{step} {(datetime.fromisoformat(said[step + '_at']) - began_at).total_seconds():.1f}"
                    for step in steps
                )
                return time.monotonic() - began
            assert time.monotonic() - began < patience(PROBE_SECONDS), f"{said}\n{self.stack.said()}"
            time.sleep(ASK_SECONDS)

    @staticmethod
    def _ago(began: float) -> timedelta:
        return timedelta(seconds=time.monotonic() - began)

    def _submit(self, pieces: list[work.Piece]) -> None:
        for piece in pieces:
            self._post(piece.request(self.folder), self.loader, key=piece.name)
            self.accepted.append(piece)

    def _post(self, body: dict[str, Any], token: str, *, key: str) -> dict[str, Any]:
        """Submit until it is accepted; the key makes it one job however often it is said."""
        request = urllib.request.Request(
            self.stack.base_url + "/api/v1/jobs",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json", "Authorization": f"Bearer {token}", "Idempotency-Key": key
            },
        )  # fmt: skip

        def send() -> dict[str, Any]:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(json.load(answer))

        deadline = time.monotonic() + patience(PROBE_SECONDS)
        while True:
            if (said := self._try(send)) is not None:
                return said
            assert time.monotonic() < deadline, f"nothing takes {body['name']}; {self.stack.said()}"
            time.sleep(ASK_SECONDS)

    def _try(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The answer; None for one to ask again: no answer, or one that says to come back later."""
        try:
            return ask()
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 and error.code not in (409, 429):
                    raise AssertionError(f"{error.code}: {error.read().decode()}") from error
        except (OSError, ValueError, http.client.HTTPException):
            pass
        return None

    def _token(self, user: str) -> str:
        return self.stack.manage("token", user, "--scopes", "jobs:write,jobs:read").splitlines()[-1]

    # ------------------------------------------------------------ the end

    def _wait_for_all(self) -> None:
        """Ask the API, which costs the portal little; what became of each is read from the rows afterwards."""
        deadline = time.monotonic() + patience(300)
        while time.monotonic() < deadline:
            left = self._try(lambda: self.stack.ask(NOT_ENDED, token=self.loader))
            if left is not None and not left["results"]:
                return
            self.say("waiting for jobs")
            time.sleep(0.5)

    def _read_back(self) -> tuple[list[work.Row], list[str]]:
        said = json.loads(self.stack.manage("shell", "-v", "0", "-c", READ_BACK).splitlines()[-1])
        return [work.Row(*row) for row in said["rows"]], said["invariants"]

    def _judge(self) -> None:
        rows, invariants = self._read_back()
        self.outcome.broken = work.broken(self.folder, self.accepted, rows)
        self.outcome.broken["running jobs ended by the supervisor's death"] = self.ended_by_supervisor
        self.outcome.broken["invariants I1 to I8"] = invariants


def table(outcome: Outcome) -> list[str]:
    """What a series found, for people."""
    lines = ["victim           kills   median s   worst s   promised median"]
    for kind in victims.KINDS:
        if seconds := outcome.recovery.get(kind):
            median, promised = statistics.median(seconds), PROMISED_SECONDS.get(kind)
            mark = "" if promised is None else f"{promised:g}" + ("" if median <= promised else "  slower")
            lines.append(f"{kind:16} {len(seconds):5} {median:10.1f} {max(seconds):9.1f}   {mark}".rstrip())
    kills = sum(map(len, outcome.recovery.values()))
    lines += [
        "",
        f"{outcome.jobs} jobs, {kills} kills; {outcome.running_at_supervisor_kills} jobs ran when a",
    ]
    lines[-1] += " supervisor was killed"
    for promise, cases in outcome.broken.items():
        lines.append(f"{len(cases):5}  {promise}")
        lines += [f"         {case}" for case in cases[:20]]
    return lines
