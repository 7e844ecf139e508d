"""Slurm's words at the door: scripts in, the table that squeue prints out."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import AllocationFactory, AttemptFactory, JobFactory

SBATCH, SQUEUE = "/api/v1/slurm/sbatch", "/api/v1/slurm/squeue"
SCRIPT = "#!/bin/bash\n#SBATCH --job-name=demo\n#SBATCH --gres=gpu:1\n#SBATCH --acctg-freq=30\necho hello\n"


def test_a_script_is_submitted_and_what_was_not_understood_comes_back(api: Api, portal: Portal) -> None:
    answer = api(portal.cast.owner).post(SBATCH, {"script": SCRIPT})

    assert answer.status_code == 201, answer.content
    job, body = Job.objects.get(), answer.json()
    assert (body["job_id"], body["job"]["name"], body["job"]["gpu_count"]) == (job.number, "demo", 1)
    assert (job.script, job.submitted_via) == (SCRIPT, "sbatch")
    assert [(item["line"], item["text"]) for item in body["ignored"]] == [(4, "#SBATCH --acctg-freq=30")]
    assert "measured" in body["ignored"][0]["reason"]


def test_a_script_may_be_the_whole_body(api: Api, portal: Portal) -> None:
    answer = api(portal.cast.owner).post(SBATCH, SCRIPT, content_type="text/plain")

    assert (answer.status_code, answer.json()["job"]["name"]) == (201, "demo")


def test_several_tasks_come_with_a_note(api: Api, portal: Portal) -> None:
    answer = api(portal.cast.owner).post(SBATCH, {"script": "#!/bin/sh\n#SBATCH -n 4\nsrun hostname\n"})

    assert answer.json()["job"]["tasks"] == 4
    assert "Each of the 4 tasks runs the script" in answer.json()["notes"][0]


def test_a_broken_script_is_refused_by_its_line(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    broken = client.post(SBATCH, {"script": "#!/bin/sh\n#SBATCH --time=soon\n"})
    shapeless = client.post(SBATCH, {"script": "echo hello"})
    empty = client.post(SBATCH, {"script": ""})
    binary = client.post(SBATCH, b"#!/bin/sh\n\xff\xfe", content_type="text/plain")
    nul = client.post(SBATCH, b"#!/bin/sh\n\x00", content_type="text/plain")

    assert [a.status_code for a in (broken, shapeless, empty, binary, nul)] == [422] * 5
    assert broken.json()["errors"][0]["message"].startswith("Line 2:")
    assert Job.objects.count() == 0


def test_a_script_that_asks_for_what_is_not_there_is_refused_with_numbers(api: Api, portal: Portal) -> None:
    answer = api(portal.cast.owner).post(SBATCH, {"script": "#!/bin/sh\n#SBATCH --gres=gpu:1000\n"})

    assert (answer.status_code, answer.json()["code"]) == (422, "can-never-fit")


def test_fields_may_stand_beside_a_script(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    named = client.post(SBATCH, {"script": SCRIPT, "name": "other", "labels": {"a": "b"}})
    unknown = client.post(SBATCH, {"script": SCRIPT, "nmae": "x"})
    both = client.post(SBATCH, {"script": SCRIPT, "command": "true"})

    assert named.json()["job"]["name"] == "other"
    assert (unknown.status_code, both.status_code) == (422, 422)


def test_the_command_line_comes_beside_a_script(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    beside = {"args": ["-n", "2"], "submit_env": {"SBATCH_TIMELIMIT": "5"}, "file_name": "job.sh"}
    taken = client.post(SBATCH, {"script": "#!/bin/sh\n#SBATCH -t 1\nsrun hostname\n", **beside})
    wrapped = client.post(SBATCH, {"args": ["--wrap", "echo one"]})
    wrong: list[tuple[object, str]] = [
        ({"args": "-n 2"}, "args"), ({"args": [1]}, "args"), ({"submit_env": ["A"]}, "submit_env"),
        ({"submit_env": {"A": 1}}, "submit_env"), ({"file_name": 1}, "file_name"),
        ({"script_args": ["x"]}, "script_args"),
    ]  # fmt: skip
    refused = [client.post(SBATCH, {"script": "#!/bin/sh\ntrue\n", **more}) for more, _ in wrong]

    body = taken.json()
    assert (body["job"]["name"], body["job"]["tasks"], body["job"]["time_limit"]) == ("job.sh", 2, 300)
    assert [note.split(":")[0] for note in body["notes"]][1:] == [
        "Line 3 calls srun, which jobs here do not have"
    ]
    assert wrapped.json()["job"]["name"] == "wrap"
    assert [(one.status_code, one.json()["errors"][0]["field"]) for one in refused] == [
        (422, name) for _, name in wrong
    ]


def test_another_account_is_a_denial(api: Api, portal: Portal) -> None:
    answer = api(portal.cast.owner).post(SBATCH, {"script": "#!/bin/sh\n#SBATCH -A elsewhere\n"})

    assert answer.status_code == 403
    assert AuditEvent.objects.filter(outcome="denied").count() == 1


# ---------------------------------------------------------------- squeue


def busy(portal: Portal) -> Job:
    job = JobFactory(
        name="a long name indeed", project=portal.cast.project, user=portal.cast.owner, queue=portal.queue,
        state=JobState.RUNNING, epoch=1, started_at=timezone.now() - timedelta(hours=2, minutes=3, seconds=4),
    )  # fmt: skip
    attempt = AttemptFactory(job=job)
    AllocationFactory(attempt=attempt, rank=0, node=portal.n1)
    AllocationFactory(attempt=attempt, rank=1, node=portal.n2)
    return job


def test_the_table_has_squeues_columns_and_letters(api: Api, portal: Portal) -> None:
    job = busy(portal)
    held = portal.submit(name="held", hold=True)

    text = api(portal.cast.owner).get(SQUEUE, headers={"Accept": "text/plain"}).content.decode()

    header, first, second = text.splitlines()
    assert header.split() == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert first.split() == [
        str(job.number),
        "default",
        "a",
        "long",
        "n",
        "owner",
        "R",
        "2:03:04",
        "2",
        "n1,n2",
    ]
    assert second.split() == [
        str(held.number),
        "default",
        "held",
        "owner",
        "PD",
        "0:00",
        "1",
        "(JobHeldUser)",
    ]


def test_rows_come_as_json_with_how_many_there_are(api: Api, portal: Portal) -> None:
    job = busy(portal)
    portal.submit(array="3-4")

    body = api(portal.cast.owner).get(SQUEUE).json()

    assert (body["total"], body["truncated"]) == (3, False)
    assert body["jobs"][0]["number"] == job.number
    assert body["jobs"][1]["job_id"].endswith("_3")


def test_squeue_lists_what_one_may_see_and_asks_for(api: Api, portal: Portal) -> None:
    busy(portal)
    portal.submit()
    client = api(portal.cast.owner)

    def letters(query: str) -> list[str]:
        return [row["st"] for row in client.get(f"{SQUEUE}?{query}").json()["jobs"]]

    assert letters("states=PD") == ["PD"]
    assert letters("user=me&states=R,PD") == ["R", "PD"]
    assert letters("user=colleague") == []
    assert letters("partition=none") == []
    assert client.get(f"{SQUEUE}?states=XX").status_code == 400
    assert client.get(f"{SQUEUE}?colour=red").status_code == 400
    assert api(portal.cast.stranger).get(SQUEUE).json()["total"] == 0
