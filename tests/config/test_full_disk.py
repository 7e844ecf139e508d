"""A disk that fills up under a running portal, for real: on a small tmpfs below its PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import give_migrated_data
from tests.support.stack import Stack, scratch_state, wait_until
from tests.support.visitor import Visitor

pytestmark = [pytest.mark.stack, pytest.mark.root]  # mounts a small tmpfs
TMPFS_MIB = 320
#: Larger than what free space in the tables' last pages takes.
SCRIPT = "#!/bin/sh\n" + "".join(f"# {os.urandom(40).hex()}\n" for _ in range(4000))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    state = scratch_state("full")
    data = state / "postgres"
    data.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MIB}m,mode=755", "muster-test", str(data)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        shutil.rmtree(state, ignore_errors=True)
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    give_migrated_data(state)
    stack = Stack(state, ["--nodes", "0"], env={"MUSTER_DISK_LOW_MIB": "40", "MUSTER_DISK_FULL_MIB": "4"})
    try:
        yield stack.start()
    finally:
        (data / "ballast").unlink(missing_ok=True)
        stack.stop()
        subprocess.run(["umount", str(data)], check=False)
        shutil.rmtree(state, ignore_errors=True)


def fill(data: Path, leave_kib: int) -> None:
    with (data / "ballast").open("wb") as ballast:
        free = os.statvfs(data)
        size = free.f_bavail * free.f_frsize - leave_kib * 1024
        os.posix_fallocate(ballast.fileno(), 0, size)


def submit(stack: Stack, token: str, number: int) -> tuple[int, dict[str, object]]:
    body: dict[str, object] = {"name": f"full-{number}", "script": SCRIPT, "cpu_cores": 1}
    try:
        return 201, stack.post("/api/v1/jobs", body, token=token)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_full_disk_is_named_and_what_is_submitted_is_taken_whole_or_refused_clearly(stack: Stack) -> None:
    data = stack.state / "postgres"
    token = stack.token
    alice = Visitor(stack.base_url).sign_in("alice", stack.credentials["alice"])
    admin = Visitor(stack.base_url).sign_in("admin", stack.credentials["admin"])
    assert stack.ready()["degraded"] == []

    fill(data, leave_kib=16 * 1024)
    wait_until(lambda: stack.ready()["degraded"] == ["disk"], why=lambda: str(stack.ready()))
    wait_until(lambda: "nearly full" in admin.get("/").text)
    assert "data-disk" not in alice.get("/").text

    fill(data, leave_kib=300)
    accepted, refused = [], []
    for number in range(12):
        status, answer = submit(stack, token, number)
        (accepted if status == 201 else refused).append(answer)

    assert refused, "the disk is not full"
    assert {(answer["status"], answer["code"]) for answer in refused} == {(503, "disk-full")}
    assert all(answer["way_out"] for answer in refused)
    assert stack.ready()["code"] == 200
    assert stack.ready()["degraded"] == ["disk"]
    _, details = stack.get("/readyz?verbose", token=stack.metrics_token)
    assert f"the disk of {data} is full" in details
    wait_until(lambda: "The disk is full." in alice.get("/").text, why=lambda: alice.get("/").text)
    assert str(data) not in alice.get("/").text
    assert str(data) in admin.get("/").text

    (data / "ballast").unlink()
    wait_until(lambda: stack.ready()["degraded"] == [], seconds=120, why=lambda: str(stack.ready()))
    wait_until(lambda: "data-disk" not in alice.get("/").text)
    status, answer = submit(stack, token, 99)
    assert status == 201
    names = {row["name"] for row in jobs(stack, token)}
    assert names == {str(row["name"]) for row in [*accepted, answer]}


def jobs(stack: Stack, token: str) -> list[dict[str, object]]:
    status, text = stack.get("/api/v1/jobs?limit=200&user=me", token=token)
    assert status == 200, text
    return [row for row in json.loads(text)["results"] if str(row["name"]).startswith("full-")]
