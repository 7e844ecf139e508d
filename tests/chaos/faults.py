"""The faults of a campaign: each begins at a moment, lasts a while, and is over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import redis

from config.up.state import StateFolder
from tests.chaos import victims
from tests.chaos.fleet import DISK_MIB, Fleet
from tests.chaos.proxy import Weather
from tests.support.stack import Stack

#: Longer than a node may be silent in a campaign before its jobs are lost, and shorter.
SHORT_SECONDS: Final = (1.0, 8.0)
LONG_SECONDS: Final = (1.0, 35.0)

#: What ends a fault; None where it ends by itself.
Heal = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that has begun: what it was done to, how long it lasts, and what ends it."""

    what: str
    seconds: float = 0.0
    heal: Heal | None = None


class Faults:
    """Begins faults by their names, as the dice say."""

    def __init__(self, stack: Stack, fleet: Fleet, dice: random.Random) -> None:
        self.stack, self.fleet, self.dice = stack, fleet, dice
        self._by_name: dict[str, Callable[[], Begun | None]] = {
            **{f"kill {kind}": partial(self._kill, kind) for kind in victims.KINDS},
            **{f"freeze {kind}": partial(self._freeze, kind) for kind in victims.FREEZABLE},
            "restart postgres, fast": partial(self._kill, "postgres", signal.SIGINT),
            "restart postgres, immediate": partial(self._kill, "postgres", signal.SIGQUIT),
            "flush valkey": self._flush,
            "partition": partial(self._partition, to_portal=False, to_agent=False),
            "partition towards the portal": partial(self._partition, to_portal=False, to_agent=True),
            "partition towards the agent": partial(self._partition, to_portal=True, to_agent=False),
            "connections refused": self._refuse,
            "messages doubled": partial(self._disorder, doubles=True, reorders=False),
            "messages reordered": partial(self._disorder, doubles=False, reorders=True),
            "messages doubled and reordered": partial(self._disorder, doubles=True, reorders=True),
            "clock of a node jumps": self._jump,
        }
        if any(member.mounted for member in fleet.members):
            self._by_name["disk of a node full"] = self._fill

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def begin(self, name: str) -> Begun | None:
        """None where there is nothing just now that it could be done to."""
        return self._by_name[name]()

    # ------------------------------------------------------------ processes

    def _pid(self, kind: str) -> int | None:
        if kind == "agent":
            living = [one.popen.pid for one in self.fleet.members if one.popen and one.popen.poll() is None]
            return self.dice.choice(living) if living else None
        if kind == "shim":
            return victims.find_shim(self.stack, self.dice.choice, folder="chaos-agents")
        return victims.find(self.stack, kind, self.dice.choice)

    def _kill(self, kind: str, number: int = signal.SIGKILL) -> Begun | None:
        pid = self._pid(kind)
        if pid is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if kind == "supervisor":
            url = self.stack.base_url
            self.stack.wait_ended()
            self.stack.spawn()
            self.stack.base_url = url  # the same port
        return Begun(f"process {pid}")

    def _freeze(self, kind: str) -> Begun | None:
        pid = self._pid(kind)
        if pid is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        span = LONG_SECONDS if kind in ("agent", "shim") else SHORT_SECONDS
        return Begun(f"process {pid}", self.dice.uniform(*span), resume)

    # ------------------------------------------------------------ servers

    def _flush(self) -> Begun | None:
        state = StateFolder(self.stack.state)
        server = redis.Redis(
            port=state.remembered_port("valkey") or 0,
            password=state.secret("valkey_password"),
            socket_timeout=5,
        )
        try:
            server.flushall()
        except redis.RedisError:
            return None  # another fault has it
        return Begun("everything in it")

    # ------------------------------------------------------------ networks

    def _weather(self, weather: Weather, seconds: tuple[float, float]) -> Begun | None:
        # Two of these never meet on one node: the first to end would end both.
        calm = [one for one in self.fleet.members if one.proxy.weather == Weather()]
        if not calm:
            return None
        member = self.dice.choice(calm)
        member.proxy.set(weather)
        return Begun(member.name, self.dice.uniform(*seconds), lambda: member.proxy.set(Weather()))

    def _partition(self, *, to_portal: bool, to_agent: bool) -> Begun | None:
        return self._weather(Weather(to_portal=to_portal, to_agent=to_agent), LONG_SECONDS)

    def _refuse(self) -> Begun | None:
        return self._weather(Weather(refuses=True), LONG_SECONDS)

    def _disorder(self, *, doubles: bool, reorders: bool) -> Begun | None:
        return self._weather(Weather(doubles=doubles, reorders=reorders), LONG_SECONDS)

    # ------------------------------------------------------------ clocks and disks

    def _jump(self) -> Begun | None:
        member = self.dice.choice([one for one in self.fleet.members if one.clock])
        seconds = self.dice.choice([-300, -30, 30, 300])
        self.fleet.set_clock(member, seconds)
        return Begun(
            f"{member.name} by {seconds:+d} s",
            self.dice.uniform(*LONG_SECONDS),
            lambda: self.fleet.set_clock(member, 0),
        )

    def _fill(self) -> Begun | None:
        member = next(one for one in self.fleet.members if one.mounted)
        file = member.folder / "fills-the-disk"
        if file.exists():
            return None
        with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
            for _ in range(DISK_MIB):
                out.write(bytes(2**20))
        with contextlib.suppress(OSError), file.open("ab", buffering=0) as out:
            while True:
                out.write(bytes(4096))
        return Begun(member.name, self.dice.uniform(*SHORT_SECONDS), lambda: file.unlink(missing_ok=True))


class Clock:
    """The faults that are still there, and what of the campaign's time is left."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.until = self.began + seconds
        self._open: list[tuple[float, Heal]] = []

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def add(self, begun: Begun) -> None:
        if begun.heal is not None:
            self._open.append((time.monotonic() + begun.seconds, begun.heal))

    @property
    def open(self) -> int:
        return len(self._open)

    def heal_due(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for one in list(self._open):
            if all_of_them or one[0] <= now:
                self._open.remove(one)
                one[1]()
