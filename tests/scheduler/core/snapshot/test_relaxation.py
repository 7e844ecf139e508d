"""Constraints that are required for a time (N27): what the planner sees of each of them before and after."""

from __future__ import annotations

import pytest

from quotas.core.resources import Resources
from scheduler.core.snapshot.constraints import JobSelector, JobTerm, Preference, Requirement, TaskTerm
from scheduler.core.snapshot.relaxation import Relaxable, pack_required, with_relaxations
from scheduler.core.snapshot.request_classes import RequestClass, request_class

SSD, NVME, ARM = (
    Requirement("disk", "In", ("ssd",)),
    Requirement("disk", "In", ("nvme",)),
    Requirement("arm", "Exists"),
)
NEAR = JobTerm("rack", JobSelector(name="db"), weight=7)
APART = JobTerm("node", JobSelector(name="db"), apart=True)


def a_class(**fields: object) -> RequestClass:
    return request_class(Resources(cpu_millis=1000, gpus=1), **fields)  # type: ignore[arg-type]


ALL = {
    "preferred_affinity": [Preference(80, (SSD,)), Preference(20, (NVME,))], "required_affinity": [(ARM,)],
    "node_selector": [("zone", "a")], "job_terms": [NEAR, APART], "task_term": TaskTerm("rack", most=1),
    "gpu_model": "A100", "one_domain": True,
}  # fmt: skip


def test_a_preference_is_required_until_it_is_relaxed_and_one_of_several_is_enough() -> None:
    asked = a_class(
        preferred_affinity=[Preference(80, (SSD,)), Preference(20, (NVME,))], required_affinity=[(ARM,)]
    )

    kept = with_relaxations(asked, kept=["preferred"], relaxed=())

    assert kept.required_affinity == ((ARM, NVME), (ARM, SSD))
    assert kept.preferred_affinity == asked.preferred_affinity
    assert with_relaxations(asked, kept=(), relaxed=["preferred"]) == asked


def test_what_was_required_is_preferred_with_the_whole_weight() -> None:
    relaxed = with_relaxations(
        a_class(**ALL), kept=(), relaxed=["required", "node_selector", "jobs", "tasks"]
    )

    assert (relaxed.required_affinity, relaxed.node_selector) == ((), ())
    assert {(wish.weight, wish.requirements) for wish in relaxed.preferred_affinity} == {
        (80, (SSD,)), (20, (NVME,)), (100, (ARM,)), (100, (Requirement("zone", "In", ("a",)),)),
    }  # fmt: skip
    assert {term.weight for term in relaxed.job_terms} == {7, 100}
    assert relaxed.task_term == TaskTerm("rack", most=1, soft=True)


def test_a_wish_about_other_jobs_and_a_soft_spread_are_musts_until_they_are_relaxed() -> None:
    asked = a_class(job_terms=[NEAR], task_term=TaskTerm("rack", most=1, soft=True))

    kept = with_relaxations(asked, kept=["jobs", "tasks"], relaxed=())

    assert [term.weight for term in kept.job_terms] == [0]
    assert kept.task_term == TaskTerm("rack", most=1)


def test_a_model_and_a_domain_are_dropped_and_a_slice_is_never() -> None:
    relaxed = with_relaxations(a_class(**ALL), kept=(), relaxed=["gpu_type", "numa"])
    assert (relaxed.gpu_model, relaxed.one_domain) == ("", False)
    assert (
        with_relaxations(a_class(gpu_model="MIG 1g.10gb"), kept=(), relaxed=["gpu_type"]).gpu_model
        == "MIG 1g.10gb"
    )


@pytest.mark.parametrize("name", sorted(Relaxable))
def test_each_constraint_changes_the_class_or_the_pack_and_nothing_else_does(name: str) -> None:
    asked = a_class(**ALL)

    before = with_relaxations(asked, kept=[name], relaxed=()), pack_required(False, kept=[name], relaxed=())
    after = with_relaxations(asked, kept=(), relaxed=[name]), pack_required(True, kept=[name], relaxed=[name])

    assert before != after
    assert with_relaxations(asked, kept=(), relaxed=()) == asked
