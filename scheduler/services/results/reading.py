"""Lists and reads files of a job's working folder, a bounded piece at a time, from the agent of its node.

Rights are asked before, by `folders_of`. Nothing here holds a transaction, and
only as much is asked of a node as was read.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from accounts import permissions
from accounts.models import User
from infra.errors import Conflict, InvalidInput, MusterError, NotFound
from infra.times_in_text import written
from scheduler import node_files
from scheduler.agent.results.requests import MOST_ENTRIES, MOST_READS, PIECE_BYTES
from scheduler.core.lifecycle import TaskState
from scheduler.models import Job, KeptResult, Node, NodeHeartbeat, Task

#: How long a node has for an answer.
ANSWER_SECONDS: Final = 10.0
#: Requests that are under way at a time for one reader: more would fill memory for one who reads slowly.
WINDOW: Final = 3
#: A node that was silent for so long is not asked.
SILENT_SECONDS: Final = 60
_HAVE_FOLDERS: Final = (TaskState.RUNNING, TaskState.STOPPING)


class NodeAway(MusterError):
    """The node that has the files does not answer."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The working folder of one task on its node: of one that runs, or one that was kept (`kept`)."""

    job: int
    epoch: int
    rank: int
    node: Node
    kept: KeptResult | None
    #: The number of the task.
    task: int
    last_seen_at: datetime | None

    @property
    def node_answers(self) -> bool:
        seen = self.last_seen_at
        return seen is not None and timezone.now() - seen < timedelta(seconds=SILENT_SECONDS)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a working folder; `kind` is file, folder, link or other, and only files can be read."""

    path: str
    kind: str
    size_bytes: int
    modified_at: datetime
    version: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


# ---------------------------------------------------------------- which folders there are


def folders_of(job: Job, *, by: User) -> list[Folder]:
    """The working folders of a job that can be read, newest attempt first; raises NotFound and NotAllowed.

    Of a job that runs in a folder of its own choice (`working_dir`) there are none: that folder is the site's.
    """
    permissions.require(by, "read_results", job)
    kept = list(KeptResult.objects.select_related("node").filter(job=job, left_at=None))
    running = [] if job.working_dir else _running(job)
    nodes = {one.node_id for one in kept} | {task.node_id for task in running}
    seen = dict(NodeHeartbeat.objects.filter(node_id__in=nodes).values_list("node_id", "last_seen_at"))
    found = [
        Folder(job.number, task.attempt.epoch, task.rank, task.node, None, task.pk, seen.get(task.node_id))
        for task in running
    ]
    there = {(one.epoch, one.rank) for one in found}
    numbers = _task_numbers(job) if kept else {}
    found += [
        Folder(
            job.number, one.epoch, one.rank, one.node, one, numbers.get((one.epoch, one.rank), 0),
            seen.get(one.node_id),
        )
        for one in kept
        if (one.epoch, one.rank) not in there
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.epoch, one.rank))


def _running(job: Job) -> list[Task]:
    tasks = Task.objects.select_related("node", "attempt").filter(
        attempt__job=job, attempt__epoch=job.epoch, state__in=_HAVE_FOLDERS
    )
    return list(tasks)


def _task_numbers(job: Job) -> dict[tuple[int, int], int]:
    """By epoch and rank, the numbers of the job's tasks."""
    rows = Task.objects.filter(attempt__job=job).values_list("attempt__epoch", "rank", "pk")
    return {(epoch, rank): task for epoch, rank, task in rows}


def folder_of(job: Job, *, by: User, epoch: int | None = None, rank: int | None = None) -> Folder:
    """One of them: by default that of the latest attempt that has one, and of its first task."""
    for one in folders_of(job, by=by):
        if epoch in (None, one.epoch) and rank in (None, one.rank):
            return one
    raise NotFound(
        f"There is no working folder of job {job.said_number} to read.",
        code="no-results",
        way_out="A task without files has no results, and results are removed by the policy on the job's page.",
    )


# ---------------------------------------------------------------- the list


def list_entries(
    folder: Folder, *, path: str = "", after: str = "", most: int = MOST_ENTRIES
) -> tuple[list[FileEntry], bool]:
    """Up to `most` entries below a path, and whether there are more; `after` is the last path of the page before.

    Raises NodeAway, NotFound, Conflict, InvalidInput.
    """
    request = {"op": "list", "path": path, "after": after, "most": max(1, min(most, MOST_ENTRIES))}
    answer = _answer(folder, _ask(folder, request))
    try:
        return [_entry(one) for one in answer["entries"]], bool(answer.get("more"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _nonsense(folder) from error


def all_entries(folder: Folder) -> Iterator[FileEntry]:
    """Every entry, page by page."""
    after = ""
    while True:
        entries, more = list_entries(folder, after=after)
        yield from entries
        if not more or not entries:
            return
        after = entries[-1].path


# ---------------------------------------------------------------- bytes


def open_file(folder: Folder, path: str, *, offset: int = 0) -> tuple[FileEntry, bytes]:
    """A file as it is, and its bytes from `offset` on, as many as one answer has.

    Raises NodeAway, NotFound, Conflict, InvalidInput.
    """
    if not path:
        raise InvalidInput(message="path: name the file.", status=400)
    pieces = _pieces(folder, _ask_read(folder, [(path, offset, PIECE_BYTES, "")]))
    if not pieces:
        raise _nonsense(folder)
    return pieces[0]


def rest_of(folder: Folder, file: FileEntry, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of a file from `start` up to `stop`, all of them or an error: of the same state of the same file."""
    asked, waiting = start, deque[tuple[str, int]]()
    while asked < stop or waiting:
        while asked < stop and len(waiting) < WINDOW:
            length = min(PIECE_BYTES, stop - asked)
            waiting.append((_ask_read(folder, [(file.path, asked, length, file.version)]), length))
            asked += length
        number, length = waiting.popleft()
        pieces = _pieces(folder, number)
        if len(pieces) != 1 or len(pieces[0][1]) != length:
            raise _nonsense(folder)
        yield pieces[0][1]


def small_files(folder: Folder, files: Sequence[FileEntry]) -> list[bytes]:
    """All bytes of small files, which together fit into one answer: see `batches`."""
    if not files:
        return []
    number = _ask_read(folder, [(file.path, 0, file.size_bytes, file.version) for file in files])
    pieces = _pieces(folder, number)
    if [len(data) for _, data in pieces] != [file.size_bytes for file in files]:
        raise _nonsense(folder)
    return [data for _, data in pieces]


def batches(entries: Iterator[FileEntry]) -> Iterator[list[FileEntry]]:
    """Entries in their order, in lists that one answer has room for; what is larger than that comes alone."""
    batch: list[FileEntry] = []
    size = 0
    for entry in entries:
        # An answer ends with the first byte too many, so a full one must leave no empty file after it.
        if batch and (size + entry.size_bytes >= PIECE_BYTES or len(batch) >= MOST_READS):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size_bytes
    if batch:
        yield batch


# ---------------------------------------------------------------- asking a node


def _ask_read(folder: Folder, files: Sequence[tuple[str, int, int, str]]) -> str:
    return _ask(folder, {"op": "read", "files": files})


def _ask(folder: Folder, request: dict[str, Any]) -> str:
    if not folder.node_answers:
        raise away(folder)
    whose = {"job": folder.job, "epoch": folder.epoch, "rank": folder.rank, "task": folder.task}
    return node_files.ask(folder.node.pk, {**whose, **request})


def _answer(folder: Folder, number: str) -> dict[str, Any]:
    """The answer of a node; raises what it refuses with, or NodeAway."""
    answer = node_files.wait(folder.node.pk, number, seconds=ANSWER_SECONDS)
    if answer is None:
        raise away(folder)
    code, text = answer.get("code"), str(answer.get("text", ""))[:300]
    if code is None:
        return answer
    if code == "gone":
        raise NotFound(text, code="no-such-file", way_out="Reload the list of files.")
    if code == "changed":
        raise Conflict(
            message=text, code="changed", way_out="Download it again, best once the job has ended."
        )
    raise Conflict(
        message=text, code="not-given-out", way_out="Have the job copy what you need to a regular file."
    )


def _pieces(folder: Folder, number: str) -> list[tuple[FileEntry, bytes]]:
    answer = _answer(folder, number)
    try:
        return [(_entry(one), base64.b64decode(data, validate=True)) for one, data in answer["pieces"]]
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise _nonsense(folder) from error


def _entry(one: Sequence[Any]) -> FileEntry:
    path, kind, size, modified_ns, version = one
    at = datetime.fromtimestamp(max(0, int(modified_ns)) // 1_000_000_000, UTC)
    return FileEntry(str(path), str(kind), max(0, int(size)), at, str(version))


def away(folder: Folder) -> NodeAway:
    """Why the files cannot be had now."""
    seen = (
        f"its last heartbeat was at {written(folder.last_seen_at)}"
        if folder.last_seen_at
        else "it never sent a heartbeat"
    )
    return NodeAway(
        message=f"The files are on node {folder.node.name}, which does not answer: {seen}.",
        code="node-away",
        way_out="Try again when the node responds; the files on the node are kept.",
        status=503,
        extra={"retry_after_seconds": 30},
    )


def _nonsense(folder: Folder) -> Conflict:
    return Conflict(
        message=f"Node {folder.node.name} sent an unexpected answer.",
        code="bad-answer",
        way_out="Try again; if the problem remains, ask an operator to check the node's agent.",
    )
