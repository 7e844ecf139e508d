"""A small quota service for the example: a number of cores for each project, in memory.

python service.py 8800 16     # listens on port 8800; each project may have 16 cores in use
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any


class QuotaService(ThreadingHTTPServer):
    """Counts cores by project and key."""

    daemon_threads = True

    def __init__(self, port: int, cores: float) -> None:
        super().__init__(("127.0.0.1", port), _Door)
        self.most = int(cores * 1000)
        self.held: dict[str, tuple[int, int]] = {}
        self.lock = Lock()

    def used(self, project: int) -> int:
        """Thousandths of cores."""
        return sum(millis for one, millis in self.held.values() if one == project)

    def answer(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the body of the answer."""
        with self.lock:
            if verb == "release":
                self.held.pop(body["key"], None)
                return 200, {}
            needed = body["per_task"]["cpu_millis"] * body["tasks"]
            free = self.most - self.used(body["project"])
            text = f"The site has {free / 1000:g} of {self.most / 1000:g} cores left, {needed / 1000:g} are needed."
            if verb == "check":
                return 200, {"allowed": needed <= free, "possible": needed <= self.most, "text": text}
            if body["key"] not in self.held:
                if needed > free:
                    return 409, {"text": text}
                self.held[body["key"]] = body["project"], needed
            return 200, {}


class _Door(BaseHTTPRequestHandler):
    server: QuotaService

    def do_POST(self) -> None:
        verb = self.path.strip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = (
            self.server.answer(verb, body) if verb in ("check", "allocate", "release") else (404, {})
        )
        said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Nothing is printed for a request."""


if __name__ == "__main__":
    QuotaService(int(sys.argv[1]), float(sys.argv[2])).serve_forever()
