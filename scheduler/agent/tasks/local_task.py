"""One task of this node as the agent knows it: its record, its files, and what the server has of it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Final

from scheduler.agent import processes
from scheduler.agent.protocol import CheckpointTerms, Described, ProbeResult, TaskRecord

STREAMS: Final = ("stdout", "stderr")
#: The beginning of a task is reported at this age: who has ended by then is reported once.
START_REPORT_MS: Final = 100
#: The file in its folder that a task writes when it has saved its work; the first line says where.
CHECKPOINT: Final = "checkpoint"


@dataclass
class LocalTask:
    """`version` rises with each change that is reported; `acknowledged` is the version that the server has."""

    key: str
    task: int
    epoch: int
    job: int
    folder: str
    record: TaskRecord | None = None
    version: int = 0
    acknowledged: int = 0
    #: The server waits for no report of it any more.
    stale: bool = False
    #: Bytes of each stream that the server has; None until the server has said.
    uploaded: dict[str, int | None] = field(default_factory=dict)
    #: The server takes no more of its logs.
    logs_refused: bool = False
    #: When it last wrote its checkpoint file (ns since 1970), and the first line of that.
    saved_ns: int = 0
    saved_path: str = ""
    #: How far the server has the results of its elements, in bytes of their file.
    elements_at: int = 0
    #: The age at which the use of its GPUs is reported next.
    use_due_ms: int = 60_000
    #: What it begins with is being fetched; the shim does not know the task yet.
    fetching: bool = False
    #: Of one that has ended: the server knows of all its checkpoints, and has them (or refused them).
    checkpoints_begun: bool = False
    checkpoints_stored: bool = False
    #: Why it is to stop; it was asked for a checkpoint first, and may end by itself.
    held_stop: str = ""

    #: The last results of its probes by GPUs, which the agent makes.
    gpu_probe_results: list[ProbeResult] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.record is not None and self.record["state"] == "running"

    @property
    def ended(self) -> bool:
        return self.record is not None and self.record["state"] == "ended"

    @property
    def reported(self) -> bool:
        """Whether the server needs no report of it any more."""
        return self.stale or (self.ended and self.acknowledged == self.version)

    @property
    def has_pending_report(self) -> bool:
        if self.version == self.acknowledged or self.stale or self.report_due_ms > 0:
            return False
        # The next attempt waits for a checkpoint that the server knows of.
        return not (self.ended and self.checkpoint_terms and not self.checkpoints_begun)

    @property
    def checkpoint_terms(self) -> CheckpointTerms | None:
        """How it is asked for checkpoints; None where it makes none."""
        return self.record["meta"].get("checkpoint") if self.record is not None else None

    @property
    def report_due_ms(self) -> int:
        """In how many milliseconds its next report is due: the first one of a short task tells its end too."""
        if self.record is None or self.record["state"] != "running" or self.version != 1 or self.acknowledged:
            return 0
        age_ms = processes.boot_ms() - self.record["started_boot_ms"]
        return START_REPORT_MS - age_ms if age_ms >= 0 else 0

    @property
    def has_elements(self) -> bool:
        """Whether it runs several elements of an array."""
        return self.record is not None and bool(self.record["meta"].get("elements"))

    def described(self) -> Described:
        """Whose it is, as its assignment said."""
        found = Described(task=self.task, epoch=self.epoch, job=self.job)
        meta = self.record["meta"] if self.record is not None else {}
        if "job_id" in meta and "user" in meta:
            found["job_id"], found["user"] = meta["job_id"], meta["user"]
        return found

    def stream_path(self, stream: str) -> str:
        return f"{self.folder}/{stream}"

    def has_saved(self) -> bool:
        """Whether the job has written its checkpoint file since the last call.

        The file is the job's: no link is followed, and nothing but a regular file is read.
        """
        try:
            file = os.open(f"{self.folder}/{CHECKPOINT}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_mtime_ns == self.saved_ns:
                return False
            line = os.read(file, 4096).split(b"\n", 1)[0].decode(errors="replace")
            self.saved_ns, self.saved_path = found.st_mtime_ns, line.strip().replace("\0", "")[:1024]
            return True
        except OSError:
            return False
        finally:
            os.close(file)


def is_suspended(record: TaskRecord) -> bool:
    return bool(record.get("suspended_boot_ms"))


def cap_marker(cap_bytes: int) -> bytes:
    """The line that ends a stream of which only the first `cap_bytes` are kept."""
    return f"\n[muster: only the first {cap_bytes // 1024} KiB of this output are kept]\n".encode()


def stored_bytes(path: str, cap_bytes: int) -> int:
    """How many bytes of this stream the server is to have in the end, given what is there now."""
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0
    return size if size <= cap_bytes else cap_bytes + len(cap_marker(cap_bytes))
