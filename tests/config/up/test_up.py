"""`manage.py up`: it starts, it heals, it stops, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
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

from config.up.nodes import cores
from config.up.ports import listen
from tests.support.patience import patience
from tests.support.stack import ROOT, Stack, make_open_folder, scratch_state, wait_until

pytestmark = pytest.mark.stack

COUNT_PEOPLE = "from accounts.models import User; print(User.objects.count())"
SERVICES = ["postgres", "valkey", "web", "worker-scheduling", "worker-default", "beat", "node-1"]
FORKED = ["web", "web-2", "worker-scheduling", "worker-default", "beat"]
LONG_COMMAND = "sleep 4321"


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def postgres_port(stack: Stack) -> int:
    return int(json.loads((stack.state / "run" / "ports.json").read_text())["postgres"])


def connected(stack: Stack) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host="127.0.0.1",
        port=postgres_port(stack),
        user="muster",
        password=(stack.state / "postgres_password").read_text().strip(),
        dbname="muster",
    )


def people(stack: Stack) -> int:
    with connected(stack) as connection:
        return int(connection.execute("SELECT count(*) FROM accounts_user").fetchone()[0])  # type: ignore[index]


def ancestors(process: psutil.Process) -> list[int]:
    try:
        return [parent.pid for parent in process.parents()]
    except psutil.NoSuchProcess:
        return []


def shim_of(stack: Stack) -> int:
    return int((stack.state / "agents/node-1/keeper.lock").read_text())


def a_job_that_waits(stack: Stack) -> tuple[str, int, Path]:
    """A token, a running job's number, and the file that it waits for before it ends with exit code 7."""
    token = stack.token
    assert stack.open_folder is not None
    go = stack.open_folder / f"go-{time.monotonic_ns()}"
    command = f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo ended; exit 7"
    job = stack.post("/api/v1/jobs", {"name": "waits", "command": command, "cpu_cores": 1}, token=token)
    number = int(str(job["number"]))
    wait_until(lambda: "begun" in output_of(stack, number, token), seconds=60, why=stack.said)
    return token, number, go


def wait_for_end(stack: Stack, job: int, token: str) -> dict[str, object]:
    def ended() -> bool:
        return stack.ask(f"/api/v1/jobs/{job}", token=token)["state"] in ("completed", "failed", "cancelled")

    wait_until(ended, seconds=60, why=lambda: str(stack.ask(f"/api/v1/jobs/{job}", token=token)))
    return stack.ask(f"/api/v1/jobs/{job}", token=token)


def output_of(stack: Stack, job: int, token: str) -> str:
    return str(stack.ask(f"/api/v1/jobs/{job}/logs", token=token)["text"])


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One portal with one node for this file; the last tests kill it."""
    state = scratch_state("up")
    stack = Stack(
        state, ["--nodes", "1"], env={"MUSTER_WEB_PROCESSES": "2"}, open_folder=make_open_folder("up-jobs")
    )
    try:
        yield stack.start()
    finally:
        stack.stop()
        stack.remove_folders()


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
        "[+] policies",
        "[+] nodes",
        "[+] notifications",
        "[+] outside",
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


def test_a_second_one_in_the_same_folder_says_where_the_first_is(stack: Stack) -> None:
    second = Stack(stack.state, ["--nodes", "0"])
    second.spawn()

    assert second.wait_ended() == 1
    assert f"Already running at {stack.base_url}" in second.said()


def test_other_commands_find_its_servers(stack: Stack) -> None:
    code = "from django.conf import settings; print(settings.DATABASES['default']['PORT'])"

    said = stack.manage("shell", "-v", "0", "-c", code)

    assert int(said) == postgres_port(stack)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_processes_share_what_was_loaded_once(stack: Stack) -> None:
    for name in FORKED:
        memory = psutil.Process(stack.pid(name)).memory_full_info()
        assert memory.uss < memory.rss / 3, (name, memory)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_what_forks_them_has_one_thread_and_no_connection(stack: Stack) -> None:
    for name in ("fork-server", "fork-server-agents"):
        process = psutil.Process(stack.pid(name))
        assert process.num_threads() == 1
        assert process.net_connections() == []


def test_each_process_is_known_by_its_own_name_and_command_line(stack: Stack) -> None:
    names = {name: psutil.Process(stack.pid(name)).cmdline() for name in FORKED}
    assert {name: " ".join(words[1:5]) for name, words in names.items()} == {
        "web": f"-m config.up.web --fd {names['web'][4]}",
        "web-2": f"-m config.up.web --fd {names['web'][4]}",
        "worker-scheduling": f"-m config.workers.planner --lock {stack.state}/run/planner.lock",
        "worker-default": "-m celery -A config",
        "beat": "-m celery -A config",
    }
    wanted = {f"muster-{name}" for name in FORKED}

    def seen() -> bool:
        with connected(stack) as connection:  # a transaction sees one picture of the activity
            rows = connection.execute("SELECT application_name FROM pg_stat_activity").fetchall()
        wanted.difference_update(name for (name,) in rows)
        return not wanted

    wait_until(seen, seconds=60, why=lambda: str(wanted))  # a worker is connected while it has a task


@pytest.mark.parametrize("name", ["fork-server", "fork-server-agents"])
def test_what_was_forked_outlives_what_forked_it(stack: Stack, name: str) -> None:
    forked = {each: stack.pid(each) for each in [*FORKED, "node-1"]}

    stack.wait_restarted(name, stack.kill(name))
    old = stack.kill("web-2")
    stack.wait_restarted("web-2", old)

    kept = {each: stack.pid(each) for each in forked if each != "web-2"}
    assert kept == {each: pid for each, pid in forked.items() if each != "web-2"}


@pytest.mark.parametrize("name", ["web", "web-2", "worker-scheduling", "worker-default", "beat", "node-1"])
def test_a_killed_service_comes_back(stack: Stack, name: str) -> None:
    old = stack.kill(name)

    # The socket is the supervisor's: even while web is away, a request waits and is answered.
    assert stack.ready()["code"] == 200
    new = stack.wait_restarted(name, old)
    assert psutil.pid_exists(new)


@pytest.mark.skipif(cores() < 2, reason="a machine of one core has no spare planner")
def test_the_spare_plans_where_the_planner_was_killed(stack: Stack) -> None:
    token = stack.token
    wait_until(lambda: (stack.state / "run/worker-scheduling-spare.ready").exists(), seconds=60)
    both = {stack.pid("worker-scheduling"), stack.pid("worker-scheduling-spare")}
    at_work = int((stack.state / "run/planner.lock").read_text())
    assert at_work in both

    os.kill(at_work, signal.SIGKILL)
    job = stack.post("/api/v1/jobs", {"name": "after", "command": "true", "cpu_cores": 1}, token=token)

    assert wait_for_end(stack, int(str(job["number"])), token)["state"] == "completed"
    assert int((stack.state / "run/planner.lock").read_text()) in both - {at_work}


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
    spare = ["worker-scheduling-spare"] if cores() > 1 else []
    second = ", ".join(["worker-scheduling", "worker-default", *spare, "node-1"])
    assert order == ["beat", second, "web, web-2, fork-server, fork-server-agents", "valkey", "postgres"]
    assert not any(is_alive(process) for process in processes)

    started = time.monotonic()
    stack.start()
    assert time.monotonic() - started < patience(60)  # under 10 s on a quiet machine; this one is shared


@pytest.mark.parametrize("agent_too", [False, True], ids=["supervisor", "supervisor_and_agent"])
def test_what_runs_goes_on_without_the_supervisor_and_ends_once(stack: Stack, agent_too: bool) -> None:
    token, job, go = a_job_that_waits(stack)
    ours, agent, shim = stack.descendants(), stack.pid("node-1"), shim_of(stack)
    jobs = psutil.Process(shim).children(recursive=True)[:1]

    stack.kill_9_the_supervisor()
    if agent_too:
        os.kill(agent, signal.SIGKILL)

    others = [p for p in ours if p.pid not in (agent, shim) and shim not in ancestors(p)]
    # Nothing keeps a port, and no second postmaster meets the first.
    wait_until(lambda: not any(map(is_alive, others)))
    assert jobs
    assert all(map(is_alive, jobs))
    stack.start()  # on another port
    assert all(map(is_alive, jobs))
    wait_until(lambda: stack.pid("node-1") != agent, seconds=60)
    go.touch()
    ended = wait_for_end(stack, job, token)

    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 7, 1)
    wait_until(lambda: output_of(stack, job, token) == "begun\nended\n")  # the end is there before the log


def test_jobs_of_a_node_that_is_not_asked_for_again_go_on_too(stack: Stack) -> None:
    token, job, go = a_job_that_waits(stack)
    asked, stack.arguments = stack.arguments, ["--nodes", "0"]
    stack.kill_9_the_supervisor()
    stack.output.clear()
    try:
        stack.start()
    finally:
        stack.arguments = asked
    assert "jobs from before this start run on node-1" in stack.said()
    go.touch()

    assert wait_for_end(stack, job, token)["attempt"] == 1


def test_ctrl_c_ends_jobs_whose_agent_is_gone_as_well(stack: Stack) -> None:
    a_job_that_waits(stack)
    jobs = psutil.Process(shim_of(stack)).children(recursive=True)
    stack.kill_9_the_supervisor()
    stack.spawn()
    wait_until(lambda: any("state in" in line for line in stack.output[-5:]), seconds=60)

    stack.stop()  # before it had an agent of its own

    assert jobs
    assert not any(map(is_alive, jobs))
    assert not stack.held("agents/node-1/keeper.lock")
    assert not stack.held("agents/node-1/agent.lock")
    stack.start()


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
