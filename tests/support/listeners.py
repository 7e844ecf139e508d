"""Real receivers on this machine: one of webhooks, which answers as a test says, and one of mail (SMTP)."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WebhookListener:
    """A receiver of webhooks. `answers` are the statuses of the next requests; after them it answers `status`."""

    port: int = 0
    status: int = 204
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    #: Held back until it is set.
    may_answer: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def webhook_listener(port: int = 0) -> Iterator[WebhookListener]:
    """Listen for as long as the block lasts, on any free port where none is named."""
    listener = WebhookListener()
    listener.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            listener.received.append(Received(self.path, headers, body))
            listener.may_answer.wait(30)
            self.send_response(listener.answers.pop(0) if listener.answers else listener.status)
            for name, value in listener.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    listener.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailListener:
    """A mail server. Recipients in `refused` are refused; what it took is in `mails`."""

    port: int = 0
    refused: set[str] = field(default_factory=set)
    mails: list[EmailMessage] = field(default_factory=list)


@contextmanager
def mail_listener() -> Iterator[MailListener]:
    """As much of SMTP (RFC 5321) as a client needs to hand over mail."""
    listener = MailListener()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

        def handle(self) -> None:
            self.say("220 listener")
            while line := self.rfile.readline():
                word, _, rest = line.decode().strip().partition(" ")
                match word.upper():
                    case "RCPT" if any(f"<{one}>" in rest for one in listener.refused):
                        self.say("550 no such mailbox")
                    case "DATA":
                        self.say("354 go on")
                        listener.mails.append(self._data())
                        self.say("250 taken")
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 listener")

        def _data(self) -> EmailMessage:
            lines: list[bytes] = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            found = message_from_bytes(b"".join(lines), policy=policy.default)
            assert isinstance(found, EmailMessage)
            return found

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        listener.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield listener
        server.shutdown()
        thread.join()
