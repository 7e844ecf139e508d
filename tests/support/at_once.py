"""Several callers at the same moment, each with a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import connections

#: Of the slowest caller until it is ready to begin.
READY_SECONDS = 60


def at_once(
    *calls: Callable[[], Any], refusals: type[Exception] | tuple[type[Exception], ...] = ()
) -> list[Any]:
    """What each call returned, or the refusal that it raised; any other error is raised, once all have ended."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            gate.wait(READY_SECONDS)
            return call()
        except refusals as refusal:
            return refusal
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        started: list[Future[Any]] = [pool.submit(run, call) for call in calls]
    return [one.result() for one in started]
