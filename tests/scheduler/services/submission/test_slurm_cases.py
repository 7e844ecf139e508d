"""Cases in which scripts written for Slurm got something else than Slurm gives them, each with its siblings."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from infra.errors import InvalidInput
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Node, Queue
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.directives import Unhonoured
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.services.submission.sbatch.script_tools import notes_on_tools
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import JobFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    """Both nodes have 16 cores and 64 GiB; n2 has four A100 and the feature `ib`."""
    portal = a_portal()
    Node.objects.filter(name="n2").update(labels={"ib": ""})
    return portal


def submit(
    portal: Portal, *lines: str, body: str = "true\n", **more: Any
) -> tuple[JobSpec, list[Unhonoured]]:
    script = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + body
    payload, unhonoured = parse_sbatch(script, by=portal.cast.owner, **more)
    return parse_job(payload, by=portal.cast.owner), unhonoured


def refused(portal: Portal, *lines: str, body: str = "true\n", **more: Any) -> str:
    """The one problem of a script that is refused."""
    with pytest.raises(InvalidInput) as found:
        submit(portal, *lines, body=body, **more)
    (problem,) = found.value.problems
    return problem.message


def an_array(portal: Portal, *, indices: tuple[int, ...] = (1, 2, 3), **more: Any) -> list[Job]:
    array = {
        "array_id": uuid4(),
        "project": portal.cast.project,
        "user": portal.cast.owner,
        "queue": portal.queue,
    }
    return [JobFactory(array_index=index, **(array | more)) for index in indices]


def test_f1_a_dependency_on_the_number_of_an_array_waits_for_all_of_it(portal: Portal) -> None:
    first, second, third = an_array(portal)

    def waits(said: str) -> list[tuple[int, bool]]:
        return [(one.number, one.is_array) for one in submit(portal, f"-d {said}")[0].depends_on]

    assert waits(f"afterok:{first.number}") == waits(f"afterok:{first.number}_*") == [(first.number, True)]
    assert waits(f"afterok:{first.number}_2") == [(second.number, False)]
    assert waits(f"afterok:{second.number}") == [(second.number, False)]
    assert waits(f"afterany:{first.number}?afterany:{third.number}") == [
        (first.number, True),
        (third.number, False),
    ]
    assert "no job" in refused(portal, f"-d afterok:{first.number}_9")


def test_f1_somebody_elses_array_is_no_array(portal: Portal) -> None:
    first = JobFactory(array_id=uuid4(), array_index=1)

    assert "no job" in refused(portal, f"-d afterany:{first.number}")


def test_f5_requeue_speaks_of_lost_nodes_and_preemption_only(portal: Portal) -> None:
    assert submit(portal, "--requeue")[0].restart_policy == "interrupted"
    assert submit(portal)[0].restart_policy == "interrupted"
    assert submit(portal, "--requeue", "--no-requeue")[0].restart_policy == "never"


def test_f7_fields_beside_the_script_win_over_a_line_that_cannot_be_used(portal: Portal) -> None:
    spec, _ = submit(portal, "-p nowhere", overrides={"queue": "default"})

    assert spec.queue.slug == "default"
    assert submit(portal, "-t never", overrides={"time_limit": 60})[0].time_limit_seconds == 60
    assert submit(portal, "-C nothing", overrides={"affinity": {}})[0].affinity == {}
    assert "'nowhere'" in refused(portal, "-p nowhere")


def test_f8_directives_behind_the_first_command_are_listed(portal: Portal) -> None:
    spec, unhonoured = submit(portal, "-n 2", body="set -e\n#SBATCH -J late\n#SBATCH --mem=4G\n")

    assert (spec.tasks, spec.name) == (2, "set -e")
    assert [(one.line, one.text) for one in unhonoured] == [(4, "#SBATCH -J late"), (5, "#SBATCH --mem=4G")]
    assert "line 3" in unhonoured[0].reason


@pytest.mark.parametrize(
    "line",
    ["#SBTACH -n 2", "  #SBATCH -n 2", "\t#SBATCH -n 2", "# SBATCH -n 2", "#sbatch -n 2", "##SBATCH -n 2"],
)
def test_f8_what_is_almost_a_directive_is_listed(portal: Portal, line: str) -> None:
    spec, unhonoured = submit(portal, body=f"{line}\ntrue\n")

    assert spec.tasks == 1
    assert [one.line for one in unhonoured] == [2]


def test_f10_carriage_returns_are_refused_with_their_line(portal: Portal) -> None:
    for script, line in (("#!/bin/bash\r\ntrue\r\n", 1), ("#!/bin/bash\ntrue\nexit 3\r\n", 3)):
        with pytest.raises(InvalidInput, match=f"Line {line}: ends with a carriage return"):
            parse_sbatch(script, by=portal.cast.owner)
    assert submit(portal, body="printf 'a\rb'\n")[0].tasks == 1


def test_f10_what_editors_do_not_show_is_named(portal: Portal) -> None:
    with pytest.raises(InvalidInput, match="byte order mark"):
        parse_sbatch("\ufeff#!/bin/bash\ntrue\n", by=portal.cast.owner)


def test_f20_a_range_that_is_wrong_says_what_is(portal: Portal) -> None:
    assert "has step 0; the least is 1" in refused(portal, "--array=1-5:0")
    assert "write the lower index first" in refused(portal, "--array=5-1")
    first = an_array(portal)[0]
    with pytest.raises(InvalidInput, match=f"as {first.number}_1"):
        portal.submit(depends_on=[{"job": first.number, "type": "checkpoint"}])


def test_f12_singleton_waits_for_jobs_of_the_same_name_and_person(portal: Portal) -> None:
    mine = {"project": portal.cast.project, "user": portal.cast.owner, "queue": portal.queue}
    running = JobFactory(name="solo", state=JobState.RUNNING, **mine)
    waiting = JobFactory(name="solo", state=JobState.QUEUED, **mine)
    JobFactory(name="solo", project=portal.cast.project, user=UserFactory(), queue=portal.queue)
    JobFactory(name="other", **mine)

    spec, _ = submit(portal, "-J solo", "-d singleton")
    both, _ = submit(portal, "-J solo", f"-d singleton,afterok:{running.number}")

    assert [(one.number, one.kind) for one in spec.depends_on] == [
        (running.number, "completion"), (waiting.number, "completion"),
    ]  # fmt: skip
    assert {(one.number, one.kind) for one in both.depends_on} >= {(running.number, "success")}
    assert submit(portal, "-J alone", "-d singleton")[0].depends_on == ()
    assert "add --job-name" in refused(portal, "-d singleton")


def test_f12_dependencies_that_do_not_exist_say_so(portal: Portal) -> None:
    job = JobFactory(project=portal.cast.project, user=portal.cast.owner)
    for kind in ("after", "aftercorr", "afterburstbuffer"):
        assert f"{kind}: " in refused(portal, f"-d {kind}:{job.number}")
    assert submit(portal, f"-d {job.number}")[0].depends_on[0].kind == "completion"


def test_f13_two_amounts_of_memory_are_refused(portal: Portal) -> None:
    assert "--mem and --mem-per-cpu exclude each other" in refused(
        portal, "--mem=4G", "--mem-per-cpu=1G", "-c 2"
    )
    assert "exclude each other" in refused(portal, "--mem-per-cpu=1G", args=["--mem=2G"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--cpu-per-task=8", "did you mean --cpus-per-task?"),
        ("--ntask=2", "--ntasks-per-node"),
        ("--NTASKS=2", "did you mean --ntasks?"),
        ("--frobnicate=1", "leave the option out"),
        ("-z 1", "no option -z"),
        ("--requeue=yes", "takes no value"),
        ("-n=2", "'=2'"),
        ("-n 2 extra", "'extra' is not an option"),
    ],
)
def test_f15_unknown_options_are_refused_with_what_may_have_been_meant(
    portal: Portal, line: str, says: str
) -> None:
    message = refused(portal, line)

    assert message.startswith("Line 2: ")
    assert says in message


def test_f15_the_beginning_of_a_name_is_enough(portal: Portal) -> None:
    assert submit(portal, "--cpus-per-t=2")[0].cpu_millis == 2000


def test_f17_all_of_a_node_is_requested_where_nodes_are_alike(portal: Portal) -> None:
    exclusive, _ = submit(portal, "--exclusive")
    whole, _ = submit(portal, "--mem=0", "-n 2")

    assert exclusive.cpu_millis == 16_000
    assert (whole.memory_mib, whole.nodes) == (32_768, 1)
    assert submit(portal, "--exclusive", "--gres=gpu:1")[0].gpus == 4
    Node.objects.filter(name="n1").update(cpu_millis_capacity=8000, memory_mib_capacity=8000)
    assert "nodes of different sizes" in refused(portal, "--exclusive")
    assert "give an amount" in refused(portal, "--mem=0")


def test_f17_nodes_are_named_and_excluded(portal: Portal) -> None:
    named, _ = submit(portal, "-w n1")
    without, _ = submit(portal, "-x n[1-1]")

    assert named.affinity["required"] == [[{"key": "@node", "operator": "In", "values": ["n1"]}]]
    assert named.nodes == 1
    assert without.affinity["required"] == [[{"key": "@node", "operator": "NotIn", "values": ["n1"]}]]
    assert "no node 'n9'" in refused(portal, "-w n9")
    assert "no node 'n9'" in refused(portal, "--exclude=n1,n9")
    assert "no nodes of queue" in refused(portal, "-x n[1-2]")
    assert "named nodes and others together do not exist" in refused(portal, "-w n1 -N 2")


@pytest.mark.parametrize(
    "line",
    ["-L matlab:2", "--reservation=a,b", "--exclusive=user", "-i in.txt", "-M other", "-O", "--uid=0",
     "--ntasks-per-socket=1", "--container=x", "--export-file=x"],
)  # fmt: skip
def test_f17_what_guards_or_narrows_and_does_not_exist_is_refused(portal: Portal, line: str) -> None:
    assert refused(portal, line).startswith("Line 2: ")


def test_f18_zero_is_no_limit_however_it_is_written(portal: Portal) -> None:
    for text in ("0", "0-00:00:00", "00:00", "UNLIMITED", "infinite", "-1"):
        assert submit(portal, f"--time={text}")[0].time_limit_seconds is None
    Queue.objects.update(max_wall_seconds=1800, default_wall_seconds=600)
    assert "requests no time limit; queue default allows 1800 seconds" in refused(portal, "--time=0")
    Queue.objects.update(max_wall_seconds=None)
    assert submit(portal, "--time=0")[0].time_limit_seconds == 316_224_000
    assert submit(portal)[0].time_limit_seconds == 600


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("[0-3]%2", (0, 1, 2, 3), 2),
        ("1-3%0", (1, 2, 3), None),
        ("1-3%", (1, 2, 3), None),
        ("1,1,2", (1, 2), None),
    ],
)
def test_f20_arrays_as_slurm_writes_them(
    portal: Portal, text: str, indices: tuple[int, ...], at_once: int | None
) -> None:
    spec, _ = submit(portal, f"--array={text}")

    assert (spec.array.indices, spec.array.max_running) == (indices, at_once)


def test_f20_a_broken_array_is_named_by_its_line(portal: Portal) -> None:
    assert refused(portal, "-J a", "--array=3-1").startswith("Line 3: --array: ")


def test_f21_amounts_of_a_node_are_divided_among_its_tasks(portal: Portal) -> None:
    spec, _ = submit(portal, "--ntasks-per-node=2", "--mem=800M", "--gres=gpu:2")

    assert (spec.tasks, spec.memory_mib, spec.gpus) == (2, 400, 1)
    assert spec.env["SLURM_MEM_PER_NODE"] == "800"
    assert "tasks that share one GPU do not exist here" in refused(portal, "-n 2", "--gres=gpu:1")


def test_f25_features_are_kept_and_one_that_no_node_has_is_named(portal: Portal) -> None:
    assert submit(portal, "-C ib")[0].affinity["required"] == [
        [{"key": "ib", "operator": "Exists", "values": []}]
    ]
    assert len(submit(portal, "-C '(ib|ib)&ib'")[0].affinity["required"]) == 2
    assert "no node has the feature 'haswell'" in refused(portal, "-C haswell")
    assert "1 node of queue default" in refused(portal, "-C ib -N 2")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-\N{EM DASH}mem=16G", "U+2014"),
        ("\N{EN DASH}-mem=16G", "U+2013"),
        ("hetjob", "several shapes"),
        ("packjob", "several shapes"),
    ],
)
def test_f27_the_dash_and_the_feature_are_named(portal: Portal, line: str, says: str) -> None:
    assert says in refused(portal, line)


def test_f31_programs_that_are_not_there_are_named() -> None:
    script = (
        "#!/bin/bash\n# srun in a comment\nmodule load cuda\nif true; then srun ./a; fi\n"
        "echo mpirun\nx=$(scontrol show hostnames)\n"
    )

    notes = notes_on_tools(script)

    assert [note.split(":")[0].split(",")[0] for note in notes] == [
        "Line 3 calls module", "Line 4 calls srun", "Line 6 calls scontrol",
    ]  # fmt: skip


def test_lines_of_pbs_are_refused_or_put_aside(portal: Portal) -> None:
    assert "directives of PBS" in refused(portal, body="#PBS -l nodes=2\ntrue\n")
    assert submit(portal, "--ignore-pbs", body="#PBS -l nodes=2\ntrue\n")[0].tasks == 1


def test_the_command_line_wins_over_variables_and_these_over_the_script(portal: Portal) -> None:
    shell = {"SBATCH_TIMELIMIT": "7", "SBATCH_JOB_NAME": "shell", "WANTED": "yes", "SBATCH_NTASKS": "9"}

    spec, _ = submit(
        portal, "-t 3", "-J script", "--export=WANTED", args=["--job-name=args"], submit_env=shell
    )

    assert (spec.time_limit_seconds, spec.name, spec.tasks, spec.env["WANTED"]) == (420, "args", 1, "yes")
    with pytest.raises(InvalidInput, match="SBATCH_TIMELIMIT: --time"):
        submit(portal, submit_env={"SBATCH_TIMELIMIT": "abc"})


def test_what_slurm_sets_is_there_beside_fields_of_the_job(portal: Portal) -> None:
    spec, _ = submit(portal, "-c 2", "--export=A=1", overrides={"env": {"B": "2"}, "array": "3-5:2"})

    assert spec.env == {
        "B": "2", "SLURM_CPUS_PER_TASK": "2", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_MAX": "5", "SLURM_ARRAY_TASK_STEP": "2",
    }  # fmt: skip


def test_wrap_is_a_script(portal: Portal) -> None:
    payload, _ = parse_sbatch("", by=portal.cast.owner, args=["--wrap=echo one", "-n2"])

    assert payload["script"].endswith("echo one\n")
    assert (payload["name"], payload["tasks"]) == ("wrap", 2)


def test_nice_lowers_the_priority_and_qos_is_a_priority_class(portal: Portal) -> None:
    assert [
        submit(portal, line)[0].priority for line in ("--nice", "--nice=50", "-q low", "--priority=TOP")
    ] == [40, 45, 25, 75]
    assert "no priority class 'gold'" in refused(portal, "--qos=gold")
    assert "only operators" in refused(portal, "--nice=-5")
