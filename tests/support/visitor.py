"""A person with a browser's cookies and nothing else of it: plain HTTP against a running portal."""

from __future__ import annotations

import http.cookiejar
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message


@dataclass(frozen=True)
class Answer:
    """What came back, and after how many seconds; status 0 where nothing came in time."""

    status: int
    text: str
    headers: Message
    seconds: float


class Visitor:
    """Keeps cookies from one request to the next; every request is a connection of its own."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self.cookies), _StaysWhereItIs()
        )

    def sign_in(self, name: str, password: str) -> Visitor:
        self.get("/signin/")
        answer = self.post("/signin/", {"username": name, "password": password})
        assert answer.status == 302, answer.text
        return self

    def get(self, path: str, *, timeout: float = 30, headers: dict[str, str] | None = None) -> Answer:
        return self._ask(urllib.request.Request(self.base_url + path, headers=headers or {}), timeout)

    def post(self, path: str, fields: dict[str, str], *, timeout: float = 30, csrf: bool = True) -> Answer:
        token = next((cookie.value for cookie in self.cookies if cookie.name == "muster_csrf"), "") or ""
        given = {**fields, "csrfmiddlewaretoken": token} if csrf else fields
        data = urllib.parse.urlencode(given).encode()
        return self._ask(urllib.request.Request(self.base_url + path, data=data), timeout)

    def _ask(self, request: urllib.request.Request, timeout: float) -> Answer:
        began = time.monotonic()
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers, time.monotonic() - began)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            return Answer(error.code, text, error.headers, time.monotonic() - began)
        except OSError as error:
            return Answer(0, str(error), Message(), time.monotonic() - began)


class _StaysWhereItIs(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirect is an answer like others."""
