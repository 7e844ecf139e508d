"""Reads what agents send, and says of nonsense what is wrong with it."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from infra.errors import FieldProblem, InvalidInput, MusterError
from scheduler.agent import OLDEST_PROTOCOL, PROTOCOL, VERSION
from scheduler.agent.protocol import PROBE_TEXT_BYTES, ProbeResult, Report
from scheduler.services.cluster.inventory import read_inventory
from scheduler.services.cluster.unknown_tasks import DescribedTask
from scheduler.services.execution import elements
from scheduler.services.execution.agent_messages import AgentMessage
from scheduler.services.jobs import logs
from scheduler.services.jobs.usage import Sample
from scheduler.services.results.kept import Reported
from scheduler.services.submission.fields_restart import MAX_PROBES

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_REPORTS: Final = 2000
MAX_KNOWN: Final = 20_000
MAX_CHUNKS: Final = 2000
#: Kept folders of a page: those of one job go together, however wide it was.
MAX_KEPT: Final = 20_000
#: Answers to requests for files.
MAX_ANSWERS: Final = 16
#: The longest that an agent may ask to wait.
MAX_WAIT_SECONDS: Final = 3600
_STATES: Final = frozenset({"running", "succeeded", "failed", "stopped", "lost"})
_INT_MAX: Final = 2**31 - 1
_BIG_MAX: Final = 2**62
_YEARS_MS: Final = 100 * 365 * 86400 * 1000
#: A thousand samples of the largest CPU and memory can still be added.
_SAMPLE_BOUNDS: Final = (_BIG_MAX, _INT_MAX, 2**40, 2**40, 100, 2**40)


def parse(data: bytes, encoding: str) -> Mapping[str, Any]:
    try:
        if encoding == "gzip":
            data = _unzip(data)
        body = json.loads(data)
        if b"\\u" in data:  # only so can half a surrogate pair come in, which nothing can store
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise InvalidInput(message="The message is not valid JSON.", code="not-json", status=400) from error
    if not isinstance(body, dict):
        raise InvalidInput(message="The message has to be a JSON object.")
    return body


def _unzip(data: bytes) -> bytes:
    """Never more than a plain message may have, however small it was packed."""
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(data, MAX_BODY_BYTES + 1)
    if len(plain) > MAX_BODY_BYTES or unpacker.unconsumed_tail:
        raise MusterError(
            message=f"A message may have {MAX_BODY_BYTES} bytes, unpacked.", code="too-large", status=413
        )
    if not unpacker.eof:
        raise gzip.BadGzipFile("cut short")
    return plain


class Reader:
    """Collects what is wrong with a message."""

    def __init__(self) -> None:
        self.problems: list[FieldProblem] = []

    def whole(self, data: Mapping[str, Any], name: str, under: str, most: int) -> int:
        value = data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        self.problems.append(FieldProblem(under + name, f"has to be a whole number from 0 to {most}"))
        return 0

    def pairs(self, value: Any, name: str) -> list[tuple[int, int]]:
        good = isinstance(value, list) and len(value) <= MAX_KNOWN
        if good and all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _BIG_MAX for n in pair)
            for pair in value
        ):
            return [(pair[0], pair[1]) for pair in value]
        self.problems.append(FieldProblem(name, f"has to be a list of at most {MAX_KNOWN} [task, epoch]"))
        return []

    def objects(self, value: Any, name: str, most: int) -> list[Mapping[str, Any]]:
        if isinstance(value, list) and len(value) <= most and all(isinstance(item, dict) for item in value):
            return value
        self.problems.append(FieldProblem(name, f"has to be a list of at most {most} objects"))
        return []

    def finish(self) -> None:
        if self.problems:
            raise InvalidInput(message="The message cannot be read.", problems=self.problems[:50])


def read_wait(body: Mapping[str, Any]) -> float | None:
    """How many seconds the agent would wait for orders; None where that cannot be read."""
    wait = body.get("wait_seconds")
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= MAX_WAIT_SECONDS:
        return float(wait)
    return None


class AgentRefused(InvalidInput):
    """The agent speaks a protocol that this server does not; `code` says which of the two is too old."""


def read_protocol(body: Mapping[str, Any]) -> int:
    """The protocol of the agent, from that of the release before to ours; raises AgentRefused for any other."""
    given = body.get("protocol")
    said = given if isinstance(given, int) and not isinstance(given, bool) else None
    if said is not None and OLDEST_PROTOCOL <= said <= PROTOCOL:
        return said
    words = "no protocol that can be read" if said is None else f"protocol {said}"[:30]
    span = f"{OLDEST_PROTOCOL}" if OLDEST_PROTOCOL == PROTOCOL else f"{OLDEST_PROTOCOL} to {PROTOCOL}"
    if said is not None and said > PROTOCOL:
        raise AgentRefused(
            message=f"The agent is newer than the server: it speaks {words}, the server {span}.",
            code="agent-too-new",
            way_out="Upgrade the server first, then the agents (docs/guides/upgrade.md).",
        )
    raise AgentRefused(
        message=f"The agent is too old: it speaks {words}, the server {span}.",
        code="agent-too-old",
        way_out=f"Upgrade the agent of this node to version {VERSION} and restart it; its jobs go on.",
    )


def read_sync(key: str, body: Mapping[str, Any]) -> AgentMessage:
    """A sync message; raises InvalidInput with all that is wrong with it.

    One that only reports, and does not wait, is sent beside the call that is held open and gets the orders.
    """
    protocol = read_protocol(body)
    read = Reader()
    wait = read_wait(body)
    if wait is None:
        read.problems.append(FieldProblem("wait_seconds", f"has to be a number from 0 to {MAX_WAIT_SECONDS}"))
    reports = [
        _read_report(read, report, f"reports/{number}/")
        for number, report in enumerate(read.objects(body.get("reports", []), "reports", MAX_REPORTS))
    ]
    known = dict(read.pairs(body.get("known", []), "known"))
    worlds = _read_triples(read, body, "worlds", "size")
    limits = _read_triples(read, body, "limits", "seconds")
    texts = {name: body.get(name, "") for name in ("boot_id", "agent_version")}
    for name, text in texts.items():
        if not isinstance(text, str) or "\0" in text:
            read.problems.append(FieldProblem(name, "has to be text"))
            texts[name] = ""
    clock_ms = read.whole(body, "clock_ms", "", _BIG_MAX)
    described = [
        _read_described(read, one, f"described/{number}/")
        for number, one in enumerate(read.objects(body.get("described", []), "described", MAX_KNOWN))
    ]
    read.finish()
    inventory = read_inventory(body["inventory"]) if "inventory" in body else None
    only_reports = bool(reports) and not wait
    return AgentMessage(
        key,
        known=None if only_reports else known,
        reports=reports,
        clock_ms=clock_ms,
        inventory=inventory,
        described=described,
        protocol=protocol,
        worlds=worlds,
        limits=limits,
        **texts,
    )


def _read_triples(read: Reader, body: Mapping[str, Any], name: str, third: str) -> dict[int, int] | None:
    """Task -> what the agent has heard of it; None from an agent that knows no such orders."""
    if name not in body:
        return None
    given = body[name]
    fits = isinstance(given, list) and len(given) <= MAX_KNOWN
    if not fits or any(
        not isinstance(one, list)
        or len(one) != 3
        or any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= _BIG_MAX for n in one)
        for one in given
    ):
        read.problems.append(FieldProblem(name, f"has to be a list of [task, epoch, {third}]"))
        return {}
    return {task: said for task, _, said in given}


def _read_described(read: Reader, data: Mapping[str, Any], under: str) -> DescribedTask:
    try:
        job_uuid = UUID(data["job_id"]) if isinstance(data.get("job_id"), str) else None
    except ValueError:
        read.problems.append(FieldProblem(under + "job_id", "has to be a UUID"))
        job_uuid = None
    user = data.get("user", "")
    if not isinstance(user, str) or "\0" in user:
        read.problems.append(FieldProblem(under + "user", "has to be text"))
        user = ""
    return DescribedTask(
        read.whole(data, "task", under, _BIG_MAX),
        read.whole(data, "epoch", under, _INT_MAX),
        read.whole(data, "job", under, _BIG_MAX),
        job_uuid,
        user[:150],
    )


def _read_report(read: Reader, data: Mapping[str, Any], under: str) -> Report:
    report = Report(
        task=read.whole(data, "task", under, _BIG_MAX),
        epoch=read.whole(data, "epoch", under, _INT_MAX),
        state=str(data.get("state")),
    )
    if report["state"] not in _STATES:
        read.problems.append(FieldProblem(under + "state", f"is none of {', '.join(sorted(_STATES))}"))
    for name, most in (
        ("pid", _INT_MAX), ("started_ago_ms", _BIG_MAX), ("ended_ago_ms", _BIG_MAX), ("exit_code", _INT_MAX),
        ("exit_signal", 128), ("peak_memory_mib", _BIG_MAX), ("cpu_time_ms", _BIG_MAX),
        ("gpu_watched_ms", _BIG_MAX), ("gpu_busy_ms", _BIG_MAX), ("peak_gpu_memory_mib", _BIG_MAX),
        ("stdout_bytes", _BIG_MAX), ("stderr_bytes", _BIG_MAX), ("saved_ago_ms", _BIG_MAX),
    ):  # fmt: skip
        if name in data:
            report[name] = read.whole(data, name, under, most)  # type: ignore[literal-required]
    if "elements" in data:
        results = elements.read_results(data["elements"])
        if results is None:
            read.problems.append(FieldProblem(under + "elements", "has to be a list of results of elements"))
        report["elements"] = [list(one) for one in results or ()]
    if "probes" in data:
        report["probes"] = [
            _read_probe(read, result, f"{under}probes/{number}/")
            for number, result in enumerate(read.objects(data["probes"], under + "probes", MAX_PROBES))
        ]
    if "suspended" in data:
        report["suspended"] = data["suspended"] is True
    for name in ("stop_reason", "text", "failure", "saved_path"):
        if name in data:
            text = data[name]
            if not isinstance(text, str):
                read.problems.append(FieldProblem(under + name, "has to be text"))
                text = ""
            report[name] = text.replace("\0", "�")[: 1024 if name == "saved_path" else 300]  # type: ignore[literal-required]
    return report


def _read_probe(read: Reader, data: Mapping[str, Any], under: str) -> ProbeResult:
    text = data.get("text")
    if not isinstance(text, str):
        read.problems.append(FieldProblem(under + "text", "has to be text"))
        text = ""
    return ProbeResult(
        number=read.whole(data, "number", under, MAX_PROBES - 1),
        ok=data.get("ok") is True,
        failures=read.whole(data, "failures", under, _INT_MAX),
        text=text.replace("\0", "\ufffd")[:PROBE_TEXT_BYTES],
        ago_ms=read.whole(data, "ago_ms", under, _YEARS_MS),
    )


def read_chunks(read: Reader, body: Mapping[str, Any]) -> list[logs.IncomingChunk]:
    chunks: list[logs.IncomingChunk] = []
    for number, data in enumerate(read.objects(body.get("chunks", []), "chunks", MAX_CHUNKS)):
        under = f"chunks/{number}/"
        stream, packed = data.get("stream"), data.get("data")
        if stream not in logs.STREAMS:
            read.problems.append(FieldProblem(under + "stream", "has to be stdout or stderr"))
        try:
            plain = base64.b64decode(packed, validate=True) if isinstance(packed, str) else b""
        except (binascii.Error, ValueError):
            plain = b""
        if not 0 < len(plain) <= logs.MAX_CHUNK_BYTES:
            limit = f"1 to {logs.MAX_CHUNK_BYTES} bytes"
            read.problems.append(FieldProblem(under + "data", f"has to be {limit} in base64"))
        task, epoch = read.whole(data, "task", under, _BIG_MAX), read.whole(data, "epoch", under, _INT_MAX)
        offset = read.whole(data, "offset", under, _BIG_MAX)
        chunks.append(logs.IncomingChunk(task, epoch, str(stream), offset, plain))
    return chunks


def read_usage(body: Mapping[str, Any]) -> list[Sample]:
    """Samples of running tasks; raises InvalidInput."""
    samples = body.get("samples")
    if not isinstance(samples, list) or len(samples) > MAX_REPORTS or not all(map(_is_sample, samples)):
        raise InvalidInput(
            message="The message cannot be read.",
            problems=[
                FieldProblem(
                    "samples", f"has to be a list of at most {MAX_REPORTS} lists of six whole numbers"
                )
            ],
        )
    return [Sample(*sample) for sample in samples]


def _is_sample(value: Any) -> bool:
    """Whether this is [task, epoch, CPU, memory, GPU percent, GPU memory]; the last two together may be null."""
    if not isinstance(value, list) or len(value) != len(_SAMPLE_BOUNDS):
        return False
    known = value[:4] if value[4:] == [None, None] else value
    return all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= most
        for n, most in zip(known, _SAMPLE_BOUNDS, strict=False)
    )


def read_kept(body: Mapping[str, Any]) -> tuple[int, int, list[Reported]]:
    """All kept folders of a node of jobs from one number to another; raises InvalidInput."""
    read = Reader()
    first, last = read.whole(body, "first", "", _BIG_MAX), read.whole(body, "last", "", _BIG_MAX)
    found = [
        Reported(
            read.whole(data, "job", under, _BIG_MAX),
            read.whole(data, "epoch", under, _INT_MAX),
            read.whole(data, "rank", under, _INT_MAX),
            read.whole(data, "files", under, _INT_MAX),
            read.whole(data, "size", under, _BIG_MAX),
            data.get("whole") is True,
            read.whole(data, "task", under, _BIG_MAX) if "task" in data else 0,
        )
        for number, data in enumerate(read.objects(body.get("kept", []), "kept", MAX_KEPT))
        for under in [f"kept/{number}/"]
    ]
    if any(not first <= one.job <= last for one in found):
        read.problems.append(FieldProblem("kept", "has to be of jobs from `first` to `last`"))
    read.finish()
    return first, last, found


def read_files(body: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], float]:
    """Answers to requests for files, and for how long the agent waits for more; raises InvalidInput."""
    read = Reader()
    answers = read.objects(body.get("answers", []), "answers", MAX_ANSWERS)
    wait = read_wait(body)
    if wait is None:
        read.problems.append(FieldProblem("wait_seconds", f"has to be a number from 0 to {MAX_WAIT_SECONDS}"))
    read.finish()
    return list(answers), wait or 0.0
