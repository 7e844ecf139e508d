"""`manage.py up`: it starts, it heals, it stops, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from config.up.ports import listen
from tests.support.patience import patience
from tests.support.stack import ROOT, Stack, scratch_state, wait_until

pytestmark = pytest.mark.stack

COUNT_PEOPLE = "from accounts.models import User; print(User.objects.count())"
SERVICES = ["postgres", "valkey", "web", "worker-scheduling", "worker-default", "beat", "node-1"]
LONG_COMMAND = "sleep 4321"


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def postgres_port(stack: Stack) -> int:
    return int(json.loads((stack.state / "run" / "ports.json").read_text())["postgres"])


def people(stack: Stack) -> int:
    with psycopg.connect(
        host="127.0.0.1",
        port=postgres_port(stack),
        user="muster",
        password=(stack.state / "postgres_password").read_text().strip(),
        dbname="muster",
    ) as connection:
        return int(connection.execute("SELECT count(*) FROM accounts_user").fetchone()[0])  # type: ignore[index]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One portal with one node for this file; the last tests kill it."""
    state = scratch_state("up")
    stack = Stack(state, ["--nodes", "1"], env={"MUSTER_WEB_PROCESSES": "2"})
    try:
        yield stack.start()
    finally:
        stack.stop()
        shutil.rmtree(state, ignore_errors=True)


def test_it_serves_and_says_so(stack: Stack) -> None:
    assert stack.ready() == {"code": 200, "status": "ok", "failed": [], "degraded": []}
    assert stack.get("/livez") == (200, "ok\n")
    assert "admin-demo" in stack.said()


def test_readyz_says_more_when_asked(stack: Stack) -> None:
    status, text = stack.get("/readyz?verbose", token=stack.metrics_token)

    assert status == 200
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "[+] database",
        "[+] migrations",
        "[+] planner",
        "[+] redis",
        "[+] disk",
        "readyz",
    ]


def test_a_job_on_this_machine_reads_neither_metrics_nor_details(stack: Stack) -> None:
    assert stack.get("/metrics")[0] == 403
    assert stack.get("/metrics", token="guessed")[0] == 403
    status, text = stack.get("/readyz?verbose")

    assert (status, json.loads(text)) == (200, {"status": "ok", "failed": [], "degraded": []})


def test_metrics_count_requests_by_route(stack: Stack) -> None:
    stack.get("/readyz")

    _, text = stack.get("/metrics", token=stack.metrics_token)

    assert 'muster_http_requests_total{method="GET",route="readyz",status="200"}' in text


def test_both_web_processes_count_for_the_portal(stack: Stack) -> None:
    def asked() -> float:
        _, text = stack.get("/metrics", token=stack.metrics_token)
        (line,) = [
            li for li in text.splitlines() if li.startswith("muster_http_requests_total") and 'route=""' in li
        ]
        return float(line.rpartition(" ")[2])

    stack.get("/")
    before = asked()
    for _ in range(20):
        stack.get("/")

    assert asked() == before + 20


def test_every_answer_names_its_request_and_sets_a_policy_without_outside_hosts(stack: Stack) -> None:
    with socket.create_connection(("127.0.0.1", int(stack.base_url.rsplit(":", 1)[1]))) as sock:
        sock.sendall(
            b"GET /admin/login/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"X-Request-ID: abcdefgh-1\r\n\r\n"
        )
        answer = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    head = answer.partition("\r\n\r\n")[0].lower()

    assert "x-request-id: abcdefgh-1" in head
    policy = next(line for line in head.splitlines() if line.startswith("content-security-policy"))
    assert "http:" not in policy
    assert "https:" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_second_one_in_the_same_folder_is_told_where_the_first_is(stack: Stack) -> None:
    second = Stack(stack.state, ["--nodes", "0"])
    second.spawn()

    assert second.wait_ended() == 1
    assert f"Already running at {stack.base_url}" in second.said()


def test_other_commands_find_its_servers(stack: Stack) -> None:
    code = "from django.conf import settings; print(settings.DATABASES['default']['PORT'])"

    said = stack.manage("shell", "-v", "0", "-c", code)

    assert int(said) == postgres_port(stack)


@pytest.mark.parametrize("name", ["web", "web-2", "worker-scheduling", "worker-default", "beat", "node-1"])
def test_a_killed_service_comes_back(stack: Stack, name: str) -> None:
    old = stack.kill(name)

    # The socket is the supervisor's: even while web is away, a request waits and is answered.
    assert stack.ready()["code"] == 200
    new = stack.wait_restarted(name, old)
    assert psutil.pid_exists(new)


@pytest.mark.parametrize("name", ["valkey", "postgres"])
def test_a_killed_server_comes_back_with_its_data(stack: Stack, name: str) -> None:
    before = people(stack)

    old = stack.kill(name)
    stack.wait_restarted(name, old)
    wait_until(lambda: stack.ready()["status"] == "ok", seconds=60, why=lambda: str(stack.ready()))

    assert people(stack) == before
    assert before > 0


def test_without_redis_it_is_degraded_and_ready(stack: Stack) -> None:
    stopped = stack.kill("valkey", signal.SIGSTOP)
    try:
        wait_until(lambda: stack.ready()["degraded"] == ["redis"])

        assert stack.ready()["code"] == 200
        assert stack.get("/admin/login/")[0] == 200
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: stack.ready()["status"] == "ok")


def test_without_a_database_it_lives_and_is_not_ready(stack: Stack) -> None:
    stopped = stack.kill("postgres", signal.SIGSTOP)
    try:
        assert stack.get("/livez", timeout=patience(5)) == (200, "ok\n")
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: stack.ready()["status"] == "ok")


def test_secrets_are_private_and_absent_from_command_lines(stack: Stack) -> None:
    secrets = [
        *("secret_key", "postgres_password", "valkey_password", "metrics_token"),
        *("servers.json", "valkey/valkey.conf"),
    ]

    assert {name: (stack.state / name).stat().st_mode & 0o077 for name in secrets} == dict.fromkeys(
        secrets, 0
    )
    values = [(stack.state / name).read_text().strip() for name in secrets[:4]]
    shown = [" ".join(process.cmdline()) for process in stack.descendants()]
    assert [line for line in shown for value in values if value in line] == []


def test_ctrl_c_stops_everything_in_order_and_the_next_start_is_quick(stack: Stack) -> None:
    processes = stack.descendants()
    stack.output.clear()

    code = stack.stop()

    assert code == 0
    lines = [line.split(" stopped ")[1] for line in stack.output if " stopped " in line]
    order = [line.split(" (")[0] for line in lines if line.endswith("s)")]
    assert order == ["beat", "worker-scheduling, worker-default, node-1", "web, web-2", "valkey", "postgres"]
    assert not any(is_alive(process) for process in processes)

    started = time.monotonic()
    stack.start()
    assert time.monotonic() - started < patience(60)  # under 10 s on a quiet machine; this one is shared


def test_kill_9_of_the_supervisor_leaves_no_orphan_and_no_damage(stack: Stack) -> None:
    token = stack.manage("token", "alice", "--scopes", "jobs:write,jobs:read").splitlines()[-1]
    stack.post("/api/v1/jobs", {"name": "long", "command": LONG_COMMAND, "cpu_cores": 1}, token=token)
    wait_until(lambda: any(LONG_COMMAND in " ".join(p.cmdline()) for p in stack.descendants()), seconds=60)
    processes = stack.descendants()
    names = {name: stack.pid(name) for name in SERVICES}
    assert stack.popen is not None

    os.kill(stack.popen.pid, signal.SIGKILL)
    stack.wait_ended()

    assert set(names.values()) <= {process.pid for process in processes}
    wait_until(lambda: not any(is_alive(process) for process in processes))
    stack.start()
    assert stack.ready()["status"] == "ok"


def test_a_port_in_use_is_an_error_when_it_was_asked_for(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        by_option = Stack(tmp_path / "a", ["--port", port])
        by_variable = Stack(tmp_path / "b", [], env={"PORT": port})
        by_option.spawn()
        said = subprocess.run(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT,
            env=by_variable.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert by_option.wait_ended() == 1
    assert f"Port {port} on 127.0.0.1, asked for by --port, is in use" in by_option.said()
    assert said.returncode == 1
    assert f"Port {port} on 127.0.0.1, asked for by PORT, is in use" in said.stderr


def test_a_command_without_a_portal_starts_servers_for_itself(stack: Stack) -> None:
    stack.stop()

    said = stack.manage("shell", "-v", "0", "-c", COUNT_PEOPLE)

    assert int(said) > 0
    assert not (stack.state / "servers.json").exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(
            host="127.0.0.1", port=postgres_port(stack), user="muster", password="x", connect_timeout=2
        )
