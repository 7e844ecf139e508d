"""What an assignment says of a job's layout and array, and where jobs run that name nodes."""

from __future__ import annotations

import pytest

from scheduler.agent.protocol import Assignment
from scheduler.models import Job, Node
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal() -> Portal:
    return a_portal()


def submit(portal: Portal, *lines: str) -> Job:
    script = "#!/bin/sh\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "true\n"
    payload, _ = parse_sbatch(script, by=portal.cast.owner)
    return submit_job(payload=payload, by=portal.cast.owner, via="sbatch")


def sent(portal: Portal) -> dict[str, list[Assignment]]:
    """What each node is given after one cycle, by rising job and rank."""
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    nodes = {node.name: node for node in Node.objects.select_related("cluster")}
    return {
        name: sorted(orders_for(node, {}).assignments, key=lambda one: (one["job"], one["rank"]))
        for name, node in nodes.items()
    }


def test_f3_an_element_is_given_the_number_of_the_arrays_first_job(portal: Portal) -> None:
    first = submit(portal, "--array=5-9:2")

    given = [one for its in sent(portal).values() for one in its]

    assert {one["array_id"] for one in given} == {str(first.number)}
    assert [one["array_index"] for one in sorted(given, key=lambda one: one["job"])] == [5, 7, 9]
    assert {one["env"]["SLURM_ARRAY_TASK_COUNT"] for one in given} == {"3"}
    assert {one["env"]["SLURM_ARRAY_TASK_STEP"] for one in given} == {"2"}


def test_f21_each_task_is_given_the_layout_of_its_job(portal: Portal) -> None:
    submit(portal, "-w n2", "-n 2", "--gres=gpu:4", "--mem=800M")

    (first, second) = sent(portal)["n2"]

    assert (first["devices"], second["devices"], first["node_devices"]) == ([0, 1], [2, 3], [0, 1, 2, 3])
    assert (first["node_ranks"], first["node_tasks"], first["cluster"]) == ([0, 1], [2], "main")


def test_f17_a_job_runs_on_the_node_that_it_names_and_on_none_that_it_excludes(portal: Portal) -> None:
    named, without = submit(portal, "-w n2"), submit(portal, "-x n2")

    given = sent(portal)

    assert [one["job"] for one in given["n2"]] == [named.number]
    assert [one["job"] for one in given["n1"]] == [without.number]
