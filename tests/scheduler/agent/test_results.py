"""What a job leaves in its working folder stays, can be fetched, and is there for its next attempt."""

from __future__ import annotations

import io
import tarfile
import zipfile
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduler.models import Job, KeptResult
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.results.removal import remove_results
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import AgentProcess, World, wait_for
from tests.support.factories import bearer

pytestmark = pytest.mark.django_db(transaction=True)

LEAVE = (
    "mkdir -p 'deep/er'; printf 'a%.0s' $(seq 1000) > deep/er/letters; head -c 700000 /dev/urandom > big;"
    " printf x > \"$(printf 'odd \\377\\nx')\"; ln -s /etc/passwd link; mkdir empty; cksum big"
)


def kept(job: Job) -> KeptResult:
    found: KeptResult = wait_for(lambda: KeptResult.objects.filter(job=job, left_at=None).first())
    return found


def get(world: World, job: Job, what: str = "", **query: Any) -> Any:
    address = f"/api/v1/jobs/{job.number}/results{what}"
    headers = query.pop("headers", {})
    return Client().get(address, query, headers={**bearer(world.user, "jobs:read"), **headers})


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)


@pytest.fixture
def done(world: World, start_agent: StartAgent) -> tuple[Job, AgentProcess]:
    agent = start_agent()
    job = world.submit(LEAVE)
    world.run_until(job, "completed")
    kept(job)
    return job, agent


def test_results_are_listed_and_downloaded_as_they_are(world: World, done: tuple[Job, AgentProcess]) -> None:
    job, agent = done
    (folder,) = get(world, job).json()["folders"]
    assert (folder["node"], folder["attempt"], folder["rank"], folder["files"]) == ("n1", 1, 0, 3)
    assert folder["size_bytes"] == 701_001
    assert folder["node_answers"] is True
    (on_disk,) = (agent.state / "results").iterdir()
    assert sorted(path.name for path in on_disk.iterdir()) == ["work"]

    files = get(world, job, "/files").json()["results"]
    assert [(one["path"], one["kind"]) for one in files] == [
        ("big", "file"), ("deep", "folder"), ("deep/er", "folder"), ("deep/er/letters", "file"),
        ("empty", "folder"), ("link", "link"), ("odd \\xff\\x0ax", "file"),
    ]  # fmt: skip

    big = (on_disk / "work/big").read_bytes()
    whole = get(world, job, "/file", path="big")
    assert body(whole) == big
    assert whole["Content-Length"] == str(len(big))
    assert whole["Content-Type"] == "application/octet-stream"
    assert whole["Content-Disposition"].startswith("attachment;")
    assert whole["X-Content-Type-Options"] == "nosniff"
    for asked, start, stop in [("300000-", 300_000, 700_000), ("5-9", 5, 10), ("-20", 699_980, 700_000)]:
        part = get(world, job, "/file", path="big", headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206
        assert part["Content-Range"] == f"bytes {start}-{stop - 1}/700000"
        assert body(part) == big[start:stop]
    assert get(world, job, "/file", path="big", headers={"Range": "bytes=700000-"}).status_code == 416
    old = get(world, job, "/file", path="big", headers={"Range": "bytes=5-9", "If-Range": '"old"'})
    assert (old.status_code, body(old)) == (200, big)
    assert body(get(world, job, "/file", path="odd \\xff\\x0ax")) == b"x"

    link = get(world, job, "/file", path="link")
    assert (link.status_code, link.json()["code"]) == (409, "not-given-out")
    assert get(world, job, "/file", path="nothing").status_code == 404
    assert get(world, job, "/file", path="../../../identity.json").status_code == 409

    with tarfile.open(fileobj=io.BytesIO(body(get(world, job, "/archive")))) as tar:
        assert tar.getnames() == ["big", "deep", "deep/er", "deep/er/letters", "empty", "odd \udcff\nx"]
        packed = tar.extractfile("big")
        assert packed is not None
        assert packed.read() == big
    with zipfile.ZipFile(io.BytesIO(body(get(world, job, "/archive", kind="zip")))) as pack:
        assert pack.testzip() is None
        assert pack.read("big") == big
        assert pack.read("deep/er/letters") == b"a" * 1000
    assert kept(job).fetched_at is not None


def test_a_job_that_leaves_nothing_keeps_nothing(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = world.submit("echo said")
    world.run_until(job, "completed")
    wait_for(lambda: not list((agent.state / "tasks").iterdir()))

    assert not (agent.state / "results").exists()
    assert get(world, job).json()["folders"] == []
    assert get(world, job, "/archive").json()["code"] == "no-results"


def test_a_running_jobs_files_can_be_read(world: World, start_agent: StartAgent) -> None:
    start_agent()
    job = world.submit("echo half > part; sleep 60")
    world.run_until(job, "running")
    wait_for(lambda: get(world, job, "/files").json().get("results"))

    assert body(get(world, job, "/file", path="part")) == b"half\n"
    cancel_job(job=job, by=world.user)
    world.run_until(job, "cancelled")


def test_a_requeued_job_goes_on_in_its_folder(world: World, start_agent: StartAgent) -> None:
    start_agent()
    job = world.submit(
        "cat part $MUSTER_CHECKPOINT_FILE; echo $MUSTER_ATTEMPT >> part;"
        ' echo step > "$MUSTER_CHECKPOINT_FILE"; [ $MUSTER_ATTEMPT = 2 ] || sleep 60'
    )
    world.run_until(job, "running")
    wait_for(lambda: (job.refresh_from_db(), job.saved_at)[1])
    requeue_job(job=job, by=world.user)
    world.run_until(job, "completed")

    assert world.output(job, "stdout") == b"1\nstep\n"
    assert (kept(job).epoch, KeptResult.objects.filter(job=job, left_at=None).count()) == (2, 1)
    assert body(get(world, job, "/file", path="part")) == b"1\n2\n"


def test_results_leave_when_their_time_is_up_and_when_somebody_says_so(
    world: World, start_agent: StartAgent, settings: Any
) -> None:
    agent = start_agent()
    jobs = [world.submit("echo x > file") for _ in range(2)]
    for job in jobs:
        world.run_until(job, "completed")
    old, other = (kept(job) for job in jobs)
    assert abs(old.leaves_at - timezone.now() - timedelta(days=7)) < timedelta(minutes=1)

    KeptResult.objects.filter(pk=old.pk).update(leaves_at=timezone.now())
    assert remove_results(job=other.job, by=world.user) == 1
    assert remove_results(job=other.job, by=world.user) == 0
    agent.kill()
    agent.start()  # says all it has at once
    wait_for(lambda: not KeptResult.objects.filter(left_at=None).exists())

    assert {one.leaves_because for one in KeptResult.objects.all()} == {"age", "asked"}
    wait_for(lambda: not list((agent.state / "results").iterdir()))


def test_a_node_that_is_away_is_named(world: World, done: tuple[Job, AgentProcess]) -> None:
    job, agent = done
    agent.kill()
    from scheduler.models import NodeHeartbeat

    NodeHeartbeat.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))

    refused = get(world, job, "/files")

    assert refused.status_code == 503
    assert "node n1, which does not answer: its last heartbeat was at" in refused.json()["detail"]


def test_results_outlive_shim_and_agent(world: World, done: tuple[Job, AgentProcess]) -> None:
    job, agent = done
    agent.kill()
    agent.kill_shim()
    agent.start()

    wait_for(lambda: get(world, job, "/files").status_code == 200)
    assert body(get(world, job, "/file", path="deep/er/letters")) == b"a" * 1000
