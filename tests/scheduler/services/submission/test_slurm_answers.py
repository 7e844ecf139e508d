"""The same scripts as a real Slurm was given: every difference from its answers is known, with its reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from scheduler.agent.tasks.environment import environment
from tests.scheduler.services.submission.slurm_answers import (
    a_world,
    answer,
    assignments,
    cases,
    compare,
    environments,
    tasks_there,
)
from tests.scheduler.services.submission.slurm_differences import ABSENT, DIFFERENT, VARIABLES

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def a_site(settings: Settings) -> None:
    settings.MUSTER_STORAGE, settings.CHECKPOINT_PATH = "file:///somewhere", ""
    settings.MUSTER_MAX_ARRAY_SIZE = 1001


def test_every_difference_from_slurm_is_known() -> None:
    every = cases()
    world = a_world()
    verdicts = {case["id"]: compare(world, case) for case in every}

    ends = {
        end: {name for name, one in verdicts.items() if one.end == end}
        for end in ("agrees", "absent", "differs")
    }
    core = {case["id"] for case in every if case.get("core")}
    print(
        {
            end: f"{len(names & core)} of {len(core)}, {len(names)} of {len(every)}"
            for end, names in ends.items()
        }
    )
    unlisted = {
        name: (verdicts[name].about, verdicts[name].said)
        for name in ends["differs"] - DIFFERENT.keys() | ends["absent"] - ABSENT.keys()
    }
    assert unlisted == {}
    assert (ends["absent"], ends["differs"]) == (set(ABSENT), set(DIFFERENT))
    assert len(ends["agrees"] & core) >= 150
    assert len(ends["agrees"]) >= 500


def test_nothing_is_taken_and_given_less_than_it_asks_for() -> None:
    """The exception: the manual says that --ntasks counts, and Slurm itself gives more."""
    world = a_world()
    less = {case["id"] for case in cases() if compare(world, case).less}

    assert less == {name for name, why in DIFFERENT.items() if why.startswith("--ntasks counts")}


def test_the_variables_of_a_task_are_those_that_slurm_sets() -> None:
    world = a_world()
    by_id = {case["id"]: case for case in cases()}
    found: dict[str, dict[str, Any]] = {}
    for recorded in environments():
        here = answer(world, by_id[recorded["id"]])
        if here.spec is None:
            assert recorded["id"] in ABSENT
            continue
        theirs = tasks_there(recorded)
        ours = [
            environment(one, "/task", node_name=one["node_names"][one["node_rank"]])
            for one in assignments(here.spec, theirs)
        ]
        for mine, its in zip(ours, theirs, strict=True):
            for name in sorted(_READ_BY_PROGRAMS):
                if mine.get(name) != its.get(name) and not any(
                    re.fullmatch(case, recorded["id"]) for case in VARIABLES.get(name, {})
                ):
                    found.setdefault(recorded["id"], {})[name] = (mine.get(name), its.get(name))

    assert found == {}


#: Variables that programs read, set or not.
_READ_BY_PROGRAMS = {
    f"SLURM_{name}"
    for name in [
        "ARRAY_TASK_COUNT",
        "ARRAY_TASK_ID",
        "ARRAY_TASK_MAX",
        "ARRAY_TASK_MIN",
        "ARRAY_TASK_STEP",
        "CPUS_ON_NODE",
        "CPUS_PER_GPU",
        "CLUSTER_NAME",
        "CPUS_PER_TASK",
        "GPUS",
        "GPUS_ON_NODE",
        "GPUS_PER_NODE",
        "GPUS_PER_TASK",
        "GTIDS",
        "JOB_ACCOUNT",
        "JOB_CPUS_PER_NODE",
        "JOB_GPUS",
        "JOB_NAME",
        "JOB_NODELIST",
        "JOB_NUM_NODES",
        "JOB_PARTITION",
        "JOB_QOS",
        "LOCALID",
        "MEM_PER_CPU",
        "MEM_PER_GPU",
        "MEM_PER_NODE",
        "NNODES",
        "NODEID",
        "NODELIST",
        "NPROCS",
        "NTASKS",
        "NTASKS_PER_NODE",
        "PROCID",
        "TASKS_PER_NODE",
    ]
} | {"CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"}
