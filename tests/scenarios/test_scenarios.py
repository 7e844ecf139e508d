"""Stories an operator would recognise: a small cluster and queue in YAML, and the plan that must come out.

`UPDATE_SCENARIOS=1 pytest tests/scenarios` writes what comes out into the files; review the diff.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from quotas.core.decay import Decay
from scheduler.core.cycle import plan_cycle
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import (
    JobSelector,
    JobTerm,
    Preference,
    Requirement,
    Taint,
    TaskTerm,
    Toleration,
)
from scheduler.core.snapshot.snapshot import BudgetColumns, JobGate, SpentRule
from tests.support.builders import (
    MINUTE_MS,
    JobSpec,
    World,
    a_job,
    a_node,
    a_policy,
    a_project,
    a_queue,
    a_quota,
    a_reservation,
    a_world,
    running,
)

#: The matrix that a fresh installation has: what each class may stop.
CLASSES = (
    (0, ()), (10, (0,)), (25, (0,)), (50, (0, 10, 25)), (75, (0, 10, 25, 50)), (100, (0, 10, 25, 50, 75)),
)  # fmt: skip

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_story_ends_as_told(path: Path) -> None:
    text = path.read_text()
    story = yaml.safe_load(text)

    ends = tell(world_of(story), story.get("policy", {}), receipts="receipts" in story.get("show", ()))

    if os.environ.get("UPDATE_SCENARIOS"):
        kept = text.split("\nthen:")[0].rstrip()
        shown = yaml.safe_dump({"then": ends}, sort_keys=False, width=110, allow_unicode=True)
        path.write_text(f"{kept}\n\n{shown}")
    else:
        assert ends == story["then"]


def test_there_are_stories() -> None:
    assert len(FILES) >= 8


def tell(world: World, policy: dict[str, Any], *, receipts: bool = False) -> dict[str, Any]:
    """Who starts where, and what everybody else is told."""
    words = {name: tuple(value) if isinstance(value, list) else value for name, value in policy.items()}
    if "factors" in words:
        words["factors"] = tuple(sorted(words["factors"].items()))
    if "preemption" in words:
        words["preemption"] = PreemptionPolicy(**{"enabled": True, "classes": CLASSES} | words["preemption"])
    if "queues" in words:
        ids = dict(zip(world.snapshot.queues.name, world.snapshot.queues.id.tolist(), strict=True))
        words["queues"] = tuple((ids[name], a_policy(**own)) for name, own in words["queues"].items())
    plan = plan_cycle(world.snapshot, a_policy(**words))
    starts: dict[str, Any] = {}
    for start in plan.starts:
        name = next(name for name, number in world.jobs.items() if number == start.job_id)
        nodes = world.starts(plan)[name]
        devices = [[position for _, position in task] for task in world.devices_of(start)]
        starts[name] = [
            f"{node} {positions}" if positions else node for node, positions in zip(nodes, devices)
        ]
    waits = {
        name: f"{reason}: {sentence(plan.decision_of(world.job(name)).reason, plan.decision_of(world.job(name)).facts)}"
        for name, reason in world.reasons(plan).items()
    }
    ends: dict[str, Any] = {"starts": starts, "waits": waits}
    if plan.expected:
        ends["expects"] = {
            next(
                name for name, number in world.jobs.items() if number == expected.job_id
            ): f"in {(expected.at_ms - world.snapshot.now_ms) // MINUTE_MS} min"
            for expected in plan.expected
        }
    named = {number: name for name, number in world.jobs.items()}
    on = {number: name for name, number in world.nodes.items()}
    if plan.reserves:
        ends["gathers"] = {
            named[one.job_id]: f"{', '.join(on[node] for node in one.node_ids)} for "
            f"{(one.until_ms - world.snapshot.now_ms) // MINUTE_MS} min"
            for one in plan.reserves
        }
    if plan.given_back:
        ends["gives back"] = {
            named[one.job_id]: f"tries again in {(one.retry_ms - world.snapshot.now_ms) // MINUTE_MS} min"
            for one in plan.given_back
        }
    if plan.preempts:
        for preempt in plan.preempts:
            cut = f"the limit of {preempt.line}" if preempt.line else f"taint {preempt.taint[0]}"
            because = named.get(preempt.for_job_id, cut)
            how = "suspends" if preempt.mode == "suspend" else "stops"
            ends.setdefault(how, {}).setdefault(because, []).append(named[preempt.job_id])
    if plan.resizes:
        ends["resizes"] = {
            named[one.job_id]: f"gives up {', '.join(f'rank {rank}' for rank in one.ranks)} for "
            f"{named[one.for_job_id]}, has {one.tasks} left"
            if one.ranks
            else f"starts again with {one.tasks} tasks instead of {one.before}"
            for one in plan.resizes
        }
    if receipts:
        ends["receipts"] = {
            named[
                one.job_id
            ]: f"stopped for {named[one.for_job_id]}: its priority is {one.for_priority}, this job's "
            f"{one.priority}; {one.lost_seconds // 60} min of work are lost, {one.grace_seconds} s are given"
            for one in plan.preempts
        }
    if plan.resumes:
        ends["goes on"] = [named[one.job_id] for one in plan.resumes]
    return ends


def world_of(story: dict[str, Any]) -> World:
    given = story["given"]
    world = a_world(
        nodes=[
            a_node(name, **_tuples(words) | {"taints": tuple(Taint(*taint) for taint in words.get("taints", ()))})
            for name, words in given.get("nodes", {}).items()
        ],
        running=[
            running(_job(name, words["job"]), *((node, devices) for node, devices in words["on"]),
                    **{key: value for key, value in words.items() if key not in {"job", "on"}})
            for name, words in given.get("running", {}).items()
        ],
        pending=[_job(name, words or {}) for name, words in given.get("jobs", {}).items()],
        queues=[a_queue(name, **_tuples(words)) for name, words in given.get("queues", {}).items()],
        projects=[a_project(name, **_used(words)) for name, words in given.get("projects", {}).items()],
        quotas=[a_quota(**_tuples(words)) for words in given.get("quotas", ())],
        reservations=[
            a_reservation(name, *words.pop("nodes"), **_tuples(words))
            for name, words in given.get("reservations", {}).items()
        ],
        licences={name: tuple(counts) for name, counts in given.get("licences", {}).items()},
    )  # fmt: skip
    if "budgets" not in given:
        return world
    budgets = [
        _budget(number, name, words, world)
        for number, (name, words) in enumerate(given["budgets"].items(), 1)
    ]
    return replace(world, snapshot=replace(world.snapshot, budgets=BudgetColumns.from_rows(
        budgets, columns=("id", "owner", "amount", "used", "starts_ms", "ends_ms", "on_spent", "project_ids")
    )))  # fmt: skip


def _budget(number: int, name: str, words: dict[str, Any], world: World) -> tuple[Any, ...]:
    """GPU-hours that all projects here share, of a period that began yesterday and ends in so many days."""
    now_ms, hour = world.snapshot.now_ms, 3_600_000
    return (
        number, name, words["gpu_hours"] * hour, words.get("used", 0) * hour, now_ms - 24 * hour,
        now_ms + words["days_left"] * 24 * hour, SpentRule[words.get("on_spent", "REFUSE")],
        tuple(world.snapshot.projects.id.tolist()),
    )  # fmt: skip


def _used(words: dict[str, Any]) -> dict[str, Any]:
    """`held` says what a project held when; fair share counts it as it would by default."""
    words, at, decay = dict(words), 1_000_000_000.0, Decay()
    for held in words.pop("held", ()):
        begin = at - held["hours_ago"] * 3600
        used = decay.used(held["gpus"], begin, begin + held["for_hours"] * 3600, at) / 3600
        words["used_gpu_hours"] = words.get("used_gpu_hours", 0) + used
    return words


def _job(name: str, words: dict[str, Any]) -> JobSpec:
    words = dict(words)
    if "gate" in words:
        words["gate"] = JobGate[words["gate"]]
    words["prefers"] = [
        Preference(weight, tuple(Requirement(key, operator, tuple(values)) for key, operator, values in wish))
        for weight, wish in words.get("prefers", ())
    ]
    words["terms"] = [
        JobTerm(term["within"], JobSelector(tuple(sorted(term.get("labels", {}).items())), term.get("name", "")),
                apart=term.get("apart", False), weight=term.get("weight", 0))
        for term in words.get("terms", ())
    ]  # fmt: skip
    words["spread"] = TaskTerm(**words["spread"]) if "spread" in words else None
    words["tolerations"] = [Toleration(*toleration) for toleration in words.get("tolerations", ())]
    return a_job(name, **words)


def _tuples(words: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in (words or {}).items()}
