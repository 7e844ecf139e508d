"""The submit form: the same requests as the API's, errors at their fields, a preview that writes nothing."""

from __future__ import annotations

import json
import re

import pytest
from django.urls import reverse

from scheduler.models import Job
from scheduler.web import forms
from tests.support.roles import had_asked

SBATCH = """#!/bin/bash
#SBATCH --job-name=from-slurm
#SBATCH --cpus-per-task=2
#SBATCH --mem=2G
#SBATCH --time=00:30:00
#SBATCH --distribution=cyclic
echo hi
"""


def submit(client, **fields: str):
    return client.post(reverse("submit"), {"project": "vision", **fields})


def test_a_form_becomes_a_job_and_leads_to_its_page(as_user, world) -> None:
    response = submit(
        as_user(world.cast.owner), what="echo hi", name="first", cpu_cores="1.5", memory="2Gi", time_limit="1h30m",
        env="A=1\nB=two words=x", begin_at="2027-01-31T18:00",
    )  # fmt: skip

    job = Job.objects.get(name="first")
    assert response.headers["Location"] == reverse("job", args=[job.number])
    assert (job.command, job.cpu_millis, job.memory_mib, job.time_limit_seconds) == (
        "echo hi",
        1500,
        2048,
        5400,
    )
    assert job.env == {"A": "1", "B": "two words=x"}
    assert job.begin_at.isoformat() == "2027-01-31T18:00:00+00:00"
    assert job.submitted_via == "web"


def test_whole_numbers_have_their_bounds_in_the_form(as_user, world) -> None:
    """A browser refuses what the server would: the bounds are those of the declared field."""
    page = as_user(world.cast.owner).get(reverse("submit")).content.decode()

    for name, least, most in (("tasks", 1, 10000), ("nodes", 1, 10000), ("gpu_count", 0, 1000000)):
        field = re.search(rf'<input id="f-{name}"[^>]*>', page)[0]
        assert f'type="number" step="1" min="{least}" max="{most}"' in field, field


def test_a_begin_time_is_read_in_the_persons_zone(as_user, world) -> None:
    world.cast.owner.time_zone = "America/New_York"
    world.cast.owner.save()

    submit(as_user(world.cast.owner), what="true", name="east", begin_at="2027-01-31T18:00")

    assert Job.objects.get(name="east").begin_at.isoformat() == "2027-01-31T23:00:00+00:00"


def test_a_wrong_field_is_named_where_it_stands_and_the_input_is_kept(as_user, world) -> None:
    response = submit(as_user(world.cast.owner), what="echo kept", cpu_cores="many", gpu_count="-1")

    page = response.content.decode()
    assert response.status_code == 422
    assert re.search(r'id="e-cpu_cores">[^<]*many', page)
    assert 'id="e-gpu_count"' in page
    assert "echo kept" in page
    assert 'value="many"' in page
    assert not Job.objects.filter(command="echo kept").exists()


def test_more_than_there_is_is_refused_with_the_number_that_exists(as_user, world) -> None:
    response = submit(as_user(world.cast.owner), what="true", gpu_count="1000")

    assert response.status_code == 422
    assert re.search(r'id="e-gpu_count">[^<]*1,000[^<]*\b2\b', response.content.decode())


def test_a_line_of_the_environment_without_equals_is_named(as_user, world) -> None:
    response = submit(as_user(world.cast.owner), what="true", env="GOOD=1\nbad line")

    assert "Line 2 has no =" in response.content.decode()


def test_a_pasted_sbatch_script_is_translated_and_what_has_no_effect_is_listed(as_user, world) -> None:
    response = as_user(world.cast.owner).post(
        reverse("submit"), {"project": "vision", "what": SBATCH, "memory": "3Gi"}, follow=True
    )

    job = Job.objects.get(name="from-slurm")
    assert (job.cpu_millis, job.memory_mib, job.time_limit_seconds) == (2000, 3072, 1800)
    assert job.submitted_via == "sbatch"
    assert "distribution" in response.content.decode()


def test_a_project_that_one_may_not_use_is_refused_like_one_that_is_not_there(as_user, world) -> None:
    answers = [
        submit(as_user(world.cast.stranger), what="true", project=name).status_code
        for name in ("vision", "nope")
    ]

    assert answers[0] == answers[1]
    assert Job.objects.filter(user=world.cast.stranger).count() == 0


def test_a_copy_fills_the_form_with_what_was_asked_for(as_user, world) -> None:
    had_asked(
        world.job, command="python train.py", gpus=2, gpu_model="A100", memory_mib=1536, env={"A": "1"},
    )  # fmt: skip

    page = as_user(world.cast.owner).get(reverse("submit"), {"copy": world.job.number}).content.decode()

    for expected in ("python train.py", 'value="1536Mi"', "A=1", "Copied from job"):
        assert expected in page
    assert re.search(r"<option selected>A100</option>", page)


def test_a_copy_of_a_job_one_may_not_see_finds_nothing(as_user, world) -> None:
    response = as_user(world.cast.stranger).get(reverse("submit"), {"copy": world.job.number})

    assert response.status_code == 404


@pytest.mark.parametrize("name", sorted(forms.EXAMPLES))
def test_the_examples_start_at_once_on_an_empty_cluster(as_user, world, name) -> None:
    response = as_user(world.cast.owner).post(
        reverse("submit-preview"), {"project": "vision", **forms.EXAMPLES[name]}
    )

    assert 'data-verdict="starts_now"' in response.content.decode()


def preview(client, **fields: str) -> str:
    return client.post(reverse("submit-preview"), {"project": "vision", **fields}).content.decode()


def test_the_preview_says_where_and_what_it_does_to_the_quota_and_writes_nothing(as_user, world) -> None:
    before = Job.objects.count()

    page = preview(as_user(world.cast.owner), what="true", cpu_cores="2")

    assert "Starts now on alpha" in page
    assert re.search(r"CPU cores.*0 → <b[^>]*>2</b> of 8", page, re.DOTALL)
    assert Job.objects.count() == before


def test_the_preview_says_what_is_wrong_before_anything_is_sent(as_user, world) -> None:
    page = preview(as_user(world.cast.owner), what="true", memory="lots")

    assert 'data-verdict="refused"' in page
    assert "Memory" in page


def test_the_preview_says_never_with_the_number_that_exists(as_user, world) -> None:
    page = preview(as_user(world.cast.owner), what="true", gpu_count="1000")

    assert 'data-verdict="never"' in page
    assert re.search(r"1,000\D.*\b2\b", page, re.DOTALL)


def test_the_preview_counts_nodes_gate_by_gate(as_user, world) -> None:
    page = preview(as_user(world.cast.owner), what="true", gpu_count="1")

    assert re.search(r"Nodes in the cluster</span><b>2</b>", page)
    assert re.search(r"Fit now</span><b>1</b>", page)


def test_the_curl_of_the_preview_is_the_request_itself(as_user, world) -> None:
    page = preview(as_user(world.cast.owner), what="echo it's", name="quoted", cpu_cores="2")

    from html import unescape

    body = unescape(re.search(r"-d &#x27;(.*?)&#x27;</pre>", page, re.DOTALL)[1]).replace("'\\''", "'")
    assert json.loads(body) == {
        "name": "quoted", "project": "vision", "cpu_cores": "2", "command": "echo it's"
    }  # fmt: skip


@pytest.mark.parametrize("tasks", ["", "2"])
def test_the_script_of_the_preview_asks_for_the_same_when_sent_back(as_user, world, tasks: str) -> None:
    from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch

    form = {
        "what": "echo hi", "name": "round trip", "cpu_cores": "2", "memory": "512Mi", "gpu_count": "1",
        "gpu_type": "A100", "time_limit": "90m", "restart_policy": "never", "tasks": tasks,
    }  # fmt: skip

    payload, ignored = parse_sbatch(forms.as_sbatch(form))

    submit(as_user(world.cast.owner), **form)
    as_user(world.cast.owner).post(reverse("submit"), {"project": "vision", "what": forms.as_sbatch(form)})
    first, second = Job.objects.filter(name="round trip").order_by("number")
    assert ignored == []
    for field in (
        "cpu_millis",
        "memory_mib",
        "gpus",
        "gpu_model",
        "time_limit_seconds",
        "tasks",
        "restart_policy",
    ):
        assert getattr(first, field) == getattr(second, field), field
    assert payload["name"] == "round trip"


def test_a_preview_without_a_command_asks_for_one(as_user, world) -> None:
    assert "Enter a command" in preview(as_user(world.cast.owner))


def test_nul_bytes_and_emoji_are_answered_and_not_a_crash(as_user, world) -> None:
    client = as_user(world.cast.owner)

    assert submit(client, what="echo \x00").status_code == 422
    assert submit(client, what="true", name="🚀 launch").status_code == 302
    assert client.get(reverse("jobs"), {"q": "\x00"}).status_code == 200


def test_the_form_asks_for_gangs_and_waits_as_the_api_does() -> None:
    form = {
        "what": "true", "depends_on": "7, 8", "depends_kind": "checkpoint", "depends_need": "1",
        "depends_data": "faces/1", "depends_timeout": "2h", "on_depends_timeout": "start", "tasks": "4",
        "min_tasks": "2", "pack": "rack!", "on_task_failure": "continue", "assembly_timeout": "1h",
    }  # fmt: skip

    payload = forms.payload_of(form, time_zone="UTC")

    jobs = [{"job": 7, "type": "checkpoint"}, {"job": 8, "type": "checkpoint"}]
    assert payload["depends_on"] == [{"any": "1", "of": jobs}, {"data": "faces/1"}]
    assert payload["pack"] == {"level": "rack", "required": True}
    assert forms.payload_of({**form, "pack": "zone", "depends_need": ""}, time_zone="UTC")["pack"] == {
        "level": "zone",
        "required": False,
    }
    names = ("depends_timeout", "on_depends_timeout", "min_tasks", "on_task_failure", "assembly_timeout")
    assert {name: payload[name] for name in names} == {name: form[name] for name in names}
