"""Output arrives as fast as it can be sent, and no task's output waits for all of another's."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from scheduler.agent.protocol import CHUNK_BYTES, LOG_BATCH_BYTES
from scheduler.agent.server.log_upload import LogUploader
from scheduler.agent.tasks.local_task import STREAMS, stored_bytes
from scheduler.agent.tasks.task_table import TaskTable
from tests.support.agent_messages import a_record


class Server:
    """Takes every chunk at its offset, as the real one does, and counts messages."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str], bytes] = {}
        self.messages = 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.messages += 1
        for task, _ in body["ask"]:
            for stream in STREAMS:
                self.kept.setdefault((task, stream), b"")
        for chunk in body["chunks"]:
            key = chunk["task"], chunk["stream"]
            assert chunk["offset"] == len(self.kept[key])
            self.kept[key] += base64.b64decode(chunk["data"])
        streams = [
            {"task": task, "stream": stream, "next_offset": len(data)}
            for (task, stream), data in self.kept.items()
        ]
        return {"streams": streams, "gone": []}


def a_table(folder: Path, *prints: int) -> TaskTable:
    table = TaskTable()
    for task, size in enumerate(prints, start=1):
        own = folder / f"{task}-1"
        own.mkdir()
        (own / "stdout").write_bytes(bytes([64 + task]) * size)
        (own / "stderr").write_bytes(b"")
        table.update(
            [a_record(key=f"{task}-1", folder=str(own), meta={"task": task, "epoch": 1, "job": task})],
            complete=False,
        )
    return table


def test_one_tasks_output_fills_the_messages_it_needs(tmp_path: Path) -> None:
    """A print of any size is behind by its size over the speed of the line, not by a pause for each chunk."""
    batches = 3
    table, server = a_table(tmp_path, batches * LOG_BATCH_BYTES), Server()
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    uploader.upload_batch()  # asks where to go on

    rounds = 0
    while True:
        rounds += 1
        if not uploader.upload_batch().more:
            break

    assert rounds == batches
    assert len(server.kept[1, "stdout"]) == batches * LOG_BATCH_BYTES


def test_more_is_said_while_anything_waits(tmp_path: Path) -> None:
    table, server = a_table(tmp_path, LOG_BATCH_BYTES + 1), Server()
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    uploader.upload_batch()

    assert [uploader.upload_batch().more, uploader.upload_batch().more] == [True, False]


def test_a_short_line_waits_for_no_long_print(tmp_path: Path) -> None:
    large = 40 * CHUNK_BYTES
    table, server = a_table(tmp_path, *[large] * 12, 5), Server()
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    uploader.upload_batch()

    uploader.upload_batch()
    uploader.upload_batch()

    assert server.kept[13, "stdout"] == b"MMMMM"


def test_the_cap_is_kept_and_said(tmp_path: Path) -> None:
    table, server = a_table(tmp_path, 10 * CHUNK_BYTES), Server()
    table.cap_bytes = 3 * CHUNK_BYTES + 7
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    uploader.upload_batch()
    while uploader.upload_batch().more:
        pass

    kept = server.kept[1, "stdout"]
    assert kept[: table.cap_bytes] == b"A" * table.cap_bytes
    assert len(kept) == stored_bytes(str(tmp_path / "1-1" / "stdout"), table.cap_bytes)
    assert b"only the first" in kept[table.cap_bytes :]


def test_a_link_or_pipe_in_the_place_of_an_output_is_not_followed(tmp_path: Path) -> None:
    table, server = a_table(tmp_path, 1, 1, 3), Server()
    (tmp_path / "secret").write_bytes(b"not for jobs")
    for name in ("1-1", "2-1"):
        (tmp_path / name / "stdout").unlink()
    (tmp_path / "1-1" / "stdout").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "2-1" / "stdout")
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    uploader.upload_batch()
    uploader.upload_batch()

    assert server.kept[1, "stdout"] == b""
    assert server.kept[3, "stdout"] == b"CCC"


def test_a_link_in_the_place_of_the_output_is_neither_read_nor_truncated(tmp_path: Path) -> None:
    """An agent may be root, and the folder is in the job's hands."""
    table, server = a_table(tmp_path, 0, 0), Server()
    table.cap_bytes = 10
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * 3_000_000)
    for task, link in ((1, os.symlink), (2, os.link)):
        (tmp_path / f"{task}-1/stdout").unlink()
        link(victim, tmp_path / f"{task}-1/stdout")
    uploader = LogUploader(table, server)  # type: ignore[arg-type]
    for _ in range(4):
        uploader.upload_batch()
        uploader.truncate_capped()

    assert victim.stat().st_size == 3_000_000
    assert b"x" not in server.kept[1, "stdout"]
