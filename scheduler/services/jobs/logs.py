"""Output of tasks: stored in chunks at their byte offset, read by offset, one stream or several merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from infra.errors import InvalidInput
from scheduler import outbox
from scheduler.core.lifecycle import LIVE_ATTEMPT
from scheduler.models import Job, Node
from scheduler.state.db.sql import run

STREAMS: Final = ("stdout", "stderr")
MERGED: Final = "merged"
MAX_CHUNK_BYTES: Final = 256 * 1024
#: One answer to a reader.
MAX_READ_BYTES: Final = 1024 * 1024
#: An agent that has not sent the rest this long after the end never will: readers do not wait for it.
GIVE_UP_SECONDS: Final = 600
#: Class of the advisory locks on an attempt's logs.
_LOG_LOCK: Final = 0x4C47


@dataclass(frozen=True, slots=True)
class IncomingChunk:
    task: int
    epoch: int
    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The next offset of each touched stream, and the tasks whose output this node may not send."""

    next_offsets: dict[tuple[int, str], int]
    gone: list[int]


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Bytes of a stream from `offset`; `eof` when there is nothing after `next_offset`, now or ever.

    `awaited_bytes` were printed and have not arrived; None while the attempt runs and the number is unknown.
    `lost_bytes` were printed and will not arrive.
    """

    stream: str
    offset: int
    next_offset: int
    eof: bool
    data: bytes
    awaited_bytes: int | None = 0
    lost_bytes: int = 0


# ---------------------------------------------------------------- append


@transaction.atomic
def append_chunks(
    *, node: Node, chunks: Sequence[IncomingChunk], ask: Iterable[tuple[int, int]] = ()
) -> Appended:
    """Store the new bytes of these chunks, in order, without gap or overlap; sent again, nothing changes.

    The answer has the next offset of each stream: a sender that is ahead or behind starts again from there.
    One attempt's chunks are stored one message at a time, so that their ids rise in the order in which readers
    see them: a merged log never changes before a reader's offset.
    """
    wanted = {(chunk.task, chunk.epoch) for chunk in chunks} | set(ask)
    rows = run(
        "SELECT t.id, a.epoch, a.id, a.job_id FROM scheduler_task t"
        " JOIN scheduler_attempt a ON a.id = t.attempt_id WHERE t.id = ANY(%s) AND t.node_id = %s",
        [sorted({task for task, _ in wanted}), node.pk],
    )
    ours = {row[0]: row for row in rows if (row[0], row[1]) in wanted}
    for attempt_id in sorted({row[2] for row in ours.values()}):
        run("SELECT pg_advisory_xact_lock(%s, %s)", [_LOG_LOCK, attempt_id % 2**31])
    ends = _ends(list(ours))
    new: list[tuple[int, str, int, bytes]] = []
    for chunk in chunks:
        if chunk.task not in ours or ours[chunk.task][1] != chunk.epoch:
            continue
        end = ends[chunk.task, chunk.stream]
        fresh = chunk.data[end - chunk.offset :] if chunk.offset <= end else b""
        if fresh:
            new.append((chunk.task, chunk.stream, end, fresh))
            ends[chunk.task, chunk.stream] = end + len(fresh)
    if new:
        _insert(new)
        outbox.announce_many({outbox.log_topic(ours[task][3]) for task, *_ in new})
    return Appended(ends, sorted({task for task, _ in wanted} - set(ours)))


def _ends(task_ids: Sequence[int]) -> dict[tuple[int, str], int]:
    """The stored bytes of each stream: the end of its last chunk."""
    ends = {(task, stream): 0 for task in task_ids for stream in STREAMS}
    rows = run(
        "SELECT t.id, s.name, c.at FROM unnest(%s::bigint[]) AS t(id)"
        " CROSS JOIN (VALUES ('stdout'), ('stderr')) AS s(name) CROSS JOIN LATERAL ("
        '  SELECT "offset" + length AS at FROM scheduler_logchunk'
        '  WHERE task_id = t.id AND stream = s.name ORDER BY "offset" DESC LIMIT 1) AS c',
        [list(task_ids)],
    )
    ends.update({(task, stream): at for task, stream, at in rows})
    return ends


def _insert(rows: Sequence[tuple[int, str, int, bytes]]) -> None:
    run(
        'INSERT INTO scheduler_logchunk (task_id, stream, "offset", length, data, received_at)'
        " SELECT task, stream, at, octet_length(data), data, now()"
        " FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bytea[])"
        " WITH ORDINALITY AS c(task, stream, at, data, place) ORDER BY place",
        [
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [row[3] for row in rows],
        ],
    )


# ---------------------------------------------------------------- read


def read_log(
    *,
    job: Job,
    stream: str = MERGED,
    offset: int = 0,
    limit: int = 65536,
    rank: int | None = None,
    epoch: int | None = None,
) -> LogSlice:
    """Bytes of one stream of one attempt (by default the latest), of one task or of all.

    Several streams together are in the order in which they were received; that order never changes, so an
    offset keeps its meaning. Raises InvalidInput.
    """
    if stream not in (*STREAMS, MERGED):
        raise InvalidInput(message=f"There is no stream {stream!r}.", way_out="Use stdout, stderr or merged.")
    if offset < 0 or limit < 1:
        raise InvalidInput(message="`offset` cannot be negative, and `limit` must be at least 1.")
    limit = min(limit, MAX_READ_BYTES)
    tasks = run(
        "SELECT t.id, a.state, a.ended_at, t.stdout_bytes, t.stderr_bytes FROM scheduler_task t"
        " JOIN scheduler_attempt a ON a.id = t.attempt_id WHERE a.job_id = %s AND a.epoch = %s"
        " AND (%s::int IS NULL OR t.rank = %s) ORDER BY t.rank",
        [job.number, job.epoch if epoch is None else epoch, rank, rank],
    )
    streams = [stream] if stream != MERGED else list(STREAMS)
    ids = [task[0] for task in tasks]
    # Counted before the bytes are read: what arrives in between must not count as read.
    awaited, lost = _missing(job, tasks, streams)
    if len(ids) == 1 and len(streams) == 1:
        data = read_stream(ids[0], streams[0], offset, limit)
    else:
        data = read_merged(ids, streams, offset, limit)
    eof = awaited == 0 and len(data) < limit
    return LogSlice(stream, offset, offset + len(data), eof, data, awaited, lost)


def read_stream(task_id: int, stream: str, offset: int, limit: int) -> bytes:
    """Bytes of one stream of one task, found by the offsets of its chunks."""
    rows = run(
        'SELECT "offset", data FROM scheduler_logchunk WHERE task_id = %s AND stream = %s'
        ' AND "offset" + length > %s AND "offset" < %s AND "offset" >= coalesce((SELECT max("offset")'
        '  FROM scheduler_logchunk WHERE task_id = %s AND stream = %s AND "offset" <= %s), 0) ORDER BY "offset"',
        [task_id, stream, offset, offset + limit, task_id, stream, offset],
    )
    return _cut(((at, bytes(data)) for at, data in rows), offset, limit)


def read_merged(task_ids: Sequence[int], streams: Sequence[str], offset: int, limit: int) -> bytes:
    """Bytes of several streams; offsets count over all chunks in the order of their ids."""
    rows = run(
        "WITH placed AS (SELECT id, length, sum(length) OVER (ORDER BY id) - length AS at"
        "  FROM scheduler_logchunk WHERE task_id = ANY(%s) AND stream = ANY(%s))"
        " SELECT placed.at, c.data FROM placed JOIN scheduler_logchunk c ON c.id = placed.id"
        " WHERE placed.at + placed.length > %s AND placed.at < %s ORDER BY placed.id",
        [list(task_ids), list(streams), offset, offset + limit],
    )
    return _cut(((int(at), bytes(data)) for at, data in rows), offset, limit)


def _cut(chunks: Iterable[tuple[int, bytes]], offset: int, limit: int) -> bytes:
    parts = [data[max(0, offset - at) : offset + limit - at] for at, data in chunks]
    return b"".join(parts)


def _missing(job: Job, tasks: Sequence[tuple[Any, ...]], streams: Sequence[str]) -> tuple[int | None, int]:
    """How many bytes are still to arrive (None: unknown), and how many never will.

    Tasks report at their end how much they printed. Lost attempts never do, and an agent may never come back;
    then what is stored is all there is.
    """
    if not tasks:
        return (0 if job.is_terminal else None), 0
    _, state, ended_at, _, _ = tasks[0]
    if state in LIVE_ATTEMPT:
        return None, 0
    ends = _ends([task[0] for task in tasks])
    missing = 0
    for task_id, _, _, stdout_bytes, stderr_bytes in tasks:
        totals: Mapping[str, int | None] = {"stdout": stdout_bytes, "stderr": stderr_bytes}
        missing += sum(max(0, (totals[s] or 0) - ends[task_id, s]) for s in streams)
    if ended_at is not None and timezone.now() - ended_at > timedelta(seconds=GIVE_UP_SECONDS):
        return 0, missing
    return missing, 0


def sizes(job: Job) -> dict[str, int]:
    """How many bytes of each stream of the latest attempt are stored."""
    total: dict[str, int] = defaultdict(int)
    for stream, length in run(
        "SELECT c.stream, sum(c.length) FROM scheduler_logchunk c JOIN scheduler_task t ON t.id = c.task_id"
        " JOIN scheduler_attempt a ON a.id = t.attempt_id WHERE a.job_id = %s AND a.epoch = %s GROUP BY 1",
        [job.number, job.epoch],
    ):
        total[stream] = int(length)
    return dict(total)
