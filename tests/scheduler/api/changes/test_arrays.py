"""Arrays as one thing: their number at every door, verbs on all elements, waits for all of them or for one."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import ChangedJob, Job, JobDependency, JobEvent
from scheduler.state.lifecycle.dependencies import resolve_arrays, resolve_dependants
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import AttemptFactory, TaskFactory

JOBS, ARRAYS = "/api/v1/jobs", "/api/v1/arrays"


def end(job: Job, state: JobState) -> None:
    """End a job as the settlement does: its state, then what waited for it."""
    Job.objects.filter(pk=job.pk).update(
        state=state, completed_at=timezone.now(), generation=job.generation + 1
    )
    job.refresh_from_db()
    resolve_dependants([job], at=timezone.now())


def elements(number: int) -> list[Job]:
    return list(Job.objects.filter(array_number=number).order_by("array_index"))


def test_an_element_has_one_name_at_every_door(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    first = client.post(JOBS, {"command": "true", "array": "3-7:2%1"}).json()
    number = first["number"]

    assert (first["array_id"], first["job_id"], first["array_index"]) == (number, f"{number}_3", 3)
    element = client.get(f"{JOBS}/{number}_5").json()
    assert (element["job_id"], element["array_id"], element["array_index"]) == (f"{number}_5", number, 5)
    assert client.get(f"{JOBS}/{number}_4").status_code == 404
    assert client.get(f"{JOBS}/{number}_5/events").status_code == 200
    listed = client.get(f"{JOBS}?array_id={number}").json()["results"]
    assert [job["job_id"] for job in listed] == [f"{number}_7", f"{number}_5", f"{number}_3"]
    states = client.get(f"{JOBS}/state?ids={number}_3,{number}_7").json()["results"]
    assert [one["number"] for one in states] == [number, listed[0]["number"]]
    rows = client.get("/api/v1/slurm/squeue").json()
    assert f"{number}_5" in str(rows)
    whole = client.get(f"{ARRAYS}/{number}").json()
    assert (whole["elements"], whole["jobs"], whole["states"]["queued"], whole["max_running"], whole["progress"]) == (
        3, 3, 3, 1, 0.0
    )  # fmt: skip
    assert client.get(f"{ARRAYS}/{element['number']}").status_code == 404


def test_sentences_name_an_element_as_the_doors_do(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "1-2", "name": "sweep"}).json()["number"]
    element = elements(number)[1]

    waits = client.post(JOBS, {"command": "true", "depends_on": [f"{number}_2"]}).json()
    assert waits["reason"]["text"] == f"Depends on job {number}_2 (sweep)."
    assert (
        client.post(f"{JOBS}/{number}_2/release").json()["detail"]
        == f"Job {number}_2 is queued and not held."
    )
    end(element, JobState.FAILED)
    for verb in ("hold", "release", "boost"):
        body = {"points": 1, "reason": "x"} if verb == "boost" else {}
        asked = api(portal.cast.operator) if verb == "boost" else client
        refused = asked.post(f"{JOBS}/{number}_2/{verb}", body).json()["detail"]
        assert refused.startswith(f"Job {number}_2 "), refused
    end(elements(number)[0], JobState.CANCELLED)
    refused = client.patch(f"{JOBS}/{number}_1", {"name": "late"}).json()["detail"]
    assert refused == f"Job {number}_1 was cancelled and can no longer be changed."
    wrong = client.post(JOBS, {"command": "true", "depends_on": [f"{number}_1"]}).json()["detail"]
    assert wrong.startswith(f"Job {number}_1 (sweep) was cancelled already: ")
    lost = client.get(f"{JOBS}/{waits['number']}").json()["reason"]["text"]
    assert lost.startswith(f"Depends on success of job {number}_2 (sweep), which failed.")


def test_all_elements_are_held_throttled_released_and_cancelled(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-3"}).json()["number"]
    running, over = elements(number)[2:]
    Job.objects.filter(pk=running.pk).update(state=JobState.RUNNING, epoch=1, started_at=timezone.now())
    attempt = AttemptFactory(job=Job.objects.get(pk=running.pk))
    TaskFactory(attempt=attempt, node=portal.n2)
    end(over, JobState.COMPLETED)

    held = client.post(f"{ARRAYS}/{number}/hold", {"reason": "look first"}).json()
    assert held["changed"] == {"done": 2, "unchanged": 0, "refused": 2}
    assert (held["held"], held["states"]["running"], held["over"], held["progress"]) == (2, 1, 1, 0.25)
    ChangedJob.objects.all().delete()
    assert (
        client.post(f"{JOBS}/{number}/release").json()["state_detail"] == "queued"
    )  # the array's number: all of it
    assert ChangedJob.objects.count() == 2
    assert {job.state for job in elements(number)[:2]} == {JobState.QUEUED}

    throttled = client.patch(f"{ARRAYS}/{number}", {"max_running": 2}).json()
    assert (throttled["max_running"], throttled["changed"]["done"]) == (2, 4)
    assert [job.array_max_running for job in elements(number)] == [2, 2, 2, 2]
    assert client.patch(f"{ARRAYS}/{number}", {"max_running": 0}).status_code == 422
    assert client.patch(f"{ARRAYS}/{number}", {"max": 1}).status_code == 422

    assert client.delete(f"{JOBS}/{number}_0").json()["state"] == "cancelled"
    assert [job.state for job in elements(number)[:2]] == [JobState.CANCELLED, JobState.QUEUED]
    answer = client.delete(f"{JOBS}/{number}?reason=enough")
    assert (answer.status_code, answer.json()["number"]) == (202, number)
    assert [job.state for job in elements(number)] == ["cancelled", "cancelled", "stopping", "completed"]
    attempt.refresh_from_db()
    assert attempt.stop_reason == "cancelled"
    last = JobEvent.objects.filter(job=elements(number)[1]).order_by("-id")[0]
    assert (last.kind, last.because, last.actor) == (
        "job.cancelled", "cancelled by owner: enough", portal.cast.owner
    )  # fmt: skip
    actions = AuditEvent.objects.filter(object_type="array").order_by("pk").values_list("action", "object_id")
    assert list(actions) == [
        ("job.hold", str(number)), ("job.release", str(number)), ("array.throttle", str(number)),
        ("job.cancel", str(number)),
    ]  # fmt: skip
    again = client.delete(f"{ARRAYS}/{number}").json()["changed"]
    assert again == {"done": 0, "unchanged": 3, "refused": 1}


@pytest.mark.parametrize(
    ("kind", "ends", "state"),
    [
        ("afterok", ["completed", "completed"], "queued"),
        ("afterok", ["completed"], "blocked"),
        ("afterok", ["failed"], "never"),
        ("afterok", ["completed", "cancelled"], "never"),
        ("afterany", ["failed", "cancelled"], "queued"),
        ("afterany", ["failed"], "blocked"),
        ("afternotok", ["failed", "completed"], "queued"),
        ("afternotok", ["failed"], "blocked"),
        ("afternotok", ["completed", "completed"], "never"),
    ],
)
def test_a_wait_for_an_array_is_for_all_elements(
    api: Api, portal: Portal, kind: str, ends: list[str], state: str
) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-1"}).json()["number"]
    waits = client.post(JOBS, {"command": "true", "depends_on": [{"job": number, "type": kind}]}).json()
    assert (waits["state_detail"], waits["depends_on"][0]["number"], waits["depends_on"][0]["array"]) == (
        "blocked", number, True
    )  # fmt: skip
    assert f"array {number}" in waits["reason"]["text"]

    for job, how in zip(elements(number), ends, strict=False):
        end(job, JobState(how))

    job = Job.objects.get(pk=waits["number"])
    never = job.reason_code == "DependencyNeverSatisfied"
    assert ("never" if never else job.state) == state
    # Somebody who comes later meets the same.
    late = client.post(JOBS, {"command": "true", "depends_on": [{"job": number, "type": kind}]})
    assert (late.json()["errors"][0]["code"] if late.status_code == 422 else late.json()["state_detail"]) == {
        "never": "never-satisfied"
    }.get(state, state)


def test_an_end_that_an_older_process_wrote_is_found_by_the_timer(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-1"}).json()["number"]
    waits = client.post(JOBS, {"command": "true", "depends_on": [number]}).json()["number"]
    now = timezone.now()

    end(elements(number)[0], JobState.COMPLETED)
    assert resolve_arrays(at=now) == set()
    Job.objects.filter(pk=elements(number)[1].pk).update(state=JobState.COMPLETED, completed_at=now)

    assert resolve_arrays(at=now) == {portal.cluster.pk}
    assert Job.objects.get(pk=waits).state == JobState.QUEUED
    assert resolve_arrays(at=now) == set()


def test_a_wait_for_one_element_is_for_that_one(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-1"}).json()["number"]

    one = client.post(
        JOBS, {"command": "true", "depends_on": [{"job": f"{number}_1", "type": "afterok"}]}
    ).json()
    assert one["depends_on"][0]["number"] == elements(number)[1].number
    end(elements(number)[1], JobState.COMPLETED)
    assert Job.objects.get(pk=one["number"]).state == JobState.QUEUED
    refused = client.post(JOBS, {"command": "true", "depends_on": [{"job": number, "type": "checkpoint"}]})
    assert refused.json()["errors"][0]["code"] == "not-a-job"
    # An element that would wait for its own array could never start.
    circle = client.patch(f"{JOBS}/{number}_0", {"depends_on": [number]})
    assert circle.json()["errors"][0]["code"] == "circle"
    assert not JobDependency.objects.filter(job__array_number=number).exists()


@pytest.mark.parametrize(
    ("who", "looks", "acts"),
    [("owner", 200, 200), ("lead", 200, 200), ("operator", 200, 200), ("colleague", 200, 403), ("viewer", 200, 403),
     ("auditor", 200, 403), ("stranger", 404, 404)],
)  # fmt: skip
def test_who_may_do_what_to_an_array(api: Api, portal: Portal, who: str, looks: int, acts: int) -> None:
    number = api(portal.cast.owner).post(JOBS, {"command": "true", "array": "0-1"}).json()["number"]
    client = api(getattr(portal.cast, who))

    assert client.get(f"{ARRAYS}/{number}").status_code == looks
    assert client.post(f"{ARRAYS}/{number}/hold").status_code == acts
    assert client.patch(f"{ARRAYS}/{number}", {"max_running": 1}).status_code == acts
    assert client.delete(f"{ARRAYS}/{number}").status_code == acts
    assert {job.state for job in elements(number)} == {JobState.CANCELLED if acts == 200 else JobState.QUEUED}


def test_the_owner_does_not_release_what_an_operator_holds(api: Api, portal: Portal) -> None:
    owner, operator = api(portal.cast.owner), api(portal.cast.operator)
    number = owner.post(JOBS, {"command": "true", "array": "0-1"}).json()["number"]
    single: dict[str, Any] = owner.post(JOBS, {"command": "true", "hold": True}).json()

    for ref, address in ((number, ARRAYS), (single["number"], JOBS)):
        owner.post(f"{address}/{ref}/hold")
        held = operator.post(f"{address}/{ref}/hold", {"reason": "maintenance"})
        assert held.status_code == 200, held.content
        refused = owner.post(f"{address}/{ref}/release")
        assert refused.status_code in (403, 409)
        assert "operator" in refused.json()["detail"]
        shown = owner.get(f"{JOBS}/{ref}").json()
        assert (shown["state_detail"], shown["reason"]["code"]) == ("held", "HeldByAdmin")
        assert operator.post(f"{address}/{ref}/release").status_code == 200
        assert owner.get(f"{JOBS}/{ref}").json()["state_detail"] == "queued"  # both holds are gone


def test_a_change_by_the_number_of_an_array_changes_every_waiting_element(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-4", "priority": 10}).json()["number"]
    running, over = elements(number)[3:]
    Job.objects.filter(pk=running.pk).update(state=JobState.RUNNING, epoch=1, started_at=timezone.now())
    end(over, JobState.COMPLETED)
    client.post(f"{JOBS}/{number}_1/hold")
    client.patch(f"{JOBS}/{number}_2", {"priority": 30})
    etag = client.get(f"{JOBS}/{number}")["ETag"]
    ChangedJob.objects.all().delete()

    changes = {"priority": 20, "memory": "2Gi", "time_limit": "1h", "reason": "too small"}
    answer = client.patch(f"{JOBS}/{number}", changes, headers={"If-Match": etag})

    assert answer.status_code == 200, answer.content
    assert [(one.state, one.priority, one.memory_mib, one.time_limit_seconds) for one in elements(number)] == [
        ("queued", 20, 2048, 3600), ("held", 20, 2048, 3600), ("queued", 20, 2048, 3600),
        ("running", 10, 256, None), ("completed", 10, 256, None),
    ]  # fmt: skip
    assert set(ChangedJob.objects.values_list("job_number", flat=True)) == {
        one.number for one in (elements(number)[0], elements(number)[2])
    }
    events = JobEvent.objects.filter(kind="job.changed", because__contains="too small")
    assert {event.details["before"]["priority"] for event in events} == {10, 30}
    row = AuditEvent.objects.get(action="array.change")
    assert (row.after["jobs"], row.after["priority"], row.reason) == (3, 20, "too small")
    # A refusal changes none; what is so already is no change.
    before = Job.objects.values_list("pk", "generation").order_by("pk")
    kept = list(before)
    wrong = client.patch(f"{JOBS}/{number}", {"priority": 5, "queue": "nowhere"})
    stale = client.patch(f"{JOBS}/{number}", {"priority": 5}, headers={"If-Match": etag})
    same = client.patch(f"{JOBS}/{number}", {"priority": 20})
    alien = api(portal.cast.colleague).patch(f"{JOBS}/{number}", {"priority": 1})
    assert [a.status_code for a in (wrong, stale, same, alien)] == [422, 412, 200, 403]
    assert list(before.all()) == kept
    for one in elements(number)[:3]:
        end(one, JobState.CANCELLED)
    late = client.patch(f"{JOBS}/{number}", {"priority": 5})
    assert (late.status_code, late.json()["detail"]) == (409, f"No element of array {number} waits.")


def test_elements_wait_for_what_a_change_of_their_array_says(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    number = client.post(JOBS, {"command": "true", "array": "0-2"}).json()["number"]
    first, second = portal.submit(), portal.submit()
    waits = {"depends_on": [first.number, {"job": second.number, "type": "completion"}]}

    assert client.patch(f"{JOBS}/{number}", waits).status_code == 200
    circle = client.patch(f"{JOBS}/{number}", {"depends_on": [f"{number}_1"]})
    assert circle.json()["errors"][0]["code"] == "circle"
    assert {job.state for job in elements(number)} == {JobState.BLOCKED}
    assert JobDependency.objects.filter(job__array_number=number).count() == 6
    # They are held and released together, say what is missing, and start once nothing is.
    client.post(f"{ARRAYS}/{number}/hold")
    client.post(f"{ARRAYS}/{number}/release")
    end(first, JobState.COMPLETED)
    assert {job.reason_text for job in elements(number)} == {f"Depends on job {second.number} (true)."}
    end(second, JobState.FAILED)
    assert {job.state for job in elements(number)} == {JobState.QUEUED}
    assert JobEvent.objects.filter(kind="job.queued", because="all dependencies are satisfied").count() == 3
    third = portal.submit()
    client.patch(f"{JOBS}/{number}", {"depends_on": [third.number]})
    client.patch(f"{JOBS}/{number}", {"depends_on": []})
    assert {job.state for job in elements(number)} == {JobState.QUEUED}
