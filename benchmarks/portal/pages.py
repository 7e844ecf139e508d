"""Pages of the portal with a million jobs in the table, as the server takes them."""

from __future__ import annotations

import http.client
import re
import statistics
import time
from typing import Final
from urllib.parse import urlencode, urlsplit

from benchmarks.portal.listing import people_and_jobs
from benchmarks.portal.scratch_portal import portal
from benchmarks.registry import Figures, benchmark, note

REPEATS: Final = 10
PASSWORD: Final = "a-long-enough-password-1"
#: Each with what people narrow it by; `{scope}` is all that they may see, `{job}` the first of it.
PAGES: Final = (
    "/", "/jobs/", "/jobs/?{scope}&state=failed", "/jobs/?{scope}&project=list-12", "/jobs/?{scope}&q=train-77",
    "/jobs/{job}/",
    "/cluster/", "/queues/", "/quota/", "/usage/", "/usage/jobs/", "/forecasts/",
)  # fmt: skip


@benchmark("page_ms_p50_1m", "page_ms_p95_1m", "page_ms_slowest_1m")
def pages() -> Figures:
    """Twelve pages at 1,000,000 jobs, by an administrator and a member, from the request to the whole answer.

    Ten of each after one to warm up, on a kept connection of this machine, one at a time: what a browser adds is left
    out. The slowest is the largest of the medians of the pages.
    """
    running = portal()
    waits: list[float] = []
    medians: dict[str, float] = {}
    for person, scope in zip(people_and_jobs(), ("scope=all", "scope=project"), strict=True):
        person.set_password(PASSWORD)
        person.save()
        reader = Reader(running.stack.base_url).sign_in(person.username, PASSWORD)
        first = re.search(r'href="/jobs/(\d+)/', reader.get(f"/jobs/?{scope}").decode())
        assert first is not None, f"the list of {person.username} shows no job"
        for page in PAGES:
            path = page.format(job=first[1], scope=scope)
            reader.get(path)
            found = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                reader.get(path)
                found.append((time.perf_counter() - began) * 1000)
            waits += found
            medians[f"{page} by {person.username}"] = statistics.median(found)
    for name, wait in sorted(medians.items(), key=lambda item: -item[1])[:6]:
        note(f"{wait:>7.1f} ms  {name}")
    waits.sort()
    yield "page_ms_p50_1m", waits[len(waits) // 2]
    yield "page_ms_p95_1m", waits[len(waits) * 95 // 100]
    yield "page_ms_slowest_1m", max(medians.values())


class Reader:
    """Somebody who is signed in and keeps the connection, as a browser does."""

    def __init__(self, base_url: str) -> None:
        where = urlsplit(base_url)
        self.connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=120)
        self.cookies: dict[str, str] = {}

    def sign_in(self, name: str, password: str) -> Reader:
        self.get("/signin/")
        fields = {"username": name, "password": password, "csrfmiddlewaretoken": self.cookies["muster_csrf"]}
        status, text = self._ask("POST", "/signin/", urlencode(fields))
        if status != 302:
            raise RuntimeError(f"{name} cannot sign in: {status} {text[:300]!r}")
        return self

    def get(self, path: str) -> bytes:
        status, text = self._ask("GET", path)
        if status != 200:
            raise RuntimeError(f"{path} answered {status}: {text[:300]!r}")
        return text

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                cookie, _, content = value.partition(";")[0].partition("=")
                self.cookies[cookie] = content
        return answer.status, text
