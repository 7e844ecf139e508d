"""`sbatch` scripts: what their directives mean here, what they do not, and which line is broken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import InvalidInput
from scheduler.models import Node, Partition
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.portal import a_portal
from tests.support.factories import QueueFactory

pytestmark = pytest.mark.django_db


def read(*directives: str) -> dict[str, Any]:
    """The payload without its script."""
    lines = "\n".join(f"#SBATCH {directive}" for directive in directives)
    payload, _ = parse_sbatch(f"#!/bin/bash\n{lines}\nsrun hostname\n")
    # What Slurm itself sets from the options has tests of its own (test_slurm_answers).
    env = {k: v for k, v in payload.pop("env", {}).items() if not k.startswith("SLURM_")}
    payload |= {"env": env} if env else {}
    assert payload.pop("script").endswith("srun hostname\n")
    return payload


def ignored(*directives: str) -> list[tuple[int, str]]:
    lines = "\n".join(f"#SBATCH {directive}" for directive in directives)
    return [(item.line, item.text) for item in parse_sbatch(f"#!/bin/bash\n{lines}\n")[1]]


def broken(*directives: str) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        read(*directives)
    assert refused.value.status == 422
    return [problem.message for problem in refused.value.problems]


def test_a_script_runs_as_it_is() -> None:
    script = "#!/usr/bin/env python3\n#SBATCH --job-name=hello\nprint('hello')\n"

    payload, unknown = parse_sbatch(script)

    assert payload == {"name": "hello", "script": script, "cpu_cores": 1}
    assert unknown == []


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        (["-J train"], {"name": "train"}),
        (["--job-name 'two words'"], {"name": "two words"}),
        (["-Jtrain -t 10"], {"name": "train", "time_limit": 600}),
        (["--time=10:30"], {"time_limit": 630}),
        (["--time=01:02:03"], {"time_limit": 3723}),
        (["--time=2-12"], {"time_limit": 216_000}),
        (["-t 1-02:03"], {"time_limit": 93_780}),
        (["--time 1-02:03:04"], {"time_limit": 93_784}),
        (["--priority=HIGH"], {"priority": "HIGH"}),
        (["--priority=60"], {"priority": 60}),
        (["-A vision"], {"project": "vision"}),
        (["--array=0-9%2"], {"array": "0-9%2"}),
        (["--chdir=/data"], {"working_dir": "/data"}),
        (["--requeue"], {"restart_policy": "interrupted"}),
        (["--no-requeue"], {"restart_policy": "never"}),
        (["-H"], {"hold": True}),
        (["--comment='night run'"], {"labels": {"comment": "night run"}}),
        (["--export=ALL,A=1,B=two"], {"env": {"A": "1", "B": "two"}}),
        (["'--export=NONE,PATH=/a:/b,C=x y'"], {"env": {"PATH": "/a:/b", "C": "x y"}}),
        (
            ["-d afterok:12:13,afterany:14"],
            {
                "depends_on": [
                    {"job": "12", "type": "afterok"},
                    {"job": "13", "type": "afterok"},
                    {"job": "14", "type": "afterany"},
                ]
            },
        ),
    ],
    ids=str,
)
def test_directives_become_fields_of_a_job(directives: list[str], expected: dict[str, Any]) -> None:
    assert read(*directives) == {"cpu_cores": 1, **expected}


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        (["--gres=gpu:1"], {"gpu_count": 1, "cpu_cores": 1}),
        (["--gres=gpu"], {"gpu_count": 1, "cpu_cores": 1}),
        (["--gres=gpu:a100:2"], {"gpu_count": 2, "gpu_type": "a100", "cpu_cores": 1}),
        (["--gres=gpu:a100"], {"gpu_count": 1, "gpu_type": "a100", "cpu_cores": 1}),
        (["--gres=gpu:1,gpu:2"], {"gpu_count": 2, "cpu_cores": 1}),
        (["--gpus=4 --gpus-per-node=2"], {"nodes": 2, "gpu_count": 2, "cpu_cores": 1}),
        (["--mincpus=4"], {"cpu_cores": 4}),
        (["-N 2-4"], {"min_tasks": 2, "tasks": 4, "tasks_per_node": 1, "cpu_cores": 1}),
        # gres is per node: two tasks on a node have one GPU each.
        (["--gres=gpu:2 --ntasks=2"], {"gpu_count": 1, "tasks": 2, "cpu_cores": 1}),
        (
            ["-N 2 --ntasks-per-node=4 --gres=gpu:4 --mem=64G -c 8"],
            {"nodes": 2, "tasks_per_node": 4, "gpu_count": 1, "memory": "16384Mi", "cpu_cores": 8},
        ),
        (["--nodes=2 --gpus-per-node=4"], {"nodes": 2, "gpu_count": 4, "cpu_cores": 1}),
        (["--ntasks=4 --gpus=8"], {"tasks": 4, "gpu_count": 2, "cpu_cores": 1}),
        (
            ["--ntasks=4 --gpus-per-task=h100:1"],
            {"tasks": 4, "gpu_count": 1, "gpu_type": "h100", "cpu_cores": 1},
        ),
        (["--mem=500"], {"memory": "500Mi", "cpu_cores": 1}),
        (["--mem=2G"], {"memory": "2048Mi", "cpu_cores": 1}),
        (["--mem=4G --ntasks=2"], {"memory": "2048Mi", "tasks": 2, "cpu_cores": 1}),
        (["--mem-per-cpu=1G -c 4"], {"memory": "4096Mi", "cpu_cores": 4}),
        (["--mem-per-gpu=8G -G 2"], {"memory": "16384Mi", "gpu_count": 2, "cpu_cores": 1}),
        (["--cpus-per-gpu=4 --gres=gpu:2"], {"gpu_count": 2, "cpu_cores": 8}),
    ],
    ids=str,
)
def test_amounts_of_a_node_become_amounts_of_a_task(directives: list[str], expected: dict[str, Any]) -> None:
    assert read(*directives) == expected


def test_a_partition_is_a_queue_or_fed_by_one() -> None:
    portal = a_portal()
    fast = Partition.objects.create(cluster=portal.cluster, name="fast")
    QueueFactory(cluster=portal.cluster, slug="gpu-queue", partition=fast)

    assert read("-p default")["queue"] == "default"
    assert read("--partition=fast")["queue"] == "gpu-queue"
    assert broken("-p nowhere") == [
        "Line 2: there is no queue or partition 'nowhere'; there are default, fast, gpu-queue."
    ]


def test_a_beginning_is_read_in_slurms_words() -> None:
    with time_machine.travel(datetime(2027, 1, 31, 18, 0, tzinfo=UTC), tick=False):
        assert read("--begin=now+1hour")["begin_at"] == "2027-01-31T19:00:00+00:00"
        assert read("--begin=now+90")["begin_at"] == "2027-01-31T18:01:30+00:00"
        assert read("--begin=16:00")["begin_at"] == "2027-02-01T16:00:00+00:00"
        assert read("-b 20:30")["begin_at"] == "2027-01-31T20:30:00+00:00"
        assert read("--begin=2027-02-02T08:00:00")["begin_at"] == "2027-02-02T08:00:00+00:00"
    assert broken("--begin=someday")[0].startswith("Line 2: --begin:")


def test_what_has_no_effect_is_listed_with_its_line_and_text() -> None:
    assert ignored("--job-name=x", "--acctg-freq=30", "--quiet -J y") == [
        (3, "#SBATCH --acctg-freq=30"),
        (4, "#SBATCH --quiet -J y"),
    ]


def test_of_a_range_of_nodes_beside_tasks_the_least_is_requested_and_the_answer_says_so() -> None:
    payload, notes = parse_sbatch("#!/bin/bash\n#SBATCH --nodes=2-4 -n 8\n")

    assert (payload["nodes"], payload["tasks"]) == (2, 8)
    assert [note.reason for note in notes] == [
        "The number of nodes is fixed here: 2, the least of the range."
    ]


def test_output_files_and_their_mode() -> None:
    found = read("-o logs/%x-%j.out", "--error=%j.err", "--open-mode=a")

    assert (found["standard_output"], found["standard_error"]) == ("logs/%x-%j.out", "%j.err")
    assert found["open_mode"] == "append"
    assert read("--open-mode=truncate")["open_mode"] == "truncate"
    assert broken("--open-mode=both")[0].startswith("Line 2: --open-mode:")


def test_a_comment_after_a_directive_is_no_part_of_it() -> None:
    assert read("--ntasks=2  # two of them") == {"tasks": 2, "cpu_cores": 1}


@pytest.mark.parametrize(
    ("directive", "says"),
    [
        ("--time=soon", "--time: 'soon' is not a time"),
        ("--ntasks=many", "'many' is not a whole number"),
        ("--ntasks", "--ntasks needs a value"),
        ("--mem=lots", "'lots' is not an amount"),
        ("--gres=gpu:x:y", "'y' is not a whole number"),
        ("--job-name='open", "is not closed"),
        ("job-name=x", "is not an option"),
        ("--dependency=after", "is no dependency"),
        ("--dependency=afterok:1?afterok:2,afterany:3", "mixes"),
        ("--gres=gpu:3 --ntasks=2", "cannot be divided among 2 tasks"),
        ("--chdir=here", "not absolute"),
        ("--constraint=(a", "cannot be read"),
    ],
)
def test_a_broken_directive_is_named_by_its_line(directive: str, says: str) -> None:
    messages = broken("--job-name=fine", directive)

    assert len(messages) == 1
    assert messages[0].startswith("Line 3:")
    assert says in messages[0]


def test_every_broken_line_is_named() -> None:
    assert [m[:7] for m in broken("--time=x", "-J ok", "--mem=y")] == ["Line 2:", "Line 4:"]


def test_a_script_needs_its_first_line() -> None:
    for script in ("", "echo hello\n", "#!\necho", "#SBATCH -J x\n"):
        with pytest.raises(InvalidInput, match="Line 1"):
            parse_sbatch(script)


def test_fields_beside_the_script_win_over_its_directives() -> None:
    payload, _ = parse_sbatch("#!/bin/sh\n#SBATCH -J a -t 5\n", overrides={"name": "b"})

    assert (payload["name"], payload["time_limit"]) == ("b", 300)


def test_what_a_script_asks_can_be_submitted() -> None:
    portal = a_portal()
    Node.objects.update(labels={"x86": ""})
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    payload, _ = parse_sbatch(
        "#!/bin/bash\n#SBATCH -J demo -p default -A vision --gres=gpu:1 -c 2 --mem=1G -t 30 --requeue\n"
        f"#SBATCH --begin={later} --export=A=1 --array=0-3%2 -C x86 --comment=c\necho $A\n"
    )

    spec = parse_job(payload, by=portal.cast.owner)

    assert (spec.name, spec.per_task.gpus, spec.per_task.cpu_millis, spec.per_task.memory_mib) == (
        "demo", 1, 2000, 1024,
    )  # fmt: skip
    assert (spec.time_limit_seconds, spec.restart_policy, spec.size) == (1800, "interrupted", 4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=80),
    option=st.sampled_from(["--time", "--gres", "--mem", "-d", "--export", "-b", ""]),
)
def test_t27_whatever_a_directive_says_it_is_read_or_refused(text: str, option: str) -> None:
    problems = ["none"]
    try:
        parse_sbatch(f"#!/bin/sh\n#SBATCH {option}={text}\n")
    except InvalidInput as refused:
        problems = [problem.message for problem in refused.problems]

    assert problems


@pytest.mark.parametrize(
    ("value", "waits"),
    [
        ("afterok:1:2", [{"job": "1", "type": "afterok"}, {"job": "2", "type": "afterok"}]),
        ("afterany:7,afternotok:8", [{"job": "7", "type": "afterany"}, {"job": "8", "type": "afternotok"}]),
        (
            "afterok:1:2?afterany:3",
            [
                {
                    "any": 1,
                    "of": [
                        {"job": "1", "type": "afterok"},
                        {"job": "2", "type": "afterok"},
                        {"job": "3", "type": "afterany"},
                    ],
                }
            ],
        ),
    ],
)
def test_dependencies_mean_what_slurm_means_by_them(value: str, waits: list[object]) -> None:
    assert read(f"--dependency={value}")["depends_on"] == waits


def test_one_switch_is_one_rack_for_as_long_as_the_script_waits_for_it() -> None:
    """Without a time Slurm waits for 300 s (`max_switch_wait`)."""
    assert ignored("--switches=1") == [(2, "#SBATCH --switches=1")]  # no node names a rack
    node = a_portal().n1
    Node.objects.filter(pk=node.pk).update(rack="r1")
    rack = {"level": "rack", "required": True}

    assert read("--switches=1") == {
        "pack": rack,
        "relax": [{"constraint": "pack", "after": 300}],
        "cpu_cores": 1,
    }
    assert read("--switches=1@10:00")["relax"] == [{"constraint": "pack", "after": 600}]
    assert "relax" not in read("--switches=1@UNLIMITED")
    assert read("--switches=0") == {"cpu_cores": 1}
    assert ignored("--switches=2@1:00") == [(2, "#SBATCH --switches=2@1:00")]
    assert broken("--switches=few")
    assert read("--relax=gpu_type,after_failures=2")["relax"] == [
        {"constraint": "gpu_type", "after_failures": "2"}
    ]
    assert broken("--relax=gpu_type,5m")
