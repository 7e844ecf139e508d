"""The server's side of an agent, in memory: it gives out what the script says, and keeps what comes back."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Door:
    def __init__(self, scripts: Path, env: dict[str, str]) -> None:
        self.changed = threading.Condition()
        self.scripts, self.env = scripts, env
        self.machine: Message = {}
        self.assignments: dict[int, Message] = {}
        self.reports: dict[int, Message] = {}
        self.texts: dict[tuple[int, str], bytes] = {}
        self._stops: list[Message] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                data = json.dumps(door.answer(self.path.rsplit("/", 1)[1], body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    # ------------------------------------------------------------ the three calls

    def answer(self, call: str, body: Message) -> Message:
        with self.changed:
            if "inventory" in body:
                self.machine = body["inventory"]
            reply = {"register": self._register, "sync": self._sync, "logs": self._logs}[call](body)
            self.changed.notify_all()
            return reply

    def _register(self, body: Message) -> Message:
        return {"agent_key": "k", "node_id": 1, "cluster": "c"}

    def _sync(self, body: Message) -> Message:
        self.reports |= {report["task"]: report for report in body["reports"]}
        known = {task for task, _ in body["known"]}
        give: list[Message] = []
        stops: list[Message] = []
        if body["wait_seconds"]:
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._due(known) or self._stops, timeout=1.0)
            give, stops, self._stops = self._due(known), self._stops, []
        return {
            "node_id": 1, "assignments": give, "stops": stops, "verify": [], "hold_seconds": 1.0,
            "fence_seconds": 0, "log_cap_bytes": 2**20, "inventory_wanted": False,
        }  # fmt: skip

    def _due(self, known: set[int]) -> list[Message]:
        return [a for task, a in self.assignments.items() if task not in known and task not in self.reports]

    def _logs(self, body: Message) -> Message:
        ends = {(task, stream) for task, _ in body["ask"] for stream in ("stdout", "stderr")}
        for chunk in body["chunks"]:
            key = (chunk["task"], chunk["stream"])
            if chunk["offset"] == len(self.texts.get(key, b"")):
                self.texts[key] = self.texts.get(key, b"") + base64.b64decode(chunk["data"])
            ends.add(key)
        streams = [
            {"task": task, "stream": stream, "next_offset": len(self.texts.get((task, stream), b""))}
            for task, stream in ends
        ]
        return {"streams": streams, "gone": []}

    # ------------------------------------------------------------ what a script does with it

    def start(self, text: str, devices: tuple[int, ...] = (0,), **more: Any) -> int:
        with self.changed:
            task = len(self.assignments) + 1
            path = self.scripts / f"job{task}.py"
            path.write_text(text)
            self.assignments[task] = {
                "task": task, "epoch": 1, "job": 1000 + task, "job_id": f"u{task}", "name": f"j{task}",
                "user": "alice", "project": "p", "queue": "q", "rank": 0, "tasks": 1, "local_rank": 0,
                "node_rank": 0, "nodes": 1, "node_names": ["n"], "master_address": "127.0.0.1",
                "master_port": 20000, "command": f"exec {sys.executable} -u {path}", "script": "",
                "env": self.env, "working_dir": "", "devices": list(devices), "cpu_millis": 4000,
                "memory_mib": 1000, "limit_seconds": 120, "grace_seconds": 2, **more,
            }  # fmt: skip
            self.changed.notify_all()
            return task

    def stop(self, task: int) -> None:
        with self.changed:
            self._stops.append(
                {"task": task, "epoch": 1, "reason": "cancelled", "grace_seconds": 2, "stale": False}
            )
            self.changed.notify_all()

    def wait(self, what: Callable[[], Any], seconds: float = 90) -> bool:
        with self.changed:
            return bool(self.changed.wait_for(what, timeout=seconds))

    def runs(self, task: int) -> bool:
        return self.reports.get(task, {}).get("state", "running") == "running"

    def ended(self, task: int, seconds: float = 90) -> Message:
        """Its last report; its output is here too, or will not come."""
        self.wait(lambda: not self.runs(task), seconds)
        report = self.reports.get(task, {})
        self.wait(lambda: len(self.texts.get((task, "stdout"), b"")) >= report.get("stdout_bytes", 0), 5)
        return report

    def said(self, task: int, word: str, times: int = 1, seconds: float = 90) -> bool:
        return self.wait(lambda: self.text(task).count(word) >= times, seconds)

    def text(self, task: int, stream: str = "stdout") -> str:
        return self.texts.get((task, stream), b"").decode(errors="replace")

    def facts(self, task: int, word: str = "FACTS") -> Message:
        """What a job printed after this word, in JSON."""
        for line in self.text(task).splitlines():
            if line.startswith(word + " "):
                found: Message = json.loads(line[len(word) + 1 :])
                return found
        return {}

    @property
    def gpu(self) -> Message:
        """The first GPU, as the agent told of it last."""
        devices = self.machine.get("devices")
        return devices[0] if devices else {}
