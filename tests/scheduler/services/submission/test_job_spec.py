"""Requests are read whole: every form of an amount, every problem at once, nothing impossible let in."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import InvalidInput, MusterError, NotAllowed
from quotas.core.resources import Resources
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Node, Queue
from scheduler.services.submission.job_spec import FIELDS
from scheduler.services.submission.parse_request import parse_job
from tests.scheduler.portal import Portal, a_portal, problems, read
from tests.support.factories import (
    JobFactory,
    NodeFactory,
    PartitionFactory,
    ProjectFactory,
    QueueFactory,
    QuotaFactory,
)
from tests.support.kept import made_once
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db


one_portal = made_once(a_portal)


@pytest.fixture
def portal(one_portal: Portal, db: None) -> Portal:
    return deepcopy(one_portal)


def message(portal: Portal, **payload: Any) -> str:
    with pytest.raises(MusterError) as refused:
        read(portal, **payload)
    return refused.value.problems[0].message


# ---------------------------------------------------------------- what is left out


def test_a_command_alone_is_enough(portal: Portal) -> None:
    spec = parse_job({"command": "python train.py --fast"}, by=portal.cast.owner)

    assert (spec.name, spec.project, spec.queue) == (
        "python train.py --fast",
        portal.cast.project,
        portal.queue,
    )
    assert (spec.tasks, spec.per_task) == (1, Resources(cpu_millis=1000, memory_mib=256))
    assert (spec.priority, spec.time_limit_seconds) == (50, None)


def test_the_queue_gives_the_time_limit_that_a_job_does_not_say(portal: Portal) -> None:
    Queue.objects.update(default_wall_seconds=600, max_wall_seconds=3600)

    assert read(portal).time_limit_seconds == 600
    assert read(portal, time_limit="1:00:00").time_limit_seconds == 3600
    assert problems(portal, time_limit=3601) == {"time_limit": "exceeds-wall-time"}


def test_a_queue_allows_no_more_than_the_longest_of_its_partitions(portal: Portal) -> None:
    bounds = [PartitionFactory(cluster=portal.cluster, max_wall_seconds=most) for most in (600, 1800)]
    portal.queue.partitions.set(bounds)

    assert problems(portal, time_limit=1801) == {"time_limit": "exceeds-wall-time"}
    assert (read(portal, time_limit=1800).time_limit_seconds, read(portal).time_limit_seconds) == (1800, 1800)
    portal.queue.partitions.add(PartitionFactory(cluster=portal.cluster))
    assert read(portal, time_limit=1801).time_limit_seconds == 1801


def test_null_and_empty_text_mean_that_a_field_was_left_out(portal: Portal) -> None:
    assert read(portal, gpu_count=None, name="", time_limit="", labels=None) == read(portal)


# ---------------------------------------------------------------- amounts and times


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpu_cores": 4}, Resources(cpu_millis=4000, memory_mib=256)),
        ({"cpu_cores": "0.5"}, Resources(cpu_millis=500, memory_mib=256)),
        ({"cpu_cores": "1500m"}, Resources(cpu_millis=1500, memory_mib=256)),
        ({"memory": "16Gi"}, Resources(cpu_millis=1000, memory_mib=16_384)),
        ({"memory_bytes": "16Gi"}, Resources(cpu_millis=1000, memory_mib=16_384)),
        ({"memory_bytes": 1_073_741_825}, Resources(cpu_millis=1000, memory_mib=1025)),
        ({"memory_gb": 16}, Resources(cpu_millis=1000, memory_mib=15_259)),
        ({"storage_bytes": "2Gi"}, Resources(cpu_millis=1000, memory_mib=256, storage_mib=2048)),
        ({"gpu_count": 2}, Resources(cpu_millis=1000, memory_mib=256, gpus=2)),
        ({"gpu_share": 0.25}, Resources(cpu_millis=1000, memory_mib=256, gpus=1, gpu_millis=250)),
        ({"gpu_share": "25%"}, Resources(cpu_millis=1000, memory_mib=256, gpus=1, gpu_millis=250)),
        ({"gpu_share": 1}, Resources(cpu_millis=1000, memory_mib=256, gpus=1)),
        ({"extras": {"matlab": 2}}, Resources(cpu_millis=1000, memory_mib=256, extras=(("matlab", 2),))),
    ],
)
def test_amounts_are_read_in_every_form(portal: Portal, given: dict[str, Any], expected: Resources) -> None:
    Node.objects.filter(pk=portal.n1.pk).update(extras={"matlab": 2})

    assert read(portal, **given).per_task == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90), ("90", 90), ("2:30", 150), ("01:00:00", 3600), ("100:00:00", 360_000), ("2-12", 216_000),
        ("1-00:30", 88_200), ("1-01:01:01", 90_061), ("1h30m", 5400), ("2d", 172_800),
    ],
)  # fmt: skip
def test_times_are_read_in_every_form(portal: Portal, text: object, seconds: int) -> None:
    assert read(portal, time_limit=text).time_limit_seconds == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_cores": -1}, {"cpu_cores": 0}, {"cpu_cores": "many"}, {"cpu_cores": "1e400"}, {"cpu_cores": True},
        {"memory": "-1Gi"}, {"memory": "lots"}, {"memory_bytes": 0}, {"memory_gb": "9" * 30},
        {"gpu_count": -1}, {"gpu_count": 1.5}, {"gpu_count": 10**12}, {"gpu_share": 0}, {"gpu_share": 1.5},
        {"gpu_share": "NaN"}, {"gpu_share": 0.00001}, {"time_limit": 0}, {"time_limit": "soon"},
        {"time_limit": 10**12}, {"time_limit": "00:61:00"}, {"tasks": 0}, {"tasks": 10**9}, {"nodes": "x"},
        {"begin_at": "tomorrow"}, {"begin_at": "0001-01-01T00:00:00Z"}, {"begin_at": "2027-13-01"},
        {"deadline": "2001-01-01"}, {"priority": 101}, {"priority": -1}, {"priority": "URGENT"},
        {"array": "9-0"}, {"array": "0-99999999"}, {"array": "a"}, {"array": "0-9%0"}, {"max_restarts": 32_768},
        {"restart_policy": "maybe"}, {"preemptible": "perhaps"}, {"working_dir": "here"},
        {"job_type": "Two words"}, {"labels": ["a"]}, {"labels": {"!": "x"}}, {"env": {"1A": "x"}},
        {"env": {"A": {"b": 1}}}, {"env": {"MUSTER_TASK_RANK": "3"}}, {"env": {"A": "x\0y"}},
        {"tolerations": [{"operator": "Like"}]}, {"tolerations": {"key": "x"}}, {"node_selector": {"a b": "c"}},
        {"affinity": {"required": [[{"key": "a", "operator": "In"}]]}}, {"affinity": {"must": []}},
        {"affinity": {"preferred": [{"weight": 0, "requirements": [{"key": "a", "values": ["b"]}]}]}},
        {"depends_on": ["nonsense"]}, {"depends_on": [10**30]}, {"extras": {"matlab": -1}},
        {"name": "x" * 201}, {"name": "a\0b"}, {"name": "\ud800"}, {"name": 7}, {"script": "#!/bin/sh"},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(
    portal: Portal, wrong: dict[str, Any]
) -> None:
    found = problems(portal, **wrong)

    assert {field.partition("/")[0] for field in found} == set(wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"affinity": {"required": [[{"key": "a", "operator": "Exists"}] * 17]}},
         "Has 17 requirements; the maximum is 16."),
        ({"depends_on": [{"of": list(range(1, 202))}]}, "Has 201 entries; the maximum is 200."),
        ({"depends_on": [{"of": list(range(1, 102))}] * 2}, "Names 202 jobs; the maximum is 200."),
        ({"affinity": {"preferred": [7]}}, "Must be an object with weight and requirements."),
        ({"tolerations": [7]}, "Must be an object with key, operator, value and effect."),
        ({"probes": [7]}, "Must be an object with kind."),
    ],
)  # fmt: skip
def test_a_list_that_is_wrong_says_what_it_may_be(portal: Portal, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(portal, **wrong)

    assert says in [problem.message for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("delays", "refused"),
    [
        ({"restart_delay": "1m", "restart_delay_max": "30s"}, "restart_delay_max"),
        ({"restart_delay_max": "3s"}, "restart_delay_max"),
        ({"restart_delay": "2h"}, "restart_delay"),
    ],
)
def test_the_longest_wait_before_a_restart_is_no_shorter_than_the_first(
    portal: Portal, delays: dict[str, str], refused: str
) -> None:
    assert problems(portal, **delays) == {refused: "inconsistent"}


def test_every_problem_is_named_at_once(portal: Portal) -> None:
    found = problems(
        portal, cpu_cores=-1, gpu_count="two", env={"9": "x", "OK": "y"}, tolerations=[{}], naem="typo"
    )

    assert found == {
        "cpu_cores": "unreadable",
        "gpu_count": "not-a-number",
        "env/9": "bad-name",
        "tolerations/0/key": "required",
        "naem": "unknown-field",
    }


def test_an_unknown_field_is_refused_with_the_nearest_known_one(portal: Portal) -> None:
    assert "did you mean 'gpu_count'" in message(portal, gpu_cuont=1)
    for elsewhere, here in (("gpus", "gpu_count"), ("mem", "memory"), ("cpus-per-task", "cpu_cores")):
        assert f"did you mean {here!r}" in message(portal, **{elsewhere: 1})


def test_emoji_names_and_words_of_all_scripts_are_fine(portal: Portal) -> None:
    spec = read(portal, name="🚀 训练 обучение", labels={"team": "日本"}, env={"GREETING": "grüß"})

    assert (spec.name, spec.labels, spec.env) == ("🚀 训练 обучение", {"team": "日本"}, {"GREETING": "grüß"})


def test_a_job_runs_one_thing(portal: Portal) -> None:
    assert problems(portal, command=None) == {"command": "required"}
    assert problems(portal, script="#!/bin/sh\ntrue") == {"script": "one-of"}
    assert problems(portal, command=None, script="echo no shebang") == {"script": "no-shebang"}
    assert problems(portal, command=None, script="#!/bin/sh\r\ntrue\r\n") == {"script": "carriage-return"}
    assert read(portal, command=None, script="#!/usr/bin/python3\nprint()\r\n").script.endswith("\r\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, None, None)),
        ({"nodes": 2}, (2, 2, None)),
        ({"nodes": 2, "tasks_per_node": 4}, (8, 2, 4)),
        ({"tasks": 6, "nodes": 2}, (6, 2, None)),
        ({"tasks_per_node": 3}, (3, None, 3)),
    ],
)
def test_tasks_follow_from_nodes(portal: Portal, given: dict[str, int], expected: tuple[Any, ...]) -> None:
    spec = read(portal, **given)

    assert (spec.tasks, spec.nodes, spec.tasks_per_node) == expected


def test_a_job_that_runs_at_most_once_names_nothing_that_starts_it_again(portal: Portal) -> None:
    assert problems(portal, restart_policy="never", tasks=2, on_task_failure="requeue") == {
        "on_task_failure": "inconsistent"
    }
    assert problems(portal, restart_policy="never", tasks=2, min_tasks=1, elastic=True) == {
        "elastic": "inconsistent"
    }
    assert read(portal).restart_policy == "interrupted"
    assert read(portal, restart_policy="never", tasks=2, on_task_failure="continue", min_tasks=1)


def test_a_layout_that_contradicts_itself_is_refused(portal: Portal) -> None:
    assert problems(portal, tasks=2, nodes=3) == {"nodes": "inconsistent"}
    assert problems(portal, tasks=9, nodes=2, tasks_per_node=4) == {"tasks": "inconsistent"}
    assert problems(portal, gpu_count=2, gpu_share=0.5) == {"gpu_share": "inconsistent"}
    assert problems(portal, gpu_type="A100") == {"gpu_type": "inconsistent"}
    assert problems(portal, memory="1Gi", memory_gb=1) == {"memory_gb": "one-of"}


# ---------------------------------------------------------------- who may


def test_a_project_is_found_by_slug_name_or_id(portal: Portal) -> None:
    project = portal.cast.project

    for ref in (project.slug, project.name, project.name.upper(), project.pk, str(project.pk)):
        assert read(portal, project=ref).project == project


def test_somebody_of_several_projects_names_one_or_has_a_default(portal: Portal) -> None:
    second = ProjectFactory(slug="second", member=portal.cast.owner)

    assert problems(portal) == {"project": "required"}
    portal.cast.owner.default_project = second
    assert read(portal).project == second


def test_a_foreign_project_reads_like_one_that_does_not_exist(portal: Portal) -> None:
    with pytest.raises(NotAllowed) as foreign:
        read(portal, project="elsewhere")
    with pytest.raises(NotAllowed) as missing:
        read(portal, project="nowhere12")

    assert foreign.value.message.replace("elsewhere", "X") == missing.value.message.replace("nowhere12", "X")
    assert foreign.value.refused is not None


def test_a_viewer_is_told_that_viewers_only_look(portal: Portal) -> None:
    with pytest.raises(NotAllowed, match="not submit to it"):
        parse_job({"command": "true", "project": "vision"}, by=portal.cast.viewer)


def test_a_closed_project_takes_no_jobs(portal: Portal) -> None:
    portal.cast.project.active = False
    portal.cast.project.save()

    with pytest.raises(NotAllowed, match="closed"):
        read(portal, project="vision")


def test_a_queue_of_another_project_cannot_be_used(portal: Portal) -> None:
    own = ProjectFactory(slug="own", member=portal.cast.owner)
    QueueFactory(cluster=portal.cluster, slug="private", project=own)
    QueueFactory(cluster=portal.cluster, slug="secret", project=ProjectFactory())

    assert problems(portal, project="vision", queue="private") == {"queue": "queue-not-usable"}
    assert problems(portal, project="vision", queue="secret") == {"queue": "not-found"}
    assert "did you mean 'default'" in message(portal, project="vision", queue="defualt")


def test_nobody_passes_their_priority_ceiling(portal: Portal) -> None:
    assert read(portal, priority="high").priority == 75
    assert read(portal, priority="medium").priority == 50
    with pytest.raises(NotAllowed, match="maximum is 75") as refused:
        read(portal, priority="CRITICAL")

    assert refused.value.code == "above-priority-ceiling"
    portal.cast.owner.priority_ceiling = 100
    assert read(portal, priority="CRITICAL").priority == 100


# ---------------------------------------------------------------- what can never start


def test_a_thousand_gpus_are_refused_with_the_number_that_exists(portal: Portal) -> None:
    NodeFactory(cluster=portal.cluster, gpus=2)

    with pytest.raises(InvalidInput) as refused:
        read(portal, gpu_count=1000)

    assert refused.value.code == "can-never-fit"
    assert refused.value.problems[0].message == (
        "Requests 1,000 GPUs on one node; the largest node has 4. The job can never start as written."
    )


def test_a_gang_larger_than_the_cluster_is_refused(portal: Portal) -> None:
    assert "Requests 5 GPUs in all; the matching nodes have 4." in message(portal, tasks=5, gpu_count=1)
    assert problems(portal, tasks=5, gpu_count=1) == {"tasks": "can-never-fit"}
    assert problems(portal, nodes=3) == {"nodes": "can-never-fit"}
    assert message(portal, nodes=3).endswith("The cluster has 2 nodes.")
    assert read(portal, tasks=4, gpu_count=1).tasks == 4


def test_a_model_that_no_node_has_is_refused_and_a_prefix_is_not(portal: Portal) -> None:
    assert "a GPU of the requested model (H100)" in message(portal, gpu_count=1, gpu_type="H100")
    assert problems(portal, gpu_count=1, gpu_type="H100") == {"gpu_count": "can-never-fit"}
    assert read(portal, gpu_count=1, gpu_type="a100").gpu_model == "a100"


def test_every_amount_that_no_node_has_is_named(portal: Portal) -> None:
    assert problems(portal, cpu_cores=1000, memory="9Ti", gpu_count=1000, storage_bytes=10**15) == {
        "cpu_cores": "can-never-fit", "memory": "can-never-fit", "gpu_count": "can-never-fit",
        "storage_bytes": "can-never-fit",
    }  # fmt: skip


def test_a_licence_that_the_cluster_does_not_have_is_refused(portal: Portal) -> None:
    Node.objects.filter(pk=portal.n1.pk).update(extras={"matlab": 2})

    assert read(portal, tasks=2, extras={"matlab": 1}).tasks == 2
    assert problems(portal, extras={"matlab": 3}) == {"extras": "can-never-fit"}
    assert problems(portal, extras={"ansys": 1}) == {"extras": "can-never-fit"}


def test_what_only_a_label_or_a_rack_keeps_from_starting_waits(portal: Portal) -> None:
    assert read(portal, node_selector={"arch": "s390x"}).tasks == 1
    assert read(portal, tasks=2, pack={"level": "rack", "required": True}).tasks == 2
    assert read(portal, tasks=2, affinity={"tasks": {"topology_key": "zone", "domains": 2}}).tasks == 2


def test_tasks_that_no_one_node_holds_are_refused_where_they_have_to_be_on_one(portal: Portal) -> None:
    one_node = {"level": "node", "required": True}

    assert read(portal, tasks=4, gpu_count=1, pack=one_node).tasks == 4
    whole = portal.n1.cpu_millis // 1000
    assert read(portal, tasks=2, cpu_cores=whole).tasks == 2
    assert problems(portal, tasks=2, cpu_cores=whole, pack=one_node) == {"pack": "can-never-fit"}


def test_parts_that_exist_on_different_nodes_only_are_refused(portal: Portal) -> None:
    NodeFactory(cluster=portal.cluster, cpu_millis=64_000)

    assert "No single node has all" in message(portal, cpu_cores=32, gpu_count=1)


def test_shares_of_a_gpu_count_as_shares(portal: Portal) -> None:
    assert read(portal, tasks=16, gpu_share=0.25).tasks == 16
    assert problems(portal, tasks=17, gpu_share=0.25) == {"tasks": "can-never-fit"}


def test_a_cluster_without_machines_refuses_nothing(portal: Portal) -> None:
    with as_owner():
        portal.cluster.nodes.all().delete()

    assert read(portal, gpu_count=1000).per_task.gpus == 1000


def test_a_node_that_joined_a_moment_ago_counts(portal: Portal) -> None:
    assert problems(portal, cpu_cores=100) == {"cpu_cores": "can-never-fit"}
    NodeFactory(cluster=portal.cluster, cpu_millis=128_000)

    assert read(portal, cpu_cores=100).per_task.cpu_millis == 100_000


def test_a_drained_node_still_counts_for_what_could_ever_start(portal: Portal) -> None:
    portal.n2.draining = True
    portal.n2.save()

    assert read(portal, gpu_count=4).per_task.gpus == 4


def test_more_than_the_hard_quota_is_refused_with_its_number(portal: Portal) -> None:
    QuotaFactory(project=portal.cast.project, resource="gpu_millis", hard=2000)

    assert "Needs 3 GPUs; the limit of project vision is 2." in message(portal, tasks=3, gpu_count=1)
    assert problems(portal, tasks=3, gpu_count=1) == {"gpu_count": "exceeds-quota"}
    assert read(portal, tasks=2, gpu_count=1).tasks == 2
    assert read(portal, tasks=4, gpu_share=0.5).tasks == 4


def test_a_quota_that_only_reports_refuses_nothing(portal: Portal) -> None:
    QuotaFactory(project=portal.cast.project, resource="cpu_millis", hard=1, enforce=False)

    assert read(portal, cpu_cores=4).per_task.cpu_millis == 4000


# ---------------------------------------------------------------- where and when


def test_terms_are_kept_in_the_form_that_the_planner_reads(portal: Portal) -> None:
    spec = read(
        portal,
        node_selector={"arch": "amd64"},
        tolerations=[{"key": "gpu", "operator": "exists"}, {"key": "a", "value": "b", "effect": "noexecute"}],
        affinity={
            "required": [[{"key": "zone", "values": ["a", "b"]}, {"key": "ssd", "operator": "Exists"}]],
            "preferred": [
                {"weight": 5, "requirements": [{"key": "rack", "operator": "NotIn", "values": ["r1"]}]}
            ],
        },
    )

    assert spec.node_selector == {"arch": "amd64"}
    assert spec.tolerations == [
        {"key": "gpu", "operator": "Exists", "value": "", "effect": ""},
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"},
    ]
    assert spec.affinity["required"] == [
        [
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
            {"key": "ssd", "operator": "Exists", "values": []},
        ]
    ]
    assert spec.affinity["preferred"][0]["weight"] == 5


def test_a_dependency_is_found_by_number_or_id_among_what_one_may_see(portal: Portal) -> None:
    first, second = portal.submit(), portal.submit()
    hidden = JobFactory()

    spec = read(portal, depends_on=[first.number, {"job": str(second.uuid), "type": "afterany"}])

    assert [(d.number, d.kind) for d in spec.depends_on] == [
        (first.number, "success"),
        (second.number, "completion"),
    ]
    assert problems(portal, depends_on=[hidden.number]) == {"depends_on/0": "not-found"}


def test_a_dependency_that_can_never_hold_is_refused(portal: Portal) -> None:
    failed = portal.submit()
    Job.objects.filter(pk=failed.pk).update(state=JobState.FAILED, completed_at=timezone.now())

    assert problems(portal, depends_on=[failed.number]) == {"depends_on/0": "never-satisfied"}
    assert read(portal, depends_on=[{"job": failed.number, "type": "failure"}]).depends_on


def test_an_array_lists_its_indices(portal: Portal) -> None:
    assert read(portal, array="0-4").array.indices == (0, 1, 2, 3, 4)
    assert read(portal, array="1,3,5-9:2%2").array.indices == (1, 3, 5, 7, 9)
    assert read(portal, array="0-9%2").array.max_running == 2
    assert read(portal, array=3).array.indices == (3,)


def test_a_deadline_lies_in_the_future_and_after_the_beginning(portal: Portal) -> None:
    later = (timezone.now() + timedelta(days=1)).isoformat()
    latest = (timezone.now() + timedelta(days=2)).isoformat()

    assert problems(portal, deadline="2020-01-01T00:00:00Z") == {"deadline": "in-the-past"}
    assert problems(portal, begin_at=latest, deadline=later) == {"deadline": "inconsistent"}
    assert read(portal, begin_at=later, deadline=latest).deadline_at is not None


# ---------------------------------------------------------------- whatever comes


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(payload=st.dictionaries(st.sampled_from(sorted(FIELDS)), ANYTHING, max_size=5))
def test_t27_whatever_comes_is_read_or_refused_and_nothing_else(
    portal: Portal, payload: dict[str, Any]
) -> None:
    refused: MusterError | None = None
    try:
        spec = parse_job(payload, by=portal.cast.owner)
    except MusterError as error:
        refused = error

    if refused is None:
        assert spec.tasks >= 1
        assert spec.per_task.cpu_millis >= 1
    else:
        assert refused.problems


@pytest.mark.parametrize(
    ("terms", "kept"),
    [
        ({"jobs": [{"near": {"labels": {"app": "db"}}, "topology_key": "rack"}]},
         {"jobs": [{"apart": False, "topology_key": "rack", "labels": {"app": "db"}}]}),
        ({"jobs": [{"apart": {"array": "own"}, "weight": 50}]},
         {"jobs": [{"apart": True, "topology_key": "node", "array": "own", "weight": 50}]}),
        ({"regions": "same"}, {"tasks": {"topology_key": "region", "most": 1}}),
        ({"regions": "different"}, {"tasks": {"topology_key": "region", "per_domain": 1}}),
        ({"regions": 3}, {"tasks": {"topology_key": "region", "least": 3, "most": 3}}),
        ({"tasks": {"topology_key": "zone", "domains": {"least": 2}, "soft": True}},
         {"tasks": {"topology_key": "zone", "least": 2, "soft": True}}),
    ],
)  # fmt: skip
def test_rules_about_other_jobs_and_own_tasks_are_kept(
    portal: Portal, terms: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert read(portal, affinity=terms, tasks=4).affinity == kept


@pytest.mark.parametrize(
    ("terms", "at"),
    [
        ({"jobs": [{"topology_key": "rack"}]}, "affinity/jobs/0/near"),
        ({"jobs": [{"near": {"name": "a"}, "apart": {"name": "b"}}]}, "affinity/jobs/0/near"),
        ({"jobs": [{"near": {}}]}, "affinity/jobs/0/near"),
        ({"jobs": [{"near": {"name": "a"}, "topology_key": "planet"}]}, "affinity/jobs/0/topology_key"),
        ({"jobs": [{"near": {"array": "seven"}}]}, "affinity/jobs/0/near/array"),
        ({"tasks": {"topology_key": "zone"}}, "affinity/tasks"),
        ({"tasks": {"domains": 5}}, "affinity/tasks"),
        ({"tasks": {"domains": {"most": 1}, "per_domain": 2}}, "affinity/tasks"),
        ({"regions": "everywhere"}, "affinity/regions"),
        ({"regions": 2, "tasks": {"domains": 2}}, "affinity/regions"),
    ],
)
def test_rules_that_say_nothing_or_cannot_be_kept_are_refused(
    portal: Portal, terms: dict[str, Any], at: str
) -> None:
    assert list(problems(portal, affinity=terms, tasks=4)) == [at]


def test_a_spread_does_not_go_with_nodes(portal: Portal) -> None:
    assert problems(portal, affinity={"regions": 2}, nodes=2) == {"affinity/tasks": "inconsistent"}
