"""Quota providers as sites write them, for tests of what calls them: one that a test tells what to answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quotas.core.resources import Resources
from quotas.providers import calls, circuit
from quotas.providers.base import QuotaCheck, Refused, Unreachable


@dataclass
class Script:
    """What the provider does, and what it was asked; it counts tasks by project."""

    most_tasks: int = 10**6
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    #: By verb: what happens in place of the answer.
    instead: dict[str, Callable[[], Any]] = field(default_factory=dict)
    #: Set: calls that hang return.
    comes_back: threading.Event = field(default_factory=threading.Event)

    def used(self, project_id: int) -> int:
        return sum(tasks for project, tasks in self.counted.values() if project == project_id)

    def let_hung_calls_return(self) -> None:
        self.comes_back.set()
        for _, thread in list(calls.overdue.values()):
            thread.join()

    def restart(self) -> None:
        """As at the beginning, and no circuit of this process remembers."""
        self.let_hung_calls_return()
        self.__init__()  # type: ignore[misc]
        circuit.forget_failures()


script = Script()


def goes_away() -> None:
    raise Unreachable("the site's service is down")


def is_slow() -> None:
    """Comes back once the test lets it."""
    script.comes_back.wait(30)


class ScriptedProvider:
    """Written to `QuotaProvider` and to nothing else of Muster."""

    def check_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
    ) -> QuotaCheck:
        script.calls["check"] += 1
        script.asked.append((project_id, resources, job_type, tasks, user_id, dict(devices or {})))
        if "check" in script.instead:
            return script.instead["check"]()  # type: ignore[no-any-return]
        free = script.most_tasks - script.used(project_id)
        return QuotaCheck(
            allowed=tasks <= free,
            possible=tasks <= script.most_tasks,
            provider_text=f"{tasks} tasks asked for, {max(free, 0)} of {script.most_tasks} free.",
        )

    def allocate_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        key: str,
        tasks: int = 1,
        **_: Any,
    ) -> None:
        script.calls["allocate"] += 1
        if "allocate" in script.instead:
            script.instead["allocate"]()
        if key not in script.counted and tasks > script.most_tasks - script.used(project_id):
            raise Refused("used up by others in between")
        script.counted[key] = (project_id, tasks)

    def release_quota(
        self, project_id: int, resources: Resources, job_type: str = "batch", *, key: str, **_: Any
    ) -> None:
        script.calls["release"] += 1
        if "release" in script.instead:
            script.instead["release"]()
        script.counted.pop(key, None)


class TogetherProvider(ScriptedProvider):
    """The same, asked about all starts of a cycle at once."""

    def check_starts(self, starts: Any) -> list[QuotaCheck]:
        script.calls["together"] += 1
        free = {start.project_id: script.most_tasks - script.used(start.project_id) for start in starts}
        answers = []
        for start in starts:
            allowed = start.tasks <= free[start.project_id]
            free[start.project_id] -= start.tasks if allowed else 0
            answers.append(
                QuotaCheck(allowed=allowed, possible=True, provider_text="" if allowed else "No room.")
            )
        return answers


class Broken:
    """It has no release."""

    def check_quota(self) -> None: ...

    def allocate_quota(self) -> None: ...
