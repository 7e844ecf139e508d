"""PostgreSQL killed and frozen under a running portal: what answers meanwhile, and that all is well after."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

from tests.support.embedded import give_migrated_data
from tests.support.patience import patience
from tests.support.stack import Stack, scratch_state, wait_until
from tests.support.visitor import Answer, Visitor

pytestmark = pytest.mark.stack

NOWHERE = "/this-leads-nowhere/"
#: The admin's own pages answer 403 to a person who is no member of the staff; so does a form without its token.
FOREIGN_JOB = "/jobs/999999999/"
#: More at once than both web processes have threads for pages (8 each), so that every thread has had a request.
AT_ONCE = 24
#: Each asks every thread again; the second is there for what a thread remembers of the first.
ROUNDS_BEFORE, ROUNDS_AFTER = 2, 3
#: Longer than what a page shows of the portal's troubles is remembered, so that the database is asked again.
PAUSE_SECONDS = 2.2


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    state = scratch_state("away")
    give_migrated_data(state)
    stack = Stack(state, ["--nodes", "1"], env={"MUSTER_WEB_PROCESSES": "2"})
    try:
        yield stack.start()
    finally:
        stack.stop()
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="module")
def alice(stack: Stack) -> Visitor:
    return Visitor(stack.base_url).sign_in("alice", stack.credentials["alice"])


def many(work: list[tuple[Visitor, str]], *, timeout: float = 60) -> list[Answer]:
    """All of them at once, `AT_ONCE` at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda asked: asked[0].get(asked[1], timeout=timeout), work))


def statuses(answers: list[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def all_well(stack: Stack) -> None:
    wait_until(lambda: stack.ready()["status"] == "ok", seconds=60, why=lambda: str(stack.ready()))


@contextmanager
def frozen(stack: Stack) -> Iterator[None]:
    """Every process of PostgreSQL stopped: connecting works, and nothing is answered."""
    root = psutil.Process(stack.pid("postgres"))
    stopped: list[psutil.Process] = []
    try:
        for process in [root, *root.children(recursive=True)]:
            process.send_signal(signal.SIGSTOP)
            stopped.append(process)
        yield
    finally:
        for process in stopped:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


def test_after_postgresql_was_killed_under_load_no_thread_answers_500(stack: Stack, alice: Visitor) -> None:
    pages = [NOWHERE, FOREIGN_JOB, "/", "/admin/"]
    for _ in range(ROUNDS_BEFORE):
        warm = many([(alice, path) for path in pages * AT_ONCE])
        assert not [answer for answer in warm if answer.status >= 500]
        time.sleep(PAUSE_SECONDS)

    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(many, [(alice, path) for path in pages * AT_ONCE * 2])
        old = stack.kill("postgres")
        stack.wait_restarted("postgres", old)
        all_well(stack)
        load.result()

    for _ in range(ROUNDS_AFTER):
        found = many([(alice, path) for path in [NOWHERE, FOREIGN_JOB] * AT_ONCE])
        assert statuses(found) == {404: 2 * AT_ONCE}
        time.sleep(PAUSE_SECONDS)


def test_with_postgresql_frozen_probes_answer_in_time_and_pages_say_so(stack: Stack, alice: Visitor) -> None:
    all_well(stack)
    token = stack.token
    with frozen(stack):
        with ThreadPoolExecutor(60) as threads:
            # More than there are threads, so that all of them wait for the database.
            pages = [threads.submit(alice.get, path, timeout=60) for path in ["/", "/jobs/"] * 20]
            calls = [
                threads.submit(
                    alice.get, "/api/v1/jobs", timeout=60, headers={"Authorization": f"Bearer {token}"}
                )
                for _ in range(20)
            ]
            for _ in range(4):
                alive = alice.get("/livez", timeout=60)
                ready = alice.get("/readyz", timeout=60)
                assert (alive.status, ready.status) == (200, 503)
                assert '"failed": ["database"]' in ready.text
                # 2 s by the clock of a quiet machine.
                assert ready.seconds < patience(2.5)
                assert alive.seconds < patience(2.5)
            answers = [waiting.result() for waiting in [*pages, *calls]]
        assert statuses(answers) == {503: len(answers)}
        assert all(answer.headers["Retry-After"] for answer in answers)
        assert all(answer.seconds < patience(8) for answer in answers)
        assert "database" in answers[0].text
        # Later ones need not find out for themselves.
        again = alice.get("/", timeout=60)
        assert again.status == 503
        assert again.seconds < patience(2)

    all_well(stack)
    assert statuses(many([(alice, path) for path in ["/", "/jobs/"] * AT_ONCE])) == {200: 2 * AT_ONCE}


@pytest.mark.parametrize("how", ["frozen", "dead"])
def test_error_pages_need_no_database(stack: Stack, alice: Visitor, how: str) -> None:
    all_well(stack)
    stranger = Visitor(stack.base_url)
    stranger.get("/signin/")

    def look() -> None:
        for visitor in (alice, stranger):
            for _ in range(6):
                missing = visitor.get(NOWHERE, timeout=60)
                assert missing.status == 404
                assert missing.seconds < patience(5)
            refused = visitor.post("/signin/", {"username": "x", "password": "y"}, csrf=False, timeout=60)
            assert refused.status == 403
            assert refused.seconds < patience(5)

    if how == "frozen":
        with frozen(stack):
            look()
    else:
        old = stack.pid("postgres")
        supervisor = stack.popen
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGSTOP)  # so that it does not start another one meanwhile
        try:
            stack.kill("postgres")
            look()
        finally:
            os.kill(supervisor.pid, signal.SIGCONT)
        stack.wait_restarted("postgres", old)
    all_well(stack)


def submit(stack: Stack, token: str, command: str) -> tuple[int, int]:
    """The status, 0 where there was no answer, and the number of the job."""
    try:
        answer = stack.post("/api/v1/jobs", {"command": command, "hold": True}, token=token)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, 0
    except OSError:
        return 0, 0
    return 201, int(str(answer["number"]))


def test_t05_a_job_that_was_answered_201_is_there_after_postgresql_was_killed(stack: Stack) -> None:
    """One that was not answered may be there; none is there twice, and the audit chains are whole."""
    all_well(stack)
    token, over = stack.token, threading.Event()

    def submit_on(caller: int) -> list[tuple[int, int, str]]:
        done = []
        while not over.is_set():
            command = f"echo {caller} {len(done)}"
            done.append((*submit(stack, token, command), command))
        return done

    with ThreadPoolExecutor(12) as threads:
        callers = [threads.submit(submit_on, caller) for caller in range(12)]
        try:
            for _ in range(2):
                time.sleep(1)
                old = stack.kill("postgres")
                stack.wait_restarted("postgres", old)
                all_well(stack)
            time.sleep(1)
        finally:
            over.set()
        done = [one for caller in callers for one in caller.result()]

    assert {status for status, _, _ in done} <= {201, 503, 0}
    accepted = {number: command for status, number, command in done if status == 201}
    assert len(accepted) > 24
    page = "/api/v1/jobs?limit=500"
    found: list[dict[str, object]] = []
    while page:
        answer = stack.ask(page, token=token)
        found += answer["results"]  # type: ignore[arg-type]
        page = str(answer["next"] or "").removeprefix(stack.base_url)
    # What nobody got an answer to is there once at the most: each command was sent once.
    there = {int(str(job["number"])): str(job["name"]) for job in found}
    sent = [name for name in there.values() if name.startswith("echo ")]
    assert {number: there.get(number) for number in accepted} == accepted
    assert len(sent) == len(set(sent))
    stack.manage("audit_verify")


def test_with_postgresql_frozen_a_submission_is_answered_503_in_time(stack: Stack) -> None:
    all_well(stack)
    token = stack.token
    assert submit(stack, token, "true")[0] == 201
    with frozen(stack), ThreadPoolExecutor(AT_ONCE) as threads:
        began = time.monotonic()
        answers = list(threads.map(lambda n: submit(stack, token, f"echo {n}")[0], range(AT_ONCE)))
        assert set(answers) == {503}
        assert time.monotonic() - began < patience(16)

    all_well(stack)
    assert submit(stack, token, "true")[0] == 201
