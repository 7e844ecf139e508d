"""Artefacts of a real job on a real agent: stored byte for byte in a folder or a bucket, beyond the node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from infra.storage import configured_storage
from infra.storage.s3 import S3Storage
from scheduler.models import Artifact, ArtifactUpload, Job, JobEvent, KeptResult
from scheduler.services.artifacts.uploads import store_due
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for
from tests.support.buckets import new_bucket, s3_server
from tests.support.factories import bearer

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "5e" * 32
WRITE = (
    "mkdir -p out/deep; head -c 900001 /dev/urandom > out/big.bin; printf '1,2\\n' > out/a.csv; : > out/empty.csv;"
    " printf no > out/left.txt; printf x > out/deep/b.csv; ln -s /etc/passwd out/link.csv;"
    " printf odd > \"$(printf 'out/odd\\377.csv')\""
)


@pytest.fixture(params=["folder", "encrypted bucket"])
def site(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> Iterator[str]:
    """A site that stores in a folder, or encrypted in a bucket on moto's server."""
    if request.param == "folder":
        settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
        yield request.param
        return
    with pytest.MonkeyPatch.context() as patch, s3_server() as endpoint:
        patch.setenv("AWS_ACCESS_KEY_ID", "for-tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "for-tests")
        new_bucket(S3Storage("artefacts", "", endpoint, "eu-central-1"))
        settings.MUSTER_STORAGE = f"s3://artefacts/site?endpoint={endpoint}&region=eu-central-1"
        settings.MUSTER_STORAGE_KEYS = [KEY]
        yield request.param


def get(world: World, job: Job, what: str = "", **query: Any) -> Any:
    headers = query.pop("headers", {})
    address = f"/api/v1/jobs/{job.number}/artifacts{what}"
    return Client().get(address, query, headers={**bearer(world.user, "jobs:read"), **headers})


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)


def test_artefacts_download_byte_for_byte_when_the_node_is_gone(
    site: str, world: World, start_agent: StartAgent
) -> None:
    agent = start_agent()
    job = world.submit(WRITE, artifacts=["out/*.csv", "out/big.bin", "out/deep", "model.pt"])
    world.run_until(job, "completed")
    wait_for(lambda: ArtifactUpload.objects.filter(job=job).exists())
    assert get(world, job).json()["uploads"][0]["state"] == "waiting"
    (on_disk,) = (agent.state / "results").iterdir()
    files = {
        path.relative_to(on_disk / "work").as_posix().encode("utf-8", "surrogateescape"): path.read_bytes()
        for path in sorted(on_disk.glob("work/out/**/*"))
        if path.is_file() and not path.is_symlink()
    }

    assert store_due() == 1
    assert store_due() == 0
    agent.kill()

    listed = get(world, job).json()
    assert listed["patterns"] == ["out/*.csv", "out/big.bin", "out/deep", "model.pt"]
    assert [one["path"] for one in listed["results"]] == [
        "out/a.csv", "out/big.bin", "out/deep/b.csv", "out/empty.csv", "out/odd\\xff.csv",
    ]  # fmt: skip
    (upload,) = listed["uploads"]
    assert upload["state"] == "stored"
    assert "out/link.csv is not a regular file" in upload["message"]
    assert "No file matches model.pt." in upload["message"]
    for one in listed["results"]:
        real = files[one["path"].replace("\\xff", "\udcff").encode("utf-8", "surrogateescape")]
        whole = get(world, job, "/file", id=one["id"])
        assert body(whole) == real, one["path"]
        assert one["sha256"] == hashlib.sha256(real).hexdigest()
        assert whole["ETag"] == f'"{one["sha256"]}"'
        assert int(whole["Content-Length"]) == one["size_bytes"] == len(real)
    big = next(one for one in listed["results"] if one["path"] == "out/big.bin")
    for asked, start, stop in (
        ("500000-", 500_000, 900_001),
        ("65530-65545", 65_530, 65_546),
        ("-7", 899_994, 900_001),
    ):
        part = get(world, job, "/file", id=big["id"], headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206
        assert body(part) == files[b"out/big.bin"][start:stop]
    assert get(world, job, "/file", id=big["id"], headers={"Range": "bytes=900001-"}).status_code == 416
    event = JobEvent.objects.get(job=job, kind="job.artifacts_stored")
    assert "5 files stored as artefacts" in event.because

    if site == "encrypted bucket":
        inner = configured_storage().inner  # type: ignore[attr-defined]
        for key, _ in inner.list():
            with inner.open(key) as stored:
                assert stored.read(8) == b"MUSTENC1"


def test_a_job_that_asks_for_none_has_no_row_of_them(world: World, start_agent: StartAgent) -> None:
    start_agent()
    job = world.submit("echo x > file")
    world.run_until(job, "completed")
    wait_for(lambda: KeptResult.objects.filter(job=job).exists())

    assert not ArtifactUpload.objects.exists()


def test_an_upload_goes_on_once_the_node_is_back(
    world: World, start_agent: StartAgent, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    monkeypatch.setattr("scheduler.services.results.reading.ANSWER_SECONDS", 0.5)
    agent = start_agent()
    job = world.submit("printf a > a; printf b > b", artifacts=["*"])
    world.run_until(job, "completed")
    wait_for(lambda: ArtifactUpload.objects.filter(job=job).exists())
    agent.kill()

    assert store_due() == 1
    waiting = ArtifactUpload.objects.get(job=job)
    assert waiting.state == "waiting"
    assert "does not answer" in waiting.message
    assert not Artifact.objects.exists()

    agent.start()
    ArtifactUpload.objects.update(next_try_at=waiting.created_at)
    wait_for(lambda: get_after_retry(job))
    assert [one.path for one in Artifact.objects.filter(job=job)] == ["a", "b"]


def get_after_retry(job: Job) -> bool:
    upload = ArtifactUpload.objects.get(job=job)
    if upload.state == "waiting":
        ArtifactUpload.objects.filter(pk=upload.pk).update(next_try_at=upload.created_at)
        store_due()
    return ArtifactUpload.objects.get(job=job).state == "stored"
