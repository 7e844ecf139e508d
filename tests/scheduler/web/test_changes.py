"""The dialog that changes a job, and the page of an array."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.urls import reverse

from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from tests.scheduler.web.conftest import a_running_job
from tests.support.factories import JobFactory


def an_array(world: Any, size: int = 3) -> int:
    array = uuid4()
    jobs = [
        JobFactory(
            name="sweep", project=world.cast.project, user=world.cast.owner, queue=world.queue, array_id=array,
            array_index=index,
        )
        for index in range(size)
    ]  # fmt: skip
    return int(jobs[0].number)


def test_the_dialog_sends_what_was_edited_and_a_stale_one_is_refused(as_user: Any, world: Any) -> None:
    client = as_user(world.cast.owner)
    page = reverse("job", args=[world.job.number])
    other = JobFactory(project=world.cast.project, user=world.cast.owner, queue=world.queue)
    html = client.get(page).content.decode()
    assert 'id="change-dialog"' in html
    form = {"seen": "1", "name": "renamed", "queue": "default", "priority": "30", "time_limit": "1h", "tasks": "",
            "nodes": "", "cpu_cores": "2", "memory": "1GiB", "gpu_count": "", "gpu_type": "",
            "depends_on": str(other.number), "depends_kind": "completion", "reason": "smaller"}  # fmt: skip

    answer = client.post(reverse("job-act", args=[world.job.number, "change"]), form, follow=True)

    job = Job.objects.get(pk=world.job.pk)
    assert "is changed" in answer.content.decode()
    assert (job.name, job.priority, job.time_limit_seconds, job.cpu_millis, job.memory_mib, job.state) == (
        "renamed", 30, 3600, 2000, 1024, JobState.BLOCKED
    )  # fmt: skip
    assert job.events.latest("id").details["after"].keys() >= {"name", "depends_on"}
    assert job.events.latest("id").details["after"].keys().isdisjoint({"memory_mib", "tasks"})
    stale = client.post(
        reverse("job-act", args=[world.job.number, "change"]), form | {"name": "x"}, follow=True
    )
    assert "has changed since you read it" in stale.content.decode()
    assert Job.objects.get(pk=world.job.pk).name == "renamed"


def test_a_change_that_is_refused_comes_back_as_it_was_sent(as_user: Any, world: Any) -> None:
    client = as_user(world.cast.owner)
    change = reverse("job-act", args=[world.job.number, "change"])
    form = {"seen": str(world.job.generation), "name": "typed long", "cpu_cores": "many", "reason": "because"}

    answer = client.post(change, form | {"depends_on": "17 18", "depends_kind": "failure"})

    html = answer.content.decode()
    dialog = html[html.index('<dialog id="change-dialog"') :].partition("</dialog>")[0]
    assert answer.status_code == 422
    assert "data-open" in dialog.partition(">")[0]
    assert "<code>cpu_cores</code>" in dialog
    for text in ("typed long", "many", "because", "17 18"):
        assert f'value="{text}"' in dialog
    assert '<option value="failure" selected>' in dialog
    assert Job.objects.get(pk=world.job.pk).name == "train"
    stale = client.post(change, form | {"cpu_cores": "", "seen": "999"})
    assert (stale.status_code, 'value="typed long"' in stale.content.decode()) == (412, True)


def test_pages_name_an_element_as_the_api_does(as_user: Any, world: Any) -> None:
    client = as_user(world.cast.owner)
    number = an_array(world)
    page = reverse("job", args=[number + 1])

    html = client.get(page).content.decode()
    assert f": {number}_1 sweep" in html
    assert f"Cancel job {number}_1?" in html
    assert not re.search(rf"[Jj]ob {number + 1}\b", html)
    held = client.post(reverse("job-act", args=[number + 1, "hold"]), follow=True).content.decode()
    assert f"Job {number}_1 is held until released." in held
    assert f">{number}_1 sweep" in client.get("/").content.decode()


@pytest.mark.parametrize(
    ("who", "sees"), [("owner", True), ("lead", True), ("colleague", False), ("viewer", False)]
)
def test_who_is_offered_a_change(as_user: Any, world: Any, who: str, sees: bool) -> None:
    client = as_user(getattr(world.cast, who))

    assert (
        'id="change-dialog"' in client.get(reverse("job", args=[world.job.number])).content.decode()
    ) is sees
    answer = client.post(
        reverse("job-act", args=[world.job.number, "change"]), {"seen": "1", "name": "theirs"}
    )
    assert answer.status_code == (302 if sees else 403)
    assert Job.objects.get(pk=world.job.pk).name == ("theirs" if sees else "train")
    busy = a_running_job(world)
    html = client.get(reverse("job", args=[busy.number])).content.decode()
    assert ('name="priority"' in html) is False  # nothing that a running job would refuse


def test_the_page_of_an_array_counts_and_acts_on_all(as_user: Any, world: Any) -> None:
    number = an_array(world)

    def owner() -> Any:
        return as_user(world.cast.owner)

    def operator() -> Any:
        return as_user(world.cast.operator)

    html = owner().get(reverse("array", args=[number])).content.decode()
    assert f"{number}_2" in html
    assert "Hold all" in html
    assert "0 of 3 jobs" in html
    assert f"array {number}" in owner().get(reverse("jobs")).content.decode()
    moved = owner().get(f"/jobs/{number}_2/")
    assert (moved.status_code, moved["Location"]) == (302, reverse("job", args=[number + 2]))

    operator().post(reverse("array-act", args=[number, "hold"]), {"reason": "maintenance"})
    html = owner().get(reverse("array", args=[number])).content.decode()
    assert "3 by an operator" in html
    assert "Release all" not in html  # only an operator releases that hold
    assert "Release all" in operator().get(reverse("array", args=[number])).content.decode()
    assert "Release</button>" not in owner().get(reverse("job", args=[number])).content.decode()
    operator().post(reverse("array-act", args=[number, "release"]))
    owner().post(reverse("array-act", args=[number, "throttle"]), {"max_running": "2"})
    owner().post(reverse("array-act", args=[number, "cancel"]), {"reason": "enough"})
    states = Job.objects.filter(array_number=number).values_list("state", "array_max_running")
    assert set(states) == {("cancelled", 2)}
    for who, status in (("colleague", 200), ("stranger", 404)):
        client = as_user(getattr(world.cast, who))
        assert client.get(reverse("array", args=[number])).status_code == status
        assert client.post(reverse("array-act", args=[number, "hold"])).status_code in (403, 404)
